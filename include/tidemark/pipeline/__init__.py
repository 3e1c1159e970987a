"""The steps of a transaction: the core's decisions, carried out over the ports, without an engine."""
