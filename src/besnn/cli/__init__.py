"""The command line: one thin file per command. The library does the work; here are options and messages."""

from besnn.cli.app import main

__all__ = ["main"]
