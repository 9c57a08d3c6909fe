"""A Python environment for one job on top of the endpoint's.

A job can import all packages of the endpoint's environment (torch, numpy, sm_profiler …).  What it installs, from a
requirements.txt or with pip in the script, goes to its own folder; the endpoint's environment is never modified.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

import sm_profiler

# The user's settings for pip: mirrors, proxies, certificates.
PIP_VARIABLES = (
    "PIP_",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_",
    "REQUESTS_CA_BUNDLE",
    "HOME",
    "XDG_CONFIG_",
)
# Line of the wheel's .pth file, for installations without it (editable ones).
AUTO_START = (
    "import os; os.environ.get('SM_PROFILER_AUTO') == '1' and __import__('sm_profiler.hook.auto').hook.auto.arm()"
)
MAX_COMMAND = 65536  # bytes of a console script; they are small
PYTHON = "SM_PROFILER_LOCAL_PYTHON"  # an interpreter whose packages the jobs get, instead of the endpoint's


def create_overlay(folder: Path, python: str | None = None) -> Path:
    """Create the environment, which takes some tens of milliseconds, and return its python.

    Args:
        folder: where.
        python: the interpreter with the packages; by default that of `SM_PROFILER_LOCAL_PYTHON`, or the endpoint's.

    Raises:
        OSError, subprocess.CalledProcessError: that interpreter does not run.
    """
    python = python or os.environ.get(PYTHON)
    if python:
        subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
        show = "import json, sys, sysconfig; print(json.dumps([sys.path, sysconfig.get_path('scripts')]))"
        shown = subprocess.run([python, "-c", show], check=True, capture_output=True, text=True).stdout
        paths, scripts = json.loads(shown)
    else:
        venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
        paths, scripts = sys.path, sysconfig.get_path("scripts")
    site = next(folder.glob("lib/python3*/site-packages"))
    below = [path for path in paths if Path(path).name in ("site-packages", "dist-packages")]
    # addsitedir also reads .pth files, on which editable installations depend
    lines = [f"import site; site.addsitedir({path!r})" for path in below]
    lines.append(str(Path(sm_profiler.__file__).parents[1]))
    (site / "_endpoint.pth").write_text("\n".join(lines) + "\n", "utf-8")
    if not any(found for path in below for found in Path(path).glob("sm_profiler*.pth")):
        (site / "sm_profiler_auto.pth").write_text(AUTO_START + "\n", "utf-8")
    copy_commands(Path(scripts), folder / "bin")
    return folder / "bin" / "python"


def copy_commands(source: Path, target: Path) -> None:
    """Copy the commands of Python packages (torchrun, accelerate, pip …) so that they run with the target's python.

    Args:
        source: the folder of the commands.
        target: folder of another python, whose own files are kept.
    """
    shebang = re.compile(re.escape(os.fsencode(source)) + rb"/python[0-9.]*")
    python = os.fsencode(target / "python")
    with contextlib.suppress(OSError):
        for entry in os.scandir(source):
            with contextlib.suppress(OSError):  # a broken link
                if not entry.is_file() or entry.stat().st_size > MAX_COMMAND or (target / entry.name).exists():
                    continue
                first, newline, rest = Path(entry.path).read_bytes().partition(b"\n")
                # pip writes the interpreter into the second line if the first one would be too long
                second, newlines, rest = rest.partition(b"\n") if first == b"#!/bin/sh" else (b"", b"", rest)
                head, count = shebang.subn(lambda _: python, first + newline + second)
                if first.startswith(b"#!") and count:
                    (target / entry.name).write_bytes(head + newlines + rest)
                    (target / entry.name).chmod(0o755)


def pip_environment(job: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a job's pip run: with the user's mirrors and proxies, and without the hook."""
    own = {name: value for name, value in os.environ.items() if name.upper().startswith(PIP_VARIABLES)}
    rest = {name: value for name, value in job.items() if not name.startswith("SM_PROFILER")}
    return {**rest, **own, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def install_command(python: Path, installs: Sequence[str]) -> list[str]:
    """Return the pip command for packages and requirements files, given as pip's arguments."""
    return [str(python), "-m", "pip", "install", "--progress-bar", "off", *installs]
