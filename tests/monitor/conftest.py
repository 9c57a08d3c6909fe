"""An S3 endpoint on this machine, and the environment that clients need."""

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.support.monitor import Job

BUCKET = "profiles"


@pytest.fixture(scope="session")
def s3_endpoint():
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def aws(s3_endpoint, monkeypatch):
    """Set the variables that make clients use the endpoint; return them for child processes."""
    variables = {
        "AWS_ENDPOINT_URL": s3_endpoint, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


@pytest.fixture
def s3(aws):
    client = boto3.client("s3")
    client.create_bucket(Bucket=BUCKET)
    yield client
    for item in client.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
        client.delete_object(Bucket=BUCKET, Key=item["Key"])
    client.delete_bucket(Bucket=BUCKET)
    client.close()


@pytest.fixture
def job(tmp_path, aws):
    made = Job(tmp_path, aws)
    yield made
    made.close()
