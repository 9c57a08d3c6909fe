"""The end of a job's log on its page: from CloudWatch, bounded, and never anything but text."""

import time

import boto3
import pytest
from moto import mock_aws

from sm_profiler.serve.live import LiveJob
from sm_profiler.serve.logs import GROUP, MAX_LENGTH, MAX_LINES, LogTail, readable
from tests.support.serving import end, make_job

REGION = "eu-central-1"
NASTY = "<script>alert(1)</script>\x1b[31mred\x1b[0m {{7*7}}"


@pytest.fixture
def logs(monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        client = boto3.client("logs")
        client.create_log_group(logGroupName=GROUP)
        yield client


def write(client, stream, lines, at=0):
    if not client.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=stream)["logStreams"]:
        client.create_log_stream(logGroupName=GROUP, logStreamName=stream)
    events = [
        {"timestamp": int(time.time() * 1000) - 60_000 + at + number, "message": line}
        for number, line in enumerate(lines)
    ]
    client.put_log_events(logGroupName=GROUP, logStreamName=stream, logEvents=events)


def test_reads_the_last_lines_of_each_node(logs):
    write(logs, "my-job/algo-1-1700000000", [f"line {number}" for number in range(500)])
    write(logs, "my-job/algo-2-1700000000", ["other"])
    write(logs, "my-job-2/algo-1-1700000000", ["of another job"])
    tail = LogTail.of("my-job")
    assert tail.read()
    first, second = tail.streams
    assert (first.name, first.lines[-1], len(first.lines)) == ("algo-1-1700000000", "line 499", MAX_LINES // 2)
    assert second.lines == ("other",)


def test_asks_again_only_after_a_pause(logs):
    now = [0.0]
    tail = LogTail.of("my-job", lambda: now[0])
    write(logs, "my-job/algo-1-1", ["a"])
    assert tail.read()
    write(logs, "my-job/algo-1-1", ["b"], 1_000)
    assert not tail.read()
    assert tail.read(last=True)
    assert not tail.read(last=True)
    now[0] = 100.0
    write(logs, "my-job/algo-1-1", ["c"], 2_000)
    assert tail.read()
    assert tail.streams[0].lines[-1] == "c"


def test_a_refused_request_is_not_repeated_soon():
    calls, now = [], [0.0]

    def refuse(_region):
        calls.append(now[0])
        raise ValueError("no region")

    tail = LogTail("job", clock=lambda: now[0], client_of=refuse)
    for now[0] in (0.0, 11.0, 299.0, 301.0):
        assert not tail.read()
    assert calls == [0.0, 301.0]


@pytest.mark.parametrize(
    ("where", "job"),
    [
        ("my-job", "my-job"),
        ("s3://bucket/my-job/profiler-output", "my-job"),
        ("s3://bucket/a b/profiler-output", ""),
        ("a/b", ""),
    ],
)
def test_only_training_jobs_have_a_log(where, job):
    assert LogTail.of(where).job == job


def test_a_local_folder_has_none(tmp_path):
    (tmp_path / "my-job").mkdir()
    assert LogTail.of(str(tmp_path / "my-job")).job == ""


def test_lines_are_what_a_terminal_would_leave():
    assert readable("10%\r20%\r\n") == "20%"
    assert readable("\x1b]0;title\x07\x1b[1mbold\x1b[0m\x00") == "bold"
    assert len(readable("x" * 10**6)) <= MAX_LENGTH


def test_the_page_shows_it_as_text_even_without_a_profile(logs, tmp_path):
    write(logs, "job/algo-1-1", [NASTY])
    live = LiveJob("s3://no-such-bucket/job")
    live._reader.where = str(make_job(tmp_path / "job", "--minutes", "2"))
    end(tmp_path / "job")
    live._read_log()
    html = live.snapshot.parts["log"].html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;red {{7*7}}" in html
    assert "<script" not in html
    live.poll()
    assert live.snapshot.state == "ended"
    assert list(live.snapshot.parts)[-1] == "log"
