"""Sources on the binding side: which input can be bound, and whether bound input still exists.

Nothing in this package loads Spark.
"""
