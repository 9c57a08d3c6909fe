"""Requests to AWS's services, with errors in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sm_profiler.errors import SourceError

try:
    from botocore.exceptions import BotoCoreError, ClientError

    from sm_profiler.storage.api_client import create_api_client
except ImportError as missing:
    raise SourceError("this destination needs boto3: pip install 'sm-profiler[aws]'") from missing


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
        return call(**parameters)
    except (ClientError, BotoCoreError) as error:
        message = getattr(error, "response", {}).get("Error", {}).get("Message") or str(error)
        raise SourceError(f"{call.__name__}: {' '.join(str(message).split())}") from error
