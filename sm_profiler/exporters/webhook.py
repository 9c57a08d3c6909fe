"""Messages to a webhook that takes Slack's format, as those of Mattermost, Rocket.Chat and Discord (`/slack`) do."""

from __future__ import annotations

import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message as Headers
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

import attrs

from sm_profiler.errors import ConfigError, SourceError
from sm_profiler.exporters.destination import ATTEMPT_S, message_of, within
from sm_profiler.report import Report

ATTEMPTS = 4
TIMEOUT_S = 20.0
LONGEST_WAIT_S = 60.0
_TOO_MANY, _SERVER_ERROR = 429, 500
_LOCAL = {"localhost", "127.0.0.1", "::1"}
# What Slack's format asks for; and no name may call people (`@channel`), or be a link that shows another address: others
# than Slack take both from plain text.
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "@\u200b", "]": "]\u200b"})


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the address is a secret that no other host may get."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Refuse."""


@attrs.define(eq=False)
class Webhook:
    """Posts the verdict; tries again after errors of the server and of the network.

    Attributes:
        url: the address.
        attempt_s: the longest that one attempt may take.
    """

    url: str
    sleep: Callable[[float], object] = time.sleep
    attempt_s: float = ATTEMPT_S
    once: bool = True

    def send(self, report: Report) -> str:
        message = message_of(report)
        title, *lines = (line.translate(_ESCAPES) for line in (message.title, *message.lines))
        body = json.dumps({"text": "\n".join((f"*{title}*", *lines))}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"}, method="POST")  # noqa: S310 - checked
        host = urlsplit(self.url).hostname
        # Not urllib3's Retry: it logs the address, which is a secret, ignores proxies, and waits as long as a server asks.
        for attempt in range(1, ATTEMPTS + 1):
            error, wait = self._post(request)
            if not error:
                return f"the verdict to {host}"
            if wait is None or attempt == ATTEMPTS:
                break
            self.sleep(wait if wait > 0 else 2.0**attempt * random.uniform(0.5, 1.0))  # no secret
        raise SourceError(f"webhook at {host}: {error}")

    def _post(self, request: urllib.request.Request) -> tuple[str, float | None]:
        """Post once; return the error ("": none), and the seconds to wait (0: any; None: trying again is useless)."""

        def post() -> None:
            with urllib.request.build_opener(_NoRedirects).open(request, timeout=TIMEOUT_S):
                pass

        try:
            within(self.attempt_s, post)
        except SourceError as error:
            return str(error), 0.0
        except urllib.error.HTTPError as error:
            with error:
                again = error.code == _TOO_MANY or error.code >= _SERVER_ERROR
                return f"HTTP status {error.code}", _retry_after(error.headers) if again else None
        except (OSError, HTTPException) as error:
            return str(getattr(error, "reason", error)) or type(error).__name__, 0.0
        return "", None


def _retry_after(headers: Headers) -> float:
    text = headers.get("Retry-After") or ""
    return min(float(text), LONGEST_WAIT_S) if text.isascii() and text.isdigit() else 0.0


def open_exporter(place: str) -> Webhook:
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
