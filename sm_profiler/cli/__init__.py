"""The command line, `sm-profiler`: one module with one `Command` class per sub-command."""

from sm_profiler.cli.main import main

__all__ = ["main"]
