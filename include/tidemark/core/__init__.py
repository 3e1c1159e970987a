"""The decisions of Tidemark: frozen values and pure functions that need only the standard library."""
