"""Copy channels from S3 to a job's folder, and archives and growing folders to S3."""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sm_profiler.errors import ProfilerError
from sm_profiler.monitor.uploader import Uploader, open_destination


def split_uri(uri: str) -> tuple[str, str]:
    """Return bucket and key of an s3:// URI."""
    parts = urlsplit(uri)
    if parts.scheme != "s3" or not parts.netloc:
        raise ProfilerError(f"not an s3:// URI: {uri!r}")
    return parts.netloc, parts.path.lstrip("/")


def s3_keys(client: Any, uri: str) -> list[str]:
    """Return all keys under a URI, sorted."""
    bucket, prefix = split_uri(uri)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [entry["Key"] for page in pages for entry in page.get("Contents", ())]


def local_name(key: str, prefix: str) -> str:
    """Return an object's path below its channel's folder; the service strips the prefix up to its last slash."""
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
    """Upload one file to a URI."""
    bucket, key = split_uri(uri)
    client.upload_file(str(path), bucket, key)


def open_uploader(client: Any, folder: Path, uri: str, report: Callable[[str], None]) -> Uploader:
    """Return an uploader of all closed files of a folder; links are skipped.

    Args:
        client: an S3 client.
        folder: the folder, which need not exist yet.
        uri: target of its files.
        report: receives one line for each kind of problem.
    """
    return Uploader(
        folder, open_destination(uri, client=client), folders=("",), wanted=lambda _key: True, report=report
    )
