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
_SOURCES = ("sagemaker.debugger.debugger", "sagemaker.core.debugger.debugger")  # SDK v2, SDK v3


def hand_through(name: str, module: str) -> Any:
    """The SDK's own object of that name, v2's or else v3's.

    Raises:
        AttributeError: the SDK's debugger module has no such name, or no SDK is installed.
    """
    if name not in HANDED_THROUGH:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    for source in _SOURCES:
        try:
            found = import_module(source)
        except ModuleNotFoundError as error:
            if error.name is not None and error.name.partition(".")[0] == "sagemaker":
                continue
            raise
        if found.__name__ != source:  # someone has put us in the SDK's place
            found = _behind(source)
        return getattr(found, name)
    raise AttributeError(f"{module}.{name} is the SageMaker SDK's own, and it is not installed: pip install sagemaker")


_found: dict[str, Any] = {}  # one copy of each, or its classes would not be themselves


def _behind(source: str) -> Any:
    """The SDK's module from its file, where its name leads to us."""
    from importlib.util import find_spec, module_from_spec, spec_from_file_location  # noqa: PLC0415 - seldom needed
    from pathlib import Path  # noqa: PLC0415 - seldom needed

    package, _, rest = source.partition(".")
    import_module(package)  # which may ask for the same on its way
    if source in _found:
        return _found[source]
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        path = Path(folder, *rest.split(".")).with_suffix(".py")
        if path.is_file():
            file_spec = spec_from_file_location(f"{__name__}._{package}", path)
            if file_spec is not None and file_spec.loader is not None:
                loaded = module_from_spec(file_spec)
                file_spec.loader.exec_module(loaded)
                return _found.setdefault(source, loaded)
    raise AttributeError(f"{source} is hidden, and its file cannot be found")
