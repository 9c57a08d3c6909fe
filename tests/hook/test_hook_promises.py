"""Promises of the hook: it fails open, leaves readable files behind, and installs nothing when it is off."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from sm_profiler.formats.trace_recovery import recover_traces
from sm_profiler.local import command
from tests.support.hook import LAUNCH, SCRIPT, config, environment, steps, train
from tests.support.profiles import events


@pytest.fixture(scope="module")
def truth():
    done = train()
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_file_in_place_of_the_folder(tmp_path, truth):
    (tmp_path / "profile").write_text("in the way")
    done = train(profile=config(tmp_path / "profile"), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, truth)
    (line,) = done.stderr.splitlines()
    assert "Not a directory; this profile is written to " in line
    (folder,) = (tmp_path / "sm-profiler").iterdir()
    assert line.endswith(str(folder))
    assert steps(folder)


def test_a_disk_that_is_full(tmp_path, truth):
    done = train("full disk", profile=config(tmp_path))
    assert (done.returncode, done.stdout) == (0, truth)
    assert done.stderr.count("sm-profiler") == 1


def test_a_kill_loses_at_most_the_last_flush_interval(tmp_path):
    done = train("kill", profile=config(tmp_path))
    assert done.returncode == -signal.SIGKILL
    assert not list(tmp_path.glob("framework/pevents/*/*"))  # open files are not taken for whole ones
    assert recover_traces(tmp_path) == 1
    assert 10 <= len(steps(tmp_path)) <= 20


def test_sigterm_ends_the_script_and_leaves_flushed_events(tmp_path):
    process = subprocess.Popen(
        [*LAUNCH, "wait"], stdout=subprocess.PIPE, env=environment(SM_PROFILER_CONFIG=config(tmp_path)), text=True
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(1.6)
    process.terminate()
    process.stdout.close()
    assert process.wait(timeout=30) == -signal.SIGTERM
    assert recover_traces(tmp_path) == 1
    assert len(steps(tmp_path)) >= 10


def test_the_scripts_exit_code_is_kept(tmp_path):
    done = train("raise", profile=config(tmp_path))
    assert done.returncode == 3
    assert len(steps(tmp_path)) == 10


def test_a_forked_child_writes_its_own_file(tmp_path):
    done = train("fork", profile=config(tmp_path))
    assert done.returncode == 0, done.stderr
    pids = [event["args"]["pid"] for event in steps(tmp_path)]
    assert sorted(pids.count(pid) for pid in set(pids)) == [10, 20]


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "profile",
    [
        None,
        "",
        '{"DisableProfiler": true, "ProfilingParameters": {"LocalPath": "/x"}}',
        "{}",
        '{"ProfilingParameters": {}}',
    ],
)
def test_nothing_is_installed_when_the_hook_is_off(profile, tmp_path):
    check = """
import sys
from sm_profiler.hook.auto import arm
arm()
import torch
from torch.utils.data import dataloader
assert torch.autograd.backward.__module__ == "torch.autograd"
assert not hasattr(torch.autograd.backward, "__wrapped__")
assert not hasattr(dataloader._BaseDataLoaderIter.__next__, "__wrapped__")
assert not torch.nn.modules.module._global_forward_hooks
from torch.optim.optimizer import _global_optimizer_pre_hooks
assert not _global_optimizer_pre_hooks
assert "sm_profiler.hook.entry" in sys.modules  # it was armed, and searched for a configuration
assert "sm_profiler.hook.pytorch.adapter" not in sys.modules
"""
    more = {} if profile is None else {"SM_PROFILER_CONFIG": profile, "SM_PROFILER_ROOT": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=False, env=environment(**more)
    )
    printed = [line for line in done.stderr.splitlines() if "the profile stays in" not in line]
    assert (done.returncode, printed) == (0, [])


MISTYPED = '{"DisableProfiler": true, "DisableProfile": true}'


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("variables", "lines"),
    [
        ({"SM_PROFILER_AUTO": "1"}, 1), ({"SM_PROFILER_CONFIG": MISTYPED}, 1), ({"SM_PROFILER_AUTO": "1", "RANK": "0"}, 1),
        ({"SM_PROFILER_AUTO": "1", "RANK": "3"}, 0), ({}, 0), ({"SM_PROFILER_AUTO": "1", "SM_PROFILER_CONFIG": "{}"}, 0),
        ({"SM_PROFILER_CONFIG": MISTYPED, "RANK": "3"}, 0),
    ],
)  # fmt: skip
def test_a_job_reports_a_wrong_or_missing_configuration_once(tmp_path, variables, lines):
    """Not in its workers, and not in the processes that it starts."""
    again = "from sm_profiler.hook.auto import arm; arm(); import torch"
    script = tmp_path / "train.py"
    script.write_text(
        f"{again}\nimport multiprocessing, subprocess, sys\n"
        "def work():\n    from sm_profiler.hook import entry\n    entry._refused.clear()\n    entry.install()\n"
        "if __name__ == '__main__':\n"
        f"    subprocess.run([sys.executable, '-c', {again!r}], check=True)\n"
        "    one = multiprocessing.get_context('spawn').Process(target=work)\n    one.start()\n    one.join()\n"
    )
    more = {"SM_PROFILER_ROOT": str(tmp_path), **variables}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, env=environment(**more)
    )
    wrong = ("no configuration was found", "DisableProfile (did you mean DisableProfiler?)")
    assert sum(map(done.stderr.count, wrong)) == lines, done.stderr


def test_arming_loads_nothing():
    check = """
