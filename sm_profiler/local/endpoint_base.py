"""Common interface of an endpoint in this process and one in a process of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sm_profiler.errors import ProfilerError
from sm_profiler.local.services import ROLE, Services

if TYPE_CHECKING:
    from typing_extensions import Self


class EndpointBase(ABC):
    """An endpoint's address, default bucket, role and clients; a `with` block starts and stops it."""

    _services: Services | None = None

    @property
    def services(self) -> Services:
        """Address and clients.

        Raises:
            ProfilerError: the endpoint is not running.
        """
        if self._services is None:
            raise ProfilerError("the local endpoint is not running: call start(), or use it in a with statement")
        return self._services

    @abstractmethod
    def start(self) -> Self:
        """Start the endpoint; `environment` is complete on return."""

    @abstractmethod
    def stop(self) -> None:
        """Stop jobs and endpoint; on return, no process of a job is left."""

    @abstractmethod
    def interrupt(self, job: str) -> None:
        """Take the machines of a running training job away, as happens to spot instances.

        With EnableManagedSpotTraining, or while RetryStrategy allows it, the job starts anew with its checkpoints;
        otherwise it fails.

        Raises:
            ProfilerError: no such job is running.
        """

    @property
    def url(self) -> str:
        """http://127.0.0.1:port."""
        return self.services.url

    @property
    def folder(self) -> Path:
        """Folder of the job files."""
        return self.services.folder

    @property
    def bucket(self) -> str:
        """Name of the default bucket, which exists."""
        return self.services.bucket

    @property
    def role(self) -> str:
        """ARN of a role that exists."""
        return ROLE

    def client(self, service: str, region: str | None = None) -> Any:
        """Return a boto3 client for this endpoint."""
        return self.services.client(service, region)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
