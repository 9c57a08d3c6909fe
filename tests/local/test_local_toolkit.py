"""Jobs that AWS's own training toolkit starts on the local endpoint, and the endpoint's emulation of it."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from toolkit_helpers import toolkit

from sm_profiler.local import LocalSageMaker
from sm_profiler.local.command import copy_commands, create_overlay
from sm_profiler.local.host import as_text, as_variable, user_hyperparameters
from tests.support.local import SHOW, Bench, output_of

REPOSITORY = Path(__file__).parents[2]
HYPERPARAMETERS = {
    "learning-rate": "0.1",
    "name": '"adam"',
    "layers": "[1, 2]",
    "b": "true",
    "none": "null",
    "map": '{"x": 1, "y": "z z"}',
    "quoted": '"it\'s \\"q\\" $HOME; *"',
    "plain": "a b",
    "_tuning_objective_metric": '"loss"',
    "sagemaker_container_log_level": "20",
    "sagemaker_distribution_anything": "true",
}
# Variables that may differ: what PyTorch's containers set, and what differs from job to job
OWN = {"FRAMEWORK_MODULE", "MASTER_PORT", "TRAINING_ENV", "JOB_NAME", "DLC_TORCH_VERSION", "HP_NONE"}
GROUPED = """
import os
import torch, torch.distributed as dist
rank = int(os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
size = int(os.environ.get("WORLD_SIZE") or os.environ["OMPI_COMM_WORLD_SIZE"])
dist.init_process_group("gloo", rank=rank, world_size=size)
value = torch.tensor([float(rank + 1)])
dist.all_reduce(value)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(torch.ones(24, 4), batch_size=2):
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"sum {value.item()} of {size}", flush=True)  # in one piece: the toolkit makes a line of each
dist.destroy_process_group()
"""

TOOLKIT = "SM_PROFILER_LOCAL_TOOLKIT"


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """An endpoint whose jobs the toolkit starts."""
    endpoint = LocalSageMaker(folder=tmp_path_factory.mktemp("toolkit"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TOOLKIT, toolkit())
        endpoint.start()
    yield Bench(endpoint)
    endpoint.stop()


def surroundings(bench: Bench) -> dict:
    bench.s3.put_object(Bucket=bench.local.bucket, Key="data/train/a.csv", Body=b"1,2")
    source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{bench.local.bucket}/data/train"}
    channel = {"ChannelName": "train", "DataSource": {"S3DataSource": source}, "ContentType": "text/csv"}
    job = bench.run(SHOW, hyperparameters=HYPERPARAMETERS, InputDataConfig=[channel])
    assert job["TrainingJobStatus"] == "Completed", job["FailureReason"]
    found = json.loads(output_of(bench, job)["found.json"])
    source = job["HyperParameters"]["sagemaker_submit_directory"].strip('"')
    text = json.dumps(found).replace(found["environment"]["SM_PROFILER_ROOT"], "/opt/ml").replace(source, "s3://source")
    return json.loads(text.replace(source, "s3://source").replace(job["TrainingJobName"], "job"))


@pytest.mark.long
def test_emulation_and_toolkit_give_a_script_the_same_surroundings(bench, started):
    ours, theirs = surroundings(bench), surroundings(started)
    assert ours["arguments"] == theirs["arguments"]
    assert ours["folder"] == theirs["folder"] == "/opt/ml/code"
    assert ours["config"] == theirs["config"]
    own, other = (
        {name: text for name, text in found["environment"].items() if name.startswith("SM_")}
        for found in (ours, theirs)
    )
    different = {name for name in own.keys() | other.keys() if own.get(name) != other.get(name)}
    assert different <= {f"SM_{name}" for name in OWN}, {name: (own.get(name), other.get(name)) for name in different}
    whole, its = json.loads(own["SM_TRAINING_ENV"]), json.loads(other["SM_TRAINING_ENV"])
    assert {**whole, "framework_module": ""} == {**its, "framework_module": ""}


@pytest.mark.long
@pytest.mark.sdk2
@pytest.mark.parametrize("backend", ["service", "agent"])
def test_a_strangers_estimator_in_the_toolkit_has_a_report(started, backend, tmp_path):
    """SDK v2 as its users write it: the script names neither a hook nor a profiler."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text((REPOSITORY / "examples" / "launch_source" / "train.py").read_text())
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", source, REPOSITORY]
    subprocess.run(build, check=True, timeout=120)
    (wheel,) = source.glob("*.whl")
    (source / "requirements.txt").write_text(f"./{wheel.name}\n")
    program = tmp_path / "launch.py"
    program.write_text(
        textwrap.dedent(f"""
        from sagemaker.pytorch import PyTorch
        from sm_profiler.debugger import FrameworkProfile, ProfilerConfig
        from sm_profiler.launch import attach

        estimator = PyTorch(
            entry_point="train.py", source_dir={str(source)!r}, role={started.local.role!r},
            instance_type="ml.m5.xlarge", instance_count=1, framework_version="2.6.0", py_version="py312",
            hyperparameters={{"steps": 40}}, environment={{"SM_PROFILER_AUTO": "1"}},
        )
        profile = ProfilerConfig(
            s3_output_path="s3://{started.local.bucket}/{backend}",
            system_monitor_interval_millis=500,
            framework_profile_params=FrameworkProfile(start_step=5, num_steps=2),
        )
        attach(estimator, profile, backend={backend!r})
        estimator.fit(wait=False)
        print(estimator.latest_training_job.name)
        """)
    )
    environment = {**os.environ, **started.local.environment}
    run = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    job = started.wait(run.stdout.split()[-1], 200)
    lines = started.lines(job["TrainingJobName"])
    assert job["TrainingJobStatus"] == "Completed", "\n".join(lines)
    assert any("Reporting training SUCCESS" in line for line in lines)
    assert any(line.startswith("loss: ") for line in lines)
    assert any("Successfully installed" in line and "sm-profiler" in line for line in lines)
    show = f"""
import json
from sm_profiler.report import build_report
from sm_profiler.source import open_source
report = build_report(open_source("s3://{started.local.bucket}/{backend}/{job["TrainingJobName"]}"))
print(json.dumps({{"ranks": [[rank.name, len(rank.steps)] for rank in report.metrics.ranks], "class": report.verdict.kind.value}}))
"""
    shown = subprocess.run([sys.executable, "-c", show], env=environment, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert [steps for _, steps in found["ranks"]] == [40]
    assert found["class"]


@pytest.mark.long
def test_torchrun_of_the_toolkit_over_two_hosts(started):
    job = started.run(
        GROUPED,
        hyperparameters={"sagemaker_torch_distributed_enabled": "true"},
        ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 1},
        Environment={"SM_PROFILER_AUTO": "1"},
        ProfilerConfig={
            "S3OutputPath": f"s3://{started.local.bucket}/torchrun",
            "ProfilingParameters": {"LocalPath": "/opt/ml/output/profiler"},
        },
    )
    lines = started.lines(job["TrainingJobName"])
    assert job["TrainingJobStatus"] == "Completed", "\n".join(lines)
    assert sum("sum 3.0 of 2" in line for line in lines) == 2
    assert any("torchrun --nnodes 2" in line for line in lines)
    traces = [key.rpartition("/")[2] for key in started.keys("torchrun") if key.endswith("pythontimeline.json")]
    assert sorted(name.split("_")[1] for name in traces) == ["0-algo-1", "1-algo-2"]


