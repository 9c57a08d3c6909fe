"""Interface of a sub-command."""

from argparse import ArgumentParser, Namespace
from typing import Protocol

DONE, BAD, USAGE = 0, 1, 2  # exit codes: success; the inspected thing is bad; wrong usage or unreadable input


class Command(Protocol):
    """A sub-command, imported only when it is called."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare arguments on the sub-command's own parser."""

    def run(self, options: Namespace) -> int:
        """Run and return the exit code; a ProfilerError becomes one line on standard error and exit code 2."""
