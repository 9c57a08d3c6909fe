"""Descriptors of our files in the process of a script, which may close all that it finds and open files of its own.

The system gives a new file the lowest free number.  If the script had closed one of ours, its own file would get that number,
and our next write would go there.
"""

import fcntl
import os
import resource

_MOST = 4096  # forks copy the table of descriptors up to the highest number
_OURS = 96


def moved_up(file: int) -> int:
    """Return a number for an open file that none of the script's will get, as it has far fewer; the former one is closed."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = (min(limit, _MOST) if limit > 0 else _MOST) - _OURS
    try:
        high = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, lowest)
    except (OSError, ValueError):  # the limit is low, or so many are open
        return file
    os.close(file)
    return high
