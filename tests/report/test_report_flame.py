"""Lines of code as the report shows them: terminal, page, notebook, flame graphs, and the speedscope file."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import jsonschema
import pytest

from sm_profiler.metrics.sample_fold import Place, Sampled, Samples
from sm_profiler.render.flame import MAX_FRAMES, SPEEDSCOPE_SCHEMA, graphs, short_file, to_speedscope, tree
from sm_profiler.render.page import render_html
from sm_profiler.render.terminal import terminal_summary
from sm_profiler.report.write import render_notebook
from tests.support.jobs import make_job
from tests.support.reports import metrics_of, report_from, sampled, training
from tests.support.stored import assert_as_stored, words_of

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e"

# The shape of the file that speedscope publishes, for sampled profiles.
SPEEDSCOPE = {
    "type": "object",
    "required": ["$schema", "profiles", "shared"],
    "properties": {
        "$schema": {"const": SPEEDSCOPE_SCHEMA},
        "name": {"type": "string"},
        "exporter": {"type": "string"},
        "activeProfileIndex": {"type": "number"},
        "shared": {
            "type": "object",
            "required": ["frames"],
            "properties": {
                "frames": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "additionalProperties": False,
                        "properties": {
                            "name": {"type": "string"}, "file": {"type": "string"}, "line": {"type": "number"},
                            "col": {"type": "number"},
                        },
                    },
                }
            },
        },
        "profiles": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "name", "unit", "startValue", "endValue", "samples", "weights"],
                "additionalProperties": False,
                "properties": {
                    "type": {"const": "sampled"}, "name": {"type": "string"},
                    "unit": {"enum": ["bytes", "microseconds", "milliseconds", "nanoseconds", "none", "seconds"]},
                    "startValue": {"type": "number"}, "endValue": {"type": "number"},
                    "samples": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
                    "weights": {"type": "array", "items": {"type": "number"}},
                },
            },
        },
    },
}  # fmt: skip


def stack(seconds, *lines, phase="forward", leaf="", long=False):
    places = tuple(Place("train.py", line, f"f{line}") for line in lines)
    return Sampled("algo-1-0", phase, long, places, leaf, seconds, 1)


def frames(drawing):
    return re.findall(r"<title>(.*?)</title>.*?", str(drawing))


def report():
    rows = [*training(200, wait=0.02), sampled(("wait", 0, 4, 83, "data.py", "collate"), ("wait", 0, 2, 40))]
    return report_from(rows)


def test_the_terminal_names_the_two_most_expensive_lines():
    shown = terminal_summary(report(), width=100)
    first, source, second = (
        shown.index(text)
        for text in (
            "  data.py:83 in collate \N{EM DASH} 67 % of the lost time, in 60 samples\n",
            "\n      source of line 83\n",
            "\n  train.py:40 in main",
        )
    )
    assert first < source < second
    assert len(shown.splitlines()) <= 15


def test_the_page_shows_line_and_source():
    page = render_html(report())
    assert "data.py:83" in page
    assert "source of line 83" in page
    assert page.index("source of line 83") < page.index("Evidence")
    assert_as_stored(words_of(page, "code"), "code")
    assert "Where in the code" not in render_html(report_from(training(200)))


def test_the_notebook_lists_the_lines():
    first = json.loads(render_notebook(report()))["cells"][0]["source"]
    assert any("data.py:83 in collate: 67 %" in line for line in first)


def test_hostile_names_stay_text():
    rows = [
        *training(200, wait=0.02),
        sampled(("wait", 0, 4, 83, HOSTILE, HOSTILE), (HOSTILE, 0, 4, 84, HOSTILE, HOSTILE)),
    ]
    found = report_from(rows)
    page = render_html(found)

    class Scripts(HTMLParser):
        count = 0

        def handle_starttag(self, tag, _attributes):
            self.count += tag == "script"

    parser, usual = Scripts(), Scripts()
    parser.feed(page)
    usual.feed(render_html(report()))
    assert parser.count == usual.count
    assert "\x1b[31m\u202e" not in terminal_summary(found) + page


def test_stacks_merge_from_the_outermost_line():
    root = tree([stack(2, 1, 2), stack(1, 1, 3), stack(1, 1, 2, leaf="torch.linear")])
    (outer,) = root.calls.values()
    assert (outer.seconds, [one.seconds for one in outer.calls.values()]) == (4, [3, 1])


def test_a_graph_draws_each_frame_with_its_share():
    (graph,) = graphs(Samples((stack(3, 1, 2), stack(1, 1, 3, leaf="torch.linear"))))
    assert frames(graph.drawing) == [
        "train.py:1 f1: 4 s, 100 %", "train.py:2 f2: 3 s, 75 %", "train.py:3 f3: 1 s, 25 %", "torch.linear: 1 s, 25 %",
    ]  # fmt: skip
    assert [row[0] for row in graph.rows] == ["train.py:2", "train.py:3"]
    assert graph.left_out == ""


def test_a_graph_counts_what_it_leaves_out():
    stacks = [stack(1, 1, line) for line in range(2, 200)] + [stack(0.0001, 1, 900), stack(9, phase="forward")]
    (graph,) = graphs(Samples(tuple(stacks)))
    assert len(frames(graph.drawing)) <= MAX_FRAMES
    assert re.match(
        r"\d+ frames narrower than 0\.4 % or beyond the first 150 are not drawn; 4 % of the time belongs to no line\.",
        graph.left_out,
    )


def test_what_lies_between_phases_is_drawn_with_what_lies_outside():
    """Of a step whose phases are not recorded, the sampler cannot distinguish the two: the bar had a tenth of the graph's time."""
    (graph,) = graphs(Samples((stack(4, 1, 2, phase="between"), stack(3, 1, 2, phase="outside"))))
    assert (graph.title, graph.seconds) == ("Outside the phases, and between them", 7)
    profiles = to_speedscope(Samples((stack(4, 1, phase="between"), stack(3, 1, phase="outside"))), "job")["profiles"]
    assert [one["endValue"] for one in profiles] == [7]


