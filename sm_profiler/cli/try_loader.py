"""`sm-profiler try-loader`: the script's own DataLoader under other settings, without training."""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

import attrs

from sm_profiler.cli.main import BAD, DONE, SOURCE_HELP, newest_run
from sm_profiler.cli.run import check_module
from sm_profiler.errors import ConfigError, ProfilerError
from sm_profiler.formatting import duration, percent, strict_json
from sm_profiler.printable import printable, say
from sm_profiler.trial import BUSY, WORTH, LoaderSetting, LoaderTrial, LoaderTrials, Plan

INTERRUPTED = 128 + signal.SIGINT
MAX_WORKERS = 256
MAX_SECONDS = 3600.0
PER_CORE = 2  # workers tried for each core: more help only if loading mostly waits
MEMORY_SHARE = 0.8  # of the memory that is free, which workers may take
EXAMPLES = """\
examples:
  sm-profiler try-loader train.py --epochs 3
  sm-profiler try-loader --profile sm-profiler train.py     how many workers does this loop need?
  sm-profiler try-loader --workers 4,8,16 --seconds 10 train.py
"""

HEAD = ("num_workers", "prefetch_factor", "pin_memory", "batches/s", "first batch", "")


def add_try_loader(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.usage = (
        "sm-profiler try-loader [--seconds S] [--workers N,N,…] [--prefetch N,N,…] [--loader N] [--profile SOURCE] "
        "[--json FILE] [-m MODULE | SCRIPT] [ARGS]"
    )
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="time for each setting (default: 3)")
    parser.add_argument("--workers", type=counts, metavar="N,N,…", help="values of num_workers (default: by the cores)")
    parser.add_argument(
        "--prefetch", type=counts, default=(2, 4), metavar="N,N,…", help="values of prefetch_factor (default: 2,4)"
    )
    parser.add_argument(
        "--loader", type=place, default=0, metavar="N",
        help="try the Nth loader that the script iterates over (default: the first with gradients enabled)"
    )  # fmt: skip
    parser.add_argument(
        "--profile", metavar="SOURCE", help=f"compare with what the loop of this profile needs: {SOURCE_HELP}"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the results as JSON; - for standard output")
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, as python -m does")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="…", help="the script and its arguments")


def run_try_loader(options: Namespace) -> int:
    command = find_script(options)
    if not 0 < options.seconds <= MAX_SECONDS:
        raise ConfigError(f"--seconds: expected more than 0 and at most {MAX_SECONDS:.0f}")
    needed, alarm, instead = batches_needed(options.profile) if options.profile else (None, "", "")
    with tempfile.TemporaryDirectory(prefix="sm-profiler-") as folder:
        plan = make_plan(options, Path(folder, "result.json"))
        before = machine_time()
        code = run_script(command, plan)
        outcome = read_outcome(plan)
        others = share_of_others(before, machine_time())
    if outcome is None:
        raise ProfilerError(no_loader(code, options))
    outcome = attrs.evolve(outcome, others=others)
    best = None if instead else outcome.best(needed)
    found = {**attrs.asdict(outcome), "best": attrs.asdict(best) if best else None, "needed_per_second": needed}
    if options.json == "-":
        print(strict_json(found, indent=1))
    else:
        if options.json:
            Path(options.json).write_text(strict_json(found, indent=1) + "\n")
        print(trial_table(outcome, needed, alarm, instead))
    if outcome.interrupted:
        return INTERRUPTED
    return DONE if outcome.measured else BAD


def counts(text: str) -> tuple[int, ...]:
    """Read `2,4,8`."""
    try:
        found = tuple(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError:
        found = (-1,)
    if not all(0 <= count <= MAX_WORKERS for count in found):
        raise argparse.ArgumentTypeError(f"expected numbers from 0 to {MAX_WORKERS}, separated by commas")
    return found


def place(text: str) -> int:
    """Read the number of a loader, which count from 1."""
    if not text.isdecimal() or not int(text[:9]):
        raise argparse.ArgumentTypeError(f"{text}: loaders count from 1")
    return int(text[:9])


def find_script(options: Namespace) -> list[str]:
    """Return the words after `python -m sm_profiler.trial`."""
    words: list[str] = options.words
    if not words:
        raise ProfilerError("try-loader: no script given, as in sm-profiler try-loader train.py")
    if options.module:
        check_module(words[0])
        return ["-m", *words]
    if not Path(words[0]).exists():
        raise ProfilerError(f"{words[0]}: no such file")
    return words


def make_plan(options: Namespace, result: Path) -> Plan:
    """Return the plan for this machine: its cores, and the memory that is free."""
    cores, memory = resources()
    workers = options.workers
    if workers is None:
        powers = [1 << exponent for exponent in range(9)]
        workers = (0, *(count for count in powers if count <= PER_CORE * cores))
    prefetch = tuple(count for count in options.prefetch if count > 0) or (2,)
    return Plan(str(result), options.seconds, workers, prefetch, options.loader, int(memory * MEMORY_SHARE))


def resources() -> tuple[int, int]:
    """Return the cores that this process may use, and the free memory in bytes; 0 if unknown."""
    from sm_profiler.limits import Limits
    from sm_profiler.processes import processors

    free = 0
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        pass
    used = Limits().memory()
    if used is not None:
        left = max(used.limit - used.used, 1)
        free = min(free, left) if free else left
    return processors(), free


def machine_time() -> tuple[float, float, float] | None:
    """Return the processor time of all cores, how much of it was used, and how much of that by ended children; in seconds."""
    from sm_profiler.monitor.procfs import core_times

    try:
        cores = core_times(Path("/proc/stat").read_bytes()).values()
    except (OSError, ValueError, IndexError):
        return None
    tick = os.sysconf("SC_CLK_TCK")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    total, idle = (sum(core[0] for core in cores) / tick, sum(core[1] + core[2] for core in cores) / tick)
    return total, total - idle, used.ru_utime + used.ru_stime


def share_of_others(
    before: tuple[float, float, float] | None, after: tuple[float, float, float] | None
) -> float | None:
    """Return the share of the processor time between two moments that other programs used; None if unknown."""
    if before is None or after is None:
        return None
    total, used, own = (b - a for a, b in zip(before, after, strict=True))
    return round(min(max(used - own, 0.0) / total, 1.0), 4) if total > 0 else None


def run_script(words: list[str], plan: Plan) -> int:
    """Run the script in a separate process and return its exit code; what it prints goes to standard error."""
    from sm_profiler.settings import AUTO, TRIAL

    environment = {**os.environ, TRIAL.name: json.dumps(attrs.asdict(plan)), AUTO.name: "0"}
    command = [sys.executable, "-m", "sm_profiler.trial", *words]
    script = printable(words[1] if words[0] == "-m" else words[0])
    say(f"running {script} up to its loop over a PyTorch DataLoader")
    try:
        process = subprocess.Popen(command, env=environment, stdout=sys.stderr.fileno())
    except ValueError as error:  # a null byte in an argument
        raise ProfilerError(f"{words[0]}: {error}") from error
    # The terminal sends Ctrl-C to the script too, which ends with the results so far.
    kept = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, kept)


def read_outcome(plan: Plan) -> LoaderTrials | None:
    """Return the results, or None if the script ended before its loader."""
    try:
        return LoaderTrials.of(json.loads(Path(plan.result).read_text()))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def no_loader(code: int, options: Namespace) -> str:
    """Return why there are no results."""
    script = printable(options.words[0])
    if code in {-signal.SIGINT, INTERRUPTED}:
        return f"{script} was interrupted before it reached its DataLoader"
    if code:
        return f"{script} failed before its DataLoader delivered a batch (exit code {code})"
    if options.loader:
        return f"{script} ended without iterating over a DataLoader number {options.loader}"
    return (
        f"{script} ended without iterating over a PyTorch DataLoader (torch.utils.data) with gradients enabled, which is what "
        "try-loader measures; --loader 1 tries the first one of any kind"
    )


def batches_needed(where: str) -> tuple[float, str, str]:
    """Return the batches a second that a recorded loop needs if it does not wait, and two texts, "" if they do not apply.

    Returns:
        the number; why the loop may need more; the report's advice if workers would only take cores from the training.
    """
    from sm_profiler.diagnosis.limits import NOTICEABLE
    from sm_profiler.diagnosis.profile.case import Case
    from sm_profiler.diagnosis.profile.inputs import workers_of
    from sm_profiler.diagnosis.words import ADVICE
    from sm_profiler.report import build_report
    from sm_profiler.report.compare import compute_seconds
    from sm_profiler.source import open_source

    report = build_report(open_source(newest_run(where)))
    seconds, share = compute_seconds(report.metrics), report.verdict.shared_wait
    if not seconds:
        raise ProfilerError(f"{where}: too few training steps to measure what the loop needs")
    alarm = f"Other programs kept this loop waiting for a CPU core {percent(share)} of its time: alone, it needs more."
    case = Case(report.metrics, {})
    shared = workers_of(case).would_share_cores(case)
    return 1 / seconds, alarm if share >= NOTICEABLE else "", ADVICE["input_one_core"] if shared else ""


def trial_table(outcome: LoaderTrials, needed: float | None = None, alarm: str = "", instead: str = "") -> str:
    """Return the table of all trials, the best of them, and what it means for the loop."""
    batch = f", batches of {outcome.batch_size}" if outcome.batch_size else ""
    lines = [f"{printable(outcome.dataset)}{batch}"]
    best, enough = (None, None) if instead else (outcome.best(needed), needed)
    rows = [HEAD, *(_row(trial, best, enough) for trial in outcome.trials)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD) - 1)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append(f"  {'  '.join(cells)}  {row[-1]}".rstrip())
    return "\n".join([*lines, *advice(outcome, needed, instead), *filter(None, (alarm,))])


