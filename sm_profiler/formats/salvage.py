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
# Raw line breaks within a text are let through here and become blanks, as they stand for nothing outside of texts.
_DECODER = json.JSONDecoder(strict=False)
_BREAKS = str.maketrans("\t\r\n", "   ")


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
    """The JSON text of each whole object, one after the other, without line breaks.

    Whatever else stands between them is counted as lost: a record a line where the file has a line a record, else one
    record a stretch.
    """
    by_line = "\n{" in text or "\n" not in text.strip()
    at = _after_blanks(text, start)
    while at < len(text):
        end = _object_end(text, at) if text[at] == "{" else None
        if end is not None:
            yield text[at:end].translate(_BREAKS)
        else:
            restart = _RESTART.search(text, at)
            end = restart.end() if restart else len(text)
            # At the end of a file, brackets close what encloses the records.
            blank = " \t\r,[]" if restart else " \t\r,[]}"
            broken = sum(1 for line in text[at:end].split("\n") if line.strip(blank))
            tally.drop("damaged" if restart else "cut off", broken if by_line else min(broken, 1))
        at = _after_blanks(text, end)


def _after_blanks(text: str, at: int) -> int:
    match = _BETWEEN.match(text, at)
    return match.end() if match else at


def _object_end(text: str, at: int) -> int | None:
    try:
        return _DECODER.raw_decode(text, at)[1]
    except (ValueError, RecursionError):
        return None
