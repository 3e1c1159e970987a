"""The data plane: Spark sessions, and the reading, decoding, folding and writing of rows as DataFrames."""