@pytest.mark.long
def test_mpi_of_the_toolkit(started):
    mpi = subprocess.run(["sh", "-c", "command -v mpirun"], check=False, capture_output=True)
    if mpi.returncode:
        pytest.skip("no mpirun: apt-get install openmpi-bin")
    name = started.start(
        GROUPED,
        hyperparameters={"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"},
        Environment={"SM_PROFILER_AUTO": "1"},
        ProfilerConfig={
            "S3OutputPath": f"s3://{started.local.bucket}/mpi",
            "ProfilingParameters": {"LocalPath": "/opt/ml/output/profiler"},
        },
    )
    job = started.wait(name, 120)  # the toolkit itself sleeps for half a minute at the end
    lines = started.lines(name)
    assert job["TrainingJobStatus"] == "Completed", "\n".join(lines)
    assert sum("sum 3.0 of 2" in line for line in lines) == 2
    traces = [key.rpartition("/")[2] for key in started.keys("mpi") if key.endswith("pythontimeline.json")]
    assert sorted(name.split("_")[1] for name in traces) == ["0-algo-1", "1-algo-1"]


@pytest.mark.long
def test_toolkit_reports_failures_and_is_stopped(started):
    job = started.run("import sys\nprint('before')\nraise ValueError('of the script')\n")
    assert job["TrainingJobStatus"] == "Failed"
    assert "ExecuteUserScriptError" in job["FailureReason"]
    assert "ValueError" in job["FailureReason"]
    assert "of the script" in job["FailureReason"]
    assert job["FailureReason"].endswith("exit code: 1")
    name = started.start(
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (print('stopping', flush=True), sys.exit(0)))\n"
        "print('waits', flush=True)\ntime.sleep(600)\n"
    )
    started.wait_for_line(name, "waits")
    started.sagemaker.stop_training_job(TrainingJobName=name)
    assert started.wait(name)["TrainingJobStatus"] == "Stopped"
    assert "stopping" in started.lines(name)


