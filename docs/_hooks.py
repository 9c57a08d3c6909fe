"""MkDocs hook: insert the help of every command into the command-line reference."""

from __future__ import annotations

import os
import re
import subprocess
import sys

MARKER = "<!-- command-line help is inserted here when the site is built -->"


def help_of(*command: str) -> str:
    """Return what `sm-profiler COMMAND --help` prints."""
    return subprocess.run(
        [sys.executable, "-m", "sm_profiler", *command, "--help"],
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the marker with one section for each command."""
    if MARKER not in markdown:
        return markdown
    overview = help_of()
    commands = re.findall(r"^    ([a-z][a-z-]+)(?:  |$)", overview, re.MULTILINE)
    sections = [f"```text\n{overview}```"]
    sections += [f"## {name}\n\n```text\n{help_of(name)}```" for name in commands]
    return markdown.replace(MARKER, "\n\n".join(sections))
