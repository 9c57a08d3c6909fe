"""The uploader: sends closed files to S3 while the job runs. Files wait on disk until S3 accepts them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import attrs

from sm_profiler.descriptors import NotRegularError, open_regular
from sm_profiler.errors import ProfilerError, SourceError
from sm_profiler.formats.layout import END_MARKERS, FRAMEWORK, SYSTEM, SystemFile, is_ignored, parse_path
from sm_profiler.printable import logger_for, one_line, printable
from sm_profiler.settings import KMS_KEY
from sm_profiler.storage import FileInfo, LocalStorage, MissingFileError
from sm_profiler.storage.base import AccessDeniedError, UnavailableError, jittered_pause
from sm_profiler.threads import StopEvent

if TYPE_CHECKING:
    from sm_profiler.storage.s3 import S3Storage  # needs boto3, which sampling does without

logger = logger_for("sm_profiler")

POLL_SECONDS = 2.0
POLL_SHARE = 200  # listing the folder takes at most this fraction of the time
QUEUE_FILES = 256  # files per round
PARALLEL = 4
FIRST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_LAST_PAUSE_S = 0.5, 60.0, 2.0
MAX_WARNINGS = 5


def open_destination(uri: str, kms_key_id: str | None = None, client: Any = None) -> S3Storage:
    """Open an S3 prefix for uploads. Each of its calls is one attempt: the uploader retries.

    Args:
        uri: `s3://bucket/prefix`.
        kms_key_id: encrypt objects with this key; default: the environment variable SM_PROFILER_KMS_KEY, or else the
            bucket's settings.
        client: a boto3 S3 client; default: created from the environment.

    Raises:
        SourceError: no client can be created.
        ProfilerError: the URI is not valid, or boto3 is not installed.
    """
    scheme, _, rest = uri.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme != "s3":
        raise ProfilerError(f"{uri}: not an s3:// URI")
    if not bucket:
        raise ProfilerError(f"{uri} names no bucket: s3://BUCKET/PREFIX is needed")
    try:
        from sm_profiler.storage.s3 import S3Storage
    except SourceError as error:
        raise ProfilerError(str(error)) from None
    key = kms_key_id or KMS_KEY.read()
    return S3Storage(bucket, prefix, client=client, kms_key_id=key, attempts=1)


def is_profile_key(key: str) -> bool:
    """Return whether a file is profiler data: nothing else in the folder leaves the machine."""
    return key.isprintable() and parse_path(key) is not None


class UnsafeFileError(ProfilerError):
    """A file that is not uploaded because it is a link, or not a regular file."""


@attrs.define(eq=False)
class Uploader:
    """Uploads the closed files in a folder, and again those that changed.

    Attributes:
        root: the folder, for example `profiler-output` on this machine.
        destination: where the files go.
        clock: monotonic clock in seconds.
        wait: waits for some seconds, or until the uploader must stop.
        folders: prefixes of the keys to look for.
        wanted: returns whether a closed file is uploaded, given its key.
        report: takes one line about a problem.
        deadline: when to stop waiting for requests in flight, on `clock`.
        uploaded: number of files uploaded so far.
        failures: number of failed attempts so far.
        reached: whether the destination has ever accepted a file, or answered that it is only overloaded.
        error: the last failure, or "".
        reported: kinds of problems that were reported; uploaders with one destination may share them.
    """

    root: Path
    destination: S3Storage
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], object] = time.sleep
    folders: Sequence[str] = (f"{SYSTEM}/", f"{FRAMEWORK}/")
    wanted: Callable[[str], bool] = is_profile_key
    report: Callable[[str], None] = logger.warning
    deadline: float = float("inf")
    uploaded: int = 0
    failures: int = 0
    reached: bool = False
    error: str = ""
    reported: set[str] = attrs.field(factory=set)
    _done: dict[str, tuple[str, int]] = attrs.field(factory=dict, init=False)
    _failed: dict[str, int] = attrs.field(factory=dict, init=False)
    _earlier: dict[str, bytes | None] = attrs.field(factory=dict, init=False)
    _in_flight: dict[str, tuple[FileInfo, Future[Exception | None]]] = attrs.field(factory=dict, init=False)
    _unlisted: bool = attrs.field(default=False, init=False)
    _failed_rounds: int = attrs.field(default=0, init=False)

    def run(self, stop: StopEvent) -> None:
        """Upload until `stop` is set; the rest is left to `drain`."""
        self.wait = stop.wait
        while not stop.is_set():
            began = self.clock()
            pending = self.pending()
            seconds = self.clock() - began
            if pending and not self.round(pending):
                self._back_off(self.pause(LONGEST_PAUSE_S), stop)
            elif len(pending) <= QUEUE_FILES:
                stop.wait(max(POLL_SECONDS, POLL_SHARE * seconds))

    def drain(self, deadline: float) -> bool:
        """Upload all files that are closed now, retrying until `deadline` (on `clock`); return whether all are uploaded."""
        self.deadline = deadline
        while (pending := self.pending()) or self._in_flight or self._unlisted:
            if self.clock() >= deadline:
                return False
            if not pending and self._in_flight:
                self._await_requests()
            elif not pending or not self.round(pending):
                self.wait(min(self.pause(LONGEST_LAST_PAUSE_S), max(deadline - self.clock(), 0.0)))
        return True

    def upload_new(self) -> int:
        """Try each new or changed file once; return the number of files uploaded."""
        before = self.uploaded
        pending = self.pending()
        for at in range(0, len(pending), QUEUE_FILES):
            self.round(pending[at : at + QUEUE_FILES], keep_going=True)
        return self.uploaded - before

    def pending(self) -> list[FileInfo]:
        """Return closed files that are new or changed: those with the fewest failures first, then the oldest."""
        self._collect()
        storage = LocalStorage(self.root)
        self._unlisted = True
        try:
            files = [
                info
                for folder in self.folders
                for info in storage.list(folder)
                if self._done.get(info.key) != (info.etag, info.size)
                and info.key not in self._in_flight
                and info.key not in END_MARKERS
                and self._is_wanted(info.key)
            ]
        except SourceError as error:
            self._report(str(error), str(error))
            return []
        self._unlisted = False
        return sorted(files, key=lambda info: (self._failed.get(info.key, 0), info.mtime, info.key))

    def skip(self, files: Iterable[FileInfo]) -> int:
        """Count files as uploaded that the destination has already; return their number."""
        found = {info.key: (info.etag, info.size) for info in files}
        self._done.update(found)
        return len(found)

    def take_uploaded(self, info: FileInfo) -> bool:
        """Return whether a file is uploaded as it is now; if so, forget it, since its local copy is to be removed."""
        if self._done.get(info.key) != (info.etag, info.size):
            return False
        del self._done[info.key]  # a file of the same name is joined with the uploaded file
        return True

    @property
    def reason(self) -> str:
        """Reason why files are left."""
        return self.error or "the destination did not answer in time"

    def remaining(self) -> int:
        """Return the number of files that are not uploaded yet, those in flight included."""
        return len(self.pending()) + len(self._in_flight)

    def round(self, pending: list[FileInfo], *, keep_going: bool = False) -> bool:
        """Try the first files of the queue; return False if the destination accepts none, so that a pause is due."""
        pool = ThreadPoolExecutor(PARALLEL, "sm-profiler-upload")
        try:
            for at in range(0, min(len(pending), QUEUE_FILES), PARALLEL):
                if self.clock() >= self.deadline:
                    return True
                before = self.uploaded, self.failures
                for info in pending[at : at + PARALLEL]:
                    self._in_flight[info.key] = info, pool.submit(self._attempt, info)
                self._await_requests()
                self._collect()
                if self.uploaded > before[0]:
                    self._failed_rounds = 0
                elif self.failures > before[1] and not keep_going:
                    self._failed_rounds += 1
                    return False
        finally:
            pool.shutdown(wait=False)
        return True

    def pause(self, longest: float) -> float:
        """Return the seconds to wait before the next attempt."""
        return jittered_pause(self._failed_rounds, FIRST_PAUSE_S, longest)

    def check(self) -> bool:
        """Report at once if the destination cannot be used, for example without a bucket or credentials; return whether it can."""
        try:
            self.destination.read(END_MARKERS[0])
        except (MissingFileError, AccessDeniedError):  # a role may be allowed to write only
            pass
        except Exception as error:  # boto3 raises many kinds
            self._fail(END_MARKERS[0], error)
            return False
        return True

    def put_markers(self) -> bool:
        """Upload the end markers, after which nothing more follows; return whether that worked."""
        try:
            for key in END_MARKERS:
                self.destination.write(key, b"")
        except Exception as error:  # boto3 raises many kinds
            self._fail(END_MARKERS[0], error)
            return False
        return True

    def _is_wanted(self, key: str) -> bool:
        try:
            return not is_ignored(key) and self.wanted(key)
        except (ValueError, ArithmeticError):  # a name that only resembles a profile's
            return False

    def _await_requests(self) -> None:
        """Wait until all requests have ended, or the deadline passes: a hanging request must not delay the job's end."""
        waiting = {future for _, future in self._in_flight.values()}
        while waiting and self.clock() < self.deadline:
            waiting = wait(waiting, 0.1).not_done

    def _collect(self) -> None:
        """Account for the requests that have ended."""
        for key, (info, future) in list(self._in_flight.items()):
            if not future.done():
                continue
            del self._in_flight[key]
            error = future.exception() or future.result()
            if isinstance(error, FileNotFoundError):
                continue  # renamed or removed since it was listed
            if isinstance(error, Exception) and not isinstance(error, UnsafeFileError):
                self.failures += 1
                self._failed[key] = self._failed.get(key, 0) + 1
                self._fail(key, error)
                continue
            self._done[key] = (info.etag, info.size)
            self._failed.pop(key, None)
            self._earlier.pop(key, None)
            if error is None:
                self.uploaded += 1
                self.reached = True
            else:
                self._report(str(error), "unsafe")

    def _back_off(self, seconds: float, stop: StopEvent) -> None:
        """Pause, but not if a new file appears: perhaps the failed files are to blame, not the destination."""
        until = self.clock() + seconds
        while (left := until - self.clock()) > 0 and not stop.wait(min(left, POLL_SECONDS)):
            if any(info.key not in self._failed for info in self.pending()):
                return

    def _attempt(self, info: FileInfo) -> Exception | None:
        """Upload a file; return what went wrong."""
        try:
            with open_below(self.root, info.key) as file:
                earlier = self._earlier_part(info.key)
                if not earlier:
                    self.destination.upload(info.key, file, os.fstat(file.fileno()).st_size)
                    return None
                data = file.read()
                if not earlier.endswith(data):
                    self.destination.write(info.key, data if data.startswith(earlier) else earlier + data)
        except Exception as error:  # any failure is reported and retried
            return error
        return None

    def _earlier_part(self, key: str) -> bytes | None:
        """Return the part of this very minute that an interrupted attempt of the job has already uploaded.

        It is read once: later, the object may be what this attempt has written.
        """
        if key in self._done or not isinstance(parse_path(key), SystemFile):
            return None
        if key not in self._earlier:
            try:
                self._earlier[key] = self.destination.read(key)
            except MissingFileError:
                self._earlier[key] = None
            except AccessDeniedError:  # a role may be allowed to write only
                return None
        return self._earlier[key]

    def _fail(self, key: str, error: Exception) -> None:
        self.reached |= isinstance(error, UnavailableError)
        text = one_line(error)
        if key in END_MARKERS:  # the destination is meant
            text = text.replace(f"/{key}", "")
        self.error = text
        kind = text.replace(key, "")
        if isinstance(error, SourceError):
            kind = kind.partition(": ")[2] or kind  # the address may be that of the object or of the bucket
        else:
            text = f"{self.destination.uri}/{key}: {text}"
        self._report(f"upload failed, retrying: {text}", kind)

    def _report(self, text: str, kind: str) -> None:
        """Report each kind of problem once, and only a few kinds: an outage must not flood the log."""
        if kind not in self.reported and len(self.reported) < MAX_WARNINGS:
            self.reported.add(kind)
            self.report(f"sm-profiler: {printable(text)}")


def open_below(root: Path, key: str) -> BinaryIO:
    """Open a regular file under a root without following symbolic links, whose targets may be anything on this machine.

    Raises:
        FileNotFoundError: the file no longer exists.
        UnsafeFileError: the file or a folder on the way is a link, or the file is not a regular file.
    """
    path = root / key
    if path.is_symlink() or Path(os.path.realpath(path.parent)) != Path(os.path.realpath(root), key).parent:
        raise UnsafeFileError(f"{path} is a symbolic link or under a symbolic link: not uploaded")
    try:
        return open_regular(path, flags=os.O_NOFOLLOW)  # it may have been replaced by a link a moment ago
    except NotRegularError:
        raise UnsafeFileError(f"{path} is not a regular file: not uploaded") from None
