"""Clients of AWS's control planes: the same timeouts and number of attempts for all of them."""

import logging
import re
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from sm_profiler.cli.main import main
from sm_profiler.deploy import deploy_image, start_rules
from sm_profiler.errors import ProfilerError
from sm_profiler.rules.rule import Actions
from sm_profiler.source.job import describe
from sm_profiler.storage import s3
from sm_profiler.storage.s3 import API_ATTEMPTS, create_api_client

PACKAGE = Path(__file__).parents[2] / "sm_profiler"


@pytest.fixture
def silent(monkeypatch):
    """An endpoint that accepts and never answers; a list of its connections."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(s3, "READ_SECONDS", 0.1)
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")

        def accept():
            with suppress(OSError):
                while True:
                    accepted.append(server.accept())

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield accepted
        server.shutdown(socket.SHUT_RDWR)
    thread.join()
    for connection, _ in accepted:
        connection.close()


def test_the_policy_is_that_of_the_s3_clients():
    config = create_api_client("sagemaker", region="eu-west-1").meta.config
    assert (config.connect_timeout, config.read_timeout) == (s3.CONNECT_SECONDS, s3.READ_SECONDS)
    assert config.retries["total_max_attempts"] == API_ATTEMPTS


@pytest.mark.parametrize(
    "call",
    [
        lambda: describe("my-job"),
        lambda: start_rules("my-job", image="image", role=None),
        lambda: deploy_image("rules", dry_run=True, context=PACKAGE.parent),
    ],
    ids=["describe", "rules", "deploy"],
)
def test_an_endpoint_that_never_answers_ends_in_one_line_after_a_few_attempts(silent, call):
    with pytest.raises(ProfilerError, match=r"[Tt]imeout") as caught:
        call()
    assert "\n" not in str(caught.value)
    assert len(silent) == API_ATTEMPTS


def test_a_rule_cannot_hang_in_stopping_its_job(silent, monkeypatch, caplog):
    monkeypatch.setenv("TRAINING_JOB_NAME", "my-job")
    monkeypatch.setenv("SM_PROFILER_ALLOW_STOP_TRAINING", "1")
    with caplog.at_level(logging.WARNING, "sm_profiler.rules"):
        Actions('{"name": "StopTraining"}', "Mine").invoke()
    assert "cannot stop the training job my-job" in caplog.text
    assert len(silent) == API_ATTEMPTS


def test_clients_are_created_in_one_place():
    created = re.compile(r"boto3\.client\(|self\.session\.client\(")
    found = [path.name for path in PACKAGE.rglob("*.py") if created.search(path.read_text("utf-8"))]
    assert found == []


@pytest.mark.parametrize("name", ["AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE", "AWS_CA_BUNDLE"])
def test_an_empty_variable_counts_as_not_set(monkeypatch, tmp_path, name):
    """botocore took an empty region for a name: `Invalid endpoint: https://s3..amazonaws.com`, or an AttributeError."""
    for each in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_CA_BUNDLE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(each, raising=False)
    (tmp_path / "config").write_text("[default]\nregion = eu-north-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setattr(s3.boto3, "DEFAULT_SESSION", None)
    monkeypatch.setenv(name, "")
    assert create_api_client("sagemaker").meta.region_name == "eu-north-1"
    assert s3.create_client().meta.region_name == "eu-north-1"
    assert s3.environment_session().region_name == "eu-north-1"


def test_empty_regions_are_no_region(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_REGION", "")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "")
    for words, said in [
        (["report", "my-job"], "set a region (AWS_REGION)"),
        (["compare", "my-job", "my-job-2"], "set a region (AWS_REGION)"),
        (["fleet", "account:"], "needs a region: account:us-east-1"),
        (["rules", "start", "--job", "my-job", "--image", "x", "--role", "arn:aws:iam::123456789012:role/x"], "region"),
    ]:
        assert main(words) == 2
        assert said in capsys.readouterr().err


def test_aws_region_is_that_of_all_clients(monkeypatch):
    """boto3 reads AWS_DEFAULT_REGION only."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert s3.create_client().meta.region_name == create_api_client("sns").meta.region_name == "eu-north-1"
