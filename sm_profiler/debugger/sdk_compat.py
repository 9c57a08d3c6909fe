"""Coexistence with an installed SageMaker SDK, v2 or v3, which is never imported unless it is needed.

- `SdkCompatible` objects pass the SDK's isinstance checks, in either import order. An SDK v2 Estimator sorts its rules
  with `isinstance(rule, sagemaker.debugger.ProfilerRule)`. Python checks `type(rule)` first and `rule.__class__` next, so
  `__class__` returns the SDK's class while the SDK is loaded.
- `sdk_name` looks up names of `sagemaker.debugger` that have nothing to do with profiling.
- `drop_deprecation_warnings` filters two log messages of the SDK that are not true for sm-profiler's configurations.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

if TYPE_CHECKING:
    import logging

_ROOTS = ("sagemaker.debugger", "sagemaker.core.debugger")  # SDK v2, SDK v3
_PACKAGE = __name__.rpartition(".")[0]

T = TypeVar("T")

SDK_NAMES = (
    "DEBUGGER_FLAG",
    "CollectionConfig",
    "DebuggerHookConfig",
    "Rule",
    "RuleBase",
    "TensorBoardOutputConfig",
    "framework_name",
)
_LOOKUP_FRAMES = 2  # from `sdk_name` over the package's `__getattr__` to its caller
_loaded_from_file: dict[str, Any] = {}  # loading a module twice would duplicate its classes

_LOGGER = "sagemaker.deprecations"
_MESSAGES = (
    "Framework profiling will be deprecated from tensorflow 2.12 and pytorch 2.0",
    "Framework profiling is deprecated from",
)
_MAX_FRAMES = 12  # the SDK's caller is 6 to 8 frames above the filter


def sdk_class(cls: type) -> type | None:
    """Return the loaded SDK's class of the same module and name, or None if no SDK is loaded."""
    if not cls.__module__.startswith(f"{_PACKAGE}."):  # a user's subclass: its base has the counterpart
        return next((found for base in cls.__mro__[1:] if (found := _counterpart(base))), None)
    return _counterpart(cls)


def _counterpart(cls: type) -> type | None:
    package, _, module = cls.__module__.rpartition(".")
    if package != _PACKAGE:
        return None
    for root in _ROOTS:
        name = f"{root}.{module}"
        for loaded in (sys.modules.get(name), _attribute(name)):
            found = getattr(loaded, cls.__name__, None)
            if isinstance(found, type) and found is not cls:
                return found
    return None


def _attribute(name: str) -> Any:
    """Return a module by attribute access, which finds the SDK's own even if `sys.modules` maps its name to ours."""
    first, *rest = name.split(".")
    found: Any = sys.modules.get(first)
    for part in rest:
        found = getattr(found, part, None)
    return found


def local_of_caller(name: str) -> Any:
    """Return a local variable of the function that called one of our methods, or None.

    SDK v2 requests the wire form of a configuration without naming the job that it is for.
    """
    try:
        return sys._getframe(2).f_locals.get(name)
    except ValueError:  # there is no caller
        return None


def is_kind(value: object, cls: type[T]) -> bool:
    """Return True for an instance of one of our classes, or of the SDK's class of the same name."""
    if isinstance(value, cls):
        return True
    module = cls.__module__.rpartition(".")[2]
    names = {(f"{root}.{module}", cls.__name__) for root in _ROOTS}
    return any((base.__module__, base.__name__) in names for base in type(value).__mro__)


class SdkCompatible:
    """Base of the objects that pass isinstance checks against the SDK's class of the same name."""

    @property  # type: ignore[misc] # object's __class__ can be assigned, this property cannot
    def __class__(self) -> type:
        """The SDK's class of the same name if the SDK is loaded, else the object's own."""
        return sdk_class(type(self)) or type(self)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle and copy by the object's own class."""
        del protocol
        return _restored, (type(self), dict(self.__dict__))


class SdkValue(SdkCompatible):
    """Base of objects that compare by value; as in the SDK, they are mutable and their hash is that of their class."""

    def __hash__(self) -> int:
        return hash(type(self).__name__)


def _restored(cls: type, state: dict[str, Any]) -> Any:
    restored: Any = object.__new__(cls)
    restored.__dict__.update(state)
    return restored


# --- names outside profiling ---------------------------------------------------------------------------------------


def sdk_name(name: str, module: str) -> Any:
    """Return the installed SDK's object of that name, from v2 or else v3.

    Raises:
        AttributeError: the SDK's debugger module has no such name, or no SDK is installed.
    """
    if name not in SDK_NAMES:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    for source in (f"{root}.debugger" for root in _ROOTS):
        try:
            found = import_module(source)
        except ModuleNotFoundError as error:
            if is_missing_sdk(error):
                continue
            raise
        if found.__name__ != source:  # `sys.modules` maps the SDK's name to this package
            found = _load_from_file(source)
        return getattr(found, name)
    message = f"{module}.{name} belongs to the SageMaker SDK, which is not installed: pip install 'sagemaker<3'"
    if _is_from_import():
        raise ImportError(message, name=module)
    raise AttributeError(message)


