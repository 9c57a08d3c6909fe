"""Destinations of findings, `KIND` or `KIND:PLACE`: the message they get, the list of what was sent, and webhooks."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from email.message import Message as Headers
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import attrs
import numpy as np
from msgspec.structs import replace

from sm_profiler import plugins
from sm_profiler.diagnosis.classes import Class
from sm_profiler.errors import ConfigError, ProfilerError, SourceError
from sm_profiler.formats.columns import Floats, Ints
from sm_profiler.formatting import first_sentences, shorten
from sm_profiler.printable import cut, one_line, printable
from sm_profiler.render.words import gain_of_finding, readable_processes
from sm_profiler.report import Report
from sm_profiler.report.report_json import SCHEMA_VERSION, end_of, plain
from sm_profiler.storage import MissingFileError, Storage
from sm_profiler.storage.base import jittered_pause

# kind → module and function that opens it, and what the place is
KINDS = {
    "mlflow": ("mlflow_runs:open_exporter", "URI of a tracking server; default: MLFLOW_TRACKING_URI"),
    "webhook": ("destination:open_webhook", "URL of a Slack-compatible webhook"),
    "sns": ("aws:open_topic", "ARN of a topic"),
    "eventbridge": ("aws:open_bus", "name of a bus; default: default"),
    "cloudwatch": ("aws:open_log_group", "log group of the metrics; default: /sm-profiler"),
}

ALL_S = 60.0
_Answer = TypeVar("_Answer")

FILE = "sent.json"
MAX_BYTES = 4_000_000

MAX_NAME = 200
MAX_HOSTS, MAX_NODES = 3, 64  # of a line, and as data
MAX_LINE = 600
MAX_STEP = 240  # characters of the next step: the report has all of it
MAX_ALSO = 10

MAX_ERROR = 300
ATTEMPTS = 4
TIMEOUT_S = 20.0
FIRST_WAIT_S, LONGEST_WAIT_S = 2.0, 60.0
_TOO_MANY, _SERVER_ERROR = 429, 500
_LOCAL = {"localhost", "127.0.0.1", "::1"}
# What Slack's format asks for; and no name may call people (`@channel`), or be a link that shows another address: others
# than Slack take both from plain text.
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "@\u200b", "]": "]\u200b"})


def open_destination(text: str) -> plugins.Exporter:
    """Return the exporter of a destination.

    Raises:
        ConfigError: there is none of this kind, or its place is wrong.
        SourceError: a package that it needs is not installed.
    """
    kind, _, place = text.partition(":")
    exporter: plugins.Exporter
    if kind in KINDS:
        module, _, function = KINDS[kind][0].partition(":")
        exporter = getattr(import_module(f"sm_profiler.exporters.{module}"), function)(place)
        return exporter
    others = plugins.load(plugins.EXPORTERS, KINDS)
    if kind not in others:
        known = (f"{one}[:PLACE]" if "default:" in about else f"{one}:PLACE" for one, (_, about) in KINDS.items())
        expected = ", ".join((*known, *(f"{one}[:PLACE]" for one in others)))
        raise ConfigError(f"--to {printable(text)[:100]}: expected {expected}")
    try:
        exporter = others[kind](place)
    except ProfilerError:
        raise
    except Exception as error:  # of another package
        raise SourceError(f"the extension {kind} failed: {type(error).__name__}: {one_line(error)}") from error
    return _Guarded(kind, exporter, once=bool(getattr(exporter, "once", True)))


@attrs.define
class _Guarded:
    """An exporter of another package: what it raises is one line."""

    kind: str
    exporter: plugins.Exporter
    once: bool

    def send(self, report: Report) -> str:
        try:
            return str(self.exporter.send(report))
        except ProfilerError:
            raise
        except Exception as error:
            raise SourceError(f"the extension {self.kind} failed: {type(error).__name__}: {one_line(error)}") from error


def within(seconds: float, action: Callable[[], _Answer]) -> _Answer:
    """Return the result of an action, or raise its error.

    The action runs in a thread, which is abandoned at the deadline; it ends with the process.

    Raises:
        SourceError: it takes longer.
    """
    results: list[_Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:  # raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="sm-profiler-export", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise SourceError(f"no answer within {seconds:g} s")
    return results[0]


@attrs.define(eq=False)
class SentList:
    """The list of a job: keys of findings that were sent, so that each is sent once.

    A process that is killed after sending, but before it has recorded that, sends once more the next time.

    Attributes:
        storage: where the list is.
        earlier: where earlier versions kept it, which is read only.
    """

    storage: Storage
    earlier: Storage | None = None
    _sent: set[str] | None = None

    def has(self, report: Report, destination: str) -> bool:
        """Return whether the report's verdict was sent to a destination."""
        return key_of(report, destination) in self._keys()

    def prepare(self) -> None:
        """Write the list as it is: if that failed after sending, the same would be sent each time."""
        self._write(self._keys())

    def record(self, report: Report, destination: str) -> None:
        self._write(self._keys() | {key_of(report, destination)})

    def _write(self, keys: set[str]) -> None:
        self.storage.write(FILE, (json.dumps({"sent": sorted(keys)}, indent=1) + "\n").encode())
        self._sent = keys

    def _keys(self) -> set[str]:
        if self._sent is None:
            self._sent = _read(self.storage) | (_read(self.earlier) if self.earlier is not None else set())
        return self._sent


