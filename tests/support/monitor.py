"""A job of real processes with the monitor, and what is on S3 afterwards."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MARKERS = ["framework/training_job_end.ts", "system/training_job_end.ts"]
# A training without torch, which joins as the hook does.
JOIN = """
import os, signal, sys, time
from pathlib import Path
from sm_profiler.config import load_profile
from sm_profiler.hook import settings
from sm_profiler.hook.settings import accompany
from sm_profiler.formats.trace_writer import TraceEvent, TraceWriter

accompany(load_profile(settings.find_config().text))
rank = os.environ.get("RANK", "0")
"""
# It writes a trace file, which the test's own lines close.
SCRIPT = f"""{JOIN}
writer = TraceWriter(Path(os.environ["PROFILE"]), f"{{rank}}-algo-1")
writer.write([TraceEvent("Forward", "Net", 1_795_261_080_000_000, 5)])
print("on", flush=True)
"""


def running_monitors(root: Path) -> list[int]:
    """Return the process ids of the monitors of the job with this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if b"sm_profiler.monitor.agent" in line and str(root).encode() in line:
            found.append(int(path.parent.name))
    return found


class Job:
    """A job's folder, environment and processes."""

    def __init__(self, folder: Path, aws: dict | None = None, script: str = SCRIPT, **config):
        self.root, self.folder, self.script = folder / "profile", folder, script
        config = {
            "S3OutputPath": "s3://profiles/out", "ProfilingIntervalInMilliseconds": 100,
            "ProfilingParameters": {"LocalPath": str(self.root)}, **config,
        }  # fmt: skip
        self.environment = {
            **os.environ, **(aws or {}), "SM_PROFILER_AUTO": "1", "SM_PROFILER_CONFIG": json.dumps(config),
            "TRAINING_JOB_NAME": "job-1", "SM_PROFILER_ROOT": str(folder / "ml"), "PROFILE": str(self.root),
        }  # fmt: skip
        self.processes = []

    def start(self, body: str = "", *arguments: object, **variables: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", self.script + body, *map(str, arguments)], env={**self.environment, **variables}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.processes.append(process)
        assert process.stdout.readline() == "on\n", process.stderr.read()
        return process

    def monitors(self) -> list[int]:
        """Return the running monitors of this job."""
        return running_monitors(self.root)

    def close(self):
        """Kill all that is left."""
        for process in self.processes:
            process.kill()
        for pid in self.monitors():
            os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.communicate()

    def until(self, what, seconds=30.0):
        deadline = time.monotonic() + seconds
        while not (found := what()):
            assert time.monotonic() < deadline, "waited too long"
            time.sleep(0.05)
        return found

    def rows(self) -> list[dict]:
        files = [*self.root.rglob("*.algo-1.json"), *self.root.rglob("*.algo-1.json.tmp")]
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def uploaded(s3) -> list[str]:
    prefix = "out/job-1/profiler-output/"
    listed = s3.list_objects_v2(Bucket="profiles", Prefix=prefix).get("Contents", ())
    return sorted(item["Key"].removeprefix(prefix) for item in listed)


def kinds(names: list[str]) -> set[str]:
    return {"marker" if name in MARKERS else name.partition("/")[0] for name in names}
