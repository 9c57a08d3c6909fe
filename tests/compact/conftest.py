import shutil

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.support.jobs import shared_job


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("SM_PROFILER_CACHE", "off")


@pytest.fixture
def damaged(two_nodes, tmp_path):
    """A job whose files are partly damaged, with one from another time."""
    job = shutil.copytree(two_nodes, tmp_path / "profiler-output")
    files = sorted((job / "framework").rglob("*.json"))
    files[0].write_bytes(files[0].read_bytes()[:-200])
    files[1].write_bytes(b"not a trace")
    first = min((job / "system").rglob("*.json"))
    first.with_name(f"99999999999.{first.name.partition('.')[2]}").write_bytes(first.read_bytes())
    return job


@pytest.fixture(scope="session")
def two_nodes():
    """A job whose reductions begin in one file and end in the next, over the border of an hour."""
    return shared_job("--minutes", "3", "--nodes", "2", "--gpus", "2", "--horovod", "--start-epoch", "1700002710")


@pytest.fixture
def bucket(monkeypatch):
    """An S3 endpoint on this machine with a bucket; its client."""
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="profiles-here")
    yield client
    server.stop()
