"""Measure reports of a fleet: cold, again, and after one more job; of jobs that were judged already, and of raw profiles.

    python benchmarks/fleet.py [--jobs 3,300,10000] [--raw 200] [--keep FOLDER]

The jobs are made up, with facts that a fleet's report must find; `write_fleet` serves the tests, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from sm_profiler._version import __version__
from sm_profiler.diagnosis.classes import Class

MAKE_JOB = Path(__file__).parents[1] / "tests" / "tools" / "make_job.py"
SCENARIOS = ("dataloader-slow", "healthy", "cpu-bottleneck", "step-outliers", "slow-init", "io-bottleneck")
END_S = 1_790_000_000
DAY = 86_400.0
WEEKS = 26
SLOW_HOST, LAZY_USER, SLOWER_STEM = "i-0bad0bad0bad0bad0", "nils", "speech-recognition"
SLOW_JOBS, CAREFUL_USERS = 20, ("anna", "ben", "cleo", "dmitri", "eve", "farah", "goran", "hana")
STEMS = (
    "bert-pretraining", "resnet-finetune", "llm-sft", "whisper-small", "recommender", "churn-model", "segmentation", "ocr-lines",
    "speech-synthesis", "depth-estimation", "reranker", "forecasting", "vit-large", "tabular-search", "diffusion", SLOWER_STEM,
)  # fmt: skip
MACHINES = (
    ("ml.g5.2xlarge", 1),
    ("ml.g5.12xlarge", 4),
    ("ml.p4d.24xlarge", 8),
    ("ml.g4dn.xlarge", 1),
    ("ml.m5.2xlarge", 0),
)
CAUSES = (
    ("CHECKPOINTING", "The loop waits 18 % of the time while torch.save writes checkpoints.", "Save asynchronously, or less often: every 2,000 steps instead of 200."),
    ("SYNC_BOUND", "Each step spends 21 % of its time between its phases, in loss.item().", "Collect the loss on the device, and fetch it every 50 steps."),
    ("IDLE", "Nothing runs for 30 % of the job, after the last step.", "End the job when training ends: evaluate in a smaller job."),
    ("LOGGING", "Logging takes 12 % of the loop.", "Log every 50 steps."),
    ("INITIALIZATION_BOUND", "A quarter of the job is over before the first step.", "Build the packages of requirements.txt into the image."),
    ("INPUT_BOUND", "Training waits for data 24 % of the loop: preprocessing in 2 workers.", "Use 6 workers: DataLoader(…, num_workers=6)."),
)  # fmt: skip
WAITING = (
    "Training waits for data 47 % of the loop because batches are prepared in the training process itself (num_workers=0).",
    "Prepare batches in worker processes: DataLoader(…, num_workers=4, persistent_workers=True).",
)  # fmt: skip


@dataclass
class Planted:
    """The facts of a fleet that its report must find."""

    jobs: int = 0
    slow_host: str = ""
    slow_jobs: list[str] = field(default_factory=list)
    lazy_user: str = ""
    lazy_jobs: list[str] = field(default_factory=list)
    regressed: str = ""
    failed: list[str] = field(default_factory=list)
    interrupted: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


def write_fleet(folder: Path, count: int, *, seed: int = 0, rules: dict | None = None) -> Planted:
    """Write so many judged jobs: `<job>/report.json` and `<job>/job.json`, the answer of DescribeTrainingJob.

    From 60 jobs on, there are a slow machine, a user whose loaders have no workers, steps that became slower, failures
    and interruptions. `rules` fills the reports up to their usual size.
    """
    rng = random.Random(seed)  # no secret
    planted = Planted(jobs=count)
    whole = count >= 60
    times = sorted(END_S - WEEKS * 7 * DAY * rng.random() for _ in range(count))
    multi = set(rng.sample(range(count), SLOW_JOBS)) if whole else set()
    hosts = [f"i-{rng.getrandbits(68):017x}" for _ in range(max(count // 20, 12))]
    slower_from = times[len(times) * 3 // 4]
    for number, start in enumerate(times):
        stem = SLOWER_STEM if whole and number % 8 == 0 else STEMS[number % (len(STEMS) - 1)]
        lazy = whole and number % 9 == 4 and number not in multi
        name = f"{stem}-{time.strftime('%Y-%m-%d-%H-%M-%S', time.gmtime(start))}-{number:05}"
        job = _Job(rng, name, stem, start, slow=number in multi, lazy=lazy, hosts=hosts, whole=whole)
        if stem == SLOWER_STEM and not job.slow and whole:
            job.step_ms = 120.0 * rng.uniform(0.99, 1.01) * (1.4 if start >= slower_from else 1.0)
            job.machine, job.nodes, job.git = MACHINES[1], 1, "4f0c1e5" if start >= slower_from else "a94d002"
            if start >= slower_from and not planted.regressed:
                planted.regressed = name
        job.write(folder, planted, rules or {}, damaged=whole and number == count // 2)
    if whole:
        planted.slow_host, planted.lazy_user = SLOW_HOST, LAZY_USER
    return planted


class _Job:
    def __init__(self, rng, name, stem, start, *, slow, lazy, hosts, whole) -> None:  # one argument a fact
        self.rng, self.name, self.stem, self.start, self.slow, self.lazy = rng, name, stem, start, slow, lazy
        self.user = LAZY_USER if lazy else rng.choice(CAREFUL_USERS)
        self.machine = rng.choice(MACHINES)
        self.nodes = 4 if slow else rng.choice((1, 1, 1, 1, 2, 4))
        self.hosts = rng.sample(hosts, self.nodes)
        if slow:
            self.hosts[rng.randrange(self.nodes)] = SLOW_HOST
        self.hours = rng.choice((0.3, 1, 2, 4, 9, 20)) * rng.uniform(0.6, 1.4)
        self.step_ms = 80 + 13 * (len(stem) % 7) * rng.uniform(0.99, 1.01)
        self.git = f"{rng.getrandbits(28):07x}"
        self.spot = rng.random() < 0.3
        self.status = (
            rng.choices(("Completed", "Failed", "Stopped"), (91, 6, 3))[0] if whole and not slow else "Completed"
        )
        self.interruptions = rng.choice((1, 2)) if self.spot and rng.random() < 0.3 else 0

    def write(self, folder: Path, planted: Planted, rules: dict, *, damaged: bool) -> None:
        where = folder / self.name
        where.mkdir(parents=True)
        (where / "job.json").write_text(json.dumps(self.description()))
        report = json.dumps(self.report(rules))
        (where / "report.json").write_text(report[: len(report) // 2] if damaged else report)
        planted.slow_jobs += [self.name] * self.slow
        planted.lazy_jobs += [self.name] * self.lazy
        planted.failed += [self.name] * (self.status == "Failed")
        planted.interrupted += [self.name] * (self.interruptions > 0)
        planted.damaged += [self.name] * damaged

    def description(self) -> dict:
        """The job as DescribeTrainingJob returns it."""
        waits = [("Starting", self.rng.uniform(60, 600)), ("Downloading", self.rng.uniform(20, 300))]
        waits.insert(1, ("DownloadingTrainingImage", self.rng.uniform(40, 200)))
        parts = [("Training", 3600 * self.hours / (self.interruptions + 1))]
        for _ in range(self.interruptions):
            parts += [("Interrupted", 300.0), *waits[:2], parts[0]]
        at, rows = self.start - sum(seconds for _, seconds in waits), []
        created = at
        for status, seconds in [*waits, *parts, ("Uploading", self.rng.uniform(5, 90)), (self.status, 0.0)]:
            rows.append({"Status": status, "StartTime": at, "EndTime": at + seconds})
            at += seconds
        training = at - self.start
        return {
            "TrainingJobName": self.name, "TrainingJobArn": f"arn:aws:sagemaker:us-east-1:123456789012:training-job/{self.name}",
            "TrainingJobStatus": self.status, "CreationTime": created, "TrainingStartTime": self.start, "TrainingEndTime": at,
            "FailureReason": "AlgorithmError: exit code 1: torch.OutOfMemoryError: CUDA out of memory" if self.status == "Failed" else "",
            "TrainingTimeInSeconds": int(training), "BillableTimeInSeconds": int(training * (0.35 if self.spot else 1)),
            "EnableManagedSpotTraining": self.spot, "SecondaryStatusTransitions": rows,
            "ResourceConfig": {"InstanceType": self.machine[0], "InstanceCount": self.nodes, "VolumeSizeInGB": 100},
            "AlgorithmSpecification": {"TrainingImage": f"123456789012.dkr.ecr.us-east-1.amazonaws.com/{self.stem}:{1 + int(self.start) % 3}"},
            "HyperParameters": {"epochs": "3"},
            "Tags": [{"Key": "user", "Value": self.user}, {"Key": "team", "Value": "vision" if self.rng.random() < 0.5 else "nlp"}, {"Key": "git", "Value": self.git}],
        }  # fmt: skip

    def verdict(self, seconds: float) -> dict:
        """A finding with its gain; the slow machine and the loader without workers are planted ones."""
        if self.slow:
            rank = f"algo-{self.hosts.index(SLOW_HOST) + 1}-0"
            evidence = [
                {"metric": "time the other ranks wait for this one", "value": 0.2, "threshold": 0.05, "where": rank, "unit": "share", "held": "limit"},
                {"metric": "mean time per step", "value": 1.3 * self.step_ms, "threshold": self.step_ms, "where": rank, "unit": "ms", "held": "others"},
            ]  # fmt: skip
            return _finding(
                "STRAGGLER",
                f"Rank {rank} delays the others.",
                "Compare its machine with the others.",
                0.2,
                seconds,
                evidence,
            )
        if self.lazy:
            return _finding("INPUT_BOUND", *WAITING, self.rng.uniform(0.35, 0.6), seconds)
        if self.rng.random() < 0.5:
            return _finding(self.rng.choice(("BALANCED", "COMPUTE_BOUND")), "Nothing to repair.", "", 0.0, 0.0)
        kind, headline, step = self.rng.choice(CAUSES)
        return _finding(kind, headline, step, self.rng.uniform(0.1, 0.35), seconds)

    def report(self, rules: dict) -> dict:
        """The job's report.json."""
        duration = 3600 * self.hours
        loader = {"num_workers": 0 if self.lazy else self.rng.choice((2, 4, 8)), "pin_memory": 1}
        ranks = [
            {
                "name": f"algo-{place + 1}-0", "node": f"algo-{place + 1}", "host": host, "train_steps": int(0.9 * duration * 1000 / self.step_ms), "eval_steps": 0,
                "loop_s": 0.95 * duration, "phases": "host", "seconds": {"wait": 0.1 * duration, "forward": 0.3 * duration, "backward": 0.5 * duration, "evaluation": 0.0},
                "own_phases": {}, "excluded_s": 0.0, "gc_s": 0.0, "communication_s": 0.02 * duration if self.nodes > 1 else 0.0,
                "attempts": 1 + self.interruptions, "interrupted_s": 300.0 * self.interruptions,
            }
            for place, host in enumerate(self.hosts)
        ]  # fmt: skip
        gpus = [
            {
                "node": f"algo-{node + 1}",
                "name": f"gpu{gpu}",
                "mean": 71.5,
                "idle": 0.1,
                "memory": 62.0,
                "memory_max": 80.0,
            }
            for node in range(self.nodes)
            for gpu in range(self.machine[1])
        ]
        return {
            "schema_version": "1.0", "version": __version__, "generated": "2026-11-22 13:06 UTC", "source": f"s3://bucket/{self.name}/profiler-output",
            "job": {
                "name": self.name, "start": self.start, "end": self.start + duration, "duration_s": duration, "running": False,
                "nodes": [f"algo-{place + 1}" for place in range(self.nodes)], "instance_type": self.machine[0], "gpus": gpus, "cpu_cores": {"algo-1": 8},
                "initialization_s": 30.0, "loop": [self.start + 0.04 * duration, self.start + duration], "steps_per_second": 1000 / self.step_ms,
                "profiler_overhead": 0.002, "utilisation": {"cpu": 40.0}, "ranks": ranks, "loader": loader,
                "startup": [{"part": "imports", "label": "starting Python", "seconds": 12.0, "paid": True}, {"part": "building", "label": "building", "seconds": 18.0, "paid": True}],
            },
            "verdict": {**self.verdict(duration), "also": [], "not_judged": []},
            "profiling_cost": "0.2 %", "rules": rules, "broken_rules": {},
            "data_quality": {"sentence": "", "files": 11, "states": {"read": 11}, "lost": 0, "rows": [], "more": 0, "collectors": []}, "cost": None, "gpu_traces": [],
        }  # fmt: skip


