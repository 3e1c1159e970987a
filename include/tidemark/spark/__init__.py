"""The data plane: Spark sessions, the jars and the Java they need, and work on DataFrames.

`home`, `java` and `jars` import neither pyspark nor a JVM until they are asked to download something.
"""
