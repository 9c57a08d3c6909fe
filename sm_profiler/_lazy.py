"""Lazy exports: a public name loads the module that defines it when it is first used; what to install if that fails.

A package lists its names three times: in `__all__`, in imports under `if TYPE_CHECKING:` for type checkers and editors,
and in the table given to `lazy_exports`. `tests/test_public_names.py` checks that the three agree.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

# module → extra; of several extras that have it, the one with the fewest other packages
OF_MODULE = {
    **dict.fromkeys(("boto3", "botocore"), "aws"),
    **dict.fromkeys(("jinja2", "msgspec", "numpy"), "rules"),
    **dict.fromkeys(("bokeh", "nbformat", "pandas", "pyarrow"), "analysis"),
    **dict.fromkeys(("dask", "distributed"), "dask"),
    "pynvml": "gpu",
    "moto": "local",
    "mcp": "mcp",
    "mlflow": "mlflow",
    "opentelemetry": "otel",
    "pyinstrument": "pyinstrument",
    "sagemaker": "sagemaker2",
    **dict.fromkeys(("starlette", "uvicorn"), "serve"),
}
# what a command or package needs as a whole, so that the next missing module is not the next error
OF_PART = {
    "analysis": "analysis",
    "compact": "analysis",
    "compare": "analysis",
    "demo": "local,sagemaker2",
    "fleet": "analysis",
    "gpu_traces": "analysis",
    "local": "local",
    "mcp": "mcp",
    "merge-timeline": "analysis",
    "report": "analysis",
    "rules": "rules",
    "serve": "serve",
    "watch": "serve",
}


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
        hint = install_hint(error.name, module.split(".")[1])
        if hint is None:
            raise
        raise ModuleNotFoundError(f"{shown} needs {error.name}: {hint}", name=error.name) from error


def install_hint(module: str | None, part: str = "") -> str | None:
    """Return the command that installs a missing module; None if no extra has it.

    Args:
        module: the missing module, as `ModuleNotFoundError.name` has it.
        part: the command or package that needs it.
    """
    extra = OF_MODULE.get((module or "").partition(".")[0])
    return f"pip install 'sm-profiler[{OF_PART.get(part, extra)}]'" if extra else None
