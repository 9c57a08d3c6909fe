"""Lazy exports: a public name loads the module that defines it when it is first used.

A package lists its names three times: in `__all__`, in imports under `if TYPE_CHECKING:` for type checkers and editors,
and in the table given to `lazy_exports`. `tests/test_public_names.py` checks that the three agree.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, modules: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` for a package.

    Args:
        package: name of the package, its `__name__`.
        modules: public names by the module that defines them; names without `sm_profiler.` are relative to the package.
    """
    top = __name__.partition(".")[0]
    defined_in = {
        name: module if module.startswith(f"{top}.") else f"{package}.{module}"
        for module, names in modules.items()
        for name in names
    }

    def load(name: str) -> Any:
        if name not in defined_in:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        value = getattr(import_part(defined_in[name], f"{package}.{name}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *defined_in})

    return load, names


def import_part(module: str, shown: str) -> Any:
    """Import a module of this distribution.

    Args:
        module: its name.
        shown: name of the requested object, for the message.

    Raises:
        ModuleNotFoundError: it needs a module that is not installed; the message has the extra to install.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        from sm_profiler.extras import install_hint  # needed only for a message

        hint = install_hint(error.name, module.split(".")[1])
        if hint is None:
            raise
        raise ModuleNotFoundError(f"{shown} needs {error.name}: {hint}", name=error.name) from error