def _finding(
    kind: str, headline: str, step: str, share: float, seconds: float, evidence: list | None = None
) -> dict:  # one argument a field
    saved = share * seconds
    gain = {"low": 0.7 * saved, "value": saved, "high": 1.2 * saved} if saved else None
    where = [
        {
            "file": "src/train.py",
            "line": 88,
            "function": "train",
            "share": 0.7,
            "phase": "",
            "rank": "",
            "source": "for x, y in loader:",
        }
    ]
    return {
        "class": Class(kind).value, "headline": headline, "evidence": evidence or [], "next_step": step, "share_of_time": share, "share_of": "loop",
        "confidence": "high", "where": where if saved else [], "gain": gain and {**dict.fromkeys(("seconds_per_step", "share_of_loop", "speedup", "seconds"), gain), "usd": None, "of": "loop"},
    }  # fmt: skip


def real_rules() -> dict:
    """Return the rule results of a synthetic job, so that the made-up reports are as large as real ones."""
    with tempfile.TemporaryDirectory() as folder:
        _make_raw(Path(folder), 0, 3)
        command = [sys.executable, "-m", "sm_profiler", "report", f"{folder}/job-000", "--out", f"{folder}/report"]
        subprocess.run(command, check=True, capture_output=True)
        return json.loads(Path(folder, "report", "report.json").read_text())["rules"]


