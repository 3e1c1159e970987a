"""The application layer: connects pipeline files, adapters and steps for the command and for Airflow."""
