"""`python -m besnn`: the command line where its script is not on the path."""

from besnn.cli import main

main()
