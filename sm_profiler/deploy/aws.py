"""Errors of AWS calls as one-line errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from botocore.exceptions import BotoCoreError, ClientError

from sm_profiler.errors import ProfilerError


@contextlib.contextmanager
def one_line_errors(refused: str) -> Iterator[None]:
    """Turn errors of AWS calls into a ProfilerError of one line.

    Args:
        refused: opening of the message if the service refuses a call.

    Raises:
        ProfilerError: a call in the block failed.
    """
    try:
        yield
    except ClientError as error:
        raise ProfilerError(f"{refused}: {' '.join(str(error).split())}") from error
    except (BotoCoreError, ValueError) as error:  # ValueError: an endpoint in the settings that is not a URL
        raise ProfilerError(" ".join(str(error).split())) from error
