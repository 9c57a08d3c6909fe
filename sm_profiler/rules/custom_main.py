"""The process of a user's rule: import the file, build the rule, feed it until the job is over, say how it ended."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import sm_profiler
from sm_profiler.errors import ConfigError, ProfilerError
from sm_profiler.rules.conditions import RuleEvaluationConditionMet
from sm_profiler.rules.engine import REPORTS, Following, windows
from sm_profiler.rules.parameters import interval
from sm_profiler.rules.rule import SCAN_INTERVAL_US, Rule, invoke_rule
from sm_profiler.rules.settings import WORDS, read_stop_signal
from sm_profiler.rules.status import LONGEST, Status
from sm_profiler.rules.trial import ProfilerTrial
from sm_profiler.source import open_source

INTERVAL = "scan_interval_us"
OTHERS_WORDS = re.compile(r"\w+_proxy|npm_\w+")  # small letters in an environment that are about no rule
log = logging.getLogger("sm_profiler.rules")


def load_module(path: Path) -> ModuleType:
    """Import a user's file.

    Raises:
        ConfigError: it cannot be imported; the line says why and where.
    """
    with contextlib.suppress(ImportError):
        sm_profiler.install_as_smdebug()
    name = f"rule_file_{path.stem}"  # no other module's name, whatever the file is called
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # attrs and dataclasses look their module up
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ConfigError(f"{path.name} cannot be imported: {error.msg} (line {error.lineno})") from None
    except BaseException as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f" (line {lines[-1]})" if lines else ""
        raise ConfigError(f"{path.name} cannot be imported: {type(error).__name__}: {error}{where}") from error
    return module


def find_rule(module: ModuleType, name: str, file: str) -> type[Any]:
    """The class of a user's rule.

    Raises:
        ConfigError: there is none of that name, or it is no rule.
    """
    found = getattr(module, name, None)
    if not inspect.isclass(found):
        offered = [
            key for key, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__
        ]
        raise ConfigError(f"{file} has no class {name}; it has: {', '.join(offered) or 'none'}")
    if not issubclass(found, Rule) and not (
        callable(getattr(found, "update", None)) and callable(getattr(found, "result", None))
    ):
        raise ConfigError(
            f"{name} in {file} is no rule: it has neither update(window) and result(), nor the base class Rule"
        )
    return found


def taken_by(kind: type[Any]) -> set[str]:
    """The names of a rule's own parameters."""
    return set(list(inspect.signature(kind).parameters)[1 if issubclass(kind, Rule) else 0 :])


def own_parameters(kind: type[Any], given: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The rule's parameters: what the configuration gives, and what of the environment is the rule's.

    Both may name them with the rule's name before them, `<Rule>_<parameter>`.  An environment is full of other things:
    of it counts what has this prefix, and what the constructor takes; other names in small letters are warned of.
    """
    known = taken_by(kind)
    prefix = f"{kind.__name__}_".lower()

    def bare(name: str) -> str:
        return name[len(prefix) :] if name not in known and name.lower().startswith(prefix) else name

    candidates = {
        name: value
        for name, value in environ.items()
        if name not in WORDS and name not in given and name != INTERVAL and not name.isupper()
    }
    told = {name: value for name, value in candidates.items() if name in known or name.lower().startswith(prefix)}
    unknown = [
        name
        for name in sorted(candidates.keys() - told.keys())
        if re.fullmatch("[a-z][a-z0-9_]*", name) and not OTHERS_WORDS.fullmatch(name)
    ]
    if unknown:
        offered = ", ".join(sorted(known)) or "none"
        log.warning(
            "in the environment, but no parameter of %s: %s; it has: %s", kind.__name__, ", ".join(unknown), offered
        )
    return {bare(name): value for name, value in (*told.items(), *given.items())}


def build_rule(kind: type[Any], parameters: Mapping[str, str], trial: Any = None) -> Any:
    """An instance, given those parameters that its constructor takes; values are strings.

    Raises:
        ConfigError: a parameter that the constructor does not take, or the constructor fails.
    """
    takes_all = any(each.kind is each.VAR_KEYWORD for each in inspect.signature(kind).parameters.values())
    first = [trial] if issubclass(kind, Rule) else []
    known = taken_by(kind)
    given = {name: value for name, value in parameters.items() if takes_all or name in known}
    unknown = [name for name in parameters if name not in given and name != INTERVAL]
    if unknown:
        raise ConfigError(
            f"{kind.__name__} has no parameter {unknown[0]!r}; it has: {', '.join(sorted(known)) or 'none'}"
        )
    try:
        return kind(*first, **given)
    except Exception as error:
        traceback.print_exc()
        raise ConfigError(f"{kind.__name__} cannot be built: {type(error).__name__}: {error}") from error


def evaluate(request: Mapping[str, Any]) -> tuple[Status, str, Any]:
    """Evaluate the rule; returns status, details and its report."""
    path, name = Path(request["code"]), str(request["rule"])
    kind = find_rule(load_module(path), name, path.name)
    parameters = own_parameters(kind, request["parameters"], os.environ)
    if issubclass(kind, Rule):
        trial = ProfilerTrial(name, request["source"], request["output"], follow=request["follow"])
        rule = build_rule(kind, parameters, trial)
        try:
            invoke_rule(rule, raise_eval_cond=True)
        except RuleEvaluationConditionMet as met:
            return Status.ISSUES, str(met), rule.report
        return Status.NO_ISSUES, "", rule.report
    rule = build_rule(kind, parameters)
    interval_us = interval(parameters.get(INTERVAL, SCAN_INTERVAL_US))
    follow: Any = Following(stop=read_stop_signal) if request["follow"] else False
    met_at = None
    for step, window in enumerate(
        windows(open_source(request["source"], cache=False), follow=follow, interval_us=interval_us)
    ):
        if rule.update(window) is True and met_at is None:
            met_at = step
    found = rule.result()
    if met_at is None and isinstance(found, dict) and found.get("RuleTriggered"):
        met_at = 0
    if met_at is None:
        return Status.NO_ISSUES, "", found
    return Status.ISSUES, str(RuleEvaluationConditionMet(name, met_at)), found


def main(asked: str) -> int:
    """Run one request; the outcome goes to the file that it names."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
    request = json.loads(Path(asked).read_text("utf-8"))
    report: Any = None
    try:
        status, details, report = evaluate(request)
    except ProfilerError as error:
        status, details = Status.ERROR, str(error)
    except Exception as error:  # noqa: BLE001 - whatever a user's rule raises is its outcome
        traceback.print_exc()
        lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == request["code"]]
        where = f" ({Path(request['code']).name}, line {lines[-1].lineno})" if lines else ""
        status, details = Status.ERROR, f"{request['rule']} failed: {type(error).__name__}: {error}{where}"
    if report is not None:
        folder = Path(request["output"], REPORTS)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{request['rule']}.json").write_text(json.dumps(report, default=str) + "\n", "utf-8")
    outcome = {"status": status.value, "details": " ".join(details.split())[:LONGEST]}
    temporary = Path(f"{request['outcome']}.tmp")
    temporary.write_text(json.dumps(outcome), "utf-8")
    temporary.replace(request["outcome"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
