"""Try versions of Python and of what sm-profiler works with, and write what came out into docs/versions.md.

    python tools/try_versions.py [--table NAME] [--only TEXT] [--keep-cache]     # default: all rows
    python tools/try_versions.py --list

Each row gets an environment in a temporary folder, made by uv, and loses it afterwards: PyTorch with its CUDA libraries
takes 5 GB.  The tables:

- pytorch: trainings of every kind with each window open, with the hook off, on and failing;
- hook: all tests of the hook, of configuration and of formats, with transformers, accelerate and Lightning;
- frameworks: all tests of TensorFlow, Keras and JAX;
- sdk: the tests that compare requests.

Rows are replaced in the page one by one, so that a part can be tried again; the others keep their date.  A row whose
Python is not installed keeps what it had.  Exits with 1 if a row fails that is not marked as unsupported.
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

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "versions.md"
TRAININGS = ("tests/hook/test_hook_training.py", "tests/hook/test_hook_discovery.py", "tests/hook/test_hook_windows.py")
REQUESTS = (
    "tests/debugger/test_debugger_against_sdk.py",
    "tests/debugger/test_debugger_objects.py",
    "tests/launch/test_launch_estimator.py",
    "tests/launch/test_launch_request.py",
)
OLD_TRAININGS = (TRAININGS[0], TRAININGS[2])  # the tests of discovery use what PyTorch has had since 2.3
HOOK = ("tests/hook", "tests/config", "tests/formats")
FRAMEWORKS = ("tests/frameworks",)
SDK3 = ("tests/launch/test_launch_sdk3.py",)
PYTEST = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")
TWO = ("-n", "2")  # tests at a time
SHOWN = 6000  # characters of a failed row's output
SECONDS = 3600  # for one row's tests


class RowError(Exception):
    """A row failed; the message is its outcome."""


class NotRun(Exception):  # it is no failure
    """A row cannot be tried on this machine."""


@dataclass(frozen=True)
class Row:
    """One line of a table: what is installed, what runs, and the installed packages whose versions it shows."""

    table: str
    python: str
    requirements: tuple[str, ...]
    shown: tuple[str, ...]
    tests: tuple[str, ...]
    extras: str
    options: tuple[str, ...] = ()
    unsupported: str = ""  # why it is free to fail

    @property
    def key(self) -> str:
        """The row's name on the command line and in the page."""
        return " ".join([self.python, *self.requirements[: len(self.shown)]])


def pytorch(python: str, torch: str, numpy: str, unsupported: str = "") -> Row:
    """Return a row of trainings."""
    named = (f"torch=={torch}", f"numpy=={numpy}")
    return Row(
        "pytorch",
        python,
        (*named, *PYTEST, "psutil"),
        ("torch", "numpy"),
        OLD_TRAININGS if unsupported else TRAININGS,
        "rules",
        (),
        unsupported,
    )


def hook(python: str, torch: str, numpy: str, *more: str) -> Row:
    """Return a row of all the hook's tests; `more` are requirements that its PyTorch needs."""
    named = (f"torch=={torch}", f"numpy=={numpy}")
    beside = ("scipy", "accelerate", "lightning", *(more or ("transformers",)))
    return Row("hook", python, (*named, *PYTEST, *beside), ("torch", "numpy"), HOOK, "all", TWO)


def frameworks(python: str, tensorflow: str, keras: str, jax: str, torch: str) -> Row:
    """Return a row of the other frameworks' tests; PyTorch is there as Keras's backend."""
    named = (f"tensorflow-cpu=={tensorflow}", f"keras=={keras}", f"jax=={jax}", f"torch=={torch}")
    shown = ("tensorflow-cpu", "keras", "jax", "torch")
    return Row("frameworks", python, (*named, *PYTEST, "flax", "optax"), shown, FRAMEWORKS, "all", TWO)


