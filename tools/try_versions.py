"""Try versions of Python, PyTorch and NumPy, and of SageMaker's SDK, and write what came out into docs/versions.md.

    python tools/try_versions.py [--only TEXT] [--keep-cache]     # rows whose key contains TEXT; default: all
    python tools/try_versions.py --list

Each row gets an environment in a temporary folder, made by uv, and loses it afterwards: PyTorch with its CUDA libraries
takes 5 GB.  A PyTorch row runs trainings of every kind with each window open, with the hook off, on and failing
(`tests/hook/test_hook_training.py`): counts agree with the script's, and results are equal to the bit.  An SDK row runs
the tests that compare requests.  Rows are replaced in the page one by one, so that a part can be tried again; the
others keep their date.  Exits with 1 if a row fails that is not marked as unsupported.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from matrix import find_python

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "versions.md"
TRAININGS = ("tests/hook/test_hook_training.py", "tests/hook/test_hook_discovery.py", "tests/hook/test_hook_windows.py")
REQUESTS = (
    "tests/debugger/test_debugger_against_sdk.py",
    "tests/debugger/test_debugger_objects.py",
    "tests/launch/test_launch_estimator.py",
    "tests/launch/test_launch_request.py",
)
SHOWN = 6000  # characters of a failed row's output


class RowError(Exception):
    """A row failed; the message is its outcome."""


@dataclass(frozen=True)
class Row:
    """One line of a table: what is installed, what runs, and the installed packages whose versions it shows."""

    table: str
    python: str
    requirements: tuple[str, ...]
    shown: tuple[str, ...]
    tests: tuple[str, ...]
    extras: str
    unsupported: bool = False  # tried, and free to fail

    @property
    def key(self) -> str:
        """The row's name on the command line and in the page."""
        return " ".join([self.python, *self.requirements[: len(self.shown)]])


def pytorch(python: str, torch: str, numpy: str, *more: str, unsupported: bool = False) -> Row:
    """Return a row of the hook's table."""
    named = (f"torch=={torch}", f"numpy=={numpy}")
    tools = ("pytest", "pytest-timeout", "hypothesis", "psutil")
    return Row("pytorch", python, (*named, *tools, *more), ("torch", "numpy"), TRAININGS, "rules", unsupported)


def sdk(python: str, version: str, *more: str, unsupported: bool = False) -> Row:
    """Return a row of the SDK's table."""
    newest = version.startswith("3")
    tests = ("tests/launch/test_launch_sdk3.py",) if newest else REQUESTS
    tools = ("pytest", "pytest-timeout", "hypothesis", *more)
    return Row("sdk", python, (f"sagemaker=={version}", *tools), ("sagemaker",), tests, "local", unsupported)


PYTZ = "pytz"  # for pipelines of older releases, which used to get it with pandas
# In the order of the PyTorch versions: rows that follow each other share downloads.
ROWS = (
    pytorch("3.10", "2.1.2", "1.26.4", unsupported=True),
    pytorch("3.11", "2.2.2", "1.26.4", unsupported=True),
    pytorch("3.11", "2.3.1", "1.26.4", unsupported=True),
    pytorch("3.10", "2.4.1", "1.26.4"),
    pytorch("3.11", "2.4.1", "2.2.6"),
    pytorch("3.12", "2.4.1", "1.26.4"),
    pytorch("3.10", "2.6.0", "2.2.6"),
    pytorch("3.11", "2.6.0", "1.26.4"),
    pytorch("3.12", "2.6.0", "2.2.6"),
    pytorch("3.13", "2.6.0", "2.3.3"),
    pytorch("3.10", "2.8.0", "1.26.4"),
    pytorch("3.11", "2.8.0", "2.3.3"),
    pytorch("3.12", "2.8.0", "1.26.4"),
    pytorch("3.13", "2.8.0", "2.3.3"),
    pytorch("3.11", "2.13.0", "1.26.4"),
    pytorch("3.11", "2.13.0", "2.3.3"),
    pytorch("3.10", "2.13.0", "2.2.6"),
    pytorch("3.12", "2.13.0", "2.3.3"),
    pytorch("3.13", "2.13.0", "2.3.3"),
    sdk("3.10", "2.200.0", PYTZ),
    sdk("3.11", "2.232.3", PYTZ),
    sdk("3.11", "2.257.7"),
    sdk("3.12", "3.0"),
    sdk("3.11", "3.13.1"),
    sdk("3.12", "3.27.0"),
)


def find_uv() -> str:
    """Return uv's path."""
    found = shutil.which("uv")
    if found is None:
        sys.exit("try_versions: uv is not installed: pip install uv")
    return found


def run_row(row: Row, uv: str, folder: Path) -> tuple[list[str], str]:
    """Install and test one row; return the installed versions and the outcome."""
    env = folder / "env"
    python = str(env / "bin/python")
    try:
        base = find_python(row.python)
        if base is None:
            raise RowError("no Python of this version is installed")
        call([uv, "venv", "--quiet", "--python", base, str(env)], "no environment")
        links = ["--find-links", place] if (place := os.environ.get("PIP_FIND_LINKS")) else []
        wanted = [*row.requirements, "-e", f"{ROOT}[{row.extras}]"]
        call([uv, "pip", "install", "--quiet", "--python", python, *links, *wanted], "cannot be installed")
        installed = [version_of(python, name) for name in row.shown]
        return installed, run_tests(row, python)
    finally:
        shutil.rmtree(env, ignore_errors=True)


