"""Every setting is in the schema, is read where the schema names its reader, and is listed with its value and origin."""

import ast
import json
import logging
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from sm_profiler import settings
from sm_profiler.cli.main import main
from sm_profiler.errors import ConfigError
from sm_profiler.settings import CONFIG_KEYS, VARIABLES, Setting
from tests.support.hook import environment

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sm_profiler"
OURS = {each.name for each in VARIABLES}
NAME = re.compile(r"SM_PROFILER_[A-Z_]*[A-Z]")
IDENTIFIERS = {
    name: value for name, value in vars(settings).items() if isinstance(value, Setting) and value in VARIABLES
}


def texts(path):
    """Return the string constants of a module."""
    return [
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def test_every_name_in_the_package_is_in_the_schema():
    used = {(name, path.name) for path in PACKAGE.rglob("*.py") for text in texts(path) for name in NAME.findall(text)}
    unknown = {(name, path) for name, path in used if name not in OURS}
    assert not unknown
    assert set(NAME.findall((ROOT / "packaging/sm_profiler_auto.pth").read_text())) <= OURS


def test_no_reader_spells_a_name_itself():
    spelt = {
        (path.name, text)
        for path in PACKAGE.rglob("*.py")
        if path.name != "settings.py"
        for text in texts(path)
        if text in OURS
    }
    assert not spelt


@pytest.mark.parametrize("identifier", sorted(IDENTIFIERS))
def test_every_setting_is_read_where_the_schema_has_it(identifier):
    module = PACKAGE / IDENTIFIERS[identifier].read_in.replace(".", "/")
    path = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    tree = ast.parse(path.read_text())
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "sm_profiler.settings"
        for alias in node.names
        if alias.name == identifier
    } or {identifier}
    used = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
    ]
    assert used, f"{path} does not use {identifier}"


def test_every_key_of_the_configuration_is_read():
    """The keys that have a name of their own in the schema are used by it; the others are spelt in config."""
    named = {value: name for name, value in vars(settings).items() if isinstance(value, Setting)}
    sources = "".join(path.read_text() for path in (PACKAGE / "config").glob("*.py"))
    for each in CONFIG_KEYS:
        reader = (PACKAGE / f"{each.read_in.replace('.', '/')}.py").read_text()
        assert named[each] in reader if each in named else f'"{each.name}"' in sources, each.name


def test_names_are_unique_and_described():
    names = [each.name for each in (*VARIABLES, *CONFIG_KEYS)]
    assert len(set(names)) == len(names)
    assert all(each.description and each.group and each.kind.expected for each in (*VARIABLES, *CONFIG_KEYS))


def test_the_page_is_up_to_date():
    page = runpy.run_path(str(ROOT / "tools/settings_page.py"))["page"]()
    assert (ROOT / "docs/settings.md").read_text() == page, "run python tools/settings_page.py"


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        (settings.SAMPLER, "No", False),
        (settings.SAMPLER, "", True),
        (settings.DELETE_UPLOADED, "true", True),
        (settings.AUTO, "true", True),
        (settings.AUTO, "NO", False),
        (settings.HANG_SECONDS, " 0 ", 0.0),
        (settings.LOCAL_MAX, "50GB", 50 * 10**9),
        (settings.LOCAL_MAX, "off", 0),
        (settings.CACHE, "off", None),
        (settings.SCHEDULER, "host:8786", ("host", 8786)),
        (settings.NODES, "2:4", 2),
        (settings.TRAILING, "3e8", 300_000_000),
    ],
)
def test_values(setting, text, value):
    assert setting.read({setting.name: text}) == value


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (settings.SAMPLER, "perhaps"),
        (settings.HANG_SECONDS, "-1"),
        (settings.HANG_SECONDS, "nan"),
        (settings.POLL_S, "0"),
        (settings.POLL_S, "1e9"),
        (settings.LOCAL_MAX, "many"),
        (settings.LOCAL_MAX, "0"),
        (settings.LOCAL_MAX, "0GB"),
        (settings.LOCAL_MAX, "5"),
        (settings.LOCAL_MAX, "300k"),
        (settings.METRICS_PORT, "99999"),
        (settings.SCHEDULER, "8786"),
        (settings.SCHEDULER, "host:x\x1b"),
        (settings.TRAILING, "inf"),
        (settings.NODE_RANK, "9" * 5000),
    ],
)
def test_a_wrong_value_is_one_line_and_never_stops_a_training(setting, text, caplog):
    with pytest.raises(ConfigError) as caught:
        setting.read({setting.name: text})
    line = str(caught.value)
    assert line.startswith(f"{setting.name}: expected {setting.kind.expected}, found ")
    assert line.isprintable()
    assert len(line) < 250
    with caplog.at_level(logging.WARNING):
        assert setting.read_or_default({setting.name: text}) == setting.default
    assert caplog.messages == [f"sm-profiler: {line}; using the default, {setting.shown_default}"]


@pytest.mark.parametrize(
    "setting", [each for each in VARIABLES if isinstance(each.default, bool)], ids=lambda setting: setting.name
)
def test_all_switches_have_the_same_values(setting):
    for text, value in {
        "on": True,
        "True": True,
        "YES": True,
        "1": True,
        " off ": False,
        "no": False,
        "0": False,
    }.items():
        assert setting.read({setting.name: text}) is value
    assert setting.usable({setting.name: "ture"}) is setting.default


