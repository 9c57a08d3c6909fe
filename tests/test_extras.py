"""Missing modules are reported with the smallest extra that helps."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sm_profiler import _lazy as extras
from sm_profiler.cli import main
from sm_profiler.cli.main import COMMANDS

PROJECT = pytest.importorskip("tomllib").loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
DISTRIBUTIONS = {
    "botocore": "boto3",
    "distributed": "distributed",
    "mlflow": "mlflow-skinny",
    "opentelemetry": "opentelemetry-sdk",
    "pynvml": "nvidia-ml-py",
}
BLOCKED = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Finder())
{program}
"""


def packages_of(extra):
    """Return the distributions that an extra installs, through other extras too."""
    found = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        name = re.match(r"[\w.-]+", requirement)[0]
        if name == "sm-profiler":
            for inner in re.search(r"\[(.*)\]", requirement)[1].split(","):
                found |= packages_of(inner)
        else:
            found.add(name)
    return found


@pytest.mark.parametrize(("module", "extra"), extras.OF_MODULE.items())
def test_the_extra_has_the_module_and_no_smaller_one_does(module, extra):
    name = DISTRIBUTIONS.get(module, module)
    having = {one: len(packages_of(one)) for one in PROJECT["optional-dependencies"] if name in packages_of(one)}
    assert having[extra] == min(having.values())


def test_parts_are_commands_or_packages_and_name_extras():
    for part, named in extras.OF_PART.items():
        assert part in COMMANDS or (Path(extras.__file__).parent / part).is_dir()
        assert set(named.split(",")) <= set(PROJECT["optional-dependencies"])


def failing(program, *blocked):
    """Run a program without some modules and return its last line on standard error."""
    text = BLOCKED.format(blocked=blocked, program=program)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode
    return done.stderr.splitlines()[-1]


def test_a_run_needs_no_extra(tmp_path):
    """The plain installation could not end a run: it listed the files with what reads reports."""
    program = f"import os; os.chdir({str(tmp_path)!r}); from sm_profiler.cli import main; sys.exit(main(['run', '--', 'true']))"
    text = BLOCKED.format(blocked=tuple(extras.OF_MODULE), program=program)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert (done.returncode, "exit code 0" in done.stderr) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("program", "blocked", "said"),
    [
        ("from sm_profiler.cli import main; sys.exit(main(['report', '.']))", "numpy", r"needs numpy: .*sm-profiler\[analysis\]"),
        ("from sm_profiler.cli import main; sys.exit(main(['serve', '.']))", "starlette", r"sm-profiler\[serve\]"),
        ("from sm_profiler.cli import main; sys.exit(main(['local']))", "moto", r"sm-profiler\[local\]"),
        ("from sm_profiler.cli import main; sys.exit(main(['demo']))", "sagemaker", r"sm-profiler\[local,sagemaker2\]"),
        ("from sm_profiler.analysis import TrainingJob", "numpy", r"TrainingJob needs numpy: .*sm-profiler\[analysis\]"),
        (
            ("import sm_profiler; sm_profiler.install_as_smdebug()\n"
            "from smdebug.profiler.analysis.notebook_utils.training_job import TrainingJob"),
            "numpy",
            r"TrainingJob needs numpy: .*sm-profiler\[analysis\]",
        ),
        ("from sm_profiler.debugger import DebuggerHookConfig", "sagemaker", r"which is not installed: pip install 'sagemaker<3'"),
        ("import sm_profiler.debugger as d; assert not hasattr(d, 'Rule'); d.Rule", "sagemaker", "AttributeError: .*'sagemaker<3'"),
    ],
)  # fmt: skip
def test_a_missing_module_is_reported_with_its_extra(program, blocked, said):
    assert re.search(said, failing(program, blocked))


def test_a_module_of_no_extra_has_its_own_name(monkeypatch, capsys):
    def missing(_words):
        raise ModuleNotFoundError("No module named 'rich'", name="rich")

    monkeypatch.setattr(sys.modules["sm_profiler.cli.main"], "run", missing)
    assert main(["report", "x"]) == 2
    assert "this command needs rich: pip install rich\n" in capsys.readouterr().err