def call(command: list[str], problem: str) -> str:
    """Run a command; raise RowError with its last line if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reasons = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise RowError(f"{problem}: {' '.join(reasons)[-400:] or done.returncode}")
    return done.stdout


def version_of(python: str, name: str) -> str:
    """Return the installed version of a package."""
    return call([python, "-c", f"import importlib.metadata as m; print(m.version({name!r}))"], name).strip()


def run_tests(row: Row, python: str) -> str:
    """Run the row's tests; return pytest's closing line, with the names of what failed."""
    if row.tests == ("tests/launch/test_launch_sdk3.py",):
        return run_sdk3(python)
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "-W", "default"]
    tested = subprocess.run(
        [*command, "-m", "not alone and not long", "--timeout", "600", *row.tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": tempfile.gettempdir()},
    )
    lines = tested.stdout.strip().splitlines() or ["no output"]
    outcome = re.sub(r",? ?\d+ warnings?| in [\d.:()hms ]+", "", lines[-1].strip("= "))
    if tested.returncode:
        print(tested.stdout[-SHOWN:], tested.stderr[-SHOWN:], file=sys.stderr)
        failed = re.findall(r"^(?:FAILED|ERROR) \S*::(\S+)", tested.stdout, re.MULTILINE)
        raise RowError(f"{outcome}: {', '.join(failed[:4])}{' …' if len(failed) > 4 else ''}")  # noqa: PLR2004 - names shown
    return outcome


def run_sdk3(python: str) -> str:
    """Run the cases for SDK v3, a program of their own."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
        "TELEMETRY_OPT_OUT": "true",
        "SM_PROFILER_SETTINGS": str(Path(tempfile.gettempdir()) / "no-settings.json"),
    }
    program = ROOT / "tests" / "launch" / "sdk3_program.py"
    shown = subprocess.run([python, str(program)], env=environment, capture_output=True, text=True, check=False)
    found = [line for line in shown.stdout.splitlines() if line.startswith("RESULTS ")]
    if not found:
        raise RowError(f"does not run: {shown.stderr.strip().splitlines()[-1][:300]}")
    results: dict[str, str] = json.loads(found[0].removeprefix("RESULTS "))
    failed = {name: said for name, said in results.items() if said != "fine"}
    if failed:
        print(json.dumps(failed, indent=1).replace("\\n", "\n"), file=sys.stderr)
        reasons = [f"{name} ({said.splitlines()[0][:120]})" for name, said in failed.items()]
        raise RowError(f"{len(results) - len(failed)} of {len(results)} cases pass; not {'; '.join(reasons)}")
    return f"{len(results)} cases passed"


def write(row: Row, installed: list[str], outcome: str, page: Path = PAGE) -> None:
    """Replace the row in the page's table, or add it where `ROWS` has it."""
    text = page.read_text(encoding="utf-8")
    begin, end = f"<!-- {row.table} -->\n", f"<!-- end of {row.table} -->\n"
    head, rest = text.split(begin)
    table, tail = rest.split(end)
    lines = table.splitlines()
    order = {one.key: number for number, one in enumerate(ROWS)}
    marks = {mark.group(1): line for line in lines if (mark := re.search(r"<!-- (.*?) -->", line))}
    today = f"{datetime.now(timezone.utc):%Y-%m-%d}"
    cells = [row.python, *installed, today, outcome.replace("|", "/").replace("\n", " ")]
    marks[row.key] = f"| {' | '.join(cells)} <!-- {row.key} --> |"
    kept = [marks[key] for key in sorted(marks, key=lambda key: order.get(key, len(order))) if key in order]
    page.write_text(head + begin + "\n".join([*lines[:3], *kept, "", ""]) + end + tail, encoding="utf-8")


def main() -> int:
    """Try the chosen rows; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="rows whose key contains this text")
    parser.add_argument("--list", action="store_true", help="list the rows' keys and exit")
    parser.add_argument("--keep-cache", action="store_true", help="use uv's own cache, and leave the downloads there")
    options = parser.parse_args()
    rows = [row for row in ROWS if options.only in row.key]
    if options.list:
        print("\n".join(row.key for row in rows))
        return 0
    failed = False
    uv = find_uv()
    with tempfile.TemporaryDirectory(prefix="sm-profiler-versions-") as name:
        cache = None
        for row in rows:
            if not options.keep_cache and cache != row.requirements[0]:  # another PyTorch: other CUDA libraries
                shutil.rmtree(Path(name) / "cache", ignore_errors=True)
                cache = row.requirements[0]
                os.environ["UV_CACHE_DIR"] = str(Path(name) / "cache")
            began = time.monotonic()
            installed = [one.partition("==")[2] for one in row.requirements[: len(row.shown)]]
            try:
                installed, outcome = run_row(row, uv, Path(name))
            except RowError as error:
                failed = failed or not row.unsupported
                outcome = f"**fails**: {error}"
            print(f"{row.key}: {outcome} ({(time.monotonic() - began) / 60:.1f} min)", flush=True)
            write(row, installed, outcome)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
