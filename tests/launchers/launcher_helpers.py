"""Start a training by a launcher, with and without the hook, and compare its own counts with the profile."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import attrs
import pytest

from sm_profiler.formats.trace_recovery import recover_traces
from sm_profiler.metrics.job_metrics import JobMetrics
from sm_profiler.report import build_report
from sm_profiler.source import open_source

SCRIPTS = Path(__file__).parent / "scripts"
BIN = Path(os.environ.get("SM_PROFILER_LAUNCHERS", Path(__file__).parents[2] / ".envs" / "launchers")) / "bin"
PROCESS, STEP = "sm_profiler/process", "Step:ModeKeys.TRAIN"
SECONDS = 240


@attrs.frozen
class Profiled:
    """One process, according to its trace files."""

    pid: int
    rank: int | None
    name: str
    steps: int


@attrs.define
class Run:
    """One start of a launcher."""

    process: subprocess.Popen
    out: Path
    profile: Path | None

    def wait(self) -> tuple[int, str, str]:
        """Return exit code, output and errors."""
        try:
            code = self.process.wait(SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        return code, (self.out / "stdout").read_text("utf-8"), (self.out / "stderr").read_text("utf-8")


def program(name: str) -> str:
    """Return the path of a program of the launchers' environment, or skip."""
    if not BIN.is_dir():
        pytest.skip("no environment with launchers: make .envs/launchers.done")
    if not (BIN / name).exists():
        pytest.skip(f"{name} is not in the launchers' environment")
    return str(BIN / name)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(folder: Path, command: list[str], profile: Path | None, **more: str) -> Run:
    """Start a command in the folder of the scripts; without `profile` the hook is off."""
    folder.mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "LANG", "OPENBLAS_CORETYPE") if name in os.environ}
    home = folder / "home"
    home.mkdir()
    environment = {
        **kept,
        "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "DS_ACCELERATOR": "cpu",
        "GLOO_SOCKET_IFNAME": "lo",
        **more,
    }
    if profile is not None:
        environment["SM_PROFILER_AUTO"] = "1"
        environment["SM_PROFILER_CONFIG"] = json.dumps({"ProfilingParameters": {"LocalPath": str(profile)}})
    with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as errors:
        process = subprocess.Popen(
            command, cwd=SCRIPTS, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True
        )  # fmt: skip
    return Run(process, folder, profile)


def printed(output: str) -> dict[int, dict]:
    """Return the lines that the ranks printed, by rank; some launchers put a name in front of each line."""
    found = [json.loads(line[line.index('{"rank"') :]) for line in output.splitlines() if '{"rank"' in line]
    ranks = {line["rank"]: line for line in found}
    assert len(ranks) == len(found), found
    return ranks


def profiled(profile: Path) -> list[Profiled]:
    """Return the processes in a profile, sorted by name; files of one process are put together."""
    steps: dict[tuple, int] = {}
    for path in sorted(profile.glob("framework/pevents/*/*.json")):
        events = json.loads(path.read_text("utf-8"))
        meta = next(event["args"] for event in events if event["name"] == PROCESS)
        phases = {event["pid"]: event["args"].get("name") for event in events if event["name"] == "process_name"}
        key = (meta["pid"], meta["rank"], path.name.split("_")[1])
        count = sum(event["ph"] == "X" and phases[event["pid"]] == STEP for event in events)
        steps[key] = steps.get(key, 0) + count
    return sorted((Profiled(*key, count) for key, count in steps.items()), key=lambda one: (one.name, one.pid))


def until_complete(profile: Path, seconds: float = 30.0, *, kills: bool = False) -> None:
    """Wait until no file of the profile is open: some launchers return before their workers have ended.

    Files of processes that the launcher `kills` are completed here, as `sm-profiler run` does.
    """
    until = time.monotonic() + seconds
    while list(profile.rglob("*.json.tmp")) and time.monotonic() < until:
        time.sleep(0.1)
    if kills:
        recover_traces(profile)
    assert not list(profile.rglob("*.json.tmp"))


def plain(errors: str) -> list[str]:
    """Return lines of a standard error without what differs from run to run."""
    lines = {re.sub(r"0x[0-9a-f]+|[0-9]+", "N", line).strip() for line in errors.splitlines()}
    return sorted(lines - {""})


def traceback_of(errors: str) -> list[str]:
    """Return the lines of the script's traceback, from its head to the error that it names."""
    lines = [line.removeprefix("[rank1]:").strip() for line in errors.splitlines()]
    last = lines.index("ValueError: of the script")
    return lines[lines.index("Traceback (most recent call last):") : last + 1]


def metrics_of(profile: Path) -> JobMetrics:
    """Return what the report judges."""
    return build_report(open_source(str(profile))).metrics
