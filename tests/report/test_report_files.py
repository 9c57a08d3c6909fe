"""Files and terminal output of a report: schema, notebook, summary, command."""

import json
from pathlib import Path

import attrs
import pytest
from msgspec.structs import replace

from sm_profiler.cli import main
from sm_profiler.diagnosis.model import Location
from sm_profiler.formats.trace_records import COLLECTORS, NUMBERS, TEXTS
from sm_profiler.report import Class, build_report, terminal_summary, write_report
from sm_profiler.report.report_json import to_json
from sm_profiler.report.write import export_timeline
from sm_profiler.rules import RULES
from sm_profiler.source import open_source
from tests.support.jobs import make_job
from tests.support.reports import report_from, training

ROOT = Path(__file__).parents[2]
SCENARIOS = [
    "healthy",
    "cpu-bottleneck",
    "dataloader-slow",
    "step-outliers",
    "slow-init",
    "cpu-only",
    "no-framework",
    "memory-increase",
    "unbalanced",
]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    made = {}
    for name in SCENARIOS:
        make_job(folder / name, "--scenario", name, "--minutes", "3", "--gpus", "2")
        made[name] = build_report(open_source(folder / name, cache=False))
    return made


@pytest.fixture(scope="module")
def validator():
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "docs" / "report.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", SCENARIOS)
def test_report_json_matches_the_schema(reports, validator, name):
    validator.validate(json.loads(to_json(reports[name])))


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_terminal_summary_has_at_most_fifteen_lines(reports, name, width):
    for colour in (False, True):
        text = terminal_summary(reports[name], colour, width=width)
        lines = text.splitlines()
        assert len(lines) <= 15
        assert lines[0].startswith("\x1b[" if colour else reports[name].verdict.kind.value)
        assert "Next: " in text
        if not colour:
            assert "\x1b" not in text
            assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("broken", [0, 1])
def test_advice_that_does_not_fit_ends_with_an_ellipsis(broken):
    """Lines of code came first, and the advice ended in the middle of a sentence, as if it were whole."""
    place = Location("/code/train.py", 30, "load", 0.9, source="return Image.open(path)")
    report = report_from(training(400, wait=0.02, outside=0.01))
    main = replace(report.verdict.main, where=(place, place), next_step="advice " * 80, headline="It is slow. " * 12)
    many = tuple(replace(main, kind=kind) for kind in (Class.LOGGING, Class.CHECKPOINTING, Class.STRAGGLER) * broken)
    alarm = {"judge": "an error"} if broken else {}
    report = attrs.evolve(report, verdict=attrs.evolve(report.verdict, main=main, also=many), broken=alarm)
    lines = terminal_summary(report, width=40).splitlines()
    assert len(lines) <= 15
    assert [line for line in lines if "advice" in line][-1].endswith(" …")


def test_terminal_summary_removes_control_characters():
    text = terminal_summary(report_from(training(200, wait=0.1, node="a\x1b]0;owned\x07-0")))
    assert "\x1b" not in text


def test_writes_all_files(reports, tmp_path):
    written = write_report(reports["healthy"], tmp_path)
    assert {"profiler-report.html", "profiler-report.ipynb", "report.json"} < set(written)
    assert sum(key.startswith("profiler-reports/") for key in written) == len(RULES)
    for key in written:
        assert (tmp_path / key).stat().st_size > 0


@pytest.mark.slow
def test_notebook_executes(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    make_job(tmp_path / 'job "$(x)" <b>', "--minutes", "2", "--gpus", "2")
    report = build_report(open_source(tmp_path / 'job "$(x)" <b>', cache=False))
    write_report(report, tmp_path / "out")
    notebook = nbformat.read(tmp_path / "out" / "profiler-report.ipynb", as_version=4)
    nbformat.validate(notebook)
    monkeypatch.chdir(tmp_path)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    texts = json.dumps(notebook)
    assert report.verdict.kind.value in texts
    assert "image/svg+xml" in texts


def test_command_exit_codes_and_files(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_job(tmp_path / "slow", "--scenario", "dataloader-slow", "--minutes", "2")
    make_job(tmp_path / "fine", "--scenario", "cpu-only", "--minutes", "2")
    (tmp_path / "p.json").write_text('{"StepOutlier_stddev": 2}')
    assert main(["report", "slow", "--out", "out", "--fail-on", "issues", "--parameters", "p.json"]) == 1
    assert capsys.readouterr().out.startswith("INPUT_BOUND")
    assert "stddev:2" in (tmp_path / "out" / "profiler-reports" / "StepOutlier.json").read_text()
    assert main(["report", "fine", "--fail-on", "issues", "--compat", "service"]) == 0
    assert (tmp_path / "profiler-report" / "fine" / "report.json").exists()
    capsys.readouterr()
    assert main(["report", "fine", "--instance-type", "ml.g5.xlrge"]) == 0
    assert "sm-profiler: no price is known for ml.g5.xlrge (did you mean ml.g5.xlarge," in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["nothing-there"],
        ["job", "--parameters", "missing.json"],
        ["job", "--parameters", "bad.json"],
        ["job", "--prices", "list.json"],
        ["job", "--parameters", "unknown.json"],
        ["broken", "--strict"],
    ],
    ids="-".join,
)
def test_usage_errors_print_one_line_and_exit_with_2(tmp_path, capsys, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    make_job(tmp_path / "job", "--minutes", "1")
    make_job(tmp_path / "broken", "--minutes", "1")
    file = next((tmp_path / "broken" / "system").rglob("*.json"))
    file.write_bytes(file.read_bytes()[:-30] + b"\n{broken\n")
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "unknown.json").write_text('{"NoSuchRule_threshold": 1}')
    assert main(["report", *words]) == 2
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1
    assert error.startswith("sm-profiler: ")


def test_reports_unreadable_records(tmp_path):
    make_job(tmp_path / "job", "--minutes", "2")
    file = next((tmp_path / "job" / "system").rglob("*.json"))
    file.write_bytes(file.read_bytes() + b"\n{broken\n")
    report = build_report(open_source(tmp_path / "job", cache=False))
    assert report.quality.lost >= 1
    assert report.quality.rows[0].path.endswith(file.name)
    assert "1 record lost" in report.quality.sentence


@pytest.mark.parametrize("odd", ['"x"', "[[1]]", '{"a": {"b": []}}', "true", "1" + "0" * 400, "-5", "0.5", "null"])
def test_accepts_process_records_with_unexpected_values(tmp_path, odd):
    values = ", ".join(f'"{name}": {odd}' for name in sorted(NUMBERS | TEXTS | {COLLECTORS, "new"}))
    rows = [
        '{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 1700000000000000}}',
        f'{{"name": "sm_profiler/process", "ph": "M", "pid": 0, "args": {{{values}}}}}',
        '{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "Step:ModeKeys.TRAIN"}}',
        *(
            f'{{"name": "Step:ModeKeys.TRAIN", "ph": "X", "pid": 1, "ts": {step * 5000}, "dur": 4000, "args": {{"step_num": "{step}"}}}}'
            for step in range(30)
        ),
    ]
    file = tmp_path / "framework/pevents/2023111422/1700000000200000_0-algo-1_pythontimeline.json"
    file.parent.mkdir(parents=True)
    file.write_text("[\n" + ",\n".join(rows) + "\n]")
    report = build_report(open_source(tmp_path, cache=False))
    assert report.metrics.ranks[0].train.sum() == 30
    write_report(report, tmp_path / "out")
    assert export_timeline(open_source(tmp_path, cache=False), tmp_path / "timeline.json").events
