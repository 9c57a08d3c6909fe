"""Damaged values, unwritable folders and hostile custom rules: a result or one line."""

import json
import os
import subprocess
import sys

import attrs
import numpy as np
import pytest

from sm_profiler.rules import run_rules
from sm_profiler.rules.results import read_own_result
from sm_profiler.rules.rule_job import Settings, Status
from sm_profiler.rules.runner import Runner, main
from sm_profiler.rules.statistics import histogram
from tests.support.rules import MemorySource, batches, events, make_job, samples, source_of

CUSTOM_RULES = """
import json, os, sys

class Base:
    def update(self, window):
        pass
    def result(self):
        return {"RuleTriggered": 0}

class Prints(Base):
    def update(self, window):
        sys.stdout.write("x" * 20_000_000)

class Large(Base):
    def result(self):
        return {"x": "y" * 60_000_000}

class Circular(Base):
    def result(self):
        found = []
        found.append(found)
        return found

class Deep(Base):
    def result(self):
        found = []
        for _ in range(100_000):
            found = [found]
        return found

class Keys(Base):
    def result(self):
        return {(1, 2): 3}

class Escapes(Base):
    def update(self, window):
        print("\\x1b[2J\\x07")
    def result(self):
        raise ValueError("\\x1b[2J\\nsecond line")

class Outcome(Base):
    def update(self, window):
        with open(sys.argv[1]) as request, open(json.load(request)["outcome"], "w") as outcome:
            outcome.write("[[[[1")
        os._exit(0)

class Exits(Base):
    def update(self, window):
        raise SystemExit(3)
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("job"), "--minutes", 1, "--gpus", 1, "--cpus", 2)


class TestCustomRules:
    @pytest.mark.parametrize(
        ("rule", "message"),
        [
            ("Large", "the report of Large is larger than 50 MB"),
            ("Circular", "cannot convert the report of Circular to JSON: Circular reference detected"),
            ("Deep", "cannot convert the report of Deep to JSON: maximum recursion depth exceeded"),
            ("Keys", "cannot convert the report of Keys to JSON: keys must be str, int, float, bool or None"),
            ("Escapes", r"Escapes failed: ValueError: \x1b[2J second line"),
            ("Outcome", "Outcome ended with exit code 0"),
            ("Exits", "Exits ended with exit code 3"),
        ],
    )
    def test_failures_are_one_line(self, job, tmp_path, rule, message):
        status, details = self.evaluate(job, tmp_path, rule)
        assert status is Status.ERROR
        assert details.startswith(message)
        assert details.isprintable()

    def test_output_is_bounded(self, job, tmp_path):
        assert self.evaluate(job, tmp_path, "Prints")[0] is Status.NO_ISSUES
        assert (tmp_path / "out/Prints.log").stat().st_size < 1_100_000

    @staticmethod
    def evaluate(job, tmp_path, rule):
        code = tmp_path / "hostile.py"
        code.write_text(CUSTOM_RULES)
        return Runner(Settings(str(job), tmp_path / "out", rule=rule, code=str(code))).run()


class TestFolders:
    @pytest.mark.parametrize("config", ["{", "{}"])
    def test_unwritable_output_is_one_line(self, job, tmp_path, monkeypatch, caplog, config):
        (tmp_path / "config").mkdir()
        (tmp_path / "config/processingjobconfig.json").write_text(config)
        (tmp_path / "processing").write_text("a file, not a folder")
        monkeypatch.setenv("SM_PROFILER_ROOT", str(tmp_path))
        monkeypatch.setenv("SM_PROFILER_SOURCE", str(job))
        assert main() == 1
        assert caplog.messages[-1].startswith("cannot write to ")
        assert not any(record.exc_info for record in caplog.records)

    def test_names_that_are_not_utf8(self, job, tmp_path):
        folder = tmp_path / "\udcff\udcfe"
        folder.symlink_to(job)
        environment = {**os.environ, "SM_PROFILER_ROOT": str(tmp_path / "ml"), "SM_PROFILER_SOURCE": str(folder)}
        words = [sys.executable, "-m", "sm_profiler", "rules", "run"]
        for more, status in (({}, "NoIssuesFound"), ({"rule_to_invoke": "\udcff\x1b"}, "Error")):
            done = subprocess.run(words, env={**environment, **more}, capture_output=True, check=False)
            assert b"Traceback" not in done.stdout + done.stderr
            assert b"\x1b" not in done.stdout + done.stderr
            written = tmp_path / "ml/processing/output/rule/profiler-output/rule-status.json"
            assert json.loads(written.read_text("utf-8"))["RuleEvaluationStatus"] == status


@pytest.mark.parametrize(("depth", "is_shown"), [(50, True), (900, False)])
def test_a_result_that_is_nested_too_deeply_for_a_page_is_not_shown(tmp_path, depth, is_shown):
    """It is within JSON's own limit, and what renders the report would exceed Python's."""
    details = {}
    for _ in range(depth):
        details = {"a": details}
    (tmp_path / "profiler-reports").mkdir()
    found = {"RuleTriggered": 1, "Violations": 1, "Datapoints": 1, "Details": details}
    (tmp_path / "profiler-reports" / "Deep.json").write_text(json.dumps(found))
    assert (read_own_result(tmp_path, "Deep") is not None) == is_shown


@pytest.mark.parametrize("compat", [None, "service"])
@pytest.mark.filterwarnings("error")
class TestDamagedValues:
    def test_values_beyond_any_metric_are_ignored(self, compat):
        rows = samples(300)
        value = rows.value.copy()
        value[::5] = 1e308
        results = run_rules(source_of(attrs.evolve(rows, value=value)), compat=compat)
        assert not results.broken
        json.dumps(results.as_dict(), allow_nan=False)

    def test_durations_beyond_any_job_are_ignored(self, compat):
        steps = [
            (index * 0.3, 0.2, "Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", {"step": index}) for index in range(9)
        ]
        happenings = events(steps)
        lengths = happenings.duration_us.copy()
        lengths[1::3] = 1e308
        parts = batches(samples(300))
        parts[0].events = attrs.evolve(happenings, duration_us=lengths)
        results = run_rules(MemorySource(parts), compat=compat)
        assert not results.broken
        json.dumps(results.as_dict(), allow_nan=False)


def test_histogram_of_values_that_floats_cannot_split():
    counts, edges = histogram(np.asarray([1e9, 1e9 + 1e-6]), 100)
    assert counts.sum() == 2
    assert len(edges) == 101
    assert edges[0] < 1e9 < edges[-1]
