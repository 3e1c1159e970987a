"""The application: pipeline files, adapters and steps put together, for the command and for Airflow."""
