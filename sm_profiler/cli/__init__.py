"""The command line, `sm-profiler`; `main.COMMANDS` lists the sub-commands with their modules."""

from sm_profiler.cli.main import main

__all__ = ["main"]
