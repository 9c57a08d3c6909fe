"""Run the benchmark of diagnosis.

python -m benchmarks.diagnosis                                    every case once, with sm-profiler
python -m benchmarks.diagnosis --cases metrics,logs --repeat 3
python -m benchmarks.diagnosis --busy --seed 5                    other sizes, on a busy machine
python -m benchmarks.diagnosis --profiler traceml --json traceml.json
python -m benchmarks.diagnosis --plain --markdown docs/benchmark.md
python -m benchmarks.diagnosis --keep folder                      keep the profiles
python -m benchmarks.diagnosis --judge folder                     judge them again, with the code as it is now
python -m benchmarks.diagnosis --from first.json second.json busy.json --markdown docs/benchmark.md
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
import time
from concurrent.futures import as_completed
from pathlib import Path

import attrs

from benchmarks.diagnosis import keeping, table
from benchmarks.diagnosis.adapters import PROFILERS, FailedRunError
from benchmarks.diagnosis.manifest import CASES, GPU_CASES, Case
from benchmarks.diagnosis.running import busy, judge_again, lanes, run_case, twice_the_cores
from benchmarks.diagnosis.scoring import BUSY, QUIET, Score, score

DEVICE = Path("/dev/nvidiactl")  # of NVIDIA's driver


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis", description=__doc__.splitlines()[0])
    parser.add_argument("--profiler", choices=sorted(PROFILERS), default="ours")
    parser.add_argument("--cases", default="", help="parts of names, separated by commas; `sample` for the sample")
    parser.add_argument("--gpu", action="store_true", help="the cases for a CUDA device; without one, there are none")
    parser.add_argument("--repeat", type=int, default=1, help="runs of every case")
    parser.add_argument("--seed", type=int, default=0, help="vary all sizes; the same seed gives the same sizes")
    parser.add_argument("--lanes", type=int, default=1, help="cases at once, each on its own share of the cores")
    parser.add_argument("--busy", action="store_true", help="keep twice as many processes busy as there are cores")
    parser.add_argument("--pairs", type=int, default=3, help="plain and repaired runs, if only they show the gain")
    parser.add_argument("--plain", action="store_true", help="also run without a profiler, for its overhead")
    parser.add_argument("--json", type=Path, help="write the scores to this file, after every case")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--keep", type=Path, metavar="FOLDER", help="keep each case's profile and what was measured")
    source.add_argument("--judge", type=Path, metavar="FOLDER", help="judge kept profiles again instead of running")
    source.add_argument(
        "--from",
        type=Path,
        dest="sources",
        nargs="+",
        help="read scores from files instead of running; all of them count",
    )
    parser.add_argument("--markdown", type=Path, help="write the tables into this document")
    parser.add_argument("--twins", action="store_true", help="judge the repaired twins: nothing is wrong with them")
    parser.add_argument("--list", action="store_true", help="list the cases")
    args = parser.parse_args()
    if args.keep and args.profiler != "ours":
        parser.error("--keep keeps what sm-profiler writes")
    return args


def chosen(args: argparse.Namespace) -> list[Case]:
    every = GPU_CASES if args.gpu else CASES
    if args.gpu and not (args.list or args.sources or args.judge or DEVICE.exists()):
        sys.exit("not run: no CUDA device")
    cases = every
    if args.cases == "sample":
        cases = [case for case in cases if case.sample]
    elif args.cases:
        words = args.cases.split(",")
        cases = [case for word in words for case in every if word in case.name]
    return [twin for case in cases if (twin := case.twin())] if args.twins else list(cases)


def line(judged: Score, seconds: float) -> str:
    marks = {None: "·", True: "+", False: "-"}
    extra = ""
    if judged.gain and judged.spread:
        extra = (
            f"gain{marks[None if judged.gain_open else judged.gain_right]} {judged.gain[0]:.2f}-{judged.gain[1]:.2f} "
        )
        extra += f"measured {judged.measured} ({judged.spread[0]:.2f}-{judged.spread[1]:.2f})"
    return (
        f"{'right' if judged.right else 'WRONG'}{'!' if judged.confidently_wrong else ' '} {judged.case}: {judged.got} "
        f"{judged.confidence} also={','.join(judged.also)} line{marks[judged.line_right]} {judged.line} {extra} "
        f"share={judged.share} planted={judged.planted} [{seconds:.0f} s] {judged.error[-300:]}"
        + ("" if judged.right else f"\n      {judged.headline}")
    )


def measure(args: argparse.Namespace) -> list[Score]:
    profiler, scores = PROFILERS[args.profiler](), []
    cases = [case for case in chosen(args) if profiler.follows_ranks or not case.ranks]
    turns = [(turn, case) for turn in range(args.repeat) for case in cases]

    def measured(turn: int, case: Case) -> tuple[Score, float]:
        started = time.monotonic()
        facts = {"machine": BUSY if args.busy else QUIET, "run": turn}
        keep = None
        if args.keep:
            folder = args.keep / (f"{case.name}-run{turn}" if turn else case.name)
            keep = functools.partial(keeping.keep, folder=folder, case=case.name, **facts)
        varied = case.varied(args.seed + turn) if args.seed else case
        outcome = score(run_case(varied, profiler, plain=args.plain, pairs=args.pairs, keep=keep))
        return attrs.evolve(outcome, **facts), time.monotonic() - started

    with busy(twice_the_cores()) if args.busy else contextlib.nullcontext(), lanes(args.lanes) as pool:
        for done in as_completed([pool.submit(measured, *turn) for turn in turns]):
            try:
                judged, seconds = done.result()
            except FailedRunError as error:
                print(f"a script fails by itself and is left out: {error}", file=sys.stderr)
                continue
            scores.append(judged)
            print(line(judged, seconds), flush=True)
            if args.json:
                args.json.write_text(json.dumps([judged.as_dict() for judged in scores], indent=1))
    return scores


def measure_again(args: argparse.Namespace) -> list[Score]:
    found = keeping.kept(args.judge)
    scores = []
    for case in chosen(args):
        for folder, facts in found.items():
            if facts["case"] != case.name:
                continue
            started = time.monotonic()
            judged = attrs.evolve(score(judge_again(case, folder, facts)), machine=facts["machine"], run=facts["run"])
            print(line(judged, time.monotonic() - started), flush=True)
            scores.append(judged)
    if args.json:
        args.json.write_text(json.dumps([judged.as_dict() for judged in scores], indent=1))
    return scores


def kept(files: list[Path]) -> list[Score]:
    scores, runs = [], 0
    for path in files:
        rows = [Score(**row) for row in json.loads(path.read_text())]
        scores += [attrs.evolve(row, run=runs + row.run) for row in rows]
        runs += max((row.run for row in rows), default=-1) + 1
    return scores


def main() -> None:
    args = options()
    if args.list:
        print("\n".join(f"{case.name:60} {case.expected[0]:22} {case.about}" for case in chosen(args)))
        return
    order = {case.script: number for number, case in enumerate(CASES)}
    scores = kept(args.sources) if args.sources else measure_again(args) if args.judge else measure(args)
    scores.sort(key=lambda judged: order.get(judged.script, 0))
    print(table.runs_sentence(scores))
    print(table.classes_table(scores), table.reliability_table(scores), sep="\n\n")
    if args.markdown:
        if args.gpu:
            table.write(args.markdown, "gpu", table.problems_table(scores))
        elif args.profiler == "ours":
            table.write(args.markdown, "classes", table.classes_table(scores))
            table.write(args.markdown, "problems", table.problems_table(scores))
            table.write(args.markdown, "reliability", table.reliability_table(scores))
            table.write(args.markdown, "runs", table.runs_sentence(scores))
        else:
            table.write(args.markdown, args.profiler, table.problems_table(scores))


if __name__ == "__main__":
    main()
