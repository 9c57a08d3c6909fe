"""Packages that add to sm-profiler from outside: the examples in examples/plugins, installed and used end to end."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sm_profiler import plugins
from sm_profiler.errors import ConfigError
from sm_profiler.metrics.scaling import codec
from sm_profiler.metrics.scaling.part import rule_state
from sm_profiler.report import build_report
from sm_profiler.rules import RULES, ProfilerReport
from sm_profiler.rules.profiler_report import all_rules
from sm_profiler.source import open_source
from tests.support.jobs import make_job

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/plugins"
GROUPS = {"adapter": "adapters", "rule": "rules", "cause": "causes", "exporter": "exporters", "format": "formats"}


def declare(site, name, lines, group):
    """Write what an installer writes about a package."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[sm_profiler.{group}]\n{lines}\n")


def install(site, *folders):
    """Put examples into a folder for sys.path, as pip does."""
    for folder in folders:
        text = (EXAMPLES / folder / "pyproject.toml").read_text()
        group, lines = re.search(r'entry-points\."sm_profiler\.(\w+)"\]\n((?:\w+ = ".+"\n)+)', text).groups()
        assert group == GROUPS[folder]
        declare(site, re.search('name = "(.+)"', text)[1], lines.replace('"', ""), group)
        for module in (EXAMPLES / folder).glob("*.py"):
            (site / module.name).write_text(module.read_text())


def run(site, *words, **variables):
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "SM_PROFILER_CACHE": "off", **variables}
    return subprocess.run(
        [sys.executable, *words], env=environment, cwd=site, capture_output=True, text=True, check=False, timeout=300
    )


def command(site, *words, **variables):
    return run(site, "-m", "sm_profiler", *words, **variables)


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("job") / "job", "--minutes", "4", "--scenario", "low-gpu")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return a folder on the path of this process."""
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    yield tmp_path
    forget()


def forget():
    plugins.forget()
    all_rules.cache_clear()


# Each example


TRAINING = """\
from sm_profiler.hook import get_hook
hook = get_hook()
import time, tiny_trainer
trainer = tiny_trainer.Trainer(lambda batch: time.sleep(0.002), lambda number: time.sleep(0.1))
trainer.fit(range(120), save_every=20)
hook.close()
trainer.fit(range(5))
"""


DERIVED = """\
from tiny_trainer_example import TinyTrainerAdapter as Example
class TinyTrainerAdapter(Example):
    {}
"""


def profile_of(folder, script=TRAINING, logged=""):
    """Return the profile of a training."""
    config = {"ProfilingParameters": {"LocalPath": str(folder / "profile"), "SamplerEnabled": "false"}}
    ran = run(folder, "-c", script, SM_PROFILER_CONFIG=json.dumps(config))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", logged)
    return open_source(folder / "profile", cache=False)


def step_count(source):
    return source.events().name.mask(lambda name: name.startswith("Step")).sum()


def test_an_adapter_records_the_steps_of_its_framework(tmp_path):
    install(tmp_path, "adapter")
    source = profile_of(tmp_path)
    assert step_count(source) == 120
    report = build_report(open_source(tmp_path / "profile", cache=False))
    (rank,) = report.metrics.ranks
    assert rank.declared["save of tiny_trainer"] == pytest.approx(0.6, rel=0.5)
    named = {name: spent for one in report.ledger.ranks for name, spent in one.seconds.items()}
    assert named["phase save of tiny_trainer"] == pytest.approx(rank.declared["save of tiny_trainer"])


def test_an_adapter_leaves_the_steps_of_the_script_alone(tmp_path):
    install(tmp_path, "adapter")
    script = TRAINING.replace(
        "trainer.fit(range(120), save_every=20)",
        "for batch in range(30):\n    with hook.step():\n        trainer.fit([batch, batch])",
    )
    assert step_count(profile_of(tmp_path, script)) == 30


BY_KEYWORD = TRAINING.replace(
    "trainer.fit(range(120), save_every=20)", "for batch in range(30):\n    trainer.train_step(batch=batch)"
)


def test_an_adapter_records_calls_by_keyword(tmp_path):
    install(tmp_path, "adapter")
    assert step_count(profile_of(tmp_path, BY_KEYWORD)) == 30


@pytest.mark.parametrize("marked", [False, True])
def test_an_adapter_that_fails_is_switched_off_alone(tmp_path, marked):
    """It switched off the whole hook, and the verdict sent the reader to an error in the script's first step."""
    install(tmp_path, "adapter")
    module = tmp_path / "tiny_trainer_adapter.py"
    module.write_text(
        module.read_text().replace("_step_begins(self, *_args, **_kwargs)", "_step_begins(self, _trainer)")
    )
    error = "TypeError: TinyTrainerAdapter._step_begins() got an unexpected keyword argument 'batch'"
    script = BY_KEYWORD
    if marked:
        script = script.replace(
            "hook.close()", "for _ in range(30):\n    with hook.step():\n        time.sleep(0.002)\nhook.close()"
        )
    source = profile_of(tmp_path, script, f"sm-profiler: tiny_trainer switched off, training continues: {error}\n")
    assert step_count(source) == 30 * marked
    report = build_report(open_source(tmp_path / "profile", cache=False))
    assert f"tiny_trainer: failed: {error}" in report.quality.collectors
    if not marked:
        advice = f"The hook's part “tiny_trainer” failed and was switched off ({error})."
        assert report.verdict.main.next_step.startswith(advice)


