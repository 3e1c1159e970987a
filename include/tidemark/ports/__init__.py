"""The interfaces that the pipeline needs, as protocols: ledgers, a source, a data plane, a state plane."""
