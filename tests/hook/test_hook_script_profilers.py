"""A script that profiles with torch gets its whole trace, with every kind of profiler at any start of the detailed window."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from sm_profiler.hook.pytorch.detailed import INHERITED, ScriptProfilers, TorchProfiler
from tests.support.hook import ROOT, environment

PROGRAM = ROOT / "tests/hook/script_profilers.py"


@pytest.mark.slow
def test_the_scripts_profiler_wins_in_every_state():
    done = subprocess.run(
        [sys.executable, PROGRAM], capture_output=True, text=True, check=False, timeout=250, env=environment()
    )
    assert done.returncode == 0, done.stderr[-3000:]  # -11: torch lost the session of its profiler
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one for one in found if one["found"] != one["usual"] or one["failures"]] == []
    said = {(one["kind"], one["start"]): one["said"] for one in found}
    assert said["schedule 5 2 8 1", 6] == said["prepared long before", 6] == "left out: the script was profiling"
    assert said["schedule 5 2 8 1", 4] == "cut short: the script started to profile"
    assert said["schedule 0 1 8 1", 9] == said["annotated", 4] == ""  # recorded


@pytest.fixture
def scripts():
    scripts = ScriptProfilers(torch)
    scripts.watch()
    yield scripts
    scripts.remove()


def test_a_prepared_profiler_is_seen_until_it_stops(scripts):
    profiler = torch.profiler._KinetoProfile(activities=[torch.profiler.ProfilerActivity.CPU])
    assert not scripts.any()
    profiler.prepare_trace()
    assert scripts.any()
    assert not torch.autograd._profiler_enabled()
    profiler.start_trace()
    assert scripts.any()
    profiler.stop_trace()
    assert not scripts.any()


def test_a_profiler_that_is_older_than_the_hook_is_found():
    profiler = torch.profiler._KinetoProfile(activities=[torch.profiler.ProfilerActivity.CPU])
    profiler.prepare_trace()
    scripts = ScriptProfilers(torch)
    scripts.watch()
    assert scripts.any()
    profiler.start_trace()
    profiler.stop_trace()
    assert not scripts.any()
    scripts.remove()


def test_torch_is_as_before_once_the_watch_is_removed():
    names = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")
    before = [getattr(owner, name) for owner in (torch.autograd, torch.autograd.profiler) for name in names]
    scripts = ScriptProfilers(torch)
    scripts.watch()
    scripts.remove()
    assert [getattr(owner, name) for owner in (torch.autograd, torch.autograd.profiler) for name in names] == before


def test_a_child_that_was_forked_in_the_window_does_not_blame_the_script(scripts, monkeypatch):
    monkeypatch.setattr("sm_profiler.hook.pytorch.detailed.exit_without_destructors", lambda: None)
    profiler = TorchProfiler(SimpleNamespace(), torch, SimpleNamespace(), scripts)
    monkeypatch.setattr(torch.autograd, "_enable_record_function", lambda _on: None)
    assert profiler.obstacle() == ""
    profiler.forked(None)
    assert profiler.obstacle() == ""
    profiler.forked(object())
    assert profiler.obstacle() == INHERITED
