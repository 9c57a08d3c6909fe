"""The errors a user can meet; each carries one clear line."""


class ProfilerError(Exception):
    """Something the user can act on; the message is one line and says what to do."""


class ConfigError(ProfilerError, ValueError):
    """A profiler configuration that cannot be understood or would be refused."""


class SourceError(ProfilerError):
    """Profiler data that cannot be found, reached or read."""
