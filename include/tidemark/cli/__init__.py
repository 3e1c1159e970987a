"""The `tidemark` command. Each command is a module; engines are imported when a command runs, not before."""
