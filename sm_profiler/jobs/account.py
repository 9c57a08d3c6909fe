"""The training jobs of an account in one region, at a rate that the service accepts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import attrs
from botocore.exceptions import ClientError

from sm_profiler.errors import SourceError
from sm_profiler.jobs.listing import JobPlace, find_places
from sm_profiler.printable import printable
from sm_profiler.source.job import outputs_of, refused
from sm_profiler.storage import Storage, open_storage
from sm_profiler.storage.s3 import REQUEST_ERRORS, create_client, reason_of

ATTEMPTS = (
    6  # of a request that is throttled or gets no answer; the client itself slows down (botocore's adaptive mode)
)
PAGE = 100
OVER = frozenset({"Completed", "Failed", "Stopped"})
MAX_TAGS, MAX_MESSAGE = 60, 600
MAX_JOBS = 200_000


@attrs.frozen
class AccountJob:
    """A training job of an account.

    Attributes:
        name, arn, status: as SageMaker has them.
        modified: a text that changes with the job.
        created: seconds since the epoch; 0 if unknown.
    """

    name: str
    arn: str
    status: str
    modified: str
    created: float

    @classmethod
    def of(cls, summary: dict[str, Any]) -> AccountJob:
        """Return a job of the service's list."""
        status = str(summary.get("TrainingJobStatus", ""))
        created, modified, ended = (
            _timestamp(summary.get(f"{key}Time")) for key in ("Creation", "LastModified", "TrainingEnd")
        )
        changed = modified or ended
        return cls(
            str(summary.get("TrainingJobName", "")),
            str(summary.get("TrainingJobArn", "")),
            status,
            f"{status} {changed:.3f}" if changed else f"{status} ",
            created,
        )

    @property
    def ended(self) -> bool:
        """True if it no longer runs."""
        return self.status in OVER


def _timestamp(value: object) -> float:
    return value.timestamp() if isinstance(value, datetime) else 0.0


@attrs.frozen(eq=False)
class Account:
    """An account's training jobs in one region; requests that fail are a SourceError.

    Attributes:
        sagemaker, s3: boto3 clients.
    """

    sagemaker: Any
    s3: Any
    region: str

    @classmethod
    def open(cls, region: str) -> Account:
        """Open the account of the environment's credentials."""
        try:
            client = create_client("sagemaker", region_name=region or None, attempts=ATTEMPTS)
        except SourceError as error:
            if type(error.__cause__).__name__ != "NoRegionError":  # botocore's, not imported for its name
                raise
            raise SourceError("account: needs a region: account:us-east-1") from error
        return cls(client, create_client("s3", region_name=region or None), client.meta.region_name)

    def jobs(self, since: float | None = None) -> Iterator[AccountJob]:
        """Yield the jobs, the newest first."""
        request: dict[str, Any] = {"SortBy": "CreationTime", "SortOrder": "Descending"}
        if since is not None:
            request["CreationTimeAfter"] = datetime.fromtimestamp(since, timezone.utc)
        summaries = self._items("list_training_jobs", "TrainingJobSummaries", MAX_JOBS, PAGE, **request)
        yield from map(AccountJob.of, summaries)

    def describe(self, name: str) -> dict[str, Any]:
        try:
            described = self.sagemaker.describe_training_job(TrainingJobName=name)
        except ClientError as error:
            raise SourceError(printable(refused(error, name, self.region))[:MAX_MESSAGE]) from error
        except REQUEST_ERRORS as error:
            raise self._explained(error) from error
        return {key: value for key, value in described.items() if key != "ResponseMetadata"}

    def place(self, description: dict[str, Any], name: str) -> tuple[Storage, JobPlace] | None:
        """Return where a job's profile and report are; None if it has neither."""
        try:
            outputs = outputs_of(description, name)
        except SourceError:  # it is not profiled
            return None
        problem = None
        for output in outputs:
            storage = open_storage(output.removesuffix("/profiler-output"), client=self.s3)
            try:
                found = find_places(storage).places
            except SourceError as error:  # the profile may be in another place
                problem = problem or error
                continue
            if found:
                return storage, min(found, key=lambda place: (place.report is None, place.profile is None))
        if problem is not None:
            raise problem
        return None

    def tags(self, arn: str) -> list[dict[str, str]]:
        return list(self._items("list_tags", "Tags", MAX_TAGS, ResourceArn=arn))

    def _items(
        self, operation: str, key: str, limit: int, page: int | None = None, **request: Any
    ) -> Iterator[dict[str, Any]]:
        pagination = {"MaxItems": limit, "PageSize": page}
        try:
            for answer in self.sagemaker.get_paginator(operation).paginate(PaginationConfig=pagination, **request):
                yield from answer.get(key, ())
        except REQUEST_ERRORS as error:
            raise self._explained(error) from error

    def _explained(self, error: BaseException) -> SourceError:
        return SourceError(printable(reason_of(error, self.region))[:MAX_MESSAGE])
