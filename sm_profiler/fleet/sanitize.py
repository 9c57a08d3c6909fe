"""Texts of strangers, made safe: names, tags and sentences of jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sm_profiler.printable import printable

NAME, SENTENCE = 200, 600  # characters
MAX_TAGS = 60  # the service allows 50
CUT = "\N{HORIZONTAL ELLIPSIS}"  # ends a shortened text
# endings of names: times, dates, numbers and random letters after them
_ENDING = re.compile(
    r"(?:[-_.](?:[0-9]{4}-[0-9]{2}-[0-9]{2}(?:-[0-9]{2}){0,3}(?:-[0-9]{1,6})?|[0-9]+|v[0-9]+|(?=[a-z0-9]*[0-9])(?=[0-9]*[a-z])[a-z0-9]{6,}))+$"
)
_LONGEST_STEM_OF = 256


def name(text: object) -> str:
    """Return a name in one printable line."""
    return _cut(text, NAME)


def sentence(text: object) -> str:
    """Return a sentence in one printable line."""
    return _cut(text, SENTENCE)


def _cut(text: object, length: int) -> str:
    raw = str(text)[: length + 1]
    shown = printable(" ".join(raw.split()) if "\n" in raw or "\t" in raw else raw)
    return shown if len(shown) <= length else shown[: length - 1] + CUT


def tags(found: Mapping[object, object]) -> dict[str, str]:
    """Return tags in printable lines."""
    return {name(key): name(value) for key, value in list(found.items())[:MAX_TAGS]}


def stem(job: str) -> str:
    """Return a job's name without the times, numbers and random letters at its end; the name if nothing is left."""
    short = job[:_LONGEST_STEM_OF]
    return _ENDING.sub("", short.lower()) or short
