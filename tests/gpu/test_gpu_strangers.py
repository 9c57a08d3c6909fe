"""Folders as other programs leave them: one command gives a report, or one line that names the reason."""

import gzip
import json
from pathlib import Path

import pytest

from sm_profiler.analysis.gpu import GpuTraces
from sm_profiler.cli import main
from sm_profiler.report import Class
from sm_profiler.report.recordings import holds_only_traces, report_traces
from tests.support.gpu_events import call, event, kernel

REAL = Path(__file__).parents[1] / "data" / "gpu_traces"
LAUNCHES = [
    one for at in range(30) for one in (call(100 * at, 5, at), kernel("gemm", 100 * at + 10, 80, correlation=at))
]


def trace(path, events=None, **properties):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"schemaVersion": 1, **properties, "traceEvents": LAUNCHES if events is None else events})
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def report(where, tmp_path, capsys):
    code = main(["report", str(where), "--out", str(tmp_path / "out")])
    return code, capsys.readouterr()


@pytest.mark.parametrize(("names", "ranks"), [
    # tensorboard_trace_handler: one process, three windows
    (["vm_2903.1795342962652116309.pt.trace.json.gz", "vm_2903.1795342963019457409.pt.trace.json.gz", "vm_2903.1795342963.pt.trace.json"], [0]),
    # Lightning: two processes of one host, each with two windows
    (["fit-host_1.1699000000000.pt.trace.json", "fit-host_2.1699000000001.pt.trace.json", "fit-host_1.1699000009999.pt.trace.json"], [0, 1]),
    # names of their own
    (["rank0_trace.json", "rank7_trace.json"], [0, 7]),
    (["a.json", "b.json"], [0, 1]),
    (["node0/trace.json", "node1/trace.json"], [0, 1]),
])  # fmt: skip
def test_ranks_from_names(names, ranks, tmp_path):
    for name in names:
        trace(tmp_path / name)
    gpu = GpuTraces(tmp_path)
    assert list(gpu.ranks) == ranks
    assert sum(int(one.events.on_device.sum()) for one in gpu.ranks.values()) == 30 * len(names)


def test_a_folder_with_everything_in_it(tmp_path, capsys):
    folder = tmp_path / "run"
    for rank in range(2):
        target = folder / "logs" / "version_0" / f"fit-host_{rank}.1699000000000.pt.trace.json.gz"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((REAL / "sampled2" / f"rank{rank}.json.gz").read_bytes())
    (folder / "system").mkdir()  # of another program
    (folder / "system" / "metrics.json").write_text("[]")
    (folder / "framework").mkdir()
    (folder / "framework" / "versions.json").write_text("{}")
    (folder / "memory_snapshot.pickle").write_bytes(b"\x80\x04x")
    (folder / "memory_timeline.json.gz").write_bytes(gzip.compress(b"[[1, 2], [[3, 4]]]"))
    (folder / "config.json").write_text('{"lr": 1}')
    (folder / "et.json").write_text('{"schema": "1.0.2-chakra", "nodes": []}')
    (folder / "chrome.json").write_text('{"traceEvents": []}')
    (folder / "events.out.tfevents.1").write_bytes(b"x")
    for number in range(60):
        (folder / f"a{number}.json").write_text("{}")
    code, output = report(folder, tmp_path, capsys)
    assert code == 0
    assert "HOST_BOUND" in output.out
    found = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [one["rank"] for one in found["gpu_traces"]] == [0, 1]
    assert found["data_quality"]["lost"] == 0


OTHERS = {
    "chrome.json": (
        '{"traceEvents": [{"ph": "X", "name": "a", "cat": "v8", "ts": 1, "dur": 2}]}',
        "a trace of another program",
    ),
    "array.json": ('[{"ph": "X", "name": "a", "ts": 1, "dur": 2}]', "a trace of another program"),
    "viztracer.json": ('{"viztracer_metadata": {}, "traceEvents": []}', "a trace of another program"),
    "et.json": ('{"schema": "1.0.2-chakra", "nodes": []}', "an execution trace"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_traces_of_other_programs_get_one_line(name, tmp_path, capsys):
    content, expected = OTHERS[name]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_text(content)
    for where in (tmp_path / "in", tmp_path / "in" / name):
        code, output = report(where, tmp_path, capsys)
        assert code == 2
        assert expected in output.err
        assert len(output.err.splitlines()) == 1


def test_empty_folders_and_other_files_get_one_line(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    (tmp_path / "notes.json").write_text("{}")
    for where in (tmp_path / "in", tmp_path / "notes.json"):
        code, output = report(where, tmp_path, capsys)
        assert code == 2
        assert len(output.err.splitlines()) == 1


def test_a_profile_with_traces_of_its_windows_is_a_profile(tmp_path):
    trace(
        tmp_path
        / "framework"
        / "pytorch"
        / "detailed_profiling"
        / "2024010100"
        / "000000003"
        / "1-algo-1.trace.json.gz"
    )
    assert not holds_only_traces(str(tmp_path))
    trace(
        tmp_path / "job" / "profiler-output" / "framework" / "pevents" / "2024010100" / "1_1-algo-1_pythontimeline.json"
    )
    assert not holds_only_traces(str(tmp_path / "job"))


def test_one_rank_of_many_names_what_it_cannot_show(tmp_path):
    trace(tmp_path / "x.json.gz", distributedInfo={"rank": 3, "world_size": 8})
    found = report_traces(tmp_path)
    assert [one["rank"] for one in found.gpu_traces] == [3]
    assert ("late ranks", "traces of 1 of 8 ranks are here; record all of them") in found.verdict.not_judged


def test_without_marked_steps_there_is_a_verdict(tmp_path):
    trace(tmp_path / "trace.json")
    found = report_traces(tmp_path)
    assert found.verdict.kind is not Class.INCONCLUSIVE
    assert found.gpu_traces[0]["longest_step"]["step"] is None


def test_traces_of_the_host_alone_name_its_operators(tmp_path):
    events = [
        event("cpu_op", "aten::linear", 0, 100),
        event("cpu_op", "aten::addmm", 10, 80),
        event("cpu_op", "aten::relu", 200, 20),
    ]
    trace(tmp_path / "trace.json", events)
    main_finding = report_traces(tmp_path).verdict.main
    assert main_finding.kind is Class.INCONCLUSIVE
    values = {one.metric: one.value for one in main_finding.evidence}
    assert str(values["the host's operators"]).startswith("aten::addmm 67 %")


@pytest.mark.parametrize("part", ["framework", "framework/"])
def test_the_part_of_a_profile_with_its_traces_is_no_folder_of_traces(tmp_path, capsys, part):
    window = tmp_path / "framework/pytorch/detailed_profiling/2024010100/000000003"
    trace(window / "1-algo-1.trace.json.gz")
    trace(tmp_path / "framework/pevents/2024010100/1704067200000000_1-algo-1_pythontimeline.json")
    assert not holds_only_traces(f"{tmp_path}/{part}")
    assert main(["report", f"{tmp_path}/{part}"]) == 2
    assert f"it is a folder inside of one: name {tmp_path}" in capsys.readouterr().err
    assert holds_only_traces(str(window))