def sdk(python: str, version: str, *more: str, unsupported: str = "") -> Row:
    """Return a row of the SDK's table."""
    tests = SDK3 if version.startswith("3") else REQUESTS
    return Row(
        "sdk", python, (f"sagemaker=={version}", *PYTEST, *more), ("sagemaker",), tests, "local", (), unsupported
    )


HEADS = {
    "pytorch": ("Python", "PyTorch", "NumPy"),
    "hook": ("Python", "PyTorch", "NumPy"),
    "frameworks": ("Python", "TensorFlow", "Keras", "JAX", "PyTorch"),
    "sdk": ("Python", "SDK"),
}
OLD = "older than the versions that sm-profiler supports"
PYTZ = "pytz"  # for pipelines of older releases, which used to get it with pandas
# In the order of the PyTorch versions: rows that follow each other share downloads.
ROWS = (
    pytorch("3.10", "2.1.2", "1.26.4", OLD),
    pytorch("3.11", "2.2.2", "1.26.4", OLD),
    pytorch("3.11", "2.3.1", "1.26.4", OLD),
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
    hook("3.10", "2.4.1", "1.26.4", "transformers<4.50"),
    hook("3.11", "2.6.0", "1.26.4"),
    hook("3.12", "2.7.1", "2.2.6"),
    hook("3.13", "2.13.0", "2.3.3"),
    frameworks("3.12", "2.21.0", "3.15.1", "0.10.2", "2.13.0"),
    sdk("3.10", "2.200.0", PYTZ),
    sdk("3.11", "2.232.3", PYTZ),
    sdk("3.11", "2.245.0", PYTZ),
    sdk("3.11", "2.257.7"),
    sdk("3.12", "3.0", unsupported="installed by itself it has no `sagemaker.train`, where ModelTrainer is"),
    sdk("3.11", "3.13.1"),
    sdk("3.12", "3.27.0"),
)


def find_python(version: str) -> str:
    """Return an interpreter of this version from PATH or pyenv."""
    candidates = [shutil.which(f"python{version}"), sys.executable]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += [str(path / "bin/python") for path in sorted(pyenv.glob(f"{version}.*"), reverse=True)]
    for candidate in filter(None, candidates):
        program = "import sys; print('%d.%d' % sys.version_info[:2])"
        shown = subprocess.run([candidate, "-c", program], capture_output=True, text=True, check=False)
        if shown.stdout.strip() == version:
            return candidate
    raise NotRun(f"Python {version} is not installed")


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
        call([uv, "venv", "--quiet", "--python", find_python(row.python), str(env)], "no environment")
        links = ["--find-links", place] if (place := os.environ.get("PIP_FIND_LINKS")) else []
        wanted = [*row.requirements, "-e", f"{ROOT}[{row.extras}]"]
        call([uv, "pip", "install", "--quiet", "--python", python, *links, *wanted], "cannot be installed")
        installed = [version_of(python, name) for name in row.shown]
        return installed, run_sdk3(python) if row.tests == SDK3 else run_tests(row, env)
    finally:
        shutil.rmtree(env, ignore_errors=True)


