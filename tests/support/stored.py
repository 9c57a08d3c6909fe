"""Texts that are compared with stored files; SM_PROFILER_STORE=1 writes the files instead."""

import os
from html.parser import HTMLParser
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "data" / "report" / "texts"
VOID = {"br", "col", "hr", "img", "input", "link", "meta"}


class Words(HTMLParser):
    """The visible text of an element and of what is in it."""

    def __init__(self, element):
        super().__init__()
        self.element, self.depth, self.hidden, self.lines = element, 0, 0, []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID and (self.depth or dict(attrs).get("id") == self.element):
            self.depth += 1
            self.hidden += bool(self.hidden) or tag in ("script", "style", "svg")

    def handle_endtag(self, tag):
        if self.depth and tag not in VOID:
            self.depth -= 1
            self.hidden -= bool(self.hidden)

    def handle_data(self, data):
        if self.depth and not self.hidden and data.strip():
            self.lines.append(" ".join(data.split()))


def words_of(html, element):
    """Return the visible words of the element with this id, one text node a line."""
    found = Words(element)
    found.feed(html)
    return "\n".join(found.lines) + "\n"


def assert_as_stored(text, name):
    """Compare with the stored text of this name."""
    path = FOLDER / f"{name}.txt"
    if os.environ.get("SM_PROFILER_STORE"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path}: SM_PROFILER_STORE=1 pytest … accepts the new text"
