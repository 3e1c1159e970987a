"""A transaction's journey, step by step: the core's decisions over the ports, without an engine."""
