"""A Python environment of the job's own, laid over the endpoint's.

A job sees all packages of the endpoint's environment (torch, numpy, sm_profiler …) and installs its own, from a
requirements.txt or with pip inside the script, into its own folder: the endpoint's environment is never written to.
"""

from __future__ import annotations

import os
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

import sm_profiler

# What pip needs of the user's own settings, and nothing of a job's: mirrors, proxies, certificates.
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
# The line of the wheel's own .pth file, for installations that do not have it (an editable one).
AUTO_START = (
    "import os; os.environ.get('SM_PROFILER_AUTO') == '1' and __import__('sm_profiler.hook.auto').hook.auto.arm()"
)


def create_overlay(folder: Path) -> Path:
    """Make the environment (no download, no pip run: some tens of milliseconds); returns its python."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    site = next(folder.glob("lib/python3*/site-packages"))
    below = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    # addsitedir, not a bare path: it also reads the .pth files there, on which editable installations depend
    lines = [f"import site; site.addsitedir({path!r})" for path in below]
    lines.append(str(Path(sm_profiler.__file__).parents[1]))
    (site / "_endpoint.pth").write_text("\n".join(lines) + "\n", "utf-8")
    if not any(Path(path).glob("sm_profiler*.pth") for path in below):
        (site / "sm_profiler_auto.pth").write_text(AUTO_START + "\n", "utf-8")
    return folder / "bin" / "python"


def pip_environment(job: Mapping[str, str]) -> dict[str, str]:
    """A job's environment for its pip run: with the user's mirrors and proxies, and the hook off."""
    own = {name: value for name, value in os.environ.items() if name.upper().startswith(PIP_VARIABLES)}
    rest = {name: value for name, value in job.items() if not name.startswith("SM_PROFILER")}
    return {**rest, **own, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def install_command(python: Path, requirements: Path) -> list[str]:
    """The pip run for a requirements file."""
    return [str(python), "-m", "pip", "install", "--progress-bar", "off", "-r", str(requirements)]