def test_a_rule_is_evaluated_with_its_parameters_and_shown(tmp_path, profile):
    install(tmp_path, "rule")
    (tmp_path / "limits.json").write_text('{"MemoryMargin_limit": "1", "CPUBottleneck_patience": "10"}')
    words = ("report", str(profile), "--out", "out", "--parameters", "limits.json")
    for executor in ((), ("--executor", "local:2")):
        ran = command(tmp_path, *words, *executor)
        assert ran.returncode == 0, ran.stderr
        found = json.loads((tmp_path / "out/profiler-reports/MemoryMargin.json").read_text())
        assert (found["RuleTriggered"], found["Details"], found["RuleParameters"]) == (
            1, {"limit": 1.0, "share_above": 1.0}, "limit:1",
        )  # fmt: skip
        assert "MemoryMargin" in (tmp_path / "out/profiler-report.html").read_text()
    ran = command(tmp_path, *words[:-1], "wrong.json")
    (tmp_path / "wrong.json").write_text('{"MemoryMargin_margin": "1"}')
    ran = command(tmp_path, *words[:-1], "wrong.json")
    assert (ran.returncode, ran.stderr) == (2, "sm-profiler: MemoryMargin has no parameter 'margin'; it has: limit\n")


def test_a_rule_decides_the_status_of_a_rule_job(tmp_path, profile):
    install(tmp_path, "rule")
    ran = command(
        tmp_path, "rules", "run", SM_PROFILER_ROOT=str(tmp_path / "ml"), SM_PROFILER_SOURCE=str(profile),
        rule_to_invoke="MemoryMargin", MemoryMargin_limit="1",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    status = json.loads((tmp_path / "ml/processing/output/rule/profiler-output/rule-status.json").read_text())
    assert status["RuleEvaluationStatus"] == "IssuesFound"


def test_the_service_had_no_rules_of_other_packages(here):
    install(here, "rule")
    assert [rule.name() for rule in all_rules()][-1] == "MemoryMargin"
    assert "MemoryMargin" not in [rule.name() for rule in all_rules("service")]


def test_a_judge_takes_part_in_the_verdict(tmp_path, profile):
    install(tmp_path, "cause")
    (tmp_path / "slow_phase.py").write_text(
        (tmp_path / "slow_phase.py").read_text().replace("< LEAST:", "< -1:").replace("between,", "0.4,")
    )
    ran = command(tmp_path, "report", str(profile), "--out", "out")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("USER_PHASE  Waiting for the feature store")
    assert json.loads((tmp_path / "out/report.json").read_text())["verdict"]["share_of_time"] == 0.4


CAUSE = """\
from sm_profiler.diagnosis import Cause
BROKEN = Cause("IDLE", lambda before, ledger: 1 / 0, "", "")
UNKNOWN = Cause("UNHEARD_OF", lambda before, ledger: None, "", "")
"""


def test_a_row_of_the_table_of_causes_is_replayed(tmp_path):
    (tmp_path / "rows.py").write_text(CAUSE)
    install(tmp_path, "cause")
    declare(tmp_path, "rows", "broken = rows:BROKEN\nunknown = rows:UNKNOWN", "causes")
    lines = ["rank,step,operation,seconds"]
    for rank in range(2):
        for step in range(120):
            lines += [f"{rank},{step},forward,0.05", f"{rank},{step},feature store,0.05"]
    (tmp_path / "times.csv").write_text("\n".join(lines))
    ran = command(tmp_path, "report", "times.csv", "--out", "out")
    assert ran.returncode == 0, ran.stderr
    verdict = json.loads((tmp_path / "out/report.json").read_text())["verdict"]
    assert (verdict["class"], verdict["headline"]) == ("USER_PHASE", "The feature store takes 50 % of the time.")
    reported = [line for line in ran.stderr.splitlines() if line.startswith("sm-profiler: the extension")]
    assert reported == [
        "sm-profiler: the extension unknown is left out: UNHEARD_OF is no class of verdict",
        "sm-profiler: the extension broken failed: ZeroDivisionError: division by zero",
    ]


def test_an_exporter_gets_the_report(tmp_path, profile):
    install(tmp_path, "exporter")
    words = ("export", str(profile), "--ledger", "sent", "--to")
    ran = command(tmp_path, *words, "jsonlines:found.jsonl")
    assert (ran.returncode, ran.stdout) == (0, "jsonlines: sent a line to found.jsonl\n"), ran.stderr
    assert json.loads((tmp_path / "found.jsonl").read_text())["class"]
    ran = command(tmp_path, *words, "jsonlines")
    assert (ran.returncode, ran.stderr.startswith("sm-profiler: --to jsonlines: expected a path")) == (2, True)
    ran = command(tmp_path, *words, "jsonlines:/no/such/folder/x")
    assert (ran.returncode, ran.stderr) == (2, "sm-profiler: /no/such/folder/x: No such file or directory\n")
    ran = command(tmp_path, *words, "other:x")
    assert "mlflow[:PLACE], webhook:PLACE, sns:PLACE" in ran.stderr
    assert "cloudwatch[:PLACE], jsonlines[:PLACE]" in ran.stderr


def test_a_format_is_read(tmp_path):
    install(tmp_path, "format")
    lines = [f"worker-{rank} step {step} took {0.1 * (1 + rank)} s" for rank in range(4) for step in range(150)]
    (tmp_path / "run.stopwatch").write_text("\n".join(lines))
    ran = command(tmp_path, "report", "run.stopwatch", "--out", "out")
    assert ran.returncode == 0, ran.stderr
    assert json.loads((tmp_path / "out/report.json").read_text())["verdict"]["class"] == "STRAGGLER"
    (tmp_path / "run.stopwatch").write_text("nothing")
    ran = command(tmp_path, "report", "run.stopwatch", "--out", "out")
    assert (ran.returncode, ran.stderr) == (2, "sm-profiler: run.stopwatch: no line of a stopwatch in it\n")


# Extensions that do not work


BROKEN = {
    "it raises": "raise RuntimeError('no\\nluck')",
    "it ends the process": "raise SystemExit('bye')",
    "it is no module": "(",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("group", sorted(GROUPS.values()))
def test_what_cannot_be_imported_is_one_line(here, group, text, caplog):
    module = f"broken_{group}_{len(text)}"
    (here / f"{module}.py").write_text(text)
    declare(here, "broken", f"mine = {module}:X", group)
    for _ in range(2):
        assert plugins.load(f"sm_profiler.{group}") == {}
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("sm-profiler: the extension mine of broken 1.0 is left out: ")


def test_names_of_our_own_are_not_replaced(here, caplog):
    declare(here, "greedy", "webhook = json:dumps", "exporters")
    assert plugins.load(plugins.EXPORTERS, {"webhook"}) == {}
    assert caplog.messages == ["sm-profiler: the extension webhook of greedy 1.0 is left out: the name is taken"]


def test_the_switch_leaves_out_all(tmp_path, profile):
    install(tmp_path, "exporter")
    ran = command(tmp_path, "export", str(profile), "--to", "jsonlines:x", SM_PROFILER_PLUGINS="off")
    assert ran.returncode == 2
    assert "jsonlines" not in ran.stderr.replace("--to jsonlines:x", "")


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("code", "line"),
    [("", "has no attribute 'TinyTrainerAdapter'"), (DERIVED.format("def __init__(self, session): 1 / 0"), "division by zero"), (DERIVED.format("def rank(self): 1 / 0"), "division by zero"), ("class TinyTrainerAdapter:\n    pass", "is a class derived from")],
)  # fmt: skip
def test_a_broken_adapter_never_harms_a_training(tmp_path, code, line):
    install(tmp_path, "adapter")
    (tmp_path / "tiny_trainer_adapter.py").rename(tmp_path / "tiny_trainer_example.py")
    (tmp_path / "tiny_trainer_adapter.py").write_text(code)
    config = {"ProfilingParameters": {"LocalPath": str(tmp_path / "profile"), "SamplerEnabled": "false"}}
    trained = TRAINING.replace("hook.close()", "print('trained')")
    armed = trained.replace(
        "from sm_profiler.hook import get_hook\nhook = get_hook()", "from sm_profiler.hook.auto import arm\narm()"
    )
    for program in (trained, armed):
        ran = run(tmp_path, "-c", program, SM_PROFILER_CONFIG=json.dumps(config))
        assert (ran.returncode, ran.stdout) == (0, "trained\n")
        assert sum(line in shown for shown in ran.stderr.splitlines()) == 1, ran.stderr


@pytest.mark.parametrize(
    "code",
    [
        "def update(self, window): 1 / 0",
        "def __init__(self): 1 / 0",
        "def __init__(self, limit): pass",
        "def __init__(self): raise ValueError('division by zero')",
    ],
)
def test_a_broken_rule_is_reported_as_one(here, profile, code):
    (here / "bad.py").write_text(f"class Bad:\n    {code}\n    def result(self): return {{}}\n")
    sys.modules.pop("bad", None)
    declare(here, "bad", "Bad = bad:Bad", "rules")
    report = build_report(open_source(profile, cache=False))
    assert list(report.broken) == ["Bad"]
    assert "division by zero" in report.broken["Bad"] or "missing 1 required" in report.broken["Bad"]
    assert "CPUBottleneck" in report.rules


SLOTS = """\
import attrs

@attrs.define
class Counting:
    start: int = 0
    windows: int = attrs.field(init=False, default=0)

    def update(self, window):
        self.windows += 1

    def merge(self, other):
        self.windows += other.windows

    def result(self):
        return {"RuleTriggered": 0, "Violations": 0, "Datapoints": self.start + self.windows}

class Plain(Counting):  # has slots, and a dictionary
    def update(self, window):
        super().update(window)
        self.seen = True
"""


@pytest.mark.parametrize("name", ["Counting", "Plain"])
def test_a_rule_may_keep_its_state_in_slots(here, name):
    (here / "slots.py").write_text(SLOTS)
    sys.modules.pop("slots", None)
    declare(here, "slots", f"{name} = slots:{name}", "rules")
    rules = [all_rules()[-1](start=10) for _ in range(3)]
    for rule, windows in zip(rules, (2, 3, 0), strict=True):
        for window in range(windows):
            rule.update(window)
    first, second, sent = rules
    first.merge(second)
    vars(sent).update(codec.decode(codec.encode(rule_state(first))))
    assert sent.result().datapoints == 15
    assert ("seen" in sent.state) == (name == "Plain")


@pytest.mark.parametrize(
    ("name", "code"), [("snake_case", "class X: pass"), ("Odd", "class X(dict): pass"), ("NoClass", "X = 3")]
)
def test_what_can_be_no_rule_is_left_out(here, caplog, name, code):
    (here / "odd.py").write_text(code)
    sys.modules.pop("odd", None)
    declare(here, "odd", f"{name} = odd:X", "rules")
    assert all_rules() == RULES
    assert caplog.messages[0].startswith(f"sm-profiler: the extension {name} is left out: a rule is a class")


def test_bad_parameters_of_a_rule_are_an_error(here):
    install(here, "rule")
    with pytest.raises(ConfigError, match="MemoryMargin: could not convert"):
        ProfilerReport(MemoryMargin_limit="much")


# The cost, and that data decide nothing


def test_nothing_is_imported_in_a_training_without_extensions(tmp_path):
    program = (
        "import sys, sm_profiler.hook.auto as auto; auto.arm();"
        "print([name for name in ('importlib.metadata', 'attrs', 'email') if name in sys.modules])"
    )
    assert run(tmp_path, "-S", "-c", program).stdout == "[]\n"


def test_declaring_imports_nothing(here):
    (here / "loud.py").write_text("raise SystemExit('imported')")
    declare(here, "loud", "torch2 = loud:X", "adapters")
    assert [entry.name for entry in plugins.declared(plugins.ADAPTERS)] == ["torch2"]


def test_a_profile_cannot_name_what_is_imported(here, caplog):
    """A name that is no entry point is unknown, even if a module has it."""
    assert plugins.load(plugins.RULES) == {}
    from sm_profiler.exporters.destination import open_destination

    with pytest.raises(ValueError, match="expected mlflow"):
        open_destination("json:dumps")


def test_the_examples_are_complete():
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} >= set(GROUPS)
    text = (ROOT / "docs/extending.md").read_text()
    assert all(f"`{group}`" in text for group in plugins.GROUPS)
    code = {line.partition("  #")[0] for path in EXAMPLES.rglob("*.py") for line in path.read_text().splitlines()}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        assert {line.partition("  #")[0] for line in block.splitlines()} <= code
