"""A local Airflow in one folder, for the demo, `make ui` and the tests. Not part of the package."""
