"""Tidemark's pages in Airflow, the API that they read, and the actions that they offer."""
