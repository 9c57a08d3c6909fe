"""torch.compile: as many graphs and graph breaks as without the hook, and the steps are still right."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.hook import environment
from tests.support.profiles import events

SCRIPT = Path(__file__).with_name("compiled_graphs.py")


@pytest.mark.long
def test_graphs_and_breaks_are_those_of_a_run_without_the_hook(tmp_path):
    rows = {}
    for mode in ("off", "on"):
        done = subprocess.run(
            [sys.executable, SCRIPT, mode, tmp_path],
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
            env=environment(),
        )
        assert done.returncode == 0, done.stderr
        assert "sm-profiler" not in done.stderr
        rows[mode] = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows["on"]) == 18
    assert rows["on"] == rows["off"]
    for row in rows["on"]:
        seen = Counter(event["phase"] for event in events(tmp_path / f"{row['kind']}-{row['fullgraph']}"))
        assert seen["Step:ModeKeys.TRAIN"] == 6, (row, seen)
        assert seen["Backward(post-forward)"] == 6, (row, seen)
        unseen = row["kind"] in {"forward_and_loss", "whole_step"}  # the model is called inside the compiled region
        assert seen["Forward"] == (0 if unseen else 12 if row["kind"] == "raw" else 6), (row, seen)
        assert seen["Step:ModeKeys.EVAL"] == (6 if row["kind"] == "raw" else 0), (row, seen)
