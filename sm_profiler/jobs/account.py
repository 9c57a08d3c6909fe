"""The training jobs of an account in one region, at a rate that the service accepts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import attrs

from sm_profiler.errors import SourceError
from sm_profiler.jobs.listing import Place, find_places
from sm_profiler.printable import printable
from sm_profiler.source.job import output_of
from sm_profiler.storage import Storage, open_storage
from sm_profiler.storage.base import jittered_pause
from sm_profiler.storage.s3_client import REQUEST_ERRORS, create_client, is_answer, is_transient, reason_of

ATTEMPTS = 8  # of a request that is throttled
CONNECTIONS = 3  # attempts of a request that gets no answer
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
SHORTEST_S, LONGEST_S = 0.02, 2.0  # between two requests
SLOWER, FASTER = 2.0, 0.95  # factors of that after a request that was throttled, and after one that was not
PAGE = 100
OVER = frozenset({"Completed", "Failed", "Stopped"})
MAX_TAGS, MAX_MESSAGE = 60, 600
MOST_JOBS = 200_000


@attrs.frozen
class TrainingJob:
    """One job of an account.

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

    @property
    def ended(self) -> bool:
        """True if it runs no more."""
        return self.status in OVER


class Pace:
    """Requests of several threads, as fast as the service allows: each throttled one doubles the time between them."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self.interval = SHORTEST_S
        self._clock, self._sleep = clock, sleep
        self._next = 0.0
        self._lock = threading.Lock()

    def call(self, request: Callable[[], Any], region: str = "") -> Any:
        """Send a request when its turn comes, and again if it was throttled.

        Args:
            request: sends it.
            region: where it goes, for errors.

        Raises:
            SourceError: it failed.
        """
        for failures in range(1, ATTEMPTS + 1):
            self._wait()
            try:
                answer = request()
            except REQUEST_ERRORS as error:
                most = ATTEMPTS if is_answer(error) else CONNECTIONS
                if failures >= most or not is_transient(error):
                    raise SourceError(printable(reason_of(error, region))[:MAX_MESSAGE]) from error
                with self._lock:
                    self.interval = min(self.interval * SLOWER, LONGEST_S)
                self._sleep(jittered_pause(failures, FIRST_PAUSE_S, LONGEST_PAUSE_S))
            else:
                with self._lock:
                    self.interval = max(self.interval * FASTER, SHORTEST_S)
                return answer
        raise AssertionError  # the last attempt returns or raises

    def _wait(self) -> None:
        with self._lock:
            now = self._clock()
            turn = max(self._next, now)
            self._next = turn + self.interval
        if turn > now:
            self._sleep(turn - now)


@attrs.frozen(eq=False)
class Account:
    """An account's training jobs in one region.

    Attributes:
        sagemaker, s3: boto3 clients.
        region: the region's name.
        pace: of the requests to SageMaker.
    """

    sagemaker: Any
    s3: Any
    region: str
    pace: Pace = attrs.field(factory=Pace)

    @classmethod
    def open(cls, region: str) -> Account:
        """Open the account of the environment's credentials.

        Raises:
            SourceError: there is no region, or the clients cannot be created.
        """
        client = create_client("sagemaker", region_name=region or None)
        return cls(client, create_client("s3", region_name=region or None), client.meta.region_name)

    def jobs(self, since: float | None = None) -> Iterator[TrainingJob]:
        """Yield the jobs, the newest first.

        Args:
            since: leave out jobs that were created before; seconds since the epoch.

        Raises:
            SourceError: they cannot be listed.
        """
        request: dict[str, Any] = {"MaxResults": PAGE, "SortBy": "CreationTime", "SortOrder": "Descending"}
        if since is not None:
            request["CreationTimeAfter"] = datetime.fromtimestamp(since, timezone.utc)
        count = 0
        while True:
            page = self.pace.call(lambda: self.sagemaker.list_training_jobs(**request), self.region)
            for found in page.get("TrainingJobSummaries", ()):
                yield _job_of(found)
                count += 1
            token = page.get("NextToken")
            if not token or token == request.get("NextToken") or count > MOST_JOBS:
                return
            request["NextToken"] = token

    def describe(self, name: str) -> dict[str, Any]:
        """Return the description of a job.

        Raises:
            SourceError: the request failed.
        """
        described = self.pace.call(lambda: self.sagemaker.describe_training_job(TrainingJobName=name), self.region)
        return {key: value for key, value in described.items() if key != "ResponseMetadata"}

    def place(self, description: dict[str, Any], name: str) -> tuple[Storage, Place] | None:
        """Return where a job's profile and report are; None if it has neither.

        Raises:
            SourceError: it cannot be listed.
        """
        try:
            output = output_of(description, name)
        except SourceError:  # it is not profiled
            return None
        storage = open_storage(output.removesuffix("/profiler-output"), client=self.s3)
        places = sorted(find_places(storage).places, key=lambda one: (one.report is None, one.profile is None))
        return (storage, places[0]) if places else None

    def tags(self, arn: str) -> list[dict[str, str]]:
        """Return the tags of a job.

        Raises:
            SourceError: a request failed.
        """
        found: list[dict[str, str]] = []
        request = {"ResourceArn": arn}
        while True:
            page = self.pace.call(lambda: self.sagemaker.list_tags(**request), self.region)
            found += page.get("Tags", ())
            token = page.get("NextToken")
            if not token or token == request.get("NextToken") or len(found) > MAX_TAGS:
                return found
            request["NextToken"] = token


def _job_of(found: dict[str, Any]) -> TrainingJob:
    status = str(found.get("TrainingJobStatus", ""))
    created, modified, ended = (found.get(f"{key}Time") for key in ("Creation", "LastModified", "TrainingEnd"))
    return TrainingJob(
        str(found.get("TrainingJobName", "")),
        str(found.get("TrainingJobArn", "")),
        status,
        f"{status} {_stamp(modified or ended)}",
        created.timestamp() if isinstance(created, datetime) else 0.0,
    )


def _stamp(value: object) -> str:
    return f"{value.timestamp():.3f}" if isinstance(value, datetime) else ""
