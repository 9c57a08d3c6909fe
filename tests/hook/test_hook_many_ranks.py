"""32 ranks on one node: results stay, each rank has its own files, and memory and file descriptors stay bounded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sm_profiler.report import build_report
from sm_profiler.report.report_json import to_json
from sm_profiler.source import open_source
from tests.support.hook import environment

RANKS, STEPS = 32, 40
SCRIPT = Path(__file__).with_name("many_ranks.py")
# what the hook may add to a rank: its modules and queues, numpy's included; its file and what reads the machine
MOST_BYTES, MOST_FILES = 80 << 20, 8


def run(folder: Path, **variables: str) -> list[dict]:
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", str(SCRIPT)]
    done = subprocess.run(
        [*command, str(folder)], env=environment(OMP_NUM_THREADS="1", **variables), capture_output=True, text=True,
        check=False, timeout=1500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "sm-profiler" not in done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.long
@pytest.mark.timeout(3200)
def test_32_ranks_on_one_node(tmp_path):
    profile = tmp_path / "profile"
    config = json.dumps({"ProfilingParameters": {"LocalPath": str(profile)}})
    off = run(tmp_path / "off", SM_PROFILER_AUTO="0")
    on = run(tmp_path / "on", SM_PROFILER_AUTO="1", SM_PROFILER_CONFIG=config)
    assert [one["digest"] for one in on] == [one["digest"] for one in off]
    for before, after in zip(off, on, strict=True):
        assert after["peak_bytes"] - before["peak_bytes"] < MOST_BYTES
        assert after["files"] - before["files"] <= MOST_FILES
    assert not list(profile.rglob("*.tmp"))
    names = {path.name.split("_")[1] for path in profile.rglob("*_pythontimeline.json")}
    assert names == {f"{rank}-algo-1" for rank in range(RANKS)}
    ranks = json.loads(to_json(build_report(open_source(profile, cache=False))))["job"]["ranks"]
    assert [one["train_steps"] for one in ranks] == [STEPS] * RANKS
