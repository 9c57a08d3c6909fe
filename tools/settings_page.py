"""Write docs/settings.md from the settings in sm_profiler/settings.py: `python tools/settings_page.py`."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from sm_profiler.settings import CONFIG_KEYS, PARAMETERS, TOP, VARIABLES, WINDOW, Setting

PAGE = Path(__file__).parents[1] / "docs/settings.md"
INTRODUCTION = """\
# Settings

Everything that can be set, with its default. `sm-profiler settings` lists the same with the present values and where
each comes from, `--json` for programs; its exit code is 1 if a value is wrong. While a training is recorded, a wrong
value is replaced by the default, and one line in the log names it; commands stop with that line.

A switch is `on`, `1`, `true`, `yes`, or `off`, `0`, `false`, `no`, in upper or lower case. With any other value of
`SM_PROFILER_AUTO`, nothing is recorded, and the first process of the job that imports a framework reports that in one
line. A variable that is empty counts as not set.

<!-- Written by tools/settings_page.py from sm_profiler/settings.py. -->
"""
CONFIGURATION = """\
## Configuration

Keys of the profiler configuration, in any case; [Configuration](configuration.md) has examples. Numbers may be texts.
"""
HEADINGS = {
    TOP: "### ProfilerConfig",
    PARAMETERS: "### ProfilingParameters",
    WINDOW: "### The window of a collector",
}


def table(settings: list[Setting]) -> str:
    """Return the table of some settings."""
    rows = ["| setting | value | default | |", "|---|---|---|---|"]
    for each in settings:
        value = f"{each.kind.name}, {each.unit}" if each.unit else each.kind.name
        extra = f"; `{each.file_key}` in the settings file" if each.file_key else ""
        extra += "; set by sm-profiler itself" if each.is_ours else ""
        rows.append(f"| `{each.name}` | {value} | {each.shown_default} | {each.description}{extra} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION, "## Environment variables\n"]
    for group, settings in groupby(VARIABLES, lambda each: each.group):
        parts += [f"### {group}\n", table(list(settings))]
    parts.append(CONFIGURATION)
    for group, settings in groupby(
        sorted(CONFIG_KEYS, key=lambda each: list(HEADINGS).index(each.group)), lambda each: each.group
    ):
        parts += [f"{HEADINGS[group]}\n", table(list(settings))]
    parts.append("Rules have parameters as well: [Built-in rules](rules.md) lists them.\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
