"""Names that users rely on: each addition is deliberate, each removal breaks a program.

docs/stability.md describes what is public; the tables below are its exact contents.
"""

import inspect
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from sm_profiler.debugger.sdk_compat import SDK_NAMES

ROOT = Path(__file__).parents[1]
DEBUGGER = """DataloaderProfilingConfig DetailedProfilingConfig FrameworkProfile HorovodProfilingConfig Profiler ProfilerConfig
    ProfilerRule PythonProfiler PythonProfilingConfig SMDataParallelProfilingConfig StepRange TimeRange cProfileTimer
    get_default_profiler_processing_job get_rule_container_image_uri rule_configs"""
EXPORTED = {
    "sm_profiler": f"{DEBUGGER} __version__ install_as_smdebug start stop",
    "sm_profiler.analysis": """Heatmap MergeUnit MergedTimeline MetricsHistogram PT_dataloader_analysis PandasFrame
        PandasFrameAnalysis PyinstrumentAnalysis Resource StatsBy StepHistogram StepTimelineChart TF_dataloader_analysis TimelineCharts
        TrainingJob
        cProfileAnalysis dataloader_frame framework_frame system_frame""",
    "sm_profiler.analysis.gpu": "GpuTraces find_traces group_differences kernel_differences operator_differences",
    "sm_profiler.cli": "main",
    "sm_profiler.compact": "Compacted athena_ddl compact",
    "sm_profiler.config": """COLLECTORS CollectorConfig Explanation Profile config_from_environment environment_for explain
        format_metrics load_profile parse_metrics""",
    "sm_profiler.debugger": DEBUGGER,
    "sm_profiler.deploy": "StartedRules deploy_image start_rules wait_for_end",
    "sm_profiler.diagnosis": """CAUSES Cause Evidence Finding Gain Interval Ledger RankLedger Repair Table Verdict diagnose
        is_table read_table""",
    "sm_profiler.executors": "Meter Pool Remote TaskResult map_tasks open_pool run_tasks",
    "sm_profiler.fleet": "Fleet FleetJob build_fleet write_fleet",
    "sm_profiler.hook": "Hook ModeKeys get_hook",
    "sm_profiler.launch": "Attachment agent_environment attach check_request to_request to_shapes",
    "sm_profiler.local": "LocalSageMaker",
    "sm_profiler.report": """Class Finding JobInfo MetricFolds Report Verdict assemble build_report show_report terminal_summary
        write_report""",
    "sm_profiler.rules": """BatchSize CPUBottleneck Dataloader EvaluationWindow Fold Following GPUMemoryIncrease
        IOBottleneck LoadBalancing LowGPUUtilization MaxInitializationTime NoMoreProfilerData OverallFrameworkMetrics OverallSystemUsage
        ProfilerReport ProfilerTrial RULES Rule RuleEvaluationConditionMet RuleResult RuleResults StepOutlier
        invoke_rule run_folds run_rules windows write_rule_reports""",
    "sm_profiler.source": "Batch FileQuality ProfileSource open_source",
    "sm_profiler.storage": "AccessDeniedError FileInfo LocalStorage MissingFileError Storage open_storage read_all s3_uri",
}
# Exports that the API reference leaves out: other packages of this project use them, docs/stability.md makes them private.
PRIVATE = {
    "sm_profiler.analysis.gpu": "find_traces",
    "sm_profiler.cli": EXPORTED["sm_profiler.cli"],
    "sm_profiler.compact": EXPORTED["sm_profiler.compact"],
    "sm_profiler.config": EXPORTED["sm_profiler.config"],
    "sm_profiler.executors": EXPORTED["sm_profiler.executors"],
    "sm_profiler.report": "JobInfo MetricFolds assemble terminal_summary",
    "sm_profiler.rules": "Fold Following ProfilerTrial RULES run_folds windows",
    "sm_profiler.source": "Batch",
    "sm_profiler.storage": EXPORTED["sm_profiler.storage"],
}
PAIRS = [(module, name) for module in sorted(EXPORTED) for name in EXPORTED[module].split()]


def test_every_package_that_exports_names_is_listed():
    paths = [
        ROOT / "sm_profiler/__init__.py",
        ROOT / "sm_profiler/compact.py",
        ROOT / "sm_profiler/deploy.py",
        *ROOT.glob("sm_profiler/*/__init__.py"),
        *ROOT.glob("sm_profiler/analysis/*/__init__.py"),
    ]
    packages = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths}
    assert {name for name in packages if hasattr(import_module(name), "__all__")} == set(EXPORTED)


@pytest.mark.parametrize("module", sorted(EXPORTED))
def test_exported_names(module):
    names = EXPORTED[module].split()
    loaded = import_module(module)
    added = set(SDK_NAMES) if module == "sm_profiler.debugger" else set()  # by a star import
    assert sorted(set(loaded.__all__) - added) == sorted(names)
    assert all(getattr(loaded, name) is not None for name in names)
    assert set(names) <= set(dir(loaded))


def test_reference_documents_every_public_name():
    pages = [ROOT / "docs/stability.md", *(ROOT / "docs/reference").glob("*.md")]
    documented = {name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE)}
    exported = {f"{module}.{name}" for module, name in PAIRS}
    private = {f"{module}.{name}" for module, names in PRIVATE.items() for name in names.split()}
    aliases = {f"sm_profiler.{name}" for name in DEBUGGER.split()}  # documented as names of sm_profiler.debugger
    undocumented = exported - documented - aliases - {"sm_profiler.__version__", "sm_profiler.debugger.rule_configs"}
    assert undocumented == private
    for name in documented:
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute), name


