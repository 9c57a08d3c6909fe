"""Clients, variables and temporary folders for everything that uses the endpoint, and copying from and to S3."""

from __future__ import annotations

import itertools
import os
import posixpath
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import boto3

from sm_profiler.errors import ProfilerError
from sm_profiler.monitor.uploader import Uploader, open_destination
from sm_profiler.storage.s3 import create_client

REGION = "us-east-1"
ACCOUNT = "123456789012"  # moto's
ROLE = f"arn:aws:iam::{ACCOUNT}:role/sm-profiler-local"
MAX_TMPDIR = 70  # characters; the name of a socket in it adds up to 35
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
        """Remove the temporary folders that are not in `folder`."""
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
    """Return the variables that keep calls to this machine away from the user's proxy; empty without a proxy."""
    if not any(name.lower() in ("http_proxy", "all_proxy") for name in os.environ):
        return {}
    existing = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    value = ",".join(filter(None, [existing, "127.0.0.1,localhost"]))
    return {"NO_PROXY": value, "no_proxy": value}


def split_uri(uri: str) -> tuple[str, str]:
    """Return bucket and key of an s3:// URI."""
    parts = urlsplit(uri)
    if parts.scheme != "s3" or not parts.netloc:
        raise ProfilerError(f"not an s3:// URI: {uri!r}")
    return parts.netloc, parts.path.lstrip("/")


def s3_keys(client: Any, uri: str) -> list[str]:
    bucket, prefix = split_uri(uri)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [entry["Key"] for page in pages for entry in page.get("Contents", ())]


def local_name(key: str, prefix: str) -> str:
    """Return an object's path in its channel's folder; the service strips the prefix up to its last slash."""
    if key == prefix:
        return posixpath.basename(key)
    folder = prefix if prefix.endswith("/") or not prefix else prefix + "/"
    return key[len(folder) :] if key.startswith(folder) else key[len(posixpath.dirname(prefix)) :].lstrip("/")


def download(client: Any, uri: str, folder: Path, share: tuple[int, int] = (0, 1)) -> int:
    """Download all objects under a URI to a folder and return their number.

    Args:
        client: an S3 client.
        uri: the prefix, or one object.
        folder: the target.
        share: (host, hosts): each host takes every hosts-th object (ShardedByS3Key).

    Raises:
        ProfilerError: there are no objects, or a key leads out of the folder.
    """
    bucket, prefix = split_uri(uri)
    keys = [key for key in s3_keys(client, uri) if not key.endswith("/")]
    if not keys:
        raise ProfilerError(f"No S3 objects found under S3 URL {uri!r}")
    for key in keys[share[0] :: share[1]]:
        path = folder / local_name(key, prefix)
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ProfilerError(f"the key {key!r} would be written outside its folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        client.download_file(bucket, key, str(path))
    return len(keys)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive.

    Raises:
        ProfilerError: it is not an archive, or a member leads out of the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not hasattr(tarfile, "data_filter"):
        raise ProfilerError("unpacking source code safely needs Python 3.10.12, 3.11.4 or newer")
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ProfilerError(f"cannot unpack {archive.name}: {error}") from error


def pack(folders: Iterable[Path], archive: Path) -> int:
    """Pack the merged contents of folders and return the number of files."""
    files = 0
    with tarfile.open(archive, "w:gz") as tar:
        for folder in folders:
            for path in sorted(folder.rglob("*")):
                tar.add(path, str(path.relative_to(folder)), recursive=False)
                files += path.is_file()
    return files


def upload_file(client: Any, path: Path, uri: str) -> None:
    bucket, key = split_uri(uri)
    client.upload_file(str(path), bucket, key)


def open_uploader(client: Any, folder: Path, uri: str, report: Callable[[str], None]) -> Uploader:
    """Return an uploader of all closed files of a folder; links are skipped."""
    return Uploader(
        folder, open_destination(uri, client=client), folders=("",), wanted=lambda _key: True, report=report
    )