def test_hyperparameters_are_written_as_the_toolkit_writes_them():
    assert [as_text(value) for value in (None, True, {"b": 1, "a": "x y"}, [1, "2"])] == [
        "", "True", "a=x y,b=1", "[1, '2']",
    ]  # fmt: skip
    assert [as_variable(value) for value in (None, True, {"b": 1, "a": 2}, [1, 2], "x")] == [
        "", "true", '{"a":2,"b":1}', "[1,2]", "x",
    ]  # fmt: skip
    assert user_hyperparameters({"_tuning_objective_metric": '"loss"', "sagemaker_x": "1", "x": "1"}) == {"x": 1}


def test_mpi_without_the_toolkit_is_refused(bench):
    job = bench.run("print(1)", hyperparameters={"sagemaker_mpi_enabled": "true"})
    assert job["TrainingJobStatus"] == "Failed"
    assert TOOLKIT in job["FailureReason"]


def test_shell_entry_points_run_with_their_own_interpreter(bench):
    words = {"sagemaker_program": '"run.sh"', "word": '"a b"'}
    job = bench.run("", files={"run.sh": '#!/bin/bash\nwords=("$@")\necho "got ${words[1]}"\n'}, hyperparameters=words)
    assert job["TrainingJobStatus"] == "Completed", job["FailureReason"]
    assert "got a b" in bench.lines(job["TrainingJobName"])


def test_commands_of_packages_run_with_the_jobs_python(tmp_path):
    base, job = tmp_path / "base", tmp_path / "job"
    base.mkdir()
    job.mkdir()
    (job / "python").touch()
    (base / "python").touch()
    (base / "torchrun").write_text(f"#!{base}/python3.11\nprint(1)\n")
    (base / "long").write_text(f"#!/bin/sh\n'''exec' \"{base}/python\" \"$0\" \"$@\"\n' '''\n# {base}/python\n")
    (base / "other").write_text("#!/bin/sh\necho 1\n")
    (base / "gone").symlink_to(base / "nowhere")
    copy_commands(base, job)
    assert sorted(path.name for path in job.iterdir()) == ["long", "python", "torchrun"]
    assert (job / "torchrun").read_text() == f"#!{job}/python\nprint(1)\n"
    assert (job / "long").read_text().splitlines()[1] == f'\'\'\'exec\' "{job}/python" "$0" "$@"'
    assert (job / "torchrun").stat().st_mode & 0o111
    copy_commands(tmp_path / "nowhere", job)


def test_the_hook_is_armed_in_an_environment_without_sm_profiler(tmp_path):
    """As in AWS's containers before the requirements are installed."""
    python = Path(sys.executable).resolve()  # an interpreter without the packages of this environment
    if any(Path(python).parents[1].glob("lib/python3*/site-packages/sm_profiler*.pth")):
        pytest.skip("sm-profiler is installed in the base interpreter")
    job = create_overlay(tmp_path / "env", str(python))
    command = [str(job), "-c", "import sys; print('sm_profiler.hook.auto' in sys.modules)"]
    environment = {"SM_PROFILER_AUTO": "1", "PATH": os.environ["PATH"]}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert shown.stdout == "True\n", shown.stderr
