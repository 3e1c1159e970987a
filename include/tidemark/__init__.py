"""Tidemark upserts change streams into Delta Lake on Spark, and proves what it wrote.

Importing this package is cheap: engines (Spark, Airflow, delta-rs) load with the subpackage that needs them.
"""

__version__ = "0.1.0"
