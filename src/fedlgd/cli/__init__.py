"""The command line."""

from fedlgd.cli.app import main

__all__ = ["main"]
