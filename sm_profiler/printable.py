"""Make text from files, object keys and configurations safe to print or log."""

from __future__ import annotations


def printable(text: object) -> str:
    r"""Return a text in one line, without control characters.

    Control characters, line separators, bidirectional marks, lone surrogates and other characters that `str.isprintable`
    excludes are shown as escapes such as `\x1b`, so that they cannot move the cursor, change colors or reorder the line.
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in shown)
