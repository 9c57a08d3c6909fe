"""The lower rungs of the repair ladder: whole JSON objects out of damaged text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from sm_profiler.formats.outcome import Tally

_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_BETWEEN = re.compile(r"[\s,\[\]]*")
# Where the next record may begin after a damaged one: at the start of a line, or after the end of another object.
_RESTART = re.compile(r"\n\s*(?=\{)|\}\s*,\s*(?=\{)")
_DECODER = json.JSONDecoder()


def clean(data: bytes, tally: Tally) -> str:
    """Text without invalid UTF-8 and raw control characters; both are replaced, neither costs a record."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    cleaned = _CONTROL.sub(b" ", data)
    if cleaned != data:
        tally.mend("control characters replaced")
    try:
        return cleaned.decode()
    except UnicodeDecodeError:
        tally.mend("invalid UTF-8 replaced")
        return cleaned.decode(errors="replace")


def objects(text: str, tally: Tally, start: int = 0) -> Iterator[str]:
    """The JSON text of each whole object, one after the other; each stretch of anything else is one record lost."""
    at = _BETWEEN.match(text, start).end()  # type: ignore[union-attr]  # matches the empty string
    while at < len(text):
        end = _object_end(text, at) if text[at] == "{" else None
        if end is not None:
            yield text[at:end]
        else:
            restart = _RESTART.search(text, at)
            end = restart.end() if restart else len(text)
            # The end of the enclosing object or array is no record.
            if text[at:end].strip(" \t\r\n,]}"):
                tally.drop("cut off" if not restart else "damaged")
        at = _BETWEEN.match(text, end).end()  # type: ignore[union-attr]  # matches the empty string


def _object_end(text: str, at: int) -> int | None:
    try:
        return _DECODER.raw_decode(text, at)[1]
    except (ValueError, RecursionError):
        return None
