"""What a running endpoint offers, whether it runs in this process or in another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sm_profiler.errors import ProfilerError
from sm_profiler.local.services import ROLE, Services

if TYPE_CHECKING:
    from typing_extensions import Self


class Face(ABC):
    """Address, default bucket, role and clients; a `with` block starts and stops it."""

    _services: Services | None = None

    @property
    def services(self) -> Services:
        """How to reach it.

        Raises:
            ProfilerError: it does not run.
        """
        if self._services is None:
            raise ProfilerError("the local endpoint does not run: call start(), or use it in a with statement")
        return self._services

    @abstractmethod
    def start(self) -> Self:
        """Start it; the environment is complete when this returns."""

    @abstractmethod
    def stop(self) -> None:
        """Stop jobs and endpoint; no process of a job is left when it returns."""

    @property
    def url(self) -> str:
        """http://127.0.0.1:port."""
        return self.services.url

    @property
    def folder(self) -> Path:
        """Where jobs stand."""
        return self.services.folder

    @property
    def bucket(self) -> str:
        """The default bucket; it exists."""
        return self.services.bucket

    @property
    def role(self) -> str:
        """ARN of a role that exists."""
        return ROLE

    def client(self, service: str, region: str | None = None) -> Any:
        """A boto3 client for this endpoint."""
        return self.services.client(service, region)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
