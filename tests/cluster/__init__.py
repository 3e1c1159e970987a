"""Tidemark on a standalone Spark cluster."""
