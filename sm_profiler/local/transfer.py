"""Copy channels from S3 to a job's folder, and archives and growing folders to S3."""

from __future__ import annotations

import contextlib
import posixpath
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs

from sm_profiler.errors import ProfilerError
from sm_profiler.formats.layout import is_ignored


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


def _files(folder: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    for path in sorted(folder.rglob("*")):
        if is_ignored(path.relative_to(folder).as_posix()):
            continue
        with contextlib.suppress(OSError):  # renamed or removed meanwhile
            found = path.stat()
            if path.is_file() and not path.is_symlink():
                yield path, (found.st_mtime_ns, found.st_size)


@attrs.define
class Mirror:
    """Uploads a growing folder: every closed file, and again after it changes.

    Attributes:
        client: an S3 client.
        folder: the folder; may be created later.
        uri: target of its files, without a trailing slash.
        on_problem: receives one line for each file that cannot be uploaded.
    """

    client: Any
    folder: Path
    uri: str
    on_problem: Callable[[str], None]
    _seen: dict[Path, tuple[int, int]] = attrs.field(factory=dict, init=False)
    _failed: set[Path] = attrs.field(factory=set, init=False)

    def upload_new(self) -> int:
        """Upload files that are new or changed since the last call and return their number."""
        count = 0
        for path, state in _files(self.folder):
            if self._seen.get(path) == state:
                continue
            try:
                upload_file(self.client, path, f"{self.uri}/{path.relative_to(self.folder).as_posix()}")
            except FileNotFoundError:
                continue  # renamed when it was closed; the next call finds it
            except Exception as error:  # noqa: BLE001 - boto3 raises many kinds; the next call retries this file
                if path not in self._failed:
                    self._failed.add(path)
                    self.on_problem(f"could not upload {path.name} to {self.uri}: {error}")
                continue
            self._seen[path] = state
            count += 1
        return count

    def put_marker(self, name: str) -> None:
        """Write an empty object, which marks the end of the data."""
        bucket, key = split_uri(f"{self.uri}/{name}")
        self.client.put_object(Bucket=bucket, Key=key, Body=b"")
