"""The data plane: Spark sessions, the jars and the Java they need, and work on DataFrames. The extra `spark`.

`home`, `java` and `jars` import neither pyspark nor a JVM until they are asked to download something.
"""

from tidemark.core.extras import require

require("spark")
