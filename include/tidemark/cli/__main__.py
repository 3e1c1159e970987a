"""`python -m tidemark.cli`: the command, where its script is not on the path."""

from tidemark.cli.app import main

main()
