"""Spark's requirements on a machine: Java, jars, and the folder for both."""