def call(command: list[str], problem: str) -> str:
    """Run a command; raise RowError with the end of its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reasons = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise RowError(f"{problem}: {' '.join(reasons)[-400:] or done.returncode}")
    return done.stdout


def version_of(python: str, name: str) -> str:
    """Return the installed version of a package."""
    return call([python, "-c", f"import importlib.metadata as m; print(m.version({name!r}))"], name).strip()


def run_tests(row: Row, env: Path) -> str:
    """Run the row's tests; return pytest's closing line, with the names of what failed."""
    command = [
        str(env / "bin/python"),
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
        "-W",
        "default",
    ]
    try:
        tested = subprocess.run(
            [*command, "-m", "not alone and not long", "--timeout", "3000", *row.options, *row.tests],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            env={
                **os.environ,
                "HYPOTHESIS_STORAGE_DIRECTORY": tempfile.gettempdir(),
                "SM_PROFILER_FRAMEWORKS_ENV": str(env),
            },
        )
    except subprocess.TimeoutExpired as error:
        raise RowError(f"the tests did not end within {SECONDS // 60} minutes") from error
    lines = tested.stdout.strip().splitlines() or ["no output"]
    outcome = re.sub(r",? ?\d+ warnings?| in [\d.:()hms ]+", "", lines[-1].strip("= "))
    if tested.returncode:
        print(tested.stdout[-SHOWN:], tested.stderr[-SHOWN:], file=sys.stderr)
        failed = re.findall(r"^(?:FAILED|ERROR) \S*::(\S+)", tested.stdout, re.MULTILINE)
        raise RowError(f"{outcome}: {', '.join(failed[:4])}{' …' if len(failed) > 4 else ''}")  # names shown
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
        lines = shown.stderr.strip().splitlines() or [f"it exited with {shown.returncode} and printed nothing"]
        raise RowError(f"does not run: {lines[-1][:300]}")
    results: dict[str, str] = json.loads(found[0].removeprefix("RESULTS "))
    failed = {name: outcome for name, outcome in results.items() if outcome != "fine"}
    if failed:
        print(json.dumps(failed, indent=1).replace("\\n", "\n"), file=sys.stderr)
        reasons = [f"{name} ({outcome.splitlines()[0][:120]})" for name, outcome in failed.items()]
        raise RowError(f"{len(results) - len(failed)} of {len(results)} cases pass; not {'; '.join(reasons)}")
    return f"{len(results)} cases passed"


def failure(row: Row, error: RowError) -> str:
    """Return the outcome of a row that failed: a defect, or a version that is not supported, with the reason."""
    return f"not supported, {row.unsupported}: {error}" if row.unsupported else f"**fails**: {error}"


def write(row: Row, installed: list[str], outcome: str, page: Path = PAGE) -> None:
    """Replace the row in the page's table, or add it where `ROWS` has it."""
    text = page.read_text(encoding="utf-8")
    begin, end = f"<!-- {row.table} -->\n", f"<!-- end of {row.table} -->\n"
    head, rest = text.split(begin)
    table, tail = rest.split(end)
    lines = table.splitlines()
    order = {known.key: number for number, known in enumerate(ROWS) if known.table == row.table}
    marks = {mark.group(1): line for line in lines if (mark := re.search(r"<!-- (.*?) -->", line))}
    today = f"{datetime.now(timezone.utc):%Y-%m-%d}"
    cells = [row.python, *installed, today, outcome.replace("|", "/").replace("\n", " ")]
    marks[row.key] = f"| {' | '.join(cells)} <!-- {row.key} --> |"
    kept = [marks[key] for key in sorted(marks, key=lambda key: order.get(key, len(order))) if key in order]
    heads = (*HEADS[row.table], "tried on", "outcome")
    title = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    page.write_text(head + begin + "\n".join(["", *title, *kept, "", ""]) + end + tail, encoding="utf-8")


def main() -> int:
    """Try the chosen rows; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", choices=sorted({row.table for row in ROWS}), help="rows of one table")
    parser.add_argument("--only", default="", help="rows whose key contains this text")
    parser.add_argument("--list", action="store_true", help="list the rows' keys and exit")
    parser.add_argument("--keep-cache", action="store_true", help="use uv's own cache, and leave the downloads there")
    options = parser.parse_args()
    rows = [row for row in ROWS if options.table in {None, row.table} and options.only in row.key]
    if options.list:
        print("\n".join(f"{row.table:10} {row.key}" for row in rows))
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
            installed = [requirement.partition("==")[2] for requirement in row.requirements[: len(row.shown)]]
            try:
                installed, outcome = run_row(row, uv, Path(name))
            except NotRun as reason:
                print(f"{row.key}: not run: {reason}", flush=True)
                continue
            except RowError as error:
                failed = failed or not row.unsupported
                outcome = failure(row, error)
            print(f"{row.key}: {outcome} ({(time.monotonic() - began) / 60:.1f} min)", flush=True)
            write(row, installed, outcome)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
