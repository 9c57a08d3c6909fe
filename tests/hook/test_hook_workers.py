"""Times that loader workers record for each batch, in real trainings: fork, spawn, persistent workers, pinning."""

import json
import queue
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from sm_profiler.formats.recorded import LoaderWorkers
from sm_profiler.hook.pytorch.loader import DataLoaderCollector
from sm_profiler.hook.pytorch.workers import Fetch, FetchTimes, Incoming, Outgoing, watched
from tests.support.hook import environment
from tests.support.profiles import events

SCRIPT = """
import json, os, sys
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Plain:
    def __init__(self, pids): self.pids = pids

class Pids(Dataset):  # each sample is the pid of its worker
    def __len__(self): return 40
    def __getitem__(self, index): return os.getpid()

class Endless(IterableDataset):
    def __iter__(self):
        while True: yield os.getpid()

def prepare(worker): os.environ["PREPARED"] = str(worker)

def main(what):
    if what == "pinned":  # a device for the loader alone
        torch.accelerator.is_available = lambda: True
        torch.accelerator.current_accelerator = lambda: torch.device("cuda")
        torch.accelerator.current_device_index = lambda: 0
        torch.accelerator.set_device_index = lambda index: None
    options = {"num_workers": 2, "batch_size": 4, "collate_fn": Plain, "pin_memory": what == "pinned"}
    if what in ("persistent", "spawned"):
        options["persistent_workers"] = True
    if what == "spawned":
        options |= {"multiprocessing_context": "spawn", "worker_init_fn": prepare}
    loader = DataLoader(Endless() if what == "pinned" else Pids(), **options)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    made = []
    for epoch in range(3):
        for number, batch in enumerate(loader):
            made.append(batch.pids[0])
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            if number == (3 if epoch == 0 else 7):  # an epoch that ends early leaves batches under way
                break
    print(json.dumps({"made": made, "main": os.getpid(), "init": loader.worker_init_fn is (prepare if what == "spawned" else None)}))

if __name__ == "__main__":
    main(sys.argv[1])
"""
FETCH, PIN = "DataLoaderWorkerFetch", "DataLoaderPinMemory"


def run(folder, what, window='{"StartStep": 2, "NumSteps": 6, }'):
    script = folder / "train.py"
    script.write_text(SCRIPT)
    profile = json.dumps({"ProfilingParameters": {"LocalPath": str(folder), "DataloaderProfilingConfig": window}})
    done = subprocess.run(
        [sys.executable, "-m", "sm_profiler.hook.launch", script, what],
        capture_output=True, text=True, check=False, timeout=120, env=environment(SM_PROFILER_CONFIG=profile),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout), events(folder)


@pytest.mark.first(1)
@pytest.mark.parametrize("what", ["forked", "persistent", "spawned", "pinned"])
def test_each_batch_of_the_window_names_its_worker_and_its_fetch_time(tmp_path, what):
    if what == "pinned" and not hasattr(torch, "accelerator"):
        pytest.skip("the script makes up a device through torch.accelerator, which begins with PyTorch 2.6")
    shown, rows = run(tmp_path, what)
    assert shown["init"]
    fetches = [row for row in rows if row["phase"] == FETCH]
    waits = [row for row in rows if row["phase"] == "DataLoaderIter"]
    assert [row["args"]["pid"] for row in fetches] == shown["made"][2:8]  # steps 2 to 7, over two epochs
    assert [row["args"]["worker_id"] for row in fetches] == [row["args"]["worker_id"] for row in waits]
    assert shown["main"] not in {row["args"]["pid"] for row in fetches}
    for fetch, wait in zip(fetches, waits, strict=True):
        assert fetch["dur"] >= 0
        assert fetch["ts"] + fetch["dur"] <= wait["ts"] + wait["dur"] + 1
    workers = [row for row in rows if row["phase"] == LoaderWorkers.phase]
    assert all(row["args"].keys() - {"pid", "step_num"} == set(LoaderWorkers().args()) for row in workers)
    changes = [row["name"] for row in workers]
    kept = what in ("persistent", "spawned")
    if kept:
        assert changes in ([], ["stop"])
    else:
        assert changes[:4] == ["stop", "start"] * 2  # the first start is before the first step
    pins = [row for row in rows if row["phase"] == PIN]
    assert len(pins) == (6 if what == "pinned" else 0)
    for fetch, pin in zip(fetches, pins, strict=False):
        assert pin["ts"] >= fetch["ts"] + fetch["dur"] - 1


def test_the_wait_for_an_epochs_first_batch_begins_when_its_workers_are_started(tmp_path):
    _, rows = run(tmp_path, "forked")
    started = [row["ts"] for row in rows if row["phase"] == "DataLoaderIterInitialize"]
    waits = [row["ts"] for row in rows if row["phase"] == "DataLoaderWait"]
    assert started  # of the second epoch: the first one's are part of the job's start
    assert set(started) <= set(waits)


@pytest.mark.parametrize(("steps", "latest", "asked", "began"), [
    (5, 100, 205, 100),
    (-1, 100, 205, 0),  # the first loader of all
    (5, 101, 205, 0),  # the loop went on meanwhile
    (5, 100, 301, 0),  # created ahead
])  # fmt: skip
def test_a_wait_begins_with_an_iterator_that_is_needed_at_once(steps, latest, asked, began):
    stream = SimpleNamespace(created_ns=100, ready_ns=200)
    owner = SimpleNamespace(_session=SimpleNamespace(tracker=SimpleNamespace(progress=(steps, latest))))
    assert DataLoaderCollector._began(owner, stream, asked) == began
    assert stream.ready_ns == 0


def test_the_regex_selects_events(tmp_path):
    _, rows = run(tmp_path, "forked", '{"StartStep": 2, "NumSteps": 2, "MetricsRegex": "dataloaderworkerf", }')
    phases = {row["phase"] for row in rows if re.match("DataLoader(?!Wait)", row["phase"])}
    assert phases == {FETCH}


def test_a_slot_holds_the_latest_batch_only():
    times = FetchTimes(4)
    assert times.fetch_of(0) is None
    times.fetched(1, Fetch(0, 11, 100, 200))
    times.pinned(1, 300, 400)
    times.fetched(5, Fetch(1, 12, 500, 600))
    assert times.fetch_of(1) is None
    assert times.fetch_of(5) == Fetch(1, 12, 500, 600)
    assert (times.pin_of(1), times.pin_of(5)) == ((300, 400), None)


def test_a_batch_is_delivered_even_if_its_time_cannot_be_stored():
    tasks, results = queue.Queue(), queue.Queue()

    def note(*_) -> None:
        raise OSError

    incoming = Incoming(tasks)
    outgoing = Outgoing(results, incoming, note)
    tasks.put((0, [1, 2]))
    assert incoming.get(timeout=1) == (0, [1, 2])
    outgoing.put((0, "batch"), timeout=1)
    outgoing.put(("resume", None))
    assert [results.get(), results.get()] == [(0, "batch"), ("resume", None)]
    assert outgoing.empty()  # other methods are the queue's


def test_the_loaders_functions_are_restored_after_errors():
    from torch.utils.data._utils import pin_memory, worker

    before = worker._worker_loop, pin_memory._pin_memory_loop
    seen = []

    def breaks() -> None:
        with watched(FetchTimes(1)):
            seen.append(worker._worker_loop)
            raise KeyError

    with pytest.raises(KeyError):
        breaks()
    assert seen[0] is not before[0]
    assert (worker._worker_loop, pin_memory._pin_memory_loop) == before
