"""Messages and metrics, sent to moto's services and to a web server of our own."""

import contextlib
import json
import os
import re
import socket
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from types import ModuleType, SimpleNamespace

import attrs
import boto3
import pytest
from botocore.parsers import ResponseParserError
from moto import mock_aws
from msgspec.structs import replace

from sm_profiler.cli import main
from sm_profiler.errors import ConfigError, SourceError
from sm_profiler.exporters import aws as on_aws
from sm_profiler.exporters.destination import (
    ATTEMPTS,
    KINDS,
    MAX_ERROR,
    SentList,
    Webhook,
    message_of,
    open_destination,
    sent_folder,
)
from sm_profiler.monitor.run_state import write_state
from sm_profiler.storage import LocalStorage
from tests.support.jobs import make_job
from tests.support.reports import report_from, training

HOSTILE = "<!channel> \x1b[31m\n{job} <https://evil.example|click>" + "x" * 5000


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture(scope="module")
def report():
    return report_from(training(400, wait=0.0205), name="my-job")


@pytest.fixture
def aws(monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    with mock_aws():
        yield


@pytest.fixture
def hook():
    """A web server that answers with the statuses in `hook.answers`, then 200, and keeps what it got."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.got.append(json.loads(body))
            status, headers = server.answers.pop(0) if server.answers else (200, {})
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_):
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.got, server.answers = [], []
    server.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_message_names_cause_line_gain_and_next_step(report):
    message = message_of(report)
    assert message.title.startswith("my-job: ")
    assert report.verdict.main.headline in message.lines
    step = report.verdict.main.next_step
    assert any(len(line) > 20 and step.startswith(line.removesuffix("…").removesuffix(".")) for line in message.lines)
    assert all(len(line) <= 300 for line in message.lines)
    assert message.detail["verdict"]["class"] == "INPUT_BOUND"
    stored = message_of(attrs.evolve(report, source="s3://bucket/job/profiler-output"))
    assert stored.lines[-1] == "Profile: s3://bucket/job/profiler-output"
    json.dumps(message.detail, allow_nan=False)


def test_a_message_names_user_job_and_machine(report):
    who = {"user": "bob", "job": "resnet"}
    nodes = [{"node": f"algo-{n}", "identity": {**who, "host": f"gpu0{n}"}} for n in range(1, 6)]
    told = attrs.evolve(report, metrics=attrs.evolve(report.metrics, metadata=nodes))
    message = message_of(told)
    assert message.lines[0] == "User bob, job resnet, host gpu01, gpu02, gpu03 and 2 more"
    assert (message.detail["user"], message.detail["job_name"]) == ("bob", "resnet")
    assert message.detail["hosts"][-1] == "gpu05"
    nobody = attrs.evolve(report, metrics=attrs.evolve(report.metrics, metadata=[]))
    assert message_of(nobody).lines[0] == report.verdict.main.headline


def test_a_message_has_the_beginning_of_a_long_next_step(report):
    """It had a paragraph of twelve lines in Slack."""
    step = "Prepare batches in worker processes. " + "More workers alone do not suffice, since each has one core. " * 8
    told = attrs.evolve(report, verdict=attrs.evolve(report.verdict, main=replace(report.verdict.main, next_step=step)))
    (shown,) = [line for line in message_of(told).lines if line.startswith("Prepare")]
    assert len(shown) <= 240
    assert shown.endswith("one core.")


def test_a_message_has_the_names_of_processes_that_the_page_has(report):
    (node,) = report.metrics.nodes
    metrics, name = attrs.evolve(report.metrics, metadata=[{"node": node, "rank": 1, "pid": 7}]), f"{node}-1"
    main = replace(report.verdict.main, headline=f"Rank {name} delays the others.", next_step=f"Compare {name}.")
    told = attrs.evolve(report, metrics=metrics, verdict=attrs.evolve(report.verdict, main=main))
    assert {"Rank 1 delays the others.", "Compare rank 1."} <= set(message_of(told).lines)


def test_a_webhook_gets_text_in_slacks_format(report, hook):
    Webhook(hook.url).send(report)
    (sent,) = hook.got
    assert sent["text"].startswith("*my-job: ")


def test_hostile_names_cannot_mention_or_link(hook):
    Webhook(hook.url).send(report_from(training(50), name=HOSTILE))
    text = hook.got[0]["text"]
    assert "<" not in text
    assert "\x1b" not in text
    assert len(text) < 4000


def test_names_in_a_message_neither_call_people_nor_hide_an_address(report, hook):
    Webhook(hook.url).send(report_from(training(50), name="@everyone @channel [report](https://evil.example)"))
    text = hook.got[0]["text"]
    assert "everyone" in text
    assert not re.search(r"@\w|\]\(", text)


def test_a_webhook_is_tried_again_when_that_may_help(report, hook):
    slept = []
    hook.answers = [(503, {}), (429, {"Retry-After": "7"}), (200, {})]
    Webhook(hook.url, sleep=slept.append).send(report)
    assert len(hook.got) == 3
    assert slept[0] > 0
    assert slept[1] == 7


@pytest.mark.parametrize("answer", [(404, {}), (302, {"Location": "http://127.0.0.1:1/"})])
def test_a_webhook_that_refuses_is_one_line(report, hook, answer):
    hook.answers = [answer]
    with pytest.raises(SourceError, match=f"webhook at 127.0.0.1: HTTP status {answer[0]}"):
        Webhook(hook.url, sleep=pytest.fail).send(report)
    assert len(hook.got) == 1


def test_an_answer_that_is_no_http_is_one_short_line(report):
    """Its 5000 bytes were the error's text."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            for _ in range(ATTEMPTS):
                client, _ = server.accept()
                with client:
                    client.recv(65536)
                    client.sendall(b"\xff\x1b[2J\r" * 1000 + b"\n\n")

        thread = Thread(target=answer)
        thread.start()
        with pytest.raises(SourceError) as error:
            Webhook(f"http://127.0.0.1:{server.getsockname()[1]}/", sleep=bool).send(report)
        thread.join()
    assert len(str(error.value)) <= MAX_ERROR + 40
    assert str(error.value).isprintable()


def test_a_webhook_that_is_gone_is_one_line(report, hook):
    slept = []
    hook.answers = [(500, {})] * 10
    with pytest.raises(SourceError, match="HTTP status 500"):
        Webhook(hook.url, sleep=slept.append).send(report)
    with pytest.raises(SourceError, match="webhook at localhost"):
        Webhook("http://localhost:1/", sleep=slept.append).send(report)
    assert len(slept) == 2 * (ATTEMPTS - 1)


def test_a_server_that_trickles_takes_the_time_of_all_attempts_once(report):
    """A byte each 0.05 s: no read ever waits long, and the answer never ends."""

    class Trickle(BaseHTTPRequestHandler):
        def do_POST(self):
            with contextlib.suppress(OSError):
                while not over.wait(0.05):
                    self.wfile.write(b"H")

        def log_message(self, *_):
            """Log nothing."""

    over = Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Trickle)
    Thread(target=server.serve_forever, daemon=True).start()
    slept = []
    try:
        with pytest.raises(SourceError, match=r"no answer within 0\.2 s"):
            Webhook(f"http://127.0.0.1:{server.server_port}/", slept.append, all_s=0.2).send(report)
    finally:
        over.set()
        server.shutdown()
        server.server_close()
    assert not slept


