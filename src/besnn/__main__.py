"""`python -m besnn`: the command line, for when its script is not on the path."""

from besnn.cli import main

main()
