"""The Great Expectations side of the gate: digests documented, the user's own checks run, no row shown."""
