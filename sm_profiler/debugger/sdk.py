"""Names of `sagemaker.debugger` outside profiling, from whichever SageMaker SDK is installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

HANDED_THROUGH = (
    "DEBUGGER_FLAG",
    "CollectionConfig",
    "DebuggerHookConfig",
    "Rule",
    "RuleBase",
    "TensorBoardOutputConfig",
    "framework_name",
)


def hand_through(name: str, module: str) -> Any:
    """The SDK's own object of that name, v2's or else v3's.

    Raises:
        AttributeError: the SDK's debugger module has no such name, or no SDK is installed.
    """
    if name not in HANDED_THROUGH:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    for source in ("sagemaker.debugger", "sagemaker.core.debugger"):
        try:
            found = import_module(source)
        except ModuleNotFoundError as error:
            if error.name is not None and error.name.partition(".")[0] == "sagemaker":
                continue
            raise
        if not found.__name__.startswith("sm_profiler"):  # someone may have put us in the SDK's place
            return getattr(found, name)
    raise AttributeError(f"{module}.{name} is the SageMaker SDK's own, and it is not installed: pip install sagemaker")
