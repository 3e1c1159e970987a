"""Great Expectations at the gate: documents the digests and runs the user's checks, without showing rows."""
