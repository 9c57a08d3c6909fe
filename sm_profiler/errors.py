"""The errors that users see; each has a message of one line."""


class ProfilerError(Exception):
    """A problem that the user can solve; the message describes what to do."""


class ConfigError(ProfilerError, ValueError):
    """A profiler configuration that is not valid."""


class SourceError(ProfilerError):
    """Profiler data that cannot be found, reached, read or written."""
