"""The engine-free heart: frozen values and pure decisions, on the standard library alone."""
