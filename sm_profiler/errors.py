"""The errors that users see; each has a message of one line."""

from sm_profiler.printable import printable


class ProfilerError(Exception):
    """A problem that the user can solve; the message describes what to do.

    The message is one line without control characters, even if it quotes data that contains them.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class ConfigError(ProfilerError, ValueError):
    """A profiler configuration that is not valid."""


class SourceError(ProfilerError):
    """Profiler data that cannot be found, reached, read or written."""