def sent_folder(job: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the folder of a job's list, the same from each working directory; "" for a user without a home."""
    base = environment.get("XDG_STATE_HOME", "")
    try:
        state = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"
    except RuntimeError:
        return ""
    return str(state / "sm-profiler" / "sent" / (quote(job.lstrip("."), safe=" ")[:MAX_NAME] or "job"))


def _read(storage: Storage) -> set[str]:
    try:
        found = json.loads(storage.read(FILE)[:MAX_BYTES])
    except MissingFileError:
        found = {}
    except (ValueError, RecursionError):
        raise SourceError(f"{storage.uri}/{FILE} is damaged: remove it to send everything again") from None
    sent = found.get("sent") if isinstance(found, dict) else None
    return {key for key in sent if isinstance(key, str)} if isinstance(sent, list) else set()


def key_of(report: Report, destination: str) -> str:
    """Return the key of a report's verdict at a destination; the destination's address, often a secret, stays out of it."""
    text = f"{destination}\0{place_of(report)}\0{report.metrics.name}\0{report.verdict.kind.value}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@attrs.frozen
class Message:
    """The part of a report that is sent.

    Attributes:
        title: the job and its verdict.
        lines: user, launcher's name and machines of the job, its end, headline, line of code, gain, beginning of the next step, location of the profile.
        detail: the same as data, in the words of report.json.
    """

    title: str
    lines: tuple[str, ...]
    detail: dict[str, Any]

    @property
    def text(self) -> str:
        return "\n".join((self.title, *self.lines))


def place_of(report: Report) -> str:
    """Return where a job's data is, the same however its folder was named."""
    source = report.source
    return str(Path(source).resolve()) if source and "://" not in source else source


def message_of(report: Report) -> Message:
    main, name = report.verdict.main, printable(report.metrics.name)[:MAX_NAME]
    place = main.where[0] if main.where else None
    ending, renamed = report.metrics.ending, readable_processes(report.metrics)
    who, hosts = report.metrics.identity, list(dict.fromkeys(report.metrics.host_names.values()))
    more = f" and {len(hosts) - MAX_HOSTS} more" if len(hosts) > MAX_HOSTS else ""
    names = {"user": who.get("user"), "job": who.get("job"), "host": ", ".join(hosts[:MAX_HOSTS]) + more}
    about = ", ".join(f"{label} {shorten(text, MAX_NAME)}" for label, text in names.items() if text)
    lines = [
        f"{about[:1].upper()}{about[1:]}",
        "" if main.is_end else ending.sentence,
        main.headline,
        f"Where: {place.file}:{place.line} {place.function}" if place else "",
        gain_of_finding(main),
        first_sentences(main.next_step, MAX_STEP),
        f"Report: {printable(report.link)}" if report.link else "",
        f"Profile: {place_of(report)}" if report.source else "",
    ]
    detail = {
        "schema_version": SCHEMA_VERSION,
        "job": name,
        "user": printable(who.get("user", ""))[:MAX_NAME],
        "job_name": printable(who.get("job", ""))[:MAX_NAME],
        "hosts": [printable(host) for host in hosts[:MAX_NODES]],
        "source": printable(report.source),
        "report": printable(report.link),
        "generated": report.generated,
        "end": end_of(ending),
        "verdict": replace(main, evidence=main.evidence[:MAX_ALSO]),
        "also": [
            {"class": finding.kind.value, "headline": finding.headline, "share_of_time": finding.share_of_time}
            for finding in report.verdict.also[:MAX_ALSO]
        ],
    }
    verdict = f"{main.label} ({main.confidence} confidence{', so far' if report.metrics.running else ''})"
    return Message(
        f"{name}: {'Failed' if ending.failed and main.kind is Class.INCONCLUSIVE else verdict}",
        tuple(renamed(printable(line))[:MAX_LINE] for line in lines if line),
        plain(detail),
    )


def group_length(count: int, points: int) -> int:
    """Return how many values become one, so that at most `points` are left."""
    return max(-(-count // max(points, 1)), 1)


def group_means(values: Floats, points: int) -> tuple[Ints, Floats]:
    """Return the means of equal groups of values, the last of what is left, and the index of each group's first value."""
    starts = np.arange(0, len(values), group_length(len(values), points))
    if not len(starts):
        return starts, np.zeros(0)
    return starts, np.add.reduceat(values, starts) / np.diff(np.append(starts, len(values)))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the address is a secret that no other host may get."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Refuse."""


@attrs.define(eq=False)
class Webhook:
    """Posts the verdict; tries again after errors of the server and of the network.

    Attributes:
        url: the address.
        all_s: the longest that its attempts may take together, without the pauses between them.
    """

    url: str
    sleep: Callable[[float], object] = time.sleep
    all_s: float = ALL_S
    once: bool = True

    def send(self, report: Report) -> str:
        message = message_of(report)
        title, *lines = (line.translate(_ESCAPES) for line in (message.title, *message.lines))
        body = json.dumps({"text": "\n".join((f"*{title}*", *lines))}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"}, method="POST")  # noqa: S310 - checked
        host = urlsplit(self.url).hostname
        # Not urllib3's Retry: it logs the address, which is a secret, ignores proxies, and waits as long as a server asks.
        left = self.all_s
        for attempt in range(1, ATTEMPTS + 1):
            began = time.monotonic()
            error, wait = self._post(request, left)
            if not error:
                return f"the verdict to {host}"
            left -= time.monotonic() - began
            if wait is None or attempt == ATTEMPTS or left <= 0:
                break
            self.sleep(wait if wait > 0 else jittered_pause(attempt, FIRST_WAIT_S, LONGEST_WAIT_S))
        raise SourceError(f"webhook at {host}: {error}")

    def _post(self, request: urllib.request.Request, seconds: float) -> tuple[str, float | None]:
        """Post once, in some seconds at most; return the error ("": none), and the seconds to wait (0: any; None: trying again is useless)."""

        def post() -> None:
            with urllib.request.build_opener(_NoRedirects).open(request, timeout=TIMEOUT_S):
                pass

        try:
            within(seconds, post)
        except SourceError as error:
            return str(error), 0.0
        except urllib.error.HTTPError as error:
            with error:
                again = error.code == _TOO_MANY or error.code >= _SERVER_ERROR
                return f"HTTP status {error.code}", _retry_after(error.headers) if again else None
        except (OSError, HTTPException) as error:
            words = " ".join(str(getattr(error, "reason", error)).split())  # may quote the answer
            return cut(printable(words), MAX_ERROR) or type(error).__name__, 0.0
        return "", None


def _retry_after(headers: Headers) -> float:
    text = headers.get("Retry-After") or ""
    return min(float(text), LONGEST_WAIT_S) if text.isascii() and text.isdigit() else 0.0


def open_webhook(place: str) -> Webhook:
    """Return the exporter.

    Raises:
        ConfigError: the address is none of a webhook; it is not repeated in the message, as it may be a secret.
    """
    try:
        parts = urlsplit(place)
        good = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOCAL)
    except ValueError:
        good = False
    if any(ord(letter) <= 32 or ord(letter) > 126 for letter in place):  # printable ASCII
        raise ConfigError("--to webhook:URL: the address has a space, or a character that is not ASCII")
    if not good or not parts.hostname:
        raise ConfigError("--to webhook:URL needs an https:// address (http:// on this machine only)")
    return Webhook(place)
