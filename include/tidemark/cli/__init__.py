"""The `tidemark` command. Engines are imported when a command needs them, not before."""
