"""The smallest extra of this distribution that brings a missing module."""

from __future__ import annotations

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


def install_hint(module: str | None, part: str = "") -> str | None:
    """Return the command that installs a missing module; None if no extra has it.

    Args:
        module: the missing module, as `ModuleNotFoundError.name` has it.
        part: the command or package that needs it.
    """
    extra = OF_MODULE.get((module or "").partition(".")[0])
    return f"pip install 'sm-profiler[{OF_PART.get(part, extra)}]'" if extra else None