def test_each_request_to_aws_has_a_deadline(monkeypatch):
    over = Event()
    monkeypatch.setattr(on_aws, "REQUEST_S", 0.05)

    def publish():
        over.wait()

    with pytest.raises(SourceError, match="no answer within"):
        on_aws.request("sns:x", publish)
    over.set()


def test_groups_and_streams_are_created_once_and_in_time(aws, report, monkeypatch):
    """A service that never answered was waited for: only later requests had a deadline."""
    logs, over = open_destination("cloudwatch:group"), Event()
    logs.send(report)
    assert logs.send(report).endswith("events with metrics to group")
    monkeypatch.setattr(on_aws, "REQUEST_S", 0.05)
    logs.client = SimpleNamespace(create_log_group=lambda **_: over.wait(5), exceptions=logs.client.exceptions)
    with pytest.raises(SourceError, match="no answer within"):
        logs.send(report)
    over.set()


def test_a_message_has_the_address_of_the_report(report):
    assert "Report: " not in message_of(report).text
    linked = attrs.evolve(report, link="https://reports.example/job")
    assert "Report: https://reports.example/job" in message_of(linked).text
    assert message_of(linked).detail["report"] == "https://reports.example/job"


@pytest.mark.parametrize(
    "text",
    ["", "mail:x", "webhook", "webhook:http://example.com/x", "webhook:file:///etc/passwd", "webhook:https://a b", "webhook:https://hooks.slack.com/…",
     "webhook:https://[", "sns:topic", "eventbridge:a b", "cloudwatch:a b"],
)  # fmt: skip
def test_wrong_destinations_are_refused(aws, text):
    with pytest.raises(ConfigError):
        open_destination(text)


