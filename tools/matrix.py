"""Run the hook's tests against several versions of Python, PyTorch and NumPy.

    python tools/matrix.py [ROW ...]        # rows as listed by --list; default: all
    python tools/matrix.py --list

Each row gets an environment below .envs, which is removed after the row unless --keep is given: PyTorch with its CUDA
libraries takes 5 GB. Rows whose Python is not installed are reported as not run. Exits with 1 if a row fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVS = ROOT / ".envs"
# name → Python, PyTorch, NumPy
ROWS = {
    "oldest": ("3.10", "2.4.1", "1.26.4"),
    "numpy1": ("3.11", "2.6.0", "1.26.4"),
    "studio": ("3.12", "2.7.1", "2.2.6"),
    "newest": ("3.13", "2.13.0", "2.3.3"),
}
PINS = {"oldest": ("transformers<4.50",)}  # row → requirements that its PyTorch needs
TESTS = ("tests/hook", "tests/config", "tests/formats")
PACKAGES = (
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "hypothesis",
    "scipy",
    "transformers",
    "accelerate",
    "lightning",
)


def find_python(version: str) -> str | None:
    """Return an interpreter of this version from PATH or pyenv."""
    candidates = [shutil.which(f"python{version}"), sys.executable]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += [str(path / "bin/python") for path in sorted(pyenv.glob(f"{version}.*"), reverse=True)]
    for candidate in filter(None, candidates):
        program = "import sys; print('%d.%d' % sys.version_info[:2])"
        shown = subprocess.run([candidate, "-c", program], capture_output=True, text=True, check=False)
        if shown.stdout.strip() == version:
            return candidate
    return None


def run_row(name: str, *, keep: bool) -> str:
    """Build one environment and run the tests in it; return the outcome as one line."""
    version, torch, numpy = ROWS[name]
    base = find_python(version)
    if base is None:
        return f"not run: Python {version} is not installed"
    env = ENVS / f"matrix-{name}"
    python = str(env / "bin/python")
    began = time.monotonic()
    try:
        subprocess.run([base, "-m", "venv", "--clear", str(env)], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"torch=={torch}", f"numpy=={numpy}", *PACKAGES, *PINS.get(name, ())], check=True)
        subprocess.run([*pip, "-e", f"{ROOT}[all]", f"numpy=={numpy}"], check=True)
        command = [python, "-m", "pytest", "-q", "-n", "2", "-m", "not alone and not long", *TESTS]
        tested = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except subprocess.CalledProcessError as error:
        return f"FAILED: {' '.join(error.cmd[-3:])} exited with {error.returncode}"
    finally:
        if not keep:
            shutil.rmtree(env, ignore_errors=True)
    if tested.returncode:
        print(tested.stdout[-8000:], tested.stderr[-2000:])
    last = tested.stdout.strip().splitlines()[-1].strip("= ")
    return f"{'FAILED: ' if tested.returncode else ''}{last} ({(time.monotonic() - began) / 60:.0f} min in all)"


def main() -> int:
    """Run the chosen rows, print a table, return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--list", action="store_true", help="list the rows and exit")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    options = parser.parse_args()
    if options.list:
        for name, (python, torch, numpy) in ROWS.items():
            print(f"{name:8} Python {python}, PyTorch {torch}, NumPy {numpy}")
        return 0
    failed = False
    for name in options.rows or ROWS:
        python, torch, numpy = ROWS[name]
        outcome = run_row(name, keep=options.keep)
        failed = failed or outcome.startswith("FAILED")
        print(f"| {python} | {torch} | {numpy} | {outcome} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