def _row(trial: LoaderTrial, best: LoaderTrial | None, needed: float | None) -> tuple[str, ...]:
    setting = trial.setting
    is_enough = needed is not None and trial.delivers(needed) * WORTH >= needed
    states = (("as in the script", trial.current), ("best", trial is best), ("enough for the loop", is_enough))
    notes = [note for note, is_so in states if is_so]
    return (
        str(setting.num_workers),
        str(setting.prefetch_factor or "-"),
        "yes" if setting.pin_memory else "no",
        f"{trial.per_second:,.1f}" if trial.per_second else "-",
        duration(trial.first_s) if trial.first_s is not None else "-",
        printable(trial.problem) or ", ".join(notes),
    )


def advice(outcome: LoaderTrials, needed: float | None, instead: str = "") -> list[str]:
    """Return the sentences that follow the table; `instead` replaces a setting if workers would not help the training."""
    best = outcome.best(None if instead else needed)
    if best is None or best.per_second is None:
        return ["No setting delivered a batch."]
    label = "Fastest while nothing is trained" if instead else "Best"
    lines = [f"{label}: {written(best.setting)}: {best.per_second:,.1f} batches/s{_compared(outcome, best)}."]
    if instead:
        lines.append(instead)
    elif needed:
        lines += [*_in_loop(outcome.now, best, needed), _enough(best, needed)]
    if (outcome.others or 0.0) >= BUSY:
        lines.append(
            f"Other programs used {percent(outcome.others or 0.0)} of the machine's processor time meanwhile, so settings with "
            "more workers look slower than they are. Repeat this while the machine is less busy."
        )
    if outcome.iterable and best.num_workers > 1:
        lines.append(
            "The dataset is an IterableDataset: each worker must load its own part of the data (get_worker_info), "
            "otherwise every worker delivers all of it."
        )
    return lines