def test_a_secret_address_is_in_no_message():
    with pytest.raises(ConfigError) as refused:
        open_destination("webhook:http://example.com/secret-token")
    assert "secret-token" not in str(refused.value)


def test_an_answer_that_is_no_answer_of_aws_is_one_line():
    """It was a traceback, with the page that a proxy had answered."""

    def publish(**_):
        raise ResponseParserError(
            "Unable to parse response, invalid XML received. Further retries:\nb'<html>...</html>'"
        )

    with pytest.raises(
        SourceError, match=r"^sns:x: publish: the answer is not one of AWS: the endpoint is another server"
    ):
        on_aws.request("sns:x", publish)


def test_sns_gets_text_and_attributes(aws, report):
    topic = boto3.client("sns").create_topic(Name="team")["TopicArn"]
    queue = boto3.client("sqs").create_queue(QueueName="team")["QueueUrl"]
    boto3.client("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint="arn:aws:sqs:eu-west-1:123456789012:team")
    on_aws.open_topic(topic).send(report)
    (got,) = boto3.client("sqs").receive_message(QueueUrl=queue)["Messages"]
    body = json.loads(got["Body"])
    assert body["MessageAttributes"]["class"]["Value"] == "INPUT_BOUND"
    assert body["Subject"].startswith("my-job: ")
    assert report.verdict.main.headline in body["Message"]


def test_eventbridge_rules_can_choose_by_class(aws, report):
    events, logs = boto3.client("events"), boto3.client("logs")
    logs.create_log_group(logGroupName="/aws/events/found")
    pattern = {"source": ["sm-profiler"], "detail": {"verdict": {"class": ["INPUT_BOUND"]}}}
    events.put_rule(Name="found", EventPattern=json.dumps(pattern))
    arn = "arn:aws:logs:eu-west-1:123456789012:log-group:/aws/events/found"
    events.put_targets(Rule="found", Targets=[{"Id": "1", "Arn": arn}])
    on_aws.open_bus("").send(report)
    on_aws.open_bus("").send(report_from(training(400)))
    streams = logs.describe_log_streams(logGroupName="/aws/events/found")["logStreams"]
    (got,) = [
        json.loads(event["message"])
        for stream in streams
        for event in logs.get_log_events(logGroupName="/aws/events/found", logStreamName=stream["logStreamName"])[
            "events"
        ]
    ]
    assert got["detail"]["verdict"]["class"] == "INPUT_BOUND"
    assert got["detail-type"] == on_aws.DETAIL_TYPE


def test_a_bus_that_is_missing_is_one_line(aws, report):
    with pytest.raises(SourceError, match=r"^eventbridge:missing: put_events: "):
        on_aws.open_bus("missing").send(report)


def test_a_topic_that_is_missing_is_named(aws, report):
    """It was “publish: Endpoint does not exist”, whichever of several destinations that was."""
    topic = "arn:aws:sns:eu-west-1:123456789012:missing"
    with pytest.raises(SourceError, match=f"^sns:{topic}: publish: "):
        on_aws.open_topic(topic).send(report)


def test_cloudwatch_events_are_in_the_embedded_metric_format(aws, report):
    on_aws.open_log_group("").send(report)
    on_aws.open_log_group("").send(report)  # group and stream are there already
    logs = boto3.client("logs")
    got = logs.get_log_events(logGroupName="/sm-profiler", logStreamName="my-job")["events"]
    found = [json.loads(event["message"]) for event in got]
    assert len(found) == 2 * (1 + len(report.metrics.ranks))
    for one in found:
        (directive,) = one["_aws"]["CloudWatchMetrics"]
        assert directive["Namespace"] == "sm-profiler"
        assert all(isinstance(one[metric["Name"]], float | int) for metric in directive["Metrics"])
        assert all(one[name] for names in directive["Dimensions"] for name in names)
    assert found[0]["Verdict"] == "INPUT_BOUND"
    assert found[0]["LostTime"] == pytest.approx(100 * report.verdict.main.share_of_time)


def test_the_example_dashboard_is_valid_and_names_our_metrics(aws):
    body = (Path(__file__).parents[2] / "examples/monitoring/cloudwatch-dashboard.json").read_text()
    boto3.client("cloudwatch").put_dashboard(DashboardName="training", DashboardBody=body)
    named = set(re.findall(r'MetricName=\\"(\w+)\\"', body))
    assert named
    assert named <= set(on_aws.UNITS)


def test_a_finding_is_sent_once(report, tmp_path):
    sent = SentList(LocalStorage(tmp_path))
    assert not sent.has(report, "webhook:https://secret")
    sent.record(report, "webhook:https://secret")
    again = SentList(LocalStorage(tmp_path))
    assert again.has(report, "webhook:https://secret")
    assert not again.has(report, "eventbridge")
    assert not again.has(report_from(training(400), name="my-job"), "webhook:https://secret")
    assert "secret" not in (tmp_path / "sent.json").read_text()


@pytest.mark.parametrize("text", ["{", "[]", '{"sent": 3}', "[" * 100_000])
def test_a_damaged_list_sends_nothing_in_silence(report, tmp_path, text):
    (tmp_path / "sent.json").write_text(text)
    sent = SentList(LocalStorage(tmp_path))
    try:
        assert not sent.has(report, "eventbridge")
    except SourceError as error:
        assert "sent.json is damaged" in str(error)  # either is fine, a crash is not


def test_command(tmp_path, hook, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    slow = make_job(tmp_path / "slow", "--scenario", "dataloader-slow", "--minutes", "2")
    assert main(["export", str(slow), "--to", f"webhook:{hook.url}"]) == 0
    assert main(["export", str(slow), "--to", f"webhook:{hook.url}"]) == 0
    assert "webhook: sent before" in capsys.readouterr().out
    for same in ("slow", "./slow/", f"../{tmp_path.name}/slow"):
        assert main(["export", same, "--to", f"webhook:{hook.url}"]) == 0
    assert len(hook.got) == 1
    assert main(["export", str(slow), "--to", f"webhook:{hook.url}", "--again"]) == 0
    assert len(hook.got) == 2
    calm = make_job(tmp_path / "calm", "--scenario", "healthy", "--minutes", "2")
    assert main(["export", str(calm), "--to", f"webhook:{hook.url}", "--problems-only"]) == 0
    assert len(hook.got) == 2
    failed = make_job(tmp_path / "failed", "--scenario", "healthy", "--minutes", "2")
    write_state(failed, exit_code=1)
    assert main(["export", str(failed), "--to", f"webhook:{hook.url}", "--problems-only"]) == 0
    assert len(hook.got) == 3
    assert main(["export", str(slow)]) == 2
    assert "--to is missing" in capsys.readouterr().err


def test_what_a_server_answers_is_printable(tmp_path, capsys, monkeypatch):
    """A run's ID of a tracking server reached the terminal as it was."""
    exporter = SimpleNamespace(once=False, send=lambda _: "the report to run \x1b]0;owned\x07")
    monkeypatch.setattr("sm_profiler.exporters.destination.open_destination", lambda _: exporter)
    job = make_job(tmp_path / "job", "--scenario", "dataloader-slow", "--minutes", "1")
    assert main(["export", str(job), "--to", "mlflow"]) == 0
    assert r"the report to run \x1b]0;owned\x07" in capsys.readouterr().out


def test_a_finding_is_sent_once_from_all_folders(tmp_path, hook, capsys, monkeypatch):
    """The list of what was sent was in the working directory; one that is there already counts."""
    job = make_job(tmp_path / "job", "--scenario", "dataloader-slow", "--minutes", "1")
    command = ["export", str(job), "--to", f"webhook:{hook.url}"]
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        assert main(command) == 0
        assert not list(Path().iterdir())
    assert "webhook: sent before" in capsys.readouterr().out
    (found,) = Path(os.environ["XDG_STATE_HOME"]).rglob("sent.json")
    Path("profiler-report/job").mkdir(parents=True)
    found.rename("profiler-report/job/sent.json")
    assert main(command) == 0
    assert len(hook.got) == 1


def test_the_list_of_a_job_has_a_place_without_a_home(monkeypatch):
    assert sent_folder("../a/b", {"XDG_STATE_HOME": "/state"}) == "/state/sm-profiler/sent/%2Fa%2Fb"
    monkeypatch.setenv("HOME", "/home/me")
    assert sent_folder("a", {"XDG_STATE_HOME": "relative"}) == "/home/me/.local/state/sm-profiler/sent/a"


def test_one_destination_that_fails_keeps_nothing_from_the_others(tmp_path, hook, aws, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = make_job(tmp_path / "job", "--scenario", "dataloader-slow", "--minutes", "1")
    hook.answers = [(403, {})]
    command = ["export", str(job), "--to", f"webhook:{hook.url}", "--to", "eventbridge"]
    assert main(command) == 2
    shown = capsys.readouterr()
    assert "eventbridge: sent" in shown.out
    assert shown.err.splitlines()[-1] == "sm-profiler: webhook at 127.0.0.1: HTTP status 403"
    assert main(command) == 0
    assert "eventbridge: sent before" in capsys.readouterr().out
    assert len(hook.got) == 2


def test_nothing_is_sent_that_cannot_be_noted(tmp_path, hook, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = make_job(tmp_path / "job", "--scenario", "dataloader-slow", "--minutes", "1")
    (tmp_path / "file").touch()
    assert main(["export", str(job), "--to", f"webhook:{hook.url}", "--ledger", "file"]) == 2
    assert "sent.json" in capsys.readouterr().err
    assert not hook.got


def test_every_kind_can_be_opened(aws):
    places = {"webhook": "https://example.com/x", "sns": "arn:aws:sns:eu-west-1:123456789012:topic"}
    for kind in KINDS.keys() - {"mlflow"}:  # which is tested with a server, in an environment of its own
        assert open_destination(f"{kind}:{places[kind]}" if kind in places else kind)


def test_an_mlflow_server_that_never_answers_is_given_up(monkeypatch):
    never = Event()

    class Client:
        def __getattr__(self, name):
            return lambda *_, **__: never.wait(30)

    for name, content in (("entities", ("Metric", "RunTag")), ("exceptions", ("MlflowException",)), ("tracking", ("MlflowClient",))):  # fmt: skip
        module = ModuleType(f"mlflow.{name}")
        for one in content:
            setattr(module, one, type(one, (Exception,), {}))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    monkeypatch.delitem(sys.modules, "sm_profiler.exporters.mlflow_runs", raising=False)
    from sm_profiler.exporters import mlflow_runs

    monkeypatch.setattr(mlflow_runs, "REQUEST_S", 0.05, raising=False)
    report = report_from(training(50))
    try:
        with pytest.raises(SourceError, match=r"MLflow: no answer within 0\.05 s"):
            mlflow_runs.Tracking(Client()).send(report)
    finally:
        never.set()
        sys.modules.pop("sm_profiler.exporters.mlflow_runs", None)
