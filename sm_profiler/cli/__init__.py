"""The command line, `sm-profiler`: a module for each sub-command."""

from sm_profiler.cli.main import main

__all__ = ["main"]
