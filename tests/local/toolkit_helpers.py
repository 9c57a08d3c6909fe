"""Environment with AWS's training toolkit, made by `make .envs/toolkit.done`."""

import os
from pathlib import Path

import pytest

PYTHON = Path(__file__).parents[2] / ".envs" / "toolkit" / "bin" / "python"


def toolkit() -> str:
    """Return the python of that environment, or skip."""
    python = os.environ.get("SM_PROFILER_TEST_TOOLKIT") or str(PYTHON)
    if not Path(python).exists():
        pytest.skip("no environment with sagemaker-training: make .envs/toolkit.done")
    return python
