import os
import subprocess
from pathlib import Path

import pytest

SMDEBUG = Path(__file__).parents[2] / ".envs" / "smdebug" / "bin" / "python"


@pytest.fixture
def smdebug_python():
    """Runs a script in the environment of smdebug 1.0.34 and returns what it prints."""
    if not SMDEBUG.exists():
        if os.environ.get("CI"):
            pytest.fail(f"{SMDEBUG} is missing")
        pytest.skip("needs smdebug 1.0.34 in .envs/smdebug")

    def run(script: str, *arguments: str) -> str:
        done = subprocess.run(
            [SMDEBUG, "-W", "ignore", "-c", script, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
