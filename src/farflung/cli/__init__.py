"""The command line. Errors are one line and exit code 2 (1 where training itself broke), Ctrl-C is 130."""

from farflung.cli.main import main

__all__ = ["main"]
