"""Data moves forward: no backward imports, no import cycles, and imports that load nothing heavy."""

import ast
import re
import subprocess
import sys
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sm_profiler"


TEXT = (ROOT / "docs/architecture.md").read_text()
PACKAGES: list[str] = re.findall(r"^\| `sm_profiler\.(\w+)` \|", TEXT, re.MULTILINE)


def imported_packages(path: Path) -> set[str]:
    """Return the packages that a module imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides which package it reaches"
            base = node.module or ""
            names = [f"{base}.{alias.name}" for alias in node.names] if base == "sm_profiler" else [base]
        for name in names:
            first, _, rest = name.partition(".")
            if first == "sm_profiler" and rest and not rest.startswith("_"):
                found.add(rest.partition(".")[0])
    return found


def test_the_document_lists_every_package():
    found = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert {name for name in found if not name.startswith("_")} == set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_only_packages_listed_above(package):
    modules = list((PACKAGE / package).rglob("*.py")) if (PACKAGE / package).is_dir() else [PACKAGE / f"{package}.py"]
    above = {*PACKAGES[: PACKAGES.index(package)], package}
    for module in modules:
        backward = imported_packages(module) - above
        assert not backward, f"{module.relative_to(ROOT)} imports {backward}"


def way_of_a_step() -> list[tuple[str, str]]:
    """Return the names in the section of docs/architecture.md, each with the module that was named before it."""
    section = TEXT.partition("## The way of a step\n")[2].partition("\n## ")[0]
    found, module = [], ""
    for name in re.findall(r"`([^`]+)`", section):
        if name.endswith(".py") and not name.startswith("tests/"):
            module = name
            found.append((module, ""))
        elif re.fullmatch(r"[A-Z_a-z][\w.]*", name) and name not in OF_NO_MODULE:
            found.append((module, name))
    return found


OF_NO_MODULE = {
    "sm_profiler_auto.pth", "perf_counter_ns", "S3OutputPath", "model_timeline",
    "_last_end", "Recorder.records", "Recorder.events",  # of objects
}  # fmt: skip


def test_the_way_of_a_step_names_what_exists():
    way = way_of_a_step()
    assert len({module for module, _ in way}) > 30
    for path, name in way:
        module = import_module(f"sm_profiler.{path.removesuffix('.py').replace('/', '.')}")
        reduce(getattr, name.split(".") if name else (), module)


HEAVY = (
    "sagemaker",
    "boto3",
    "botocore",
    "pandas",
    "numpy",
    "torch",
    "tensorflow",
    "psutil",
    "msgspec",
    "pyarrow",
    "moto",
)


@pytest.mark.parametrize("module", ["sm_profiler", "sm_profiler.debugger"])
def test_import_loads_nothing_heavy(module):
    program = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "module", ["sm_profiler.hook", "sm_profiler.monitor", "sm_profiler.launch", "sm_profiler.config"]
)
def test_packages_of_the_training_container_load_no_data_stack(module):
    heavy = ("sagemaker", "boto3", "pandas", "numpy", "torch", "tensorflow", "pyarrow")
    program = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def module_imports() -> dict[str, set[str]]:
    """Map each module to the our own modules that it imports at module level."""
    modules = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph = {}
    for name, path in modules.items():
        imported = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    submodule = f"{node.module}.{alias.name}"
                    imported.add(submodule if submodule in modules else node.module)
        graph[name] = imported & set(modules) - {name}
    return graph


def test_no_import_cycle():
    """Imports inside functions count too: a deferred import saves start-up time, it does not hide a cycle."""
    graph = module_imports()
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join((*path[path.index(name) :], name))
        if name not in done:
            for imported in sorted(graph[name]):
                visit(imported, (*path, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())
