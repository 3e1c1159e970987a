"""Tidemark's pages in Airflow: a read-only API on the control plane, and the pages that show it."""
