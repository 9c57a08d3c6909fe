"""Requests to AWS's services, with errors in one line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sm_profiler.errors import SourceError
from sm_profiler.exporters.deadline import within

try:
    from botocore.exceptions import BotoCoreError, ClientError

    from sm_profiler.storage.api_client import create_api_client
    from sm_profiler.storage.s3_client import reason_of
except ImportError as missing:
    raise SourceError("this destination needs boto3: pip install 'sm-profiler[aws]'") from missing

REQUEST_S = 180.0  # with the attempts that botocore makes


def client_of(service: str, region: str | None = None) -> Any:
    """Create a client of a service.

    Raises:
        SourceError: it cannot be created, for example without a region.
    """
    return create_api_client(service, region=region)


def request(call: Callable[..., Any], **parameters: Any) -> Any:
    """Send a request.

    Raises:
        SourceError: it fails.
    """
    try:
        return within(REQUEST_S, partial(call, **parameters))
    except (ClientError, BotoCoreError) as error:
        raise SourceError(f"{call.__name__}: {reason_of(error)}") from error
