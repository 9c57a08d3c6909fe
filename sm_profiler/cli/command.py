"""What a sub-command is."""

from argparse import ArgumentParser, Namespace
from typing import Protocol

DONE, BAD, USAGE = 0, 1, 2  # exit codes: done; the thing asked about is bad; wrong usage or unreadable input


class Command(Protocol):
    """A sub-command: one small class in a module of its own, loaded only when it is called."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare arguments on the sub-command's own parser."""

    def run(self, options: Namespace) -> int:
        """Do it; returns the exit code.  A ProfilerError becomes one line on standard error and exit code 2."""