import sys
from sm_profiler.hook.auto import arm
arm()
loaded = {name.partition(".")[0] for name in sys.modules} & {"torch", "attrs", "attr", "numpy", "json", "psutil"}
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False, env=environment())
    assert (done.returncode, done.stderr) == (0, "")


def test_the_pth_file_is_one_line_that_does_nothing_by_default():
    text = (SCRIPT.parents[2] / "packaging" / "sm_profiler_auto.pth").read_text()
    assert text.count("\n") == 1
    assert text.startswith("import os;")
    check = f"import sys\n{text}\nassert not any(name.startswith('sm_profiler') for name in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False, env=environment())
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("value", "armed"),
    [
        ("1", True), ("true", True), ("on", True), ("Yes", True), ("ture", True), (" ", False), ("0", False),
        ("off", False), ("FALSE", False), ("no", False), ("none", False),
    ],
)  # fmt: skip
def test_the_pth_file_takes_all_values_of_a_switch(value, armed):
    text = (SCRIPT.parents[2] / "packaging" / "sm_profiler_auto.pth").read_text()
    for line in (text, command.AUTO_START):
        check = f"import sys\n{line}\nprint('sm_profiler.hook.auto' in sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", check], capture_output=True, text=True, check=True,
            env=environment(SM_PROFILER_AUTO=value),
        )  # fmt: skip
        assert (done.stdout, done.stderr) == (f"{armed}\n", "")


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("variables", "expected", "files"),
    [
        ({"SM_PROFILER_AUTO": "true"}, "", True),
        ({"SM_PROFILER_AUTO": "ture"}, "SM_PROFILER_AUTO: expected on (1, true, yes) or off (0, false, no), found 'ture'; using the default, off", False),
        ({"SM_PROFILER_AUTO": "ture", "RANK": "1"}, "", False),
        ({"SM_PROFILER_AUTO": "on", "SM_PROFILER_SAMPLER": "ture"}, "SM_PROFILER_SAMPLER: expected on (1, true, yes) or off (0, false, no), found 'ture'; using the default, on", True),
        ({"SM_PROFILER_AUTO": "on", "SM_PROFILER_SAMPLER": "ture", "RANK": "1"}, "", True),
    ],
)  # fmt: skip
def test_a_wrong_switch_is_one_line_of_the_job(tmp_path, variables, expected, files):
    line = (SCRIPT.parents[2] / "packaging" / "sm_profiler_auto.pth").read_text()
    profile = tmp_path / "profile"
    check = f"{line}\nimport torch\nfrom sm_profiler.hook import get_hook\nhook = get_hook(create=False)\nprint(hook is not None)"
    config = json.dumps({"ProfilingParameters": {"LocalPath": str(profile)}})
    more = {"SM_PROFILER_CONFIG": config, "SM_PROFILER_ROOT": str(tmp_path), **variables}
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, env=environment(**more)
    )
    printed = [line for line in done.stderr.splitlines() if "the profile stays in" not in line]
    assert (done.stdout, printed) == (f"{files}\n", [f"sm-profiler: {expected}"] if expected else [])