def installed_names() -> tuple[str, ...]:
    """Return the names outside profiling if an SDK is installed, without loading it."""
    from importlib.util import find_spec  # rarely needed
    from pathlib import Path  # rarely needed

    spec = find_spec("sagemaker")
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    inner = [root.split(".")[1:] for root in _ROOTS]
    return SDK_NAMES if any(Path(folder, *parts).is_dir() for folder in folders for parts in inner) else ()


def _is_from_import() -> bool:
    """Return True if `from … import` looks the name up, which replaces the message of an AttributeError by its own."""
    frame = sys._getframe(1)  # inspect.stack() would format every frame
    for _ in range(_LOOKUP_FRAMES):
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return frame.f_code.co_name == "_handle_fromlist"  # importlib's


def is_missing_sdk(error: ModuleNotFoundError) -> bool:
    """Return True if the module that was not found belongs to the SageMaker SDK."""
    return error.name is not None and error.name.partition(".")[0] == "sagemaker"


def _load_from_file(source: str) -> Any:
    """Load an SDK module from its file if its name in `sys.modules` leads to this package."""
    from importlib.util import find_spec, module_from_spec, spec_from_file_location  # rarely needed
    from pathlib import Path  # rarely needed

    package, _, rest = source.partition(".")
    import_module(package)  # may load the same module
    if source in _loaded_from_file:
        return _loaded_from_file[source]
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        path = Path(folder, *rest.split(".")).with_suffix(".py")
        if path.is_file():
            file_spec = spec_from_file_location(f"{__name__}._{package}", path)
            if file_spec is not None and file_spec.loader is not None:
                loaded = module_from_spec(file_spec)
                file_spec.loader.exec_module(loaded)
                return _loaded_from_file.setdefault(source, loaded)
    raise AttributeError(f"{source} is hidden by another module, and its file cannot be found")


# --- log messages that do not apply --------------------------------------------------------------------------------


class _DeprecationFilter:
    """Logging filter that drops the messages that framework profiling is deprecated and collects no metrics.

    Attributes:
        everywhere: drop them for the SDK's own configurations too; set once a ProfilerConfig of this package carries
            framework parameters.
    """

    everywhere = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False to drop a record."""
        if not str(record.msg).startswith(_MESSAGES):
            return True
        return not (self.everywhere or _caller_has_our_profile())


def _caller_has_our_profile() -> bool:
    """Return True if the SDK code that logs holds our FrameworkProfile, as `Estimator.update_profiler` does."""
    frame = sys._getframe()  # inspect.stack() would format every frame
    for _ in range(_MAX_FRAMES):
        if frame.f_back is None:
            break
        frame = frame.f_back
        carried = frame.f_locals.get("framework_profile_params")
        if carried is None:
            carried = getattr(frame.f_locals.get("profiler_config"), "framework_profile_params", None)
        if type(carried).__module__.startswith("sm_profiler."):
            return True
    return False


_FILTER = _DeprecationFilter()


def drop_deprecation_warnings(*, everywhere: bool = False) -> None:
    """Drop the two messages if they are about our objects, or, with `everywhere`, in any case."""
    import logging  # keeps `import sm_profiler.debugger` quick

    _FILTER.everywhere |= everywhere
    logging.getLogger(_LOGGER).addFilter(_FILTER)  # has no effect the second time


@attrs.define(slots=False, order=True, on_setattr=None)
class RuleBase(SdkCompatible):
    """Image, machine, output and parameters of a rule.

    The class has the SDK's name, which is part of its error messages; in `debugger.py` that name is the SDK's own class.
    """

    name: Any
    image_uri: Any
    instance_type: Any
    container_local_output_path: Any
    s3_output_path: Any
    volume_size_in_gb: Any
    rule_parameters: Any

    @staticmethod
    def _set_rule_parameters(source: Any, rule_to_invoke: Any, rule_parameters: Any) -> dict[str, Any]:
        """Return a custom rule's parameters: its source, the rule's name in it, and the user's.

        Raises:
            ValueError: a source without a rule, or a rule without a source.
        """
        if bool(source) ^ bool(rule_to_invoke):
            raise ValueError("If you provide a source, you must also provide a rule to invoke (and vice versa).")
        named = {"source_s3_uri": source, "rule_to_invoke": rule_to_invoke}
        merged = {key: value for key, value in named.items() if value}
        merged.update(rule_parameters or {})
        return merged
