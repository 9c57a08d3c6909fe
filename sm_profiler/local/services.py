"""How the endpoint's own parts reach its services: over the same HTTP address as any client."""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import attrs
import boto3
from botocore.config import Config

REGION = "us-east-1"
ACCOUNT = "123456789012"  # moto's
ROLE = f"arn:aws:iam::{ACCOUNT}:role/sm-profiler-local"
LONGEST_TMPDIR = 70  # characters; a socket's name below it takes up to 35
ACCESS_KEY, SECRET_KEY = "local", "local"
_creating = threading.Lock()  # a boto3 session is not safe while it makes clients


@attrs.define(eq=False)
class Services:
    """The address of the running endpoint, and clients for it.

    Attributes:
        url: http://127.0.0.1:port.
        folder: where the endpoint keeps its jobs.
        region: the default one.
        say: takes a line on each change of a job, for the endpoint's own terminal.
        outside: temporary folders that had to stand elsewhere, to be removed with the endpoint.
    """

    url: str
    folder: Path
    region: str = REGION
    outside: list[Path] = attrs.field(factory=list)
    say: Callable[[str], None] = lambda _: None
    _numbers: Iterator[int] = attrs.field(factory=itertools.count, init=False)

    def client(self, service: str, region: str | None = None) -> Any:
        """A boto3 client; explicit about address and credentials, so that no file or variable of the user matters."""
        with _creating:
            return cast("Any", boto3.session.Session()).client(
                service,
                region_name=region or self.region,
                endpoint_url=self.url,
                aws_access_key_id=ACCESS_KEY,
                aws_secret_access_key=SECRET_KEY,
                config=Config(
                    s3={"addressing_style": "path"},
                    retries={"total_max_attempts": 2},
                    max_pool_connections=20,
                    proxies={},
                ),
            )

    @property
    def bucket(self) -> str:
        """The default bucket."""
        return f"sagemaker-{self.region}-{ACCOUNT}"

    def environment(self, region: str | None = None) -> dict[str, str]:
        """What a process needs to be a client: address, region, credentials; nothing about SDK settings."""
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
        """A new folder with a short path, for a job's TMPDIR.

        Multiprocessing puts Unix sockets below it, whose paths may have 107 characters; a job's own folder is too deep.
        """
        number = next(self._numbers)
        folder = self.folder / "t" / str(number)
        if len(str(folder)) > LONGEST_TMPDIR:
            folder = Path(tempfile.mkdtemp(prefix="sm-profiler-"))
            self.outside.append(folder)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def client_environment(self) -> dict[str, str]:
        """What a user's shell needs; writes the SDK's settings file that it names."""
        settings = self.folder / "sagemaker-sdk.yaml"
        settings.write_text(
            "# Settings for the SageMaker Python SDK, versions 2 and 3: this machine's bucket, nothing sent home.\n"
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
            **past_proxies(),
        }


def past_proxies() -> dict[str, str]:
    """Where the user has a proxy: what keeps calls to this machine from being sent to it."""
    if not any(name.lower() in ("http_proxy", "all_proxy") for name in os.environ):
        return {}
    had = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    value = ",".join(filter(None, [had, "127.0.0.1,localhost"]))
    return {"NO_PROXY": value, "no_proxy": value}
