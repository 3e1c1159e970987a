"""Real processes, killed for real: the crash campaign and the race."""
