"""Verdicts, pages and commands on traces of torch.profiler."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sm_profiler.analysis.gpu import GpuTraces
from sm_profiler.cli import main
from sm_profiler.errors import SourceError
from sm_profiler.gpu_traces.measure import measure
from sm_profiler.report import Class, terminal_summary, write_report
from sm_profiler.report.recordings import report_traces
from tests.support.gpu_events import (
    A100,
    CASES,
    PARTS,
    STEP_US,
    busy,
    call,
    copying,
    event,
    kernel,
    late,
    training,
    waiting,
    write,
)

REAL = Path(__file__).parents[1] / "data" / "gpu_traces"


@pytest.mark.parametrize("case", CASES)
def test_names_the_cause(case, tmp_path):
    step, expected = CASES[case]
    verdict = report_traces(write(tmp_path, training(step, 300))).verdict
    assert verdict.kind is expected, verdict.main.headline
    assert verdict.main.confidence in {"high", "medium"}


def test_the_parts_of_a_gpus_time_add_up(tmp_path):
    for case, (step, _) in CASES.items():
        (rank,) = measure(GpuTraces(write(tmp_path / case, training(step))))
        parts = sum(rank.us[key] for key in PARTS)
        assert parts == pytest.approx(rank.us["total"]), case


def test_names_the_line_that_waits(tmp_path):
    main = report_traces(write(tmp_path, training(waiting, 300))).verdict.main
    (where,) = main.where
    assert (where.file, where.line, where.function) == ("train.py", 42, "log_loss")
    assert where.share == pytest.approx(1.0)


def test_gains_never_claim_the_same_time_twice(tmp_path):
    def step(start, number):
        return [*copying(start, number), kernel("ncclDevKernel_AllReduce", start + 301, 900, stream=20)]

    verdict = report_traces(write(tmp_path, training(step, 300))).verdict
    gains = [finding.gain for finding in (verdict.main, *verdict.also) if finding.gain]
    assert sum(gain.share_of_loop.value for gain in gains) < 1
    assert all(gain.share_of_loop.low <= gain.share_of_loop.value <= gain.share_of_loop.high for gain in gains)


def test_names_the_rank_that_comes_late(tmp_path):
    def rank(length):
        def step(start, number):
            at = start + STEP_US - length
            return [
                call(start, 5, 2 * number), kernel("tensorop_gemm", start, STEP_US - length, correlation=2 * number),
                call(start + 6, 5, 2 * number + 1),
                kernel("ncclDevKernel_AllReduce", at, length, stream=20, correlation=2 * number + 1),
            ]  # fmt: skip

        return training(step, 300)

    verdict = report_traces(write(tmp_path, rank(400.0), rank(20.0), rank(400.0))).verdict
    found = [finding for finding in (verdict.main, *verdict.also) if finding.kind is Class.STRAGGLER]
    assert found[0].evidence[0].where == "rank 1"


def test_a_long_first_call_is_no_habit_of_the_loop(tmp_path):
    first = [call(0, 5, 10_000), kernel("gemm_tensorop", 10, 5, correlation=10_000)]
    later = [{**one, "ts": one["ts"] + 1e6} for one in training(busy)]
    assert report_traces(write(tmp_path, [*first, *later])).verdict.kind is Class.INITIALIZATION_BOUND


def test_traces_of_the_host_alone_are_inconclusive(tmp_path):
    report = report_traces(write(tmp_path, [event("cpu_op", "aten::mm", 0, 10)]))
    assert report.verdict.kind is Class.INCONCLUSIVE
    assert "no kernel" in report.verdict.main.headline


@pytest.mark.parametrize("name", ["alexnet", "amd", "triton", "sampled2"])
def test_real_traces_give_a_page_and_json(name, tmp_path):
    report = report_traces(REAL / name)
    write_report(report, tmp_path)
    found = json.loads((tmp_path / "report.json").read_text())
    assert [trace["rank"] for trace in found["gpu_traces"]] == list(GpuTraces(REAL / name).ranks)
    page = (tmp_path / "profiler-report.html").read_text()
    assert "Kernels and operators" in page
    assert ("What limits the operators" in page) is any(trace["roofline"] for trace in found["gpu_traces"])
    assert "Analyzing the training loop" not in page
    assert len(terminal_summary(report, width=100).splitlines()) <= 15


def test_names_in_a_trace_are_escaped(tmp_path):
    hostile = "<script>alert(1)</script>\x1b[31m"
    report = report_traces(write(tmp_path / "in", training(lambda start, number: busy(start, number, name=hostile))))
    write_report(report, tmp_path)
    assert hostile[:20] not in (tmp_path / "profiler-report.html").read_text()
    assert "\x1b" not in terminal_summary(report)


def test_the_command_reports_on_a_folder_or_file(tmp_path, capsys):
    folder = write(tmp_path / "traces", training(late, 300))
    assert main(["report", str(folder), "--out", str(tmp_path / "out")]) == 0
    assert "HOST_BOUND" in capsys.readouterr().out
    assert main(["report", str(folder / "rank0.json"), "--out", str(tmp_path / "out"), "--fail-on", "issues"]) == 1


def test_strict_fails_on_a_truncated_trace(tmp_path, capsys):
    folder = write(tmp_path / "traces", training(late))
    path = folder / "rank0.json"
    path.write_bytes(path.read_bytes()[:-5000])
    assert main(["report", str(folder), "--out", str(tmp_path / "out"), "--strict"]) == 2
    assert "could not be read" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "expected"), [
    ("alexnet", Class.INITIALIZATION_BOUND), ("amd", Class.INCONCLUSIVE), ("triton", Class.INCONCLUSIVE),
    ("sampled2", Class.HOST_BOUND),
])  # fmt: skip
def test_verdicts_on_real_traces(name, expected):
    assert report_traces(REAL / name).verdict.kind is expected


def test_a_report_needs_no_pandas(tmp_path):
    code = (
        "import sys\nsys.modules['pandas'] = sys.modules['pyarrow'] = None\n"
        "from sm_profiler.report.recordings import report_traces\nfrom sm_profiler.report.write import write_report\n"
        "write_report(report_traces(sys.argv[1]), sys.argv[2])"
    )
    subprocess.run([sys.executable, "-c", code, str(REAL / "sampled2"), str(tmp_path)], check=True)
    assert (tmp_path / "profiler-report.html").exists()


JSON = (None, True, -1, 0, 1.5, 1e308, -1e308, 2**70, "", "x", "1", [], [1], [[]], {}, {"a": 1})


def operator_call(number):
    return [
        event("cpu_op", "aten::mm", 100 * number, 20, **{
            "External id": number, "Input Dims": [[4, 8], [8, 2]], "Input type": ["float", "float"], "Sequence number": number,
        }),
        call(100 * number + 5, 5, number),
        kernel("gemm", 100 * number + 30, 50, correlation=number),
        event("kernel", "ncclDevKernel_AllReduce", 100 * number + 60, 30, **{
            "stream": 8, "device": 0, "correlation": -1, "Collective name": "allreduce", "In msg nelems": 4, "Out msg nelems": 4,
            "Group size": 2, "dtype": "Float", "Process Group Name": "0",
        }),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 100 * number + 92, 3, stream=7, device=0, bytes=4),
    ]  # fmt: skip


def fields_of(events):
    return [
        (at, part, key)
        for at, one in enumerate(events)
        for part in ("", "args")
        for key in (one[part] if part else one)
    ]


def judged(path, steps):
    """Report on the events of some steps."""
    found = {"schemaVersion": 1, "deviceProperties": [A100], "traceEvents": [one for step in steps for one in step]}
    path.write_text(json.dumps(found))
    try:
        report_traces(path)
    except SourceError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("event_at", range(len(operator_call(0))))
def test_fields_of_any_json_type_are_no_error_of_the_program(tmp_path, event_at):
    """Shapes that were an object raised a KeyError; a duration of 1e308 and a group of 2**70 ranks warned."""
    fields = [(part, key) for at, part, key in fields_of(operator_call(0)) if at == event_at]
    for value in JSON:
        steps = [operator_call(step) for step in range(30)]
        for (part, key), step in zip(fields, steps, strict=False):  # each field in another step
            (step[event_at][part] if part else step[event_at])[key] = value
        judged(tmp_path / "trace.json", steps)


@pytest.mark.long
def test_a_field_that_has_any_json_type_everywhere_is_no_error_of_the_program(tmp_path):
    for at, part, key in fields_of(operator_call(0)):
        for value in JSON:
            steps = [operator_call(step) for step in range(30)]
            for step in steps:
                (step[at][part] if part else step[at])[key] = value
            judged(tmp_path / "trace.json", steps)


def test_kernels_that_take_no_time_are_one_line(tmp_path, capsys):
    write(tmp_path / "zero", [kernel("k", 5, 0, correlation=number) for number in range(30)])
    assert main(["report", str(tmp_path / "zero"), "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "take no time" in line
