"""The binding side of sources: what there is to bind, and whether it is still there. Loads no engine."""
