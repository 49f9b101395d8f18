"""The command line: one thin file a command. What a command does is in the library; here are its options and its words."""

from besnn.cli.app import main

__all__ = ["main"]
