"""From a source to a report: one pass over the data for the rules and the facts together."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import attrs

from sm_profiler.formats import event_names
from sm_profiler.report.job_metrics import Facts, prepare
from sm_profiler.report.judges import Case
from sm_profiler.report.memory_fold import MemoryFold
from sm_profiler.report.model import Report, Verdict
from sm_profiler.report.prices import cost_of
from sm_profiler.report.step_fold import StepFold
from sm_profiler.report.system_fold import SystemFold
from sm_profiler.report.verdict import decide
from sm_profiler.rules import Following, RuleResults, run_rules

QUALITY_ROWS = 200  # files named in the report; more are counted

QUIET = {"on", "ok", "off", "armed", "done", "ready", "waiting"}  # states of a collector that need no word


@attrs.frozen
class JobInfo:
    """What is known of a job besides its profile.

    Attributes:
        name: the training job's name.
        instance_type: `ml.g5.xlarge` …
        finished: whether it is over; None: as the source's end markers say.
        prices: instance type → dollars an hour, instead of the built-in table.
    """

    name: str | None = None
    instance_type: str | None = None
    finished: bool | None = None
    prices: Mapping[str, float] | None = None


@attrs.define
class FactFolds:
    """The report's own folds, fed in the rules' pass."""

    steps: StepFold = attrs.field(factory=StepFold)
    system: SystemFold = attrs.field(factory=SystemFold)
    memory: MemoryFold = attrs.field(factory=MemoryFold)

    def all(self) -> list[Any]:
        """For `run_rules(extra_folds=…)`."""
        return [self.steps, self.system, self.memory]

    def facts(self, source: Any, job: JobInfo) -> Facts:
        """What they have seen so far."""
        records = (one for one in source.metadata() if one.get("name") == event_names.PROCESS)
        metadata = tuple(dict(one["args"]) for one in records if isinstance(one.get("args"), Mapping))
        return prepare(
            self.steps.result(), self.system.result(), name=job.name or name_of(source.uri), running=not (source.finished if job.finished is None else job.finished),
            instance_type=job.instance_type or _instance_type(metadata), metadata=metadata, memory=self.memory.result(),
        )  # fmt: skip


def build_report(  # noqa: PLR0913 - one argument a part, all but the first are options
    source: Any,
    *,
    parameters: Mapping[str, object] | None = None,
    compat: Literal["service"] | None = None,
    job: JobInfo | None = None,
    follow: bool | Following = False,
    on_report: Callable[[Report], object] | None = None,
) -> Report:
    """Judge a job.

    Args:
        source: a `sm_profiler.source.ProfileSource`.
        parameters: of the rules: `{"<RuleName>_<parameter>": value}`.
        compat: "service" for the managed service's numbers in the rules' results.
        job: name, instance type, prices.
        follow: wait for more until the job is over.
        on_report: while following, gets the report of what there is each time all that had come has been read.

    Raises:
        ConfigError: bad parameters.
        SourceError: the data cannot be read.
    """
    folds, job = FactFolds(), job or JobInfo()
    latest: list[RuleResults] = []
    waiting = Following() if follow is True else follow
    if waiting and on_report is not None:
        told = waiting.caught_up

        def caught_up() -> None:
            if latest:
                on_report(assemble(source, latest[-1], folds, job))
            told()

        waiting = attrs.evolve(waiting, caught_up=caught_up)
    results = run_rules(
        source, parameters=parameters, compat=compat, extra_folds=folds.all(), follow=waiting,
        on_window=(lambda _, found: latest.__setitem__(slice(None), [found])) if waiting else None,
    )  # fmt: skip
    return assemble(source, results, folds, job)


def assemble(source: Any, results: RuleResults, folds: FactFolds, job: JobInfo | None = None) -> Report:
    """A report from rule results and folds that have seen the same windows (for runners that drive the engine themselves)."""
    job = job or JobInfo()
    facts = folds.facts(source, job)
    verdict = decide(Case(facts, results.results))
    return report_of(
        facts,
        verdict,
        results.results,
        broken=results.broken,
        quality=quality_of(source, facts),
        job=job,
        source=source.uri,
    )


def report_of(  # noqa: PLR0913 - one argument a part, all but the first are options
    facts: Facts,
    verdict: Verdict,
    rules: dict[str, dict[str, Any]],
    *,
    broken: dict[str, str] | None = None,
    quality: dict[str, Any] | None = None,
    job: JobInfo | None = None,
    source: str = "",
) -> Report:
    """Put the parts together."""
    cost = cost_of(facts, verdict, (job or JobInfo()).prices)
    moment = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return Report(facts, verdict, rules, broken or {}, quality or account([], ()), cost, source, moment)


def name_of(uri: str) -> str:
    """A job's name from where its profile lies: the folder that holds `profiler-output`."""
    parts = (
        [part for part in uri.partition("://")[2].split("/") if part]
        if "://" in uri
        else [part for part in uri.split("/") if part]
    )
    while len(parts) > 1 and parts[-1] in ("profiler-output", "profiler", "output"):
        parts.pop()
    return parts[-1] if parts else "training job"


def _instance_type(metadata: Sequence[dict[str, Any]]) -> str | None:
    return next((str(one["instance_type"]) for one in metadata if one.get("instance_type")), None)


def quality_of(source: Any, facts: Facts) -> dict[str, Any]:
    """The data quality section of a source."""
    return account(source.quality(), facts.metadata)


def account(files: Sequence[Any], metadata: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What was read, what was lost, what the hook had switched off."""
    states = Counter(file.status for file in files)
    lost = sum(file.lost for file in files)
    bad = sorted(
        (file for file in files if file.status != "read" or file.lost), key=lambda file: (-file.lost, file.path)
    )
    total = len(files)
    if not total:
        sentence = "Nothing was read from files for this report."
    elif not bad:
        sentence = f"All {total:,} files were read completely; no record was lost."
    else:
        sentence = (
            f"Of {total:,} files {states['read']:,} were read as they are, {states['repaired']:,} were repaired and "
            f"{states['refused']:,} could not be used; {lost:,} records were lost."
        )
    rows = [
        {"path": file.path, "status": file.status, "lost": file.lost, "reason": file.reason}
        for file in bad[:QUALITY_ROWS]
    ]
    return {
        "sentence": sentence, "files": total, "states": dict(states), "lost": lost, "rows": rows, "more": max(len(bad) - QUALITY_ROWS, 0),
        "collectors": _collectors(metadata),
    }  # fmt: skip


def _collectors(metadata: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each state of a collector that is worth a word, with the number of processes."""
    lines: Counter[str] = Counter()
    seen = set()
    for one in metadata:
        states = one.get("collectors")
        process = one.get("rank"), one.get("pid"), one.get("host")
        for name, state in states.items() if isinstance(states, Mapping) else ():
            if (process, name, str(state)) in seen or str(state) in QUIET:
                continue
            seen.add((process, name, str(state)))
            lines[f"{name}: {state}"] += 1
        if one.get("phases_every", 1) not in (1, None):
            lines[f"phases were written for every {one['phases_every']}th step only, to stay within the budget"] += 1
        if one.get("clock_error_us"):
            lines[f"clocks agree within {float(one['clock_error_us']) / 1e3:.3g} ms"] += 1
    return [line + (f" ({count} processes)" if count > 1 else "") for line, count in sorted(lines.items())]
