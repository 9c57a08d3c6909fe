"""The image, built for real on a Debian base, and run against moto's S3."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from sm_profiler.rules import RULES
from tests.support.jobs import shared_job

REPO = Path(__file__).parents[2]
CACHE = "SM_PROFILER_TEST_BASE"  # folder that keeps the Debian base between test runs
KEYS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
USER_RULE = '''
class BusyGPU:
    """Fires if a GPU was above a limit in more than half of the samples."""

    def __init__(self, limit="50"):
        self.limit, self.samples, self.busy = float(limit), 0, 0

    def update(self, window):
        use = window.new_system.value[window.new_system.dimension.mask("GPUUtilization")]
        self.samples += len(use)
        self.busy += int((use > self.limit).sum())

    def result(self):
        print("samples:", self.samples)
        return {"RuleTriggered": int(2 * self.busy > self.samples), "Datapoints": self.samples}
'''

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def run(*words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def need(*tools):
    missing = [tool for tool in tools if not shutil.which(tool)]
    if os.geteuid() != 0:
        missing.append("root rights for debootstrap and chroot")
    if missing:
        pytest.skip(f"the image cannot be built here without {', '.join(missing)}")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A small Debian with Python, built by debootstrap."""
    need("buildah", "debootstrap")
    cache = os.environ.get(CACHE)
    folder = Path(cache) if cache else tmp_path_factory.mktemp("base")
    root = folder / "root"
    done = folder / "done"
    if not done.exists():
        shutil.rmtree(root, ignore_errors=True)
        run("debootstrap", "--variant=minbase", "--include=python3,python3-pip,ca-certificates", "bookworm", root)
        shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)
        done.touch()
    yield root
    if not cache:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def buildah(base, tmp_path_factory):
    """The buildah command with its own storage, and the image built in it."""
    storage = tmp_path_factory.mktemp("storage")
    for driver in ("overlay", "vfs"):  # overlay is faster, but not every file system supports it
        options = ["--root", str(storage / driver), "--runroot", str(storage / "run"), "--storage-driver", driver]
        command = ["buildah", *options]
        tried = subprocess.run([*command, "from", "scratch"], capture_output=True, text=True, check=False)
        container = tried.stdout.strip()
        if (
            tried.returncode == 0
            and subprocess.run([*command, "mount", container], capture_output=True, check=False).returncode == 0
        ):
            break
    run(*command, "copy", "--quiet", container, base, "/")
    run(*command, "commit", "--quiet", container, "localhost/base:test")
    run(*command, "rm", container)
    environment = {
        **os.environ,
        "BASE_IMAGE": "localhost/base:test",
        "PYTHON_VERSION": "3.11",
        "PYTHON": sys.executable,
        "BUILDER": "buildah",
        "BUILDER_OPTIONS": " ".join(options),
        "BUILD_OPTIONS": "--isolation chroot",
    }
    run(REPO / "rule_container/build.sh", "sm-profiler-rules:test", env=environment)
    yield command
    shutil.rmtree(storage, ignore_errors=True)


@pytest.fixture(scope="module")
def container(buildah):
    name = run(*buildah, "from", "sm-profiler-rules:test").strip()
    yield name
    run(*buildah, "rm", name)


@pytest.fixture(scope="module")
def job():
    return shared_job("--scenario cpu-bottleneck --gpus 2 --minutes 5 --interval-ms 200")


@pytest.fixture(scope="module")
def s3(job):
    """URL of moto's S3 with the job and a custom rule in it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", **keys)
    client.create_bucket(Bucket="bucket")
    for path in job.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "bucket", f"jobs/one/profiler-output/{path.relative_to(job)}")
    client.put_object(Bucket="bucket", Key="rules/busy_gpu.py", Body=USER_RULE.encode())
    old = re.findall(r"```python\n(.*?)```", (REPO / "docs/custom-rules.md").read_text(), re.DOTALL)[3]
    client.put_object(Bucket="bucket", Key="rules/long_steps.py", Body=old.encode())
    yield url
    server.stop()


def evaluate(command, url, output, **parameters):
    """Run the rule with a processing job's configuration, as the service starts the image."""
    root = output / "ml"
    for folder in ("config", "processing/output/rule"):
        (root / folder).mkdir(parents=True)
        (root / folder).chmod(0o777)
    source = {"S3Uri": "s3://bucket/jobs/one/profiler-output", "LocalPath": "/opt/ml/processing/input/profiler"}
    config = {"Environment": parameters, "ProcessingInputs": [{"InputName": "profiler", "S3Input": source}]}
    (root / "config/processingjobconfig.json").write_text(json.dumps(config))
    variables = {**KEYS, "AWS_ENDPOINT_URL": url}
    code = command(root, variables)
    written = root / "processing/output/rule/profiler-output"
    return code, json.loads((written / "rule-status.json").read_text()), written


