"""The command line: `sm-profiler`; one class a sub-command, each in a module of its own."""

from sm_profiler.cli.main import main

__all__ = ["main"]
