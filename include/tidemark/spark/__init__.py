"""The data plane: Spark sessions, and the reading, decoding, folding and writing of rows as DataFrames.

The extra `spark`.
"""

from tidemark.core.errors import require

require("spark")
