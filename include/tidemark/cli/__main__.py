"""`python -m tidemark.cli`: the command, for use if its script is not on the path."""

from tidemark.cli.app import main

main()
