"""Running a case: the repaired twin for the length of a healthy step, then the planted script under a profiler."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs

from benchmarks.diagnosis.adapters import Diagnosis, FailedRunError, Ours, Plain, Profiler
from benchmarks.diagnosis.keeping import profile_in
from benchmarks.diagnosis.manifest import Case
from sm_profiler.processes import processors


@attrs.frozen
class Outcome:
    """A diagnosis of a case, beside the diaries of its scripts."""

    case: Case
    diagnosis: Diagnosis | None
    planted: dict[str, Any] = attrs.Factory(dict)
    repaired: dict[str, Any] = attrs.Factory(dict)
    plain: dict[str, Any] | None = None
    pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]] = ()
    load: float = 0.0
    error: str = ""

    @property
    def has_diary(self) -> bool:
        """True if the script itself times its problem."""
        return self.case.as_measured(self.planted["shares"]).diary in (self.plain or self.planted)["shares"]

    @property
    def speedups(self) -> list[float]:
        """Return how much faster the loop is without the problem, as often as it was measured.

        That is the time that the script's diary counts in the same run. If it counts none, it is the ratio of the
        planted script and its repaired twin, runs between which the machine may have got slower or faster.
        """
        planted = self.plain or self.planted
        case = self.case.as_measured(self.planted["shares"])
        if self.has_diary:
            return [1 / (1 - planted["shares"].get(case.diary, 0.0) + _left(planted, case))]
        pairs = self.pairs or [(planted, self.repaired)]
        return [plain["loop"] / _for_samples(repaired, plain["samples"]) for plain, repaired in pairs]

    @property
    def overhead(self) -> float | None:
        """Return the share by which the profiler made the loop longer; None if it was not measured."""
        return self.planted["loop"] / self.plain["loop"] - 1 if self.plain else None


def _for_samples(repaired: dict[str, Any], samples: float) -> float:
    """Return how long the repaired loop takes for so many samples: what its first steps take besides is paid once."""
    step, steps = repaired.get("step"), repaired.get("steps")
    if not step or not steps:
        return repaired["loop"] * samples / repaired["samples"]
    return max(repaired["loop"] - step * steps, 0.0) + step * steps * samples / repaired["samples"]


def _left(diary: dict[str, Any], case: Case) -> float:
    """Return the share of the loop that the problem's occurrences still take if each is as short as the others."""
    if not case.others:
        return 0.0
    each = diary["seconds"][case.others] / diary["counts"][case.others]
    return diary["counts"][case.diary] * each / diary["loop"]


def _run(case: Case, folder: Path, *options: str) -> tuple[Path, list[str]]:
    """Return a copy of the script with a name that hints at nothing, and its arguments."""
    folder.mkdir()
    script = Path(shutil.copy(case.path, folder / "train.py"))
    sizes = [word for key, value in case.size.items() for word in (f"--{key}", str(value))]
    return script, [*sizes, *options, "--diary", str(folder / "diary.json")]


def run_case(
    case: Case,
    profiler: Profiler,
    *,
    plain: bool = False,
    pairs: int = 1,
    keep: Callable[..., None] | None = None,
) -> Outcome:
    """Run a case: repaired, planted under the profiler, and planted without it if `plain`.

    If only the repaired twin shows the gain, planted and repaired run so many times in turn, without the profiler: one
    ratio of two runs does not show how far such ratios lie apart.

    `keep` is called with the folder of the run under the profiler, and with the facts that `judge_again` takes.
    """
    with tempfile.TemporaryDirectory(prefix="diagnosis-") as name:
        root = Path(name)
        if case.repaired:
            return _judge(case, profiler, root, "--repaired", keep=keep)
        script, options = _run(case, root / "repaired", "--repaired")
        Plain().run(script, options, root / "repaired")
        repaired = json.loads((root / "repaired" / "diary.json").read_text())
        usual = ("--usual", str(repaired["step"]))

        def diary(name: str, *options: str) -> dict[str, Any]:
            script, words = _run(case, root / name, *options)
            Plain().run(script, words, root / name)
            return json.loads((root / name / "diary.json").read_text())

        alone = diary("plain", *usual) if plain else None
        measured = [
            (diary(f"plain{turn}", *usual), diary(f"repaired{turn}", *usual, "--repaired"))
            for turn in range(pairs if case.gains and not case.healthy and not case.diary and pairs > 1 else 0)
        ]
        return _judge(case, profiler, root, *usual, keep=keep, repaired=repaired, plain=alone, pairs=measured)


def _judge(
    case: Case, profiler: Profiler, root: Path, *options: str, keep: Callable[..., None] | None, **diaries: Any
) -> Outcome:
    """Run a case under the profiler."""
    folder = root / "judged"
    script, arguments = _run(case, folder, *options)
    diagnosis, error, failed = None, "", False
    try:
        diagnosis = profiler.diagnose(script, arguments, folder)
    except (FailedRunError, subprocess.TimeoutExpired) as failure:
        error, failed = str(failure), True
    except (OSError, ValueError, KeyError) as failure:
        error = str(failure)
    diary = folder / "diary.json"
    diaries["planted"] = json.loads(diary.read_text()) if diary.exists() else {}
    if keep:
        keep(folder, size=case.size, failed=error if failed else "", **diaries)
    return Outcome(case, diagnosis, load=os.getloadavg()[0], error=error, **diaries)


def judge_again(case: Case, folder: Path, facts: dict[str, Any]) -> Outcome:
    """Judge the profile of a kept run by the present code."""
    case = attrs.evolve(case, size=facts["size"])
    diaries = {name: facts[name] for name in ("planted", "repaired", "plain", "pairs") if name in facts}
    diaries["load"] = facts["load_average"][0]
    if facts["failed"]:
        return Outcome(case, None, error=facts["failed"], **diaries)
    return Outcome(case, Ours().read(profile_in(folder)), **diaries)


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep so many processes computing beside the runs."""
    load = [subprocess.Popen([sys.executable, "-c", "while True: sum(range(9999))"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in load:
            process.kill()
            process.wait()


def twice_the_cores() -> int:
    """Return the number of processes that make this machine busy."""
    return 2 * processors()


def lanes(number: int) -> ThreadPoolExecutor:
    """Return a pool of threads whose processes run on different cores, the same number for each thread."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // number
    if not each:
        raise SystemExit(f"{number} lanes need {number} cores; there are {len(cores)}")
    shares: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    for lane in range(number):
        shares.put(cores[lane * each : (lane + 1) * each])
    # A child inherits the cores of the thread that starts it; one lane keeps all of them.
    return ThreadPoolExecutor(number, initializer=lambda: os.sched_setaffinity(0, shares.get()))
