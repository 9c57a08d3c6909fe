"""Make text from files, object keys and configurations safe to print or log."""

from __future__ import annotations

import codecs
import contextlib
import io
import logging
import sys

ASCII = "sm_profiler.ascii"  # error handler for streams that cannot show all characters
CUT = "\N{HORIZONTAL ELLIPSIS}"  # ends a shortened text
_PLAIN = str.maketrans(
    {
        "\N{HORIZONTAL ELLIPSIS}": "...", "\N{EN DASH}": "-", "\N{MINUS SIGN}": "-", "\N{RIGHTWARDS ARROW}": "->",
        "\N{MULTIPLICATION SIGN}": "x", "\N{MIDDLE DOT}": "-", "\N{PLUS-MINUS SIGN}": "+-", "\N{MICRO SIGN}": "u",
        "\N{FULL BLOCK}": "#", "\N{BLACK SQUARE}": "#", "\N{LEFT DOUBLE QUOTATION MARK}": '"',
        "\N{RIGHT DOUBLE QUOTATION MARK}": '"', "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    }
)  # fmt: skip


def printable(text: object) -> str:
    r"""Return a text in one line, without control characters.

    Control characters, line separators, bidirectional marks, lone surrogates and other characters that `str.isprintable`
    excludes are shown as escapes such as `\x1b`, so that they cannot move the cursor, change colors or reorder the line.
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in shown
    )


def cut(text: str, most: int) -> str:
    """Return a text of at most so many characters; an ellipsis ends one that is longer."""
    return text if len(text) <= most else text[: most - 1] + CUT


def say(text: str) -> None:
    """Print one line on standard error, if that can be written: a training must not fail for a full disk or a closed pipe.

    Nothing stays in the stream's buffer: Python tries to write that at its exit, and changes the exit code if it cannot.
    """
    line, stream = f"sm-profiler: {text}\n", sys.stderr
    with contextlib.suppress(OSError, ValueError, AttributeError):  # full, closed, or none
        if type(stream) is io.TextIOWrapper and isinstance(stream.buffer, io.BufferedWriter):
            stream.flush()
            stream.buffer.raw.write(line.encode(stream.encoding, stream.errors or "strict"))
        else:
            stream.write(line)
            stream.flush()


def one_line(error: BaseException) -> str:
    """Return an error's message on one line; its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def logger_for(name: str) -> logging.Logger:
    """Return the logger of a name, whose messages are made printable: they may contain names from files and S3."""
    logger = logging.getLogger(name)
    logger.addFilter(_printable_message)  # has no effect the second time
    return logger


def _printable_message(record: logging.LogRecord) -> bool:
    record.msg, record.args = printable(record.getMessage()), ()
    return True


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return text.encode("ascii", "backslashreplace").decode("ascii"), error.end


codecs.register_error(ASCII, _plain)