def _make_raw(folder: Path, number: int, minutes: int) -> None:
    shape = [
        "--scenario",
        SCENARIOS[number % len(SCENARIOS)],
        "--minutes",
        minutes,
        "--gpus",
        2,
        "--cpus",
        8,
        "--seed",
        number,
    ]
    shape += ["--start-epoch", END_S + 3600 * number, "--out", folder / f"job-{number:03}"]
    subprocess.run([sys.executable, MAKE_JOB, *map(str, shape)], check=True, stdout=subprocess.DEVNULL)


def measure(label: str, source: Path, out: Path, extra: list[str]) -> None:
    """Run `sm-profiler fleet` and print a row of the table."""
    command = [sys.executable, "-m", "sm_profiler", "fleet", str(source), "--out", str(out), *extra]
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(errors.decode())
    page = (out / "fleet.html").stat().st_size
    print(
        f"| {label} | {seconds:.1f} | {used.ru_utime + used.ru_stime:.1f} | {used.ru_maxrss / 1024:.0f} | {page / 1000:,.0f} |",
        flush=True,
    )


def three_runs(label: str, source: Path, folder: Path, add, extra: list[str]) -> None:
    """Measure a cold run, a second one, and one after a job was added."""
    out = folder / "out"
    measure(f"{label}, cold", source, out, extra)
    measure(f"{label}, again", source, out, extra)
    add()
    measure(f"{label}, one job more", source, out, extra)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", default="3,300,10000", help="numbers of jobs that were judged already")
    parser.add_argument("--raw", type=int, default=0, help="number of jobs to judge from their raw profiles")
    parser.add_argument("--minutes", type=int, default=5, help="length of each of these")
    parser.add_argument("--executor", help="as of sm-profiler fleet")
    parser.add_argument("--keep", type=Path, help="folder for the jobs and the reports (default: a temporary one)")
    options = parser.parse_args()
    extra = ["--executor", options.executor] if options.executor else []
    with tempfile.TemporaryDirectory(prefix="sm-profiler-fleet-") as name:
        folder = options.keep or Path(name)
        rules = real_rules()
        print("| jobs | seconds | CPU seconds | MiB | page, kB |\n|---|---|---|---|---|")
        for count in map(int, filter(None, options.jobs.split(","))):
            own = folder / f"{count}-jobs"
            write_fleet(own / "jobs", count, rules=rules)
            three_runs(
                f"{count:,} judged",
                own / "jobs",
                own,
                lambda own=own: write_fleet(own / "jobs" / "new", 1, seed=1, rules=rules),
                extra,
            )
        if options.raw:
            own = folder / f"{options.raw}-raw"
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(lambda number: _make_raw(own / "jobs", number, options.minutes), range(options.raw)))
            size = sum(file.stat().st_size for file in own.rglob("*") if file.is_file())
            three_runs(
                f"{options.raw:,} raw, {size / 1e6:,.0f} MB",
                own / "jobs",
                own,
                lambda: _make_raw(own / "jobs", options.raw, options.minutes),
                extra,
            )


if __name__ == "__main__":
    main()
