"""The source that reads files from a folder."""
