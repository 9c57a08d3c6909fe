"""Clients, variables and temporary folders for everything that uses the endpoint, including its own parts."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import boto3

from sm_profiler.storage.s3_client import create_client

REGION = "us-east-1"
ACCOUNT = "123456789012"  # moto's
ROLE = f"arn:aws:iam::{ACCOUNT}:role/sm-profiler-local"
MAX_TMPDIR = 70  # characters; the name of a socket below it adds up to 35
ACCESS_KEY, SECRET_KEY = "local", "local"
CLIENT_VARIABLES = (
    *("AWS_ENDPOINT_URL", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "AWS_REGION", "AWS_DEFAULT_REGION"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED"),
    *("SAGEMAKER_USER_CONFIG_OVERRIDE", "SAGEMAKER_VALIDATE_ROLE", "NO_PROXY", "no_proxy"),
)


@attrs.define(eq=False)
class Services:
    """Address of the running endpoint, and clients for it.

    Attributes:
        url: http://127.0.0.1:port.
        folder: folder of the job files.
        region: the default region.
        log_event: receives a line whenever a job changes, for the endpoint's terminal.
    """

    url: str
    folder: Path
    region: str = REGION
    log_event: Callable[[str], None] = lambda _: None
    _external: list[Path] = attrs.field(factory=list, init=False)
    _clients: dict[tuple[str, str], Any] = attrs.field(factory=dict, init=False)  # each takes megabytes
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _numbers: Iterator[int] = attrs.field(factory=itertools.count, init=False)

    def client(self, service: str, region: str | None = None) -> Any:
        """Return a boto3 client; address and credentials are explicit, so that the user's AWS settings have no effect."""
        key = service, region or self.region
        with self._lock:
            if key not in self._clients:
                self._clients[key] = self._new_client(*key)
            return self._clients[key]

    def _new_client(self, service: str, region: str) -> Any:
        return create_client(
            service,
            session=boto3.session.Session(),
            attempts=2,
            proxies={},
            region_name=region,
            endpoint_url=self.url,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )

    @property
    def bucket(self) -> str:
        """Name of the default bucket."""
        return f"sagemaker-{self.region}-{ACCOUNT}"

    def environment(self, region: str | None = None) -> dict[str, str]:
        """Return a client's variables: address, region, credentials; without SDK settings."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false",
            "AWS_REGION": region or self.region,
            "AWS_DEFAULT_REGION": region or self.region,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def temporary_folder(self) -> Path:
        """Create and return a folder with a short path for a job's TMPDIR.

        Multiprocessing creates Unix sockets there, whose paths are limited to 107 characters; job folders are too deep.
        """
        number = next(self._numbers)
        folder = self.folder / "t" / str(number)
        if len(str(folder)) > MAX_TMPDIR:
            folder = Path(tempfile.mkdtemp(prefix="sm-profiler-"))
            self._external.append(folder)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def remove_temporary_folders(self) -> None:
        """Remove the temporary folders that are not below `folder`."""
        for folder in self._external:
            shutil.rmtree(folder, ignore_errors=True)

    def client_environment(self) -> dict[str, str]:
        """Return the variables for a user's shell and write the SDK settings file that they name."""
        settings = self.folder / "sagemaker-sdk.yaml"
        settings.write_text(
            "# Settings for the SageMaker Python SDK, versions 2 and 3: the local endpoint's bucket, no telemetry.\n"
            "SchemaVersion: '1.0'\n"
            "SageMaker:\n"
            "  PythonSDK:\n"
            "    Modules:\n"
            "      TelemetryOptOut: true\n"
            "      Session:\n"
            f"        DefaultS3Bucket: {self.bucket}\n",
            "utf-8",
        )
        return {
            **self.environment(),
            "SAGEMAKER_USER_CONFIG_OVERRIDE": str(settings),
            "SAGEMAKER_VALIDATE_ROLE": "false",
            **proxy_exceptions(),
        }


def proxy_exceptions() -> dict[str, str]:
    """Return the variables that keep calls to this machine away from the user's proxy; empty without one."""
    if not any(name.lower() in ("http_proxy", "all_proxy") for name in os.environ):
        return {}
    existing = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    value = ",".join(filter(None, [existing, "127.0.0.1,localhost"]))
    return {"NO_PROXY": value, "no_proxy": value}
