"""What the pipeline needs from the world, as protocols: ledgers, a source, a data plane, a state plane."""
