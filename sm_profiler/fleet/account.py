"""The training jobs of an account in one region, at a rate that the service accepts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from typing import Any

import attrs

from sm_profiler.errors import SourceError
from sm_profiler.fleet import folders, texts
from sm_profiler.fleet.candidate import Candidate, Loaded
from sm_profiler.fleet.model import FleetJob
from sm_profiler.fleet.places import find_places
from sm_profiler.printable import one_line, printable
from sm_profiler.source.job import output_of
from sm_profiler.storage import open_storage
from sm_profiler.storage.base import jittered_pause
from sm_profiler.storage.s3_client import REQUEST_ERRORS, create_client, is_answer, is_transient

ATTEMPTS = 8  # of a request that is throttled
CONNECTIONS = 3  # attempts of a request that gets no answer
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
SHORTEST_S, LONGEST_S = 0.02, 2.0  # between two requests
SLOWER, FASTER = 2.0, 0.95  # factors of that after a request that was throttled, and after one that was not
PAGE = 100
OVER = frozenset({"Completed", "Failed", "Stopped"})
MOST_JOBS = 200_000


class Pace:
    """Requests of several threads, as fast as the service allows: each throttled one doubles the time between them."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self.interval = SHORTEST_S
        self._clock, self._sleep = clock, sleep
        self._next = 0.0
        self._lock = threading.Lock()

    def call(self, request: Callable[[], Any]) -> Any:
        """Send a request when its turn comes, and again if it was throttled.

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
                    raise SourceError(_message(error)) from error
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

    def candidates(self, since: float | None = None) -> Iterator[Candidate]:
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
            page = self.pace.call(lambda: self.sagemaker.list_training_jobs(**request))
            for found in page.get("TrainingJobSummaries", ()):
                yield self._candidate(found)
                count += 1
            token = page.get("NextToken")
            if not token or token == request.get("NextToken") or count > MOST_JOBS:
                return
            request["NextToken"] = token

    def _candidate(self, found: dict[str, Any]) -> Candidate:
        name, status = str(found.get("TrainingJobName", "")), str(found.get("TrainingJobStatus", ""))
        arn = str(found.get("TrainingJobArn", ""))
        created, modified, ended = (found.get(f"{key}Time") for key in ("Creation", "LastModified", "TrainingEnd"))
        return Candidate(
            job=arn or name,
            name=texts.name(name),
            load=partial(self.load, name, arn),
            modified=f"{status} {_stamp(modified or ended)}",
            started=created.timestamp() if isinstance(created, datetime) else 0.0,
            ended=status in OVER,
        )

    def load(self, name: str, arn: str) -> Loaded:
        """Describe a job, and read its report if there is one.

        Raises:
            SourceError: a request failed.
        """
        described = self.pace.call(lambda: self.sagemaker.describe_training_job(TrainingJobName=name))
        description = {key: value for key, value in described.items() if key != "ResponseMetadata"}
        description["Tags"] = self._tags(arn) if arn else []
        row = FleetJob(texts.name(name), source=texts.sentence(arn))
        try:
            output = output_of(description, name)
        except SourceError:  # it is not profiled
            return Loaded(description, None, row)
        storage = open_storage(output.removesuffix("/profiler-output"), client=self.s3)
        places = sorted(find_places(storage).places, key=lambda one: (one.report is None, one.profile is None))
        if not places:
            return Loaded(description, None, row)
        loaded = folders.load(storage, places[0], name)
        return attrs.evolve(loaded, description=description)

    def _tags(self, arn: str) -> list[dict[str, str]]:
        found: list[dict[str, str]] = []
        request = {"ResourceArn": arn}
        while True:
            page = self.pace.call(lambda: self.sagemaker.list_tags(**request))
            found += page.get("Tags", ())
            token = page.get("NextToken")
            if not token or token == request.get("NextToken") or len(found) > texts.MAX_TAGS:
                return found
            request["NextToken"] = token


def _stamp(value: object) -> str:
    return f"{value.timestamp():.3f}" if isinstance(value, datetime) else ""


def _message(error: Exception) -> str:
    response = getattr(error, "response", None)
    message = response.get("Error", {}).get("Message") if isinstance(response, dict) else None
    return printable(" ".join(str(message).split()) if message else one_line(error))[: texts.SENTENCE]