def in_container(buildah, container):
    def command(root, variables):
        mounts = [
            "-v",
            f"{root}/config:/opt/ml/config:ro",
            "-v",
            f"{root}/processing/output/rule:/opt/ml/processing/output/rule",
        ]
        words = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
        entry = run(*buildah, "inspect", "--format", "{{.OCIv1.Config.Entrypoint}}", container).strip("[]\n").split()
        return subprocess.run(
            [*buildah, "run", "--isolation", "chroot", *mounts, *words, container, "--", *entry], check=False
        ).returncode

    return command


def outside(root, variables):
    environment = {**os.environ, **variables, "SM_PROFILER_ROOT": str(root)}
    return subprocess.run(
        [sys.executable, "-m", "sm_profiler", "rules", "run"], env=environment, check=False
    ).returncode


def test_image_gives_the_same_results(buildah, container, s3, tmp_path):
    code, status, written = evaluate(
        in_container(buildah, container), s3, tmp_path / "in", rule_to_invoke="ProfilerReport"
    )
    other_code, other_status, other = evaluate(outside, s3, tmp_path / "out", rule_to_invoke="ProfilerReport")
    assert (code, status) == (other_code, other_status)
    assert (code, status["RuleEvaluationStatus"]) == (0, "IssuesFound")
    reports = sorted(path.name for path in (written / "profiler-reports").iterdir())
    assert len(reports) == len(RULES)
    for name in reports:
        inside, outer = (json.loads((folder / "profiler-reports" / name).read_text()) for folder in (written, other))
        assert inside == outer
    assert (written / "profiler-report.html").stat().st_size > 50_000
    assert (written / "profiler-report.ipynb").exists()
    assert (
        json.loads((written / "report.json").read_text())["verdict"]
        == json.loads((other / "report.json").read_text())["verdict"]
    )


def test_custom_rule(buildah, container, s3, tmp_path):
    rule = {"rule_to_invoke": "BusyGPU", "source_s3_uri": "s3://bucket/rules/busy_gpu.py"}
    code, status, written = evaluate(in_container(buildah, container), s3, tmp_path / "high", **rule, limit="99")
    assert (code, status["RuleEvaluationStatus"]) == (0, "NoIssuesFound")
    code, status, written = evaluate(in_container(buildah, container), s3, tmp_path / "low", **rule, limit="5")
    assert (code, status["RuleEvaluationStatus"]) == (0, "IssuesFound")
    assert json.loads((written / "profiler-reports/BusyGPU.json").read_text())["RuleTriggered"] == 1
    assert "samples:" in (written / "BusyGPU.log").read_text()


def test_old_api_rule(buildah, container, s3, tmp_path):
    rule = {"rule_to_invoke": "LongSteps", "source_s3_uri": "s3://bucket/rules/long_steps.py", "limit_s": "0.01"}
    code, status, _ = evaluate(in_container(buildah, container), s3, tmp_path / "old", **rule)
    assert (code, status["StatusDetails"]) == (
        0,
        "The condition of the rule LongSteps is met, first in minute 1",
    )


def test_unknown_rule_fails_with_a_report(buildah, container, s3, tmp_path):
    code, status, written = evaluate(in_container(buildah, container), s3, tmp_path / "o", rule_to_invoke="Nonsense")
    assert (code, status["RuleEvaluationStatus"]) == (1, "Error")
    assert "Nonsense" in (written / "profiler-report.html").read_text()


def test_image_is_unprivileged_and_small(buildah, container):
    assert "uid=1000" in run(*buildah, "run", "--isolation", "chroot", container, "--", "id")
    size = int(
        run(*buildah, "run", "--isolation", "chroot", container, "--", "du", "-sm", "/opt/sm-profiler").split()[0]
    )
    assert size < 250  # MB, most of it Arrow, which Dask's workers need for profiles in Parquet
    found = run(*buildah, "run", "--isolation", "chroot", container, "--", "ls", "/opt/sm-profiler")
    assert "pandas" not in found
