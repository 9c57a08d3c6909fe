"""Records of compilations, of threads, and of torch's allocator on a device (made up)."""

import types

import pytest
import torch

from sm_profiler.formats.event_names import ALLOCATOR, COMPILE, THREADS
from sm_profiler.hook import entry, scheduling
from sm_profiler.hook.pytorch.cuda import Allocator
from sm_profiler.hook.scheduling import Threads


@pytest.fixture
def compiled(session, monkeypatch):
    """Return the session's collector of compilations and its records."""
    records = []
    collector = session.adapter._compiled
    monkeypatch.setattr(collector, "_append", records.append)
    torch._dynamo.reset()
    yield collector, records
    torch._dynamo.reset()


def test_records_compilations_again_and_graph_breaks(compiled):
    collector, records = compiled

    def double(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    run = torch.compile(double, backend="eager", dynamic=False)
    for size in (2, 3):
        run(torch.ones(size))
    collector.beat()
    compilations = [record for record in records if record[1] != "graph break"]
    assert {record[0] for record in records} == {COMPILE}
    assert all(record[3] > record[2] for record in compilations)
    again = [record[5] for record in compilations if record[5]["again"]]
    assert again
    assert any("size mismatch" in one.get("reason", "") for one in again)
    assert compilations[0][1] == "double"
    assert compilations[0][5]["file"] == __file__
    breaks = [record[5] for record in records if record[1] == "graph break"]
    assert breaks[0]["file"] == __file__
    assert "graph_break" in breaks[0]["reason"]
    count = len(records)
    collector.beat()
    assert len(records) == count


def test_callbacks_survive_a_reset_and_are_removed(compiled):
    collector, records = compiled
    handler = torch._dynamo.callback.callback_handler
    torch._dynamo.reset()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    collector.beat()
    assert len([record for record in records if record[1] != "graph break"]) == 1
    entry.uninstall()
    assert handler.start_callbacks == handler.end_callbacks == []


def test_records_threads_every_few_beats(monkeypatch):
    records, now = [], [0]
    monkeypatch.setattr(scheduling, "waited_ns", lambda: now[0] // 4)
    monkeypatch.setattr(scheduling, "switches", lambda: now[0] // 1000)
    collector = Threads(records.append, clock=lambda: now[0])
    collector.start()
    for _ in range(2 * scheduling.BEATS):
        now[0] += 1_000_000
        collector.beat()
    assert [record[0] for record in records] == [THREADS, THREADS]
    assert [record[3] - record[2] for record in records] == [5_000_000, 5_000_000]
    args = records[1][5]
    assert (args["waited_ns"], args["switches"]) == (1_250_000, 5_000)
    assert args["library_threads"] == torch.get_num_threads()
    assert args["threads"] >= 1
    assert args["cores"] > 0
    collector.forked()
    collector.close()
    assert len(records) == 2


def test_a_kernel_without_statistics_is_no_error(monkeypatch, tmp_path):
    monkeypatch.setattr(scheduling, "WAITED", tmp_path / "none")
    monkeypatch.setattr(scheduling, "STATUS", tmp_path / "none")
    assert scheduling.waited_ns() == scheduling.running_threads() == 0


def test_records_the_allocator_when_it_retries():
    stats = {
        "num_alloc_retries": 0,
        "num_ooms": 0,
        "reserved_bytes": {"all": {"current": 90}},
        "inactive_split_bytes": {},
    }
    device = types.SimpleNamespace(
        is_initialized=lambda: True, current_device=lambda: 0, memory_stats_as_nested_dict=lambda _: stats
    )
    records = []
    collector = Allocator(records.append, types.SimpleNamespace(cuda=device))
    for beat in range(8):
        stats["num_alloc_retries"] = 3 if beat >= 5 else 0
        collector.beat()
    assert [record[0] for record in records] == [ALLOCATOR, ALLOCATOR]
    assert [record[5]["retries"] for record in records] == [0, 3]
    assert records[0][5]["reserved_bytes"] == 90
    collector.forked()
    stats["num_alloc_retries"] = 9
    collector.beat()
    assert len(records) == 2


def test_a_process_without_cuda_reads_no_counters():
    device = types.SimpleNamespace(is_initialized=lambda: False)
    records = []
    Allocator(records.append, types.SimpleNamespace(cuda=device)).beat()
    assert records == []
