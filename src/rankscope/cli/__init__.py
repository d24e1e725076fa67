"""The command line: parse, call one function, write one file. Importing it does not import torch."""

from rankscope.cli.app import app, main

__all__ = ["app", "main"]
