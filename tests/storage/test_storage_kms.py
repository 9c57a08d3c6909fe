"""Every object that a command writes to S3 has the key of SM_PROFILER_KMS_KEY."""

import io

import pytest

from sm_profiler.monitor.uploader import open_destination
from sm_profiler.storage import open_storage

KEY = "arn:aws:kms:us-east-1:123456789012:key/ours"


@pytest.mark.parametrize("opened", [open_storage, open_destination])
def test_the_environments_key_encrypts_what_is_written(endpoint, monkeypatch, opened):
    client = endpoint.client()
    monkeypatch.setenv("SM_PROFILER_KMS_KEY", KEY)
    storage = opened("s3://jobs/encrypted")
    storage.write("one", b"1")
    storage.upload("two", io.BytesIO(b"2"), 1)
    for name in ("one", "two"):
        head = client.head_object(Bucket="jobs", Key=f"encrypted/{name}")
        assert (head["ServerSideEncryption"], head["SSEKMSKeyId"]) == ("aws:kms", KEY)
    monkeypatch.delenv("SM_PROFILER_KMS_KEY")
    opened("s3://jobs/encrypted").write("one", b"1")
    assert "SSEKMSKeyId" not in client.head_object(Bucket="jobs", Key="encrypted/one")
