"""The command line: one file a command, loaded when it is called; the only code that prints."""

from tanren_dsl.cli.app import main

__all__ = ["main"]
