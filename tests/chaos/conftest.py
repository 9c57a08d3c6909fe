"""A failing S3, and the environment that clients of it need."""

import boto3
import pytest
from chaos_s3 import FaultyS3


@pytest.fixture
def faulty_s3(monkeypatch):
    s3 = FaultyS3()
    for name, value in {
        "AWS_ENDPOINT_URL": s3.url, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
        "AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it would keep the credentials of other tests
    yield s3
    s3.close()
