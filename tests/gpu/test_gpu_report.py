"""Verdicts, pages and commands on traces of torch.profiler."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sm_profiler.analysis.gpu import GpuTraces
from sm_profiler.cli import main
from sm_profiler.gpu_traces.measure import measure
from sm_profiler.report import Class, terminal_summary, write_report
from sm_profiler.report.recordings import report_traces
from tests.support.gpu_events import (
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
