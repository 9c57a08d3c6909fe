"""AWS's notebook for bottleneck analysis, run unchanged in a kernel, cell by cell, against a job that moto describes."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import boto3
import nbformat
import pytest
from moto.server import ThreadedMotoServer
from nbclient import NotebookClient

from tests.support.jobs import make_job

ROOT = Path(__file__).parents[2]
CELLS = json.loads((ROOT / "tests/data/analysis/bottleneck_notebook.json").read_text())
JOB = "profiler-gpu-2020-07-01-02-31-58-560"  # the job that the notebook names
SETTINGS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",  # no secret: moto takes anything
    "AWS_DEFAULT_REGION": "us-east-1",
    "MPLBACKEND": "agg",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
}
# the notebook's first imports, rewritten as an alternative to install_as_smdebug
IMPORTS = {
    "smdebug.profiler.analysis.notebook_utils.training_job": "sm_profiler.analysis",
    "smdebug.profiler.analysis.utils.profiler_data_to_pandas": "sm_profiler.analysis",
}


@pytest.fixture
def service(monkeypatch):
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {**SETTINGS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
        monkeypatch.setenv(name, value)
    yield f"http://{host}:{port}"
    urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()
    server.stop()


def start_job(folder):
    s3, sagemaker = boto3.client("s3"), boto3.client("sagemaker")
    s3.create_bucket(Bucket="bucket")
    for path in folder.rglob("*"):
        if path.is_file():
            s3.upload_file(str(path), "bucket", f"out/{JOB}/profiler-output/{path.relative_to(folder).as_posix()}")
    sagemaker.create_training_job(
        TrainingJobName=JOB,
        RoleArn="arn:aws:iam::123456789012:role/training",
        AlgorithmSpecification={"TrainingImage": "image", "TrainingInputMode": "File"},
        OutputDataConfig={"S3OutputPath": "s3://bucket/out"},
        ProfilerConfig={"S3OutputPath": "s3://bucket/out"},
        ResourceConfig={"InstanceType": "ml.p3.2xlarge", "InstanceCount": 1, "VolumeSizeInGB": 1},
        StoppingCondition={"MaxRuntimeInSeconds": 60},
    )


def run(cells, folder):
    """Run cells one by one; return source and error of each failed cell."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = NotebookClient(
        notebook, timeout=120, allow_errors=True, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    outputs = [(cell.source, output) for cell in notebook.cells for output in cell.outputs]
    return notebook, [(source, output.evalue) for source, output in outputs if output.output_type == "error"]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("way", ["install_as_smdebug", "imports"])
def test_bottleneck_notebook_runs(way, service, tmp_path):
    job = tmp_path / "job"
    make_job(job, "--scenario cpu-bottleneck --minutes 2 --gpus 2 --cpus 2 --steps-per-second 2")
    start_job(job)
    cells = [cell for cell in CELLS if not cell.startswith("!")]
    assert len(cells) == len(CELLS) - 1  # pip install
    if way == "install_as_smdebug":
        cells = ["import sm_profiler\nsm_profiler.install_as_smdebug()", *cells]
    else:
        for old, new in IMPORTS.items():
            cells = [cell.replace(f"from {old} import", f"from {new} import") for cell in cells]
        assert not any("smdebug" in cell for cell in cells)
    notebook, failed = run(cells, tmp_path)
    assert failed == []
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.outputs)
    assert "CPU bottleneck observed at 2023-11-14T22:1" in printed
    assert "Training job run from: 2023-11-14T22:13:20:500000" in printed


def test_works_without_smdebug():
    program = (
        "import sys, sm_profiler; sm_profiler.install_as_smdebug(); sm_profiler.install_as_smdebug()\n"
        "from smdebug.profiler.analysis.utils.profiler_data_to_pandas import PandasFrame\n"
        "from smdebug.profiler.utils import TimeUnits\n"
        "import smdebug.profiler.analysis.utils.pandas_data_analysis as analysis\n"
        "import sm_profiler.analysis as ours\n"
        "assert PandasFrame is ours.PandasFrame and analysis.PandasFrameAnalysis is ours.PandasFrameAnalysis\n"
        "try:\n    import smdebug.mxnet\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert "smdebug.mxnet" in shown.stdout