@pytest.mark.parametrize(
    ("missing", "expected"),
    [("sm_profiler", ""), ("dependency", "sm-profiler: the hook is off: No module named 'dependency'\n")],
)
def test_the_pth_file_that_outlives_its_package_prints_no_traceback(missing, expected):
    text = (SCRIPT.parents[2] / "packaging" / "sm_profiler_auto.pth").read_text()
    check = f"""
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "sm_profiler":
            raise ModuleNotFoundError("No module named '{missing}'", name="{missing}")
sys.meta_path.insert(0, Finder())
{text}"""
    variables = environment(SM_PROFILER_AUTO="1")
    command = [sys.executable, "-S", "-c", check]  # without the .pth file of this environment, which would come first
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert (done.returncode, done.stderr) == (0, expected)


def test_a_changed_configuration_takes_effect_without_a_restart(tmp_path):
    path, folder = tmp_path / "profilerconfig.json", tmp_path / "profile"
    path.write_text(config(folder))
    process = subprocess.Popen(
        [*LAUNCH, "wait"], stdout=subprocess.PIPE, env=environment(SM_PROFILER_CONFIG=str(path)), text=True
    )
    try:
        process.stdout.readline()
        path.write_text(config(folder, DataloaderProfilingConfig='{"Duration": 60, }'))
        time.sleep(2.5)
    finally:
        process.terminate()
        process.stdout.close()
        process.wait(timeout=30)
    assert recover_traces(folder) == 1
    rows = events(folder)
    assert any(row["phase"] == "DataLoaderIter" for row in rows)
    assert not any(row["phase"] == "DataLoaderIter" for row in rows[:20])


def test_each_rank_writes_its_own_files(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": "2",
        "SM_PROFILER_CONFIG": config(tmp_path),
    }
    ranks = [
        subprocess.Popen([*LAUNCH, "ddp"], env=environment(RANK=rank, **common), stdout=subprocess.PIPE, text=True)
        for rank in "01"
    ]
    digests = {rank.communicate(timeout=120)[0] for rank in ranks}
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert len(digests) == 1
    names = sorted(file.name.partition("_")[2] for file in tmp_path.glob("framework/pevents/*/*.json"))
    assert names == ["0-algo-1_pythontimeline.json", "1-algo-1_pythontimeline.json"]
    rows = events(tmp_path)
    assert len(steps(tmp_path)) == 20
    assert {row["name"] for row in rows if row["phase"] == "Forward"} == {"Sequential"}


@pytest.mark.skipif(not os.access("/proc/self/statm", os.R_OK), reason="needs Linux's /proc")
def test_memory_and_overhead_are_recorded(tmp_path):
    done = train("long", profile=config(tmp_path))
    assert done.returncode == 0
    rows = events(tmp_path)
    memory = [row for row in rows if row["phase"] == "sm_profiler/memory"]
    overhead = [row for row in rows if row["phase"] == "sm_profiler/overhead"]
    assert memory
    assert memory[0]["args"]["peak_bytes"] >= memory[0]["args"]["resident_bytes"] // 2 > 1_000_000
    assert overhead
    assert all(row["args"]["dropped"] == 0 and row["args"]["steps"] > 0 for row in overhead)


def test_the_metadata_describes_the_machine_and_the_batches(tmp_path):
    opt_ml = tmp_path / "opt_ml"
    (opt_ml / "input/config").mkdir(parents=True)
    resources = {"current_host": "algo-1", "hosts": ["algo-1"], "current_instance_type": "ml.c5.xlarge"}
    (opt_ml / "input/config/resourceconfig.json").write_text(json.dumps(resources))
    more = environment(SM_PROFILER_CONFIG=config(tmp_path / "profile"), SM_PROFILER_ROOT=str(opt_ml))
    subprocess.run(LAUNCH, check=True, timeout=120, env=more, capture_output=True)
    (file,) = (tmp_path / "profile").glob("framework/pevents/*/*.json")
    args = [record["args"] for record in json.loads(file.read_text()) if record["name"] == "sm_profiler/process"][-1]
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert (args["batch_size"], args["num_workers"], args["instance_type"]) == (8, 0, "ml.c5.xlarge")
    assert 0 < args["memory_total"] <= machine
    assert args["uses_gpu"] is False