@pytest.fixture
def alone(monkeypatch, tmp_path):
    for each in VARIABLES:
        monkeypatch.delenv(each.name, raising=False)
    monkeypatch.setenv("SM_PROFILER_ROOT", str(tmp_path))
    monkeypatch.setenv("SM_PROFILER_SETTINGS", str(tmp_path / "settings.json"))
    return tmp_path


def listed(capsys, code=0):
    assert main(["settings", "--json"]) == code
    return {each["name"]: each for each in json.loads(capsys.readouterr().out)["settings"]}


def test_the_command_lists_values_and_their_origin(alone, monkeypatch, capsys):
    monkeypatch.setenv("SM_PROFILER_LOCAL_MAX", "50GB")
    monkeypatch.setenv("SM_PROFILER_SERVE_TOKEN", "hush")
    (alone / "settings.json").write_text('{"rule_image": "own/image:1"}')
    config = alone / "input/config/profilerconfig.json"
    config.parent.mkdir(parents=True)
    config.write_text('{"profilingIntervalInMilliseconds": 1000, "ProfilingParameters": {"localpath": "/x"}}')
    found = listed(capsys)
    assert {name: (found[name]["value"], found[name]["from"]) for name in (
        "SM_PROFILER_LOCAL_MAX", "SM_PROFILER_SERVE_TOKEN", "SM_PROFILER_RULE_IMAGE", "SM_PROFILER_HANG_SECONDS",
        "ProfilingIntervalInMilliseconds", "LocalPath", "FileOpenFailThreshold",
    )} == {
        "SM_PROFILER_LOCAL_MAX": ("50GB", "environment"),
        "SM_PROFILER_SERVE_TOKEN": ("(set)", "environment"),
        "SM_PROFILER_RULE_IMAGE": ("own/image:1", str(alone / "settings.json")),
        "SM_PROFILER_HANG_SECONDS": ("60 s", "default"),
        "ProfilingIntervalInMilliseconds": ("1000", str(config)),
        "LocalPath": ("/x", str(config)),
        "FileOpenFailThreshold": ("50", "default"),
    }  # fmt: skip
    assert main(["settings"]) == 0
    shown = capsys.readouterr().out
    assert f"LocalPath = /x   ({config})" in shown
    assert "hush" not in shown


def test_the_command_names_what_is_wrong(alone, monkeypatch, capsys):
    monkeypatch.setenv("SM_PROFILER_HANG_SECONDS", "soon")
    monkeypatch.setenv("SM_PROFILER_AUTO", "ture")
    monkeypatch.setenv("SM_PROFILER_CONFIG", '{"ProfilingIntervalInMilliseconds": "often"}')
    (alone / "settings.json").write_text("[]")
    found = listed(capsys, 1)
    assert "a number of seconds" in found["SM_PROFILER_HANG_SECONDS"]["problem"]
    assert "found 'ture'" in found["SM_PROFILER_AUTO"]["problem"]
    assert "expected one of" in found["ProfilingIntervalInMilliseconds"]["problem"]
    assert "JSON object" in found["SM_PROFILER_RULE_IMAGE"]["problem"]
    monkeypatch.setenv("SM_PROFILER_CONFIG", "/no/such/file")
    assert "No such file" in listed(capsys, 1)["S3OutputPath"]["problem"]


def test_the_schema_is_cheap_to_import():
    program = "import sys, sm_profiler.settings; print([name for name in ('attrs', 'logging', 'json', 'pathlib') if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["SM_PROFILER_CONIFG"], "SM_PROFILER_CONIFG (did you mean SM_PROFILER_CONFIG?)"),
        (["SM_PROFILER_LOCALMAX", "PATH", "SM_PROFILER_HANG_SECOND"], "SM_PROFILER_HANG_SECOND (did you mean SM_PROFILER_HANG_SECONDS?), SM_PROFILER_LOCALMAX (did you mean SM_PROFILER_LOCAL_MAX?)"),
        (["SM_PROFILER_CONFIG_0", "SM_PROFILER_CONFIG_17", *OURS], ""),
        (["SM_PROFILER_OF_ANOTHER_PACKAGE", "SM_PROFILER_", "sm_profiler_config"], ""),
    ],
)  # fmt: skip
def test_misspelt_variables_are_found_with_the_name_that_was_meant(names, text):
    found = settings.misspelt(dict.fromkeys(names, "1"))
    assert found == (f"ignored, since it is no setting: {text}" if text else "")


def test_a_run_names_a_misspelt_variable_once(tmp_path):
    (tmp_path / "train.py").write_text("from sm_profiler.hook import get_hook\nget_hook()\n")
    done = subprocess.run(
        [sys.executable, "-m", "sm_profiler", "run", "--no-monitor", "train.py"],
        cwd=tmp_path, env=environment(SM_PROFILER_CONIFG="{}"), capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert done.stderr.count("SM_PROFILER_CONIFG (did you mean SM_PROFILER_CONFIG?)") == 1, done.stderr


@pytest.mark.parametrize("has_config", [False, True])
def test_the_hook_names_a_misspelt_variable(tmp_path, has_config):
    config = {"SM_PROFILER_CONFIG": json.dumps({"ProfilingParameters": {"LocalPath": str(tmp_path)}})}
    done = subprocess.run(
        [sys.executable, "-c", "from sm_profiler.hook import get_hook\nget_hook()"],
        env=environment(SM_PROFILER_AUTO="1", SM_PROFILER_ROOT=str(tmp_path), SM_PROFILER_SAMPLR="off", **(config if has_config else {})),
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert done.stderr.count("SM_PROFILER_SAMPLR (did you mean SM_PROFILER_SAMPLER?)") == 1, done.stderr
