"""Configurations of the built-in rules: `smdebug_rulesconfig` and two profiler rules that it does not export."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_SOURCE = "smdebug_rulesconfig"
_RULES = f"{_SOURCE}.profiler_rules.rules"


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Dataloader":
        found: Any = import_module(_RULES).Dataloader
    elif name == "OverallFrameworkMetrics":
        found = _overall_framework_metrics()
    else:
        try:
            found = getattr(import_module(_SOURCE), name)
        except AttributeError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    names = set(vars(import_module(_SOURCE))) | {"Dataloader", "OverallFrameworkMetrics"}
    return sorted(name for name in names if not name.startswith("_"))


def _overall_framework_metrics() -> type:
    base = import_module(_RULES).ProfilerRuleBase

    def __init__(self: Any, scan_interval_us: int = 60_000_000) -> None:  # becomes a method of the new class
        """Configure the rule.

        Args:
            self: the configuration.
            scan_interval_us: microseconds between two scans for new files.
        """
        if not scan_interval_us > 0:
            raise AssertionError("scan_interval_us must be a positive integer!")
        base.__init__(self, scan_interval_us=scan_interval_us)

    text = "Break the framework's time down into steps, phases and operators."
    return type("OverallFrameworkMetrics", (base,), {"__init__": __init__, "__doc__": text, "__module__": __name__})
