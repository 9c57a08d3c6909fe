"""Extending the report: a new part of the loop is one record, and numbers that decide have one place."""

import json
import re
from pathlib import Path

import pytest

from sm_profiler.diagnosis import limits, words
from sm_profiler.metrics import parts, step_fold, step_rows, thresholds
from sm_profiler.render import charts, view
from sm_profiler.render.page import render_html
from sm_profiler.report import Class, terminal_summary
from sm_profiler.report.compare import compare
from sm_profiler.report.write import to_json
from tests.support.reports import metrics_of, report_from, training

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sm_profiler"
CHECKPOINT = parts.Part("checkpoint", "Checkpoint", "while saving a checkpoint", parts.Kind.PHASE, "SaveCheckpoint")


@pytest.fixture
def with_checkpoint_part(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(parts, "PARTS", (*parts.PARTS[:-1], CHECKPOINT, parts.PARTS[-1]))
        forget_parts()
        yield
    forget_parts()


def forget_parts():
    """Clear what was cached of the list of parts."""
    for module in (parts, step_rows, step_fold):
        for one in vars(module).values():
            if hasattr(one, "cache_clear"):
                one.cache_clear()


def with_checkpoints(length, *, every=1, steps=200):
    """Return a training loop with a checkpoint at the end of every `every`th step."""
    rows, now = [], 1.0
    for step in range(steps):
        saved = length if step % every == 0 else 0.0
        rows += training(1, at=now, number=step)
        phase, name, start, duration, node, number = rows.pop()
        rows.append(("SaveCheckpoint", "SaveCheckpoint", start + duration, saved, node, number))
        rows.append((phase, name, start, duration + saved, node, number))
        now = start + duration + saved + 0.0002
    return rows


@pytest.mark.usefixtures("with_checkpoint_part")
def test_a_new_part_appears_in_metrics_files_page_and_terminal():
    report = report_from(with_checkpoints(0.004))
    (rank,) = report.metrics.ranks
    assert rank.seconds["checkpoint"] == pytest.approx(200 * 0.004, rel=0.01)
    assert sum(rank.seconds.values()) == pytest.approx(rank.loop, rel=1e-6)
    assert rank.mean("checkpoint") == pytest.approx(0.004, rel=0.01)
    assert json.loads(to_json(report))["job"]["ranks"][0]["seconds"]["checkpoint"] == pytest.approx(0.8, rel=0.01)
    page = render_html(report)
    assert 'key b-moss" aria-hidden="true"></span><span class="what">Checkpoint</span> <b>28 %</b>' in page
    summary = terminal_summary(report, width=100)
    assert "Y checkpoint 28 %" in summary
    assert "Y" * 20 in summary


@pytest.mark.usefixtures("with_checkpoint_part")
def test_a_new_part_is_judged_and_compared():
    stalled = report_from(with_checkpoints(0.2, every=25, steps=300))
    assert stalled.verdict.kind is Class.PERIODIC_STALL
    assert "while saving a checkpoint" in stalled.verdict.main.headline
    found = compare(report_from(with_checkpoints(0.004)), report_from(with_checkpoints(0.008)))
    assert "mostly in: checkpoint" in found.sentence


def test_unknown_phases_are_no_part():
    (rank,) = metrics_of(with_checkpoints(0.004)).ranks
    assert set(rank.seconds) == {part.key for part in parts.PARTS}
    assert rank.seconds["between"] == pytest.approx(0.8, rel=0.01)


def test_every_activity_of_a_step_has_a_letter_and_a_defined_colour():
    looks = [*view._SHOWN.values(), *view._DECLARED, *view._SHOWN_LAST.values()]
    assert {colour for colour, _ in looks} <= set(charts.COLOURS)
    assert {part.key for part in parts.PARTS if part.kind is parts.Kind.PHASE} <= set(view._SHOWN)


def test_each_number_that_decides_has_one_definition_a_reason_and_a_use():
    source = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    for module in (limits, thresholds):
        lines = Path(module.__file__).read_text().splitlines()
        names = [match[1] for line in lines if (match := re.match(r"([A-Z][A-Z_]+) = ", line))]
        assert len(names) == len(set(names)), "a second definition would win unseen"
        used = module.__name__.rpartition(".")[2]
        assert [name for name in names if f"{used}.{name}" not in source] == []
        bare = [
            line
            for line in lines
            if re.match(r"[A-Z][A-Z_]+ = [^{T]*$", line) and "#" not in line and "thresholds." not in line
        ]
        assert bare == []


def test_every_sentence_is_used():
    files = [path for path in (PACKAGE / "diagnosis").rglob("*.py") if path.name != "words.py"]
    source = "".join(path.read_text() for path in (*files, PACKAGE / "report" / "recordings.py"))
    begun = re.findall(r'f"([a-z_]+)_\{', source)  # f"start_{part}"
    for table in (words.HEADLINES, words.ADVICE, words.FRAGMENTS, words.GPU_HEADLINES, words.GPU_ADVICE):
        unused = [name for name in table if f'"{name}"' not in source and not name.startswith(tuple(begun))]
        assert unused == []


@pytest.mark.parametrize("kind", list(Class))
def test_every_class_is_documented_and_judged(kind):
    assert kind.label
    assert kind.value in (ROOT / "docs" / "report.md").read_text()
    assert f"| {kind.label} | [{kind.value}](" in (ROOT / "docs" / "fix" / "index.md").read_text()
    causes = "".join(path.read_text() for path in (PACKAGE / "diagnosis").rglob("*.py") if path.name != "classes.py")
    assert f"Class.{kind.name}" in causes or f'"{kind.name}"' in causes


def test_no_label_claims_most_of_the_time():
    """Evaluation was called "Mostly evaluating" at a quarter of the loop."""
    assert [kind for kind in Class if kind.label.startswith("Mostly")] == []