def written(setting: LoaderSetting) -> str:
    if not setting.num_workers:
        return f"num_workers=0, pin_memory={setting.pin_memory}"
    return (
        f"num_workers={setting.num_workers}, prefetch_factor={setting.prefetch_factor}, pin_memory={setting.pin_memory}, "
        "persistent_workers=True"
    )


def _compared(outcome: LoaderTrials, best: LoaderTrial) -> str:
    now = outcome.now
    if best.current:
        return ", as in the script"
    if now is None or not now.per_second or not best.per_second:
        return ""
    if not now.num_workers and best.per_second <= now.per_second:
        return f", loaded while the loop computes; now {now.per_second:,.1f}, for which it waits"
    return f", {best.per_second / now.per_second:.2g} times as many as now ({now.per_second:,.1f})"


def _in_loop(now: LoaderTrial | None, best: LoaderTrial, needed: float) -> list[str]:
    """Return by how much the loop itself becomes faster: loaders that work beside it need not be faster than now."""
    if now is None or not now.per_second or best.current:
        return []
    before, after = now.delivers(needed), best.delivers(needed)
    return [
        f"With it, the loop makes about {after:,.1f} steps/s instead of {before:,.1f}: {after / before:.2g} times as fast."
    ]


def _enough(best: LoaderTrial, needed: float) -> str:
    takes = f"Without waiting, the loop needs {needed:,.1f} batches/s ({duration(1 / needed)} per step)"
    rate = best.delivers(needed)
    if not best.num_workers:
        takes += f"; if it loads them itself, between its steps, it gets {rate:,.1f}"
    if rate * WORTH >= needed:
        return f"{takes}: enough."
    if best.num_workers and (best.per_second or 0.0) >= needed:
        return f"{takes}: just enough; during the training, loading is slower than alone."
    return f"{takes}: not enough. Load less for each batch: cache what is computed each time, read larger files."
