"""The environment with TensorFlow, Keras, JAX and PyTorch."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# an environment's name below .envs, or the path of another
ENVIRONMENT = os.environ.get("SM_PROFILER_FRAMEWORKS_ENV", "frameworks")
PYTHON = ROOT / ".envs" / ENVIRONMENT / "bin" / "python"
HERE = ROOT / "tests/frameworks"
INSTALLED = any(PYTHON.parents[1].glob("lib/python*/site-packages/torch"))  # not beside the oldest TensorFlow
TORCH = pytest.param("torch", marks=pytest.mark.skipif(not INSTALLED, reason="no PyTorch in this environment"))
BACKENDS = ("tensorflow", "jax", TORCH)
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
