"""Jobs of SDK v3, torchrun and requirements; SDK v2's Estimator is in tests/demo."""

import io
import json
import os
import shutil
import subprocess
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[1] / "data" / "local" / "v3_client.py"
SCRIPT = """
import json, os, sys
from pathlib import Path
text = Path(os.environ["SM_CHANNEL_TRAIN"], "a.txt").read_text()
Path(os.environ["SM_MODEL_DIR"], "model.json").write_text(json.dumps([text, sys.argv[1:]]))
print("trained by v3")
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.sdk3
def test_sdk_v3_trains_waits_and_reads_back(bench, repository, tmp_path):
    python = repository / ".envs" / "sdk3" / "bin" / "python"
    if not python.exists():
        assert "CI" not in os.environ, "CI must have .envs/sdk3"
        pytest.skip("no .envs/sdk3")
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [str(python), str(CLIENT), bench.local.bucket, str(tmp_path)]
    (tmp_path / "guard").mkdir()
    shutil.copy(CLIENT.with_name("network_guard.py"), tmp_path / "guard" / "sitecustomize.py")
    log = tmp_path / "network.log"
    guard = {"PYTHONPATH": str(tmp_path / "guard"), "NETWORK_GUARD_LOG": str(log)}
    environment = {**os.environ, **bench.local.environment, **guard}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert not log.exists(), log.read_text()
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["trained"] == "Completed"
    arguments = ["--learning-rate", "0.1", "--epochs", "3"]
    assert json.loads(bench.archive(found["model"])["model.json"]) == ["hello", arguments]
    assert (found["profiling"], found["interval"]) == ("Enabled", 500)
    assert "exit code: 4" in found["message"]
    name = found["model"].split("/")[-3]
    assert "trained by v3" in bench.lines(name)


TORCHRUN = """
import os
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
print("sum", value.item(), "of", dist.get_world_size(), flush=True)
open(os.path.join(os.environ["SM_MODEL_DIR"], os.environ["SM_CURRENT_HOST"]), "w").write(str(value.item()))
dist.destroy_process_group()
"""


@pytest.mark.long
def test_torchrun_over_two_hosts(bench):
    """As SDK v2 requests for distribution={"torch_distributed": {"enabled": True}}."""
    job = bench.run(
        TORCHRUN,
        hyperparameters={"sagemaker_torch_distributed_enabled": "true"},
        ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 1},
    )
    assert job["TrainingJobStatus"] == "Completed", job["FailureReason"]
    models = bench.archive(job["ModelArtifacts"]["S3ModelArtifacts"])
    assert models == {"algo-1": b"3.0", "algo-2": b"3.0"}


def wheel() -> bytes:
    """Return a minimal wheel with one module."""
    buffer = io.BytesIO()
    info = "sm_local_probe-1.0.dist-info"
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("sm_local_probe.py", "WORD = 'from the requirement'\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: sm_local_probe\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()


def test_requirements_stay_in_the_jobs_folder(bench):
    """The job sees them and the endpoint's packages; the endpoint's environment is unchanged."""
    name = "sm_local_probe-1.0-py3-none-any.whl"
    files = {"requirements.txt": f"--no-index\n./{name}\n", name: wheel()}
    script = "import sm_local_probe, numpy\nprint(sm_local_probe.WORD, sm_local_probe.__file__, numpy.__file__)\n"
    job = bench.run(script, files=files)
    assert job["TrainingJobStatus"] == "Completed", job["FailureReason"]
    line = next(line for line in bench.lines(job["TrainingJobName"]) if line.startswith("from the requirement"))
    assert str(bench.local.folder) in line.split()[3]
    assert str(bench.local.folder) not in line.split()[4]
    assert find_spec("sm_local_probe") is None


def test_requirements_that_cannot_be_installed_fail_the_job(bench):
    job = bench.run("print(1)", files={"requirements.txt": "--no-index\nno-such-package-anywhere==9\n"})
    assert job["TrainingJobStatus"] == "Failed"
    assert "InstallRequirementsError" in job["FailureReason"]
    assert "no-such-package-anywhere" in job["FailureReason"]
