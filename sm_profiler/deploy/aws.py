"""Errors of AWS calls as one-line errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from botocore.exceptions import BotoCoreError, ClientError

from sm_profiler.errors import ProfilerError
from sm_profiler.printable import one_line
from sm_profiler.storage.s3_client import credentials_problem, reason_of


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
        raise ProfilerError(credentials_problem(error) or f"{refused}: {one_line(error)}") from error
    except (BotoCoreError, ValueError) as error:  # ValueError: an endpoint in the settings that is not a URL
        raise ProfilerError(reason_of(error)) from error