def test_every_public_name_is_described():
    private = {f"{module}.{name}" for module, names in PRIVATE.items() for name in names.split()}
    for module, name in PAIRS:
        value = getattr(import_module(module), name)
        if f"{module}.{name}" in private or not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        methods = [
            found for key in vars(value) if not key.startswith("_") and inspect.isfunction(found := getattr(value, key))
        ]
        missing = [found.__qualname__ for found in (value, *methods) if not inspect.getdoc(found)]
        assert not missing, f"{module}: {missing}"


def test_top_level_exports_the_debugger_names():
    import sm_profiler

    debugger = import_module("sm_profiler.debugger")
    for name in DEBUGGER.split():
        assert getattr(sm_profiler, name) is getattr(debugger, name)


@pytest.mark.parametrize(
    "module", sorted(set(EXPORTED) - {"sm_profiler.cli", "sm_profiler.launch", "sm_profiler.storage"})
)
def test_unknown_name_is_an_attribute_error(module):
    with pytest.raises(AttributeError, match="nonsense"):
        _ = import_module(module).nonsense


def test_importing_the_package_loads_no_other_module_of_it():
    program = "import sys, sm_profiler; print(*sorted(name for name in sys.modules if name.startswith('sm_profiler.')))"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["sm_profiler._lazy", "sm_profiler._version"]


# What type checkers see

RESULTS = {  # expression → type; the imports are in the generated program
    "sm_profiler.ProfilerConfig()": "sm_profiler.debugger.ProfilerConfig",
    "sm_profiler.__version__": "str",
    "sm_profiler.hook.get_hook()": "sm_profiler.hook.Hook | None",
    'sm_profiler.analysis.PandasFrame("profile").get_all_system_metrics()': "pandas.DataFrame",
    'sm_profiler.analysis.MergedTimeline("profile").merge_timeline(0, 1)': "str",
    'sm_profiler.analysis.cProfileAnalysis("profile").list_available_node_ids()': "list[str]",
    'sm_profiler.source.open_source("profile")': "sm_profiler.source.ProfileSource",
    'sm_profiler.report.build_report(sm_profiler.source.open_source("profile"))': "sm_profiler.report.Report",
    'sm_profiler.rules.run_rules(sm_profiler.source.open_source("profile"))': "sm_profiler.rules.RuleResults",
}
MISSING = [
    f"{module}.nonsense" for module in ("sm_profiler", "sm_profiler.analysis", "sm_profiler.hook", "sm_profiler.rules")
]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Return a program that names each export, one a line, with the line numbers of the three parts."""
    lines = [
        "from typing_extensions import assert_type",
        "import pandas",
        *(f"import {module}" for module in sorted(EXPORTED)),
    ]
    parts = []
    for part in (
        [f"reveal_type({module}.{name})" for module, name in PAIRS],
        [f"assert_type({expression}, {kind})" for expression, kind in RESULTS.items()],
        MISSING,
    ):
        parts.append(range(len(lines) + 1, len(lines) + len(part) + 1))
        lines += part
    path = tmp_path_factory.mktemp("typing") / "program.py"
    path.write_text("\n".join(lines) + "\n")
    return path, *parts


def check(messages, errors, program):
    """Judge a checker's output: the revealed type by line, and the lines with an error."""
    path, revealed, asserted, missing = program
    lines = path.read_text().split("\n")
    untyped = [lines[line - 1] for line in revealed if re.search(r"\b(?:Any|Unknown)$", messages.get(line, "Any"))]
    assert not untyped, f"these exports have no type: {untyped}"
    for line, (module, name) in zip(revealed, PAIRS, strict=True):
        if isinstance(getattr(import_module(module), name), type):
            assert name in messages[line], f"{module}.{name}: {messages[line]}"
    wrong = [lines[line - 1] for line in asserted if line in errors]
    assert not wrong, f"these have another type: {wrong}"
    assert errors == set(missing), [lines[line - 1] for line in errors - set(missing)]


@pytest.mark.long  # pyright sees them in `make test`
def test_mypy_sees_the_type_of_every_export(program):
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", "--no-pretty"]
    ran = subprocess.run([*command, str(program[0])], cwd=ROOT, capture_output=True, text=True, check=False)
    # mypy's cache repeats the folder that the program had when it was checked first
    found = re.findall(r"^\S*program\.py:(\d+): (note|error): (.*)$", ran.stdout, re.MULTILINE)
    assert found, ran.stdout + ran.stderr
    messages = {
        int(line): text.removeprefix("Revealed type is ").strip('"')
        for line, kind, text in found
        if kind == "note" and text.startswith("Revealed")
    }
    check(messages, {int(line) for line, kind, _ in found if kind == "error"}, program)


@pytest.mark.long
@pytest.mark.slow
def test_pyright_sees_the_type_of_every_export(program):
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    settings = {"include": [str(program[0])], "extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (program[0].parent / "pyrightconfig.json").write_text(json.dumps(settings))
    command += ["--project", str(program[0].parent)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(ran.stdout)["generalDiagnostics"]
    messages, errors = {}, set()
    for each in found:
        line = each["range"]["start"]["line"] + 1
        if each["severity"] == "error":
            errors.add(line)
        elif match := re.match(r'Type of "[^"]+" is "(.+)"$', each["message"], re.DOTALL):
            messages[line] = match.group(1)
    check(messages, errors, program)
