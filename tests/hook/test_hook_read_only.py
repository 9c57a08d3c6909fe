"""sm-profiler in read-only site-packages: the hook is armed and records, and nothing is written there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sm_profiler
from tests.support.hook import SCRIPT, environment, steps

PTH = Path(__file__).parents[2] / "packaging" / "sm_profiler_auto.pth"
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'


def installed(folder: Path) -> Path:
    """Return the site-packages of a new environment that contains sm-profiler, and finds all else here."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python3.*/site-packages")
    shutil.copytree(
        Path(sm_profiler.__file__).parent, packages / "sm_profiler", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(PTH, packages)
    (packages / "zz_others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return packages


def listed(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.long
def test_nothing_is_written_to_site_packages(tmp_path):
    packages = installed(tmp_path / "env")
    python = [str(tmp_path / "env" / "bin" / "python")]
    if os.getuid() == 0:  # who may write to any folder
        python = ["unshare", "--mount", "sh", "-c", READ_ONLY, str(packages), *python]
        probe = subprocess.run([*python, "-c", ""], capture_output=True, text=True, check=False)
        if probe.returncode:
            pytest.skip(f"root, but without read-only mounts: {probe.stderr}")
    else:
        for path in (packages, *packages.rglob("*")):
            path.chmod(path.stat().st_mode & ~0o222)
    before = listed(packages)
    variables = environment(
        SM_PROFILER_AUTO="1",
        SM_PROFILER_CONFIG=json.dumps({"ProfilingParameters": {"LocalPath": str(tmp_path / "profile")}}),
    )
    del variables["PYTHONPATH"]  # only what is installed counts
    code = "import os, sm_profiler, sys; open(os.path.join(os.path.dirname(sm_profiler.__file__), 'x'), 'w')"
    writing = subprocess.run([*python, "-c", code], env=variables, capture_output=True, text=True, check=False)
    assert "Error" in writing.stderr, writing.stderr  # the test itself: the folder cannot be written
    done = subprocess.run(
        [*python, str(SCRIPT)], env=variables, capture_output=True, text=True, check=False, timeout=240
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(steps(tmp_path / "profile")) == 10
    assert listed(packages) == before