def test_graphs_come_in_the_order_of_a_step_without_tiny_phases():
    stacks = [stack(1, 1, phase=phase) for phase in ("mine", "outside", "wait", "start")] + [stack(0.01, 1, phase="gc")]
    assert [graph.phase for graph in graphs(Samples(tuple(stacks)))] == ["start", "wait", "outside", "mine"]
    assert graphs(Samples()) == []


@pytest.mark.parametrize(
    ("file", "shown"), [("train.py", "train.py"), ("/a/b/c/d/e.py", "c/d/e.py"), ("C:\\x\\y\\z\\e.py", "y/z/e.py")]
)
def test_a_long_path_is_cut_to_its_end(file, shown):
    assert short_file(file) == shown


def test_the_speedscope_file_has_the_published_shape():
    written = to_speedscope(
        Samples((stack(3, 1, 2), stack(1, 1, 3, leaf="torch.linear"), stack(2, 4, phase="wait"))), "job"
    )
    jsonschema.validate(written, SPEEDSCOPE)
    assert [profile["endValue"] for profile in written["profiles"]] == [4, 2]
    known = len(written["shared"]["frames"])
    assert all(index < known for one in written["profiles"] for row in one["samples"] for index in row)


def test_the_command_writes_it(tmp_path):
    make_job(tmp_path / "job", "--minutes", "1")
    command = [sys.executable, "-m", "sm_profiler", "report", "job", "--out", "report", "--speedscope", "stacks.json"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    jsonschema.validate(json.loads((tmp_path / "stacks.json").read_text()), SPEEDSCOPE)


def test_samples_of_a_part_take_as_long_as_was_measured():
    """Python code, which holds the interpreter that the sampler waits for, had a third of its time in the flame graphs."""
    rows = training(300, outside=0.02)
    seen = [
        ("between", False, 1.0, 20, "a.py", "main", ""),
        ("forward", False, 5.0, 20, "a.py", "main", ""),
        ("start", False, 2.0, 9, "a.py", "main", ""),
    ]
    metrics = metrics_of([*rows, sampled(*seen)])
    (rank,) = metrics.ranks
    found = {one.phase: one.seconds for one in metrics.samples_as_timed.stacks}
    assert found["between"] == pytest.approx(rank.seconds["outside"] + rank.seconds["between"])
    assert found["forward"] == pytest.approx(rank.seconds["forward"])
    assert found["start"] == 2.0
