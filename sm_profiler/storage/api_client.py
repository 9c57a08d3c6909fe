"""Clients of AWS's control planes (SageMaker, ECR, STS), with the timeouts of the S3 clients and a few attempts."""

from __future__ import annotations

from typing import Any

from sm_profiler.storage.s3_client import create_client

ATTEMPTS = 3  # of a request that is throttled or gets no answer


def create_api_client(service: str, *, region: str | None = None, session: Any = None) -> Any:
    """Create a boto3 client of a service other than S3.

    Args:
        service: the service's name, such as `sagemaker`.
        region: AWS region; default: the session's.
        session: the boto3 session; default: boto3's own.

    Raises:
        SourceError: the client cannot be created, for example without a region.
    """
    return create_client(service, session=session, attempts=ATTEMPTS, region_name=region)
