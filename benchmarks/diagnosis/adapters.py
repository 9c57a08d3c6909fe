"""Profilers that the benchmark can run: each turns a script into a diagnosis."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Protocol

import attrs

from benchmarks.diagnosis.keeping import profile_in
from benchmarks.diagnosis.manifest import GPU_PROBLEMS, PROBLEMS
from sm_profiler.report import build_report
from sm_profiler.report.report_json import plain, report_json
from sm_profiler.source import open_source

ROOT = Path(__file__).parents[2]
FRAMEWORKS = ROOT / ".envs" / "frameworks" / "bin" / "python"
_FRAMEWORK = re.compile(r"^(?:import|from) (?:jax|keras|tensorflow|tf_parts)\b", re.MULTILINE)
LIBRARIES = ROOT / ".envs" / "libraries" / "bin" / "python"
_LIBRARY = re.compile(r"^(?:import|from) (?:datasets|peft|timm)\b", re.MULTILINE)
HANG_SECONDS = "6"  # instead of a minute, in runs this short
LIMIT_S = 240  # a run takes 5 to 20 s on an idle machine


class FailedRunError(Exception):
    """A script that did not end well under a profiler."""


@attrs.frozen
class Place:
    """A line that a profiler names."""

    file: str
    line: int
    function: str
    share: float = 0.0


@attrs.frozen
class Named:
    """One cause that a profiler names.

    Attributes:
        kind: a class of the benchmark, or the profiler's own name if no class has that meaning.
        confidence: high, medium, low, or "" if the profiler gives none.
        places: lines of code, the most expensive first.
        speedup: predicted range of the loop's speedup after the repair, or None.
        headline: the profiler's own words.
        share: lost part of the time.
        rank: process that it blames, `algo-1-0`.
        saved: share of the loop that its repair saves at least, usually and at most, or None.
    """

    kind: str
    confidence: str = ""
    places: tuple[Place, ...] = ()
    speedup: tuple[float, float] | None = None
    headline: str = ""
    share: float = 0.0
    rank: str = ""
    saved: tuple[float, float, float] | None = None


@attrs.frozen
class Diagnosis:
    """The causes that a profiler names in one run."""

    main: Named
    also: tuple[Named, ...] = ()


class Profiler(Protocol):
    """An adapter."""

    name: str
    follows_ranks: bool

    def diagnose(self, script: Path, arguments: Sequence[str], folder: Path) -> Diagnosis:
        """Run a script under the profiler, in a folder of its own; return what it names."""


def interpreter(script: Path) -> str:
    """Return the Python with the packages that a script imports: this one, unless the repository has one for them."""
    text = script.read_text(encoding="utf-8")
    found = (python for pattern, python in ((_FRAMEWORK, FRAMEWORKS), (_LIBRARY, LIBRARIES)) if pattern.search(text))
    return str(next((python for python in found if python.exists()), sys.executable))


def environment() -> dict[str, str]:
    """Return the variables of a run: one thread for each operator, no profiler of the caller's."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SM_PROFILER")}
    inherited = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    single = {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    return kept | {"PYTHONPATH": os.pathsep.join([str(PROBLEMS), str(GPU_PROBLEMS), *inherited]), **single}


def execute(command: Sequence[str], folder: Path, **variables: str) -> str:
    """Run a command; return its standard output."""
    done = subprocess.run(
        command, cwd=folder, env=environment() | variables, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise FailedRunError(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


class Plain:
    """No profiler: what a script takes by itself."""

    name = "plain"

    def run(self, script: Path, arguments: Sequence[str], folder: Path) -> None:
        """Run the script."""
        execute([interpreter(script), str(script), *arguments], folder)


class Ours:
    """`sm-profiler run`, then its report."""

    name = "sm-profiler"
    follows_ranks = True

    def diagnose(self, script: Path, arguments: Sequence[str], folder: Path) -> Diagnosis:
        """Run a script under `sm-profiler run`, with its defaults."""
        command = [interpreter(script), "-m", "sm_profiler", "run", str(script), *arguments]
        execute(command, folder, SM_PROFILER_HANG_SECONDS=HANG_SECONDS)
        return self.read(profile_in(folder))

    def read(self, profile: Path) -> Diagnosis:
        """Return the verdict on a profile, all of which is parsed by the present code."""
        verdict = plain(report_json(build_report(open_source(profile, cache=False))).verdict)
        return Diagnosis(_ours(verdict), tuple(_ours(finding) for finding in verdict["also"]))


def _ours(finding: dict) -> Named:
    gain = finding.get("gain")
    speedup = (gain["speedup"]["low"], gain["speedup"]["high"]) if gain else None
    saved = tuple(gain["share_of_loop"][end] for end in ("low", "value", "high")) if gain else None
    places = tuple(
        Place(line["file"], line["line"], line["function"], line["share"]) for line in finding.get("where", ())
    )
    share, rank = finding["share_of_time"], finding["evidence"][0]["where"] if finding["evidence"] else ""
    return Named(finding["class"], finding["confidence"], places, speedup, finding["headline"], share, rank, saved)


class TraceML:
    """traceml-ai 0.5.0 in an environment of its own; the script is rewritten, because it marks steps in the source."""

    name = "traceml-ai"
    version = "0.5.0"

    # its diagnoses, and the classes with the same meaning; the others keep their own names
    classes: ClassVar[dict[str, str]] = {
        "INPUT_BOUND": "INPUT_BOUND",
        "COMPUTE_BOUND": "COMPUTE_BOUND",
        "BALANCED": "BALANCED",
        "NORMAL": "BALANCED",
        "NO_CLEAR_PERFORMANCE_BOTTLENECK": "BALANCED",
        "RESIDUAL_HEAVY": "SYNC_BOUND",
        "CREEP_EARLY": "MEMORY_GROWTH",
        "CREEP_CONFIRMED": "MEMORY_GROWTH",
    }
    follows_ranks = False  # a script that starts its own ranks needs its launcher instead

    def __init__(self) -> None:
        self._home = ROOT / ".envs" / "traceml"

    def _python(self) -> Path:
        done, python = self._home / "ready", self._home / "bin" / "python"
        if not done.exists():
            venv.create(self._home, with_pip=True, system_site_packages=False)
            (site,) = (self._home / "lib").glob("python*/site-packages")
            import torch

            # PyTorch comes from this environment, so that both profilers judge the same one
            (site / "base.pth").write_text(str(Path(torch.__file__).parents[1]))
            pip = [python, "-m", "pip", "install", "--quiet", f"traceml-ai=={self.version}"]
            subprocess.run(pip, check=True)
            done.touch()
        return python

    def diagnose(self, script: Path, arguments: Sequence[str], folder: Path) -> Diagnosis:
        """Run a rewritten copy of a script under `traceml run`."""
        marked = folder / "marked.py"
        marked.write_text(instrumented(script.read_text()))
        self._python()
        logs = folder / "logs"
        command = [self._home / "bin" / "traceml", "run", str(marked), "--mode", "summary", "--logs-dir", str(logs)]
        execute([*command, "--args", *arguments], folder)
        found = sorted(logs.rglob("final_summary.json"))
        if not found:
            raise FailedRunError("traceml-ai wrote no final_summary.json")
        summary = json.loads(found[-1].read_text())
        shutil.rmtree(logs, ignore_errors=True)
        return self.read(summary)

    def read(self, summary: dict) -> Diagnosis:
        """Return the diagnoses of its last summary: the primary one, then what each section found."""
        main = summary["primary_diagnosis"]
        sections = (summary.get(name) or {} for name in ("step_time", "step_memory", "process", "system"))
        issues = [issue for section in sections for issue in section.get("issues", ())]
        nothing = (main["kind"], "NORMAL", "BALANCED", "NO_GPU", "NO_DATA")
        also = tuple(self._named(issue) for issue in issues if issue["kind"] not in nothing)
        return Diagnosis(self._named(main), also)

    def _named(self, diagnosis: dict) -> Named:
        kind = diagnosis["kind"]
        return Named(self.classes.get(kind, kind), headline=f"{diagnosis['status']}: {diagnosis['summary']}")


def instrumented(source: str) -> str:
    """Return a script with `traceml.init` after its imports and `trace_step` around the body of its loop."""
    lines = source.splitlines()
    loops = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.For)]
    (loop,) = (node for node in loops if lines[node.lineno - 1].endswith("# LOOP"))
    first, last = loop.body[0].lineno - 1, loop.end_lineno or 0
    indent = " " * loop.body[0].col_offset
    body = [f"    {line}" if line else line for line in lines[first:last]]
    marked = [*lines[:first], f"{indent}with trace_step(model):", *body, *lines[last:]]
    after = max(
        node.end_lineno or 0 for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)
    )
    header = ["import traceml_ai as traceml", "from traceml_ai import trace_step", "traceml.init(mode='auto')"]
    return "\n".join([*marked[:after], *header, *marked[after:]]) + "\n"


PROFILERS: dict[str, type] = {"ours": Ours, "traceml": TraceML}
