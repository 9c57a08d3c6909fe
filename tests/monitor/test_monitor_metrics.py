"""The newest values for Prometheus, read by its own parser."""

import contextlib
import errno
import gzip
import json
import logging
import os
import re
import socket
import socketserver
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from functools import partial
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread, active_count

import attrs
import pytest
import requests
import urllib3
import yaml
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from sm_profiler._version import __version__
from sm_profiler.errors import ProfilerError
from sm_profiler.formats.event_names import DATALOADER_WAIT, HANG, STEP_TRAIN
from sm_profiler.formats.layout import LOADING_FOLDER
from sm_profiler.formats.system_writer import Measurement
from sm_profiler.formats.trace_writer import TraceEvent, TraceWriter
from sm_profiler.monitor import exposition
from sm_profiler.monitor.agent import serve_metrics
from sm_profiler.monitor.board import GAUGES, MAX_DEVICES, STALE_S, STEPS, Board, Progress, StepCounter, job_labels
from sm_profiler.monitor.exposition import (
    LOST_S,
    MAX_REQUESTS,
    PORTS,
    Exposition,
    render,
    silence_retries,
    start_telemetry,
)

ROOT = Path(__file__).parents[2]
HOSTILE = 'algo"1\n\\'


class Counted:
    def __init__(self, progress):
        self.progress = progress

    def count(self):
        return {"3": self.progress}


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def families(text):
    return {family.name: family for family in text_string_to_metric_families(text)}


def rows():
    return [
        Measurement("cpu", "cpu0", "CPUUtilization", 50.0),
        Measurement("cpu", "cpu1", "CPUUtilization", 100.0),
        Measurement("memory", "MemoryUsedPercent", "", 25.0),
        Measurement("gpu", "gpu0", "GPUUtilization", 90.0),
        Measurement("gpu", "gpu1", "GPUUtilization", 10.0),
        Measurement("network", "ReceiveBytesPerSecond", "Algorithm", 3.0),
        Measurement("network", "ReceiveBytesPerSecond", "Platform", 4.0),
        Measurement("monitor", "MonitorCPUPercent", "", 1.0),
    ]


def test_prometheus_reads_every_metric():
    board = Board("algo-1", Clock())
    board.update(rows())
    found = families(render(board.values()))
    assert found["system_cpu_utilization_ratio"].samples[0].value == 0.75
    assert found["system_memory_utilization_ratio"].samples[0].value == 0.25
    gpus = {sample.labels["hw_id"]: sample.value for sample in found["hw_gpu_utilization_ratio"].samples}
    assert gpus == {"gpu0": 0.9, "gpu1": 0.1}
    assert found["sm_profiler_network_receive_bytes_per_second"].samples[0].value == 7
    assert all(sample.labels["node"] == "algo-1" for family in found.values() for sample in family.samples)


def test_every_series_names_job_host_user_and_account():
    labels = job_labels("", {"SLURM_JOB_NAME": "resnet", "SLURM_JOB_ID": "7", "SLURM_JOB_USER": "anna", "SLURM_JOB_ACCOUNT": "nlp", "SLURMD_NODENAME": "gpu-17"})  # fmt: skip
    board = Board("algo-1", Clock(), Counted(Progress(hanging=True, step_s=0.5, wait_share=0.1, samples=64.0)), labels)
    board.update(rows())
    found = families(render(board.values()))
    named = {"training_job": "resnet-7", "host": "gpu-17", "user": "anna", "account": "nlp", "node": "algo-1"}
    for family in found.values():
        for sample in family.samples:
            assert named.items() <= sample.labels.items(), family.name
    (build,) = found["sm_profiler_build_info"].samples
    assert (build.value, build.labels["version"]) == (1, __version__)
    values = {name: found[f"sm_profiler_{name}"].samples[0].value for name in ("hanging", "step_time_seconds", "data_wait_ratio", "samples_per_second")}  # fmt: skip
    assert values == {"hanging": 1, "step_time_seconds": 0.5, "data_wait_ratio": 0.1, "samples_per_second": 64}
    assert found["sm_profiler_hanging"].samples[0].labels["rank"] == "3"


def test_a_machine_without_a_scheduler_has_its_own_name():
    assert dict(job_labels("train-101", {}))["training_job"] == "train-101"
    assert dict(job_labels("", {}))["host"] == socket.gethostname()
    assert dict(job_labels("", {}))["training_job"] == socket.gethostname()  # each series has this label
    assert dict(job_labels("", {"SM_PROFILER_RUN_ID": "local-7"}))["training_job"] == "local-7"


def test_a_series_has_the_name_of_the_profile_if_the_scheduler_names_the_job_otherwise(tmp_path):
    folder = tmp_path / "given"
    claim = folder / ".sagemaker-ignore" / "owner"
    claim.parent.mkdir(parents=True)
    claim.write_text("slurm-7\nanna\n")
    slurm = {"SLURM_JOB_NAME": "resnet", "SLURM_JOB_ID": "7", "SM_PROFILER_METRICS_PORT": "0"}
    for uploads, name in ((True, "slurm-7"), (False, "given")):  # as the fleet names it in S3, and here
        board = serve_metrics(folder, "algo-1", slurm, uploads=uploads)
        assert {("training_job", "resnet-7"), ("profile", name)} <= set(board.labels)
        for end in board.ends:
            end()


def test_a_machine_without_a_training_has_no_steps(tmp_path):
    """The alert for a training that has not started fired."""
    counter = StepCounter(tmp_path, "algo-1", of_job=False)
    assert counter.count() == {}
    (tmp_path / LOADING_FOLDER).mkdir(parents=True)
    (tmp_path / LOADING_FOLDER / "7-algo-1_7").touch()
    assert counter.count()[""].steps["train"] == 0


def test_a_job_without_a_name_has_that_of_its_folder(tmp_path):
    claim = tmp_path / ".sagemaker-ignore" / "owner"
    claim.parent.mkdir()
    claim.write_text("local-20260504-102107-12\nanna\nhost 12 345")
    board = serve_metrics(tmp_path, "algo-1", {"SM_PROFILER_METRICS_PORT": "0"})
    assert dict(board.labels)["training_job"] == "local-20260504-102107-12"
    board = serve_metrics(tmp_path, "algo-1", {"SM_PROFILER_METRICS_PORT": "0"}, "train-101")
    assert dict(board.labels)["training_job"] == "train-101"


def test_the_number_of_series_is_bounded_and_old_values_vanish():
    clock = Clock()
    board = Board("algo-1", clock)
    board.update([Measurement("gpu", f"gpu{number}", "GPUUtilization", 1.0) for number in range(1000)])
    assert len(board.values()) == MAX_DEVICES + 1  # and the version
    clock.now += STALE_S + 1
    board.update([Measurement("gpu", "gpu0", "GPUUtilization", 1.0)])
    assert len(board.values()) == 2


def test_hostile_labels_are_escaped():
    board = Board(HOSTILE, Clock())
    board.update(rows())
    (sample,) = families(render(board.values()))["system_cpu_utilization_ratio"].samples
    assert sample.labels["node"] == HOSTILE


def trace(path, steps, mode="TRAIN", end="\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"name": f"Step:ModeKeys.{mode}", "ph": "X", "ts": step}) for step in range(steps)]
    with path.open("a") as file:
        file.write("[\n" + ",\n".join(lines) + end)


def test_steps_are_counted_once_while_their_file_grows_and_gets_its_name(tmp_path):
    folder = tmp_path / "framework/pevents/2026010100"
    counter = StepCounter(tmp_path, "algo-1")
    path = folder.parent / "7-algo-1_pythontimeline_7_0_1795460277129338729.json.tmp"
    trace(path, 3, end=',\n{"name": "Step:ModeKeys.TRAIN", "ph": ')
    assert counter.count()[""].steps["train"] == 3  # the last line is not complete
    with path.open("a") as file:
        file.write('"X", "ts": 3}')
    assert counter.count()[""].steps["train"] == 4
    with path.open("a") as file:
        file.write(",\n")
    trace(path, 2, "EVAL")
    trace(folder / "1_7-algo-2_pythontimeline.json", 50)  # another node's
    assert counter.count()[""].steps == {"train": 4, "eval": 2, "predict": 0}
    path.rename(folder / "9_7-algo-1_pythontimeline.json")
    assert counter.count()[""].steps["train"] == 4


def test_files_of_a_real_writer_are_counted_while_they_are_open(tmp_path):
    writer = TraceWriter(
        tmp_path, "7-algo-1", metadata=lambda: {"version": "1", "rank": 3, "phases_every": 1, "batch_size": 8}
    )
    for step in range(50):
        start = 1_790_000_000_000_000 + 100_000 * step
        writer.write([
            TraceEvent(DATALOADER_WAIT, "wait", start, 25_000),
            TraceEvent(STEP_TRAIN, STEP_TRAIN, start + 25_000, 75_000, '{"pid": 7, "step_num": "1"}'),
        ])  # fmt: skip
    counter = StepCounter(tmp_path, "algo-1", lambda: 1_790_000_005.0)
    progress = counter.count()["3"]
    assert progress.steps["train"] == 50
    assert progress.step_s == pytest.approx(0.1)
    assert progress.wait_share == pytest.approx(0.25, abs=0.02)
    assert progress.samples == pytest.approx(80, rel=0.01)
    assert not progress.hanging
    writer.write([TraceEvent(HANG, "hang", 1_790_000_006_000_000, 1, '{"pid": 7, "state": "hanging", "waited": 60.0}')])
    assert counter.count()["3"].hanging
    args = '{"pid": 7, "state": "hanging", "waited": 60.0, "threads": [{"name": "steps", "frames": []}], "steps": 60}'
    writer.write([TraceEvent(HANG, "hang", 1_790_000_007_000_000, 1, args)])
    assert counter.count()["3"].steps["train"] == 60  # the steps of a rest are written when it ends
    rest = [TraceEvent(STEP_TRAIN, STEP_TRAIN, 1_790_000_005_000_000 + step, 1) for step in range(9)]
    writer.write(rest)
    assert counter.count()["3"].steps["train"] == 60
    writer.write([TraceEvent(STEP_TRAIN, STEP_TRAIN, 1_790_000_070_000_000, 75_000)] * 2)
    assert not counter.count()["3"].hanging
    counter.now = lambda: 1_790_000_900.0
    assert counter.count()["3"].step_s is None  # too long ago
    assert counter.count()["3"].steps["train"] == 61


def test_a_rank_whose_hook_is_off_has_no_series(tmp_path):
    """An alert reported that the training had stopped."""
    states, counter = [{}, {}], StepCounter(tmp_path, "algo-1")
    writers = [
        TraceWriter(tmp_path, f"{rank}-algo-1", metadata=lambda rank=rank: {"rank": rank, "collectors": states[rank]})
        for rank in range(2)
    ]
    step = [TraceEvent(STEP_TRAIN, STEP_TRAIN, 1_790_000_000_000_000, 75_000)]
    for writer in writers:
        writer.write(step)
    assert counter.count().keys() == {"0", "1"}
    states[0] = {"hook": "failed: ValueError: x"}
    writers[0].finish()
    assert counter.count().keys() == {"1"}
    states[1] = {"hook": "failed: ValueError: x"}
    writers[1].finish()
    assert counter.count() == {}
    states[0] = {"python": "failed: ValueError: x"}  # the rank has started again
    writers[0].write(step)
    assert counter.count().keys() == {"0"}


def test_a_job_that_has_not_reached_its_first_step_has_a_series(tmp_path):
    board = Board("algo-1", Clock(), StepCounter(tmp_path, "algo-1"))
    found = families(render(board.values()))
    assert {(one.labels["mode"], one.value) for one in found["sm_profiler_steps"].samples} >= {("train", 0)}


def test_a_last_line_that_nests_deeply_is_not_complete(tmp_path):
    folder = tmp_path / "framework/pevents"
    folder.mkdir(parents=True)
    (folder / "1_7-algo-1_pythontimeline.json").write_text("[\n" + "[" * 200_000)
    assert StepCounter(tmp_path, "algo-1").count()[""].steps["train"] == 0


def test_links_are_not_followed(tmp_path):
    trace(tmp_path / "elsewhere.json", 5)
    folder = tmp_path / "out/framework/pevents"
    folder.mkdir(parents=True)
    (folder / "1_7-algo-1_pythontimeline.json").symlink_to(tmp_path / "elsewhere.json")
    os.mkfifo(folder / "2_7-algo-1_pythontimeline.json")
    assert StepCounter(tmp_path / "out", "algo-1").count()[""].steps["train"] == 0


def test_a_scrape_over_http(tmp_path, monkeypatch):
    trace(tmp_path / "framework/pevents/1_7-algo-1_pythontimeline.json", 4)
    board = Board("algo-1", Clock(), StepCounter(tmp_path, "algo-1"))
    server = Exposition("127.0.0.1", 0, board.values)
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:  # noqa: S310 - this machine's
            found = families(answer.read().decode())
        (sample,) = [one for one in found["sm_profiler_steps"].samples if one.labels["mode"] == "train"]
        assert (sample.name, sample.value) == ("sm_profiler_steps_total", 4)
        with pytest.raises(urllib.error.HTTPError) as missing:
            urllib.request.urlopen(f"{url}/etc/passwd", timeout=60)  # noqa: S310
        missing.value.close()
        second = Exposition("127.0.0.1", server.server_port, board.values)  # another job of this machine
        assert server.server_port < second.server_port < server.server_port + PORTS
        second.announce(tmp_path / "sd", "gpu-17")
        (target,) = (tmp_path / "sd").iterdir()
        assert json.loads(target.read_text()) == [
            {"targets": [f"127.0.0.1:{second.server_port}"]}
        ]  # no other machine reaches it
        second.close()
        assert not target.exists()
        third = Exposition("0.0.0.0", 0, board.values)
        third.announce(tmp_path / "sd", "gpu-17")
        (target,) = (tmp_path / "sd").iterdir()
        assert json.loads(target.read_text()) == [{"targets": [f"gpu-17:{third.server_port}"]}]
        third.close()
        monkeypatch.setattr(exposition, "PORTS", 1)
        with pytest.raises(ProfilerError, match="Address already in use"):
            Exposition("127.0.0.1", server.server_port, board.values)
    finally:
        server.close()


def test_the_address_of_a_killed_monitor_is_removed_by_another(tmp_path):
    for name, age in (("gpu-1-9400", 2 * LOST_S), ("gpu-2-9400", LOST_S / 2)):
        path = tmp_path / f"sm-profiler-{name}.json"
        path.write_text("[]")
        os.utime(path, (time.time() - age,) * 2)
    (tmp_path / "prometheus.json").write_text("[]")
    os.utime(tmp_path / "prometheus.json", (0, 0))
    server = Exposition("127.0.0.1", 0, list)
    try:
        server.announce(tmp_path, "gpu-3")
        own = f"sm-profiler-gpu-3-{server.server_port}.json"
        expected = {"prometheus.json", "sm-profiler-gpu-2-9400.json", own}
        until = time.monotonic() + 60
        while {path.name for path in tmp_path.iterdir()} != expected:
            assert time.monotonic() < until
            time.sleep(0.01)
        kept = tmp_path / "kept"
        kept.write_text("mine")
        (tmp_path / own).with_suffix(f".{os.getpid()}.tmp").symlink_to(kept)  # of another user
        (tmp_path / own).unlink()  # by a monitor that took this one for dead while it was suspended
        server._renew_at = 0.0
        server.service_actions()
        assert (tmp_path / own).is_file()
        assert not (tmp_path / own).is_symlink()
        assert kept.read_text() == "mine"
    finally:
        server.close()
    assert not (tmp_path / own).exists()


def test_clients_that_never_end_their_requests_leave_the_number_of_threads_bounded(monkeypatch, capfd):
    monkeypatch.setattr(exposition, "MAX_REQUESTS", 4)
    monkeypatch.setattr(exposition._Handler, "timeout", 1.0)
    labels = (("job", "a\udcff"),)
    values = list(Board("algo-1", Clock()).values())[:1]
    server = Exposition("127.0.0.1", 0, lambda: [attrs.evolve(value, labels=labels) for value in values])
    before, clients = active_count(), []
    try:
        for _ in range(20):
            clients.append(socket.create_connection(("127.0.0.1", server.server_port)))
            clients[-1].send(b"GET /metr")
        time.sleep(0.5)
        assert active_count() <= before + 4
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()  # resets the connection
        time.sleep(1.5)
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert b"job=" in answer.read()
    finally:
        server.close()
    assert capfd.readouterr().err == ""


def test_connections_for_which_there_is_no_descriptor_take_no_core(monkeypatch):
    server = Exposition("127.0.0.1", 0, list)
    tried = []

    def accept(self):
        tried.append(time.monotonic())
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socketserver.TCPServer, "get_request", accept)
    try:
        with socket.create_connection(("127.0.0.1", server.server_port)):
            time.sleep(1)
        assert 0 < len(tried) < 10
    finally:
        server.close()


def test_requests_for_which_there_is_no_thread_do_not_count_for_ever(monkeypatch):
    def full(_):
        raise RuntimeError("can't start new thread")

    metrics = Exposition("127.0.0.1", 0, list)
    url = f"http://127.0.0.1:{metrics.server_port}/metrics"
    try:
        with monkeypatch.context() as context:
            context.setattr(Thread, "start", full)
            for _ in range(MAX_REQUESTS):
                with pytest.raises((OSError, HTTPException)):
                    urllib.request.urlopen(url, timeout=5)
        with urllib.request.urlopen(url, timeout=5) as answer:
            assert answer.status == 200
    finally:
        metrics.close()


def test_clients_that_send_a_byte_now_and_then_do_not_keep_others_from_the_metrics(monkeypatch):
    """As many as are answered at a time kept all others away, for hours."""
    monkeypatch.setattr(exposition, "MAX_REQUESTS", 2)
    monkeypatch.setattr(exposition, "TIMEOUT_S", 1.0)
    server, stop = Exposition("127.0.0.1", 0, list), Event()

    def drip():
        with socket.create_connection(("127.0.0.1", server.server_port)) as client, contextlib.suppress(OSError):
            while not stop.wait(0.2):
                client.send(b"G")

    threads = [Thread(target=drip) for _ in range(2)]
    try:
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        url, until, answer = f"http://127.0.0.1:{server.server_port}/metrics", time.monotonic() + 20, b""
        while not answer and time.monotonic() < until:
            with contextlib.suppress(OSError, HTTPException), urllib.request.urlopen(url, timeout=5) as response:
                answer = response.read()
            time.sleep(0.1)
        assert answer
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        server.close()


def test_the_environment_of_a_job_switches_it_on(tmp_path, caplog):
    assert serve_metrics(tmp_path, "algo-1", {}) is None
    assert serve_metrics(tmp_path, "algo-1", {"SM_PROFILER_METRICS_PORT": "many"}) is None
    assert serve_metrics(tmp_path, "algo-1", {"SM_PROFILER_METRICS_PORT": "99999999"}) is None
    assert caplog.text.count("no port is opened") == 2
    assert isinstance(serve_metrics(tmp_path, "algo-1", {"SM_PROFILER_METRICS_PORT": "0"}), Board)


def test_the_command_serves_this_machine(tmp_path):
    out, targets = tmp_path / "my-machine", tmp_path / "targets"
    command = [sys.executable, "-m", "sm_profiler", "monitor", "--out", str(out), "--metrics-port", "0"]
    env = {**os.environ, "SM_PROFILER_METRICS_TARGETS": str(targets)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as monitor:
        try:
            url = monitor.stdout.readline().split()[-1]
            monitor.stdout.readline()  # it samples
            (announced,) = targets.iterdir()
            assert json.loads(announced.read_text()) == [{"targets": [url.split("/")[2]]}]
            while True:
                with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310
                    found = families(answer.read().decode())
                if "system_cpu_utilization_ratio" in found:
                    break
            assert 0 <= found["system_memory_utilization_ratio"].samples[0].value <= 1
            samples = [sample for family in found.values() for sample in family.samples]
            assert {sample.labels.get("training_job") for sample in samples} == {"my-machine"}
        finally:
            monitor.terminate()
    assert not list(targets.iterdir())


def test_opentelemetrys_sdk_reads_every_metric(tmp_path):
    trace(tmp_path / "framework/pevents/1_7-algo-1_pythontimeline.json", 4)
    board = Board("algo-1", Clock(), StepCounter(tmp_path, "algo-1"))
    board.update(rows())
    reader = InMemoryMetricReader()
    provider = start_telemetry(board, "my-job", reader)
    (resource,) = reader.get_metrics_data().resource_metrics
    assert resource.resource.attributes["sm_profiler.job"] == "my-job"
    (scope,) = resource.scope_metrics
    found = {metric.name: metric for metric in scope.metrics}
    assert found["system.cpu.utilization"].data.data_points[0].value == 0.75
    assert found["system.cpu.utilization"].unit == "1"
    gpus = {point.attributes["hw.id"]: point.value for point in found["hw.gpu.utilization"].data.data_points}
    assert gpus == {"gpu0": 0.9, "gpu1": 0.1}
    steps = {point.attributes["mode"]: point.value for point in found["sm_profiler.steps"].data.data_points}
    assert steps["train"] == 4
    assert found["sm_profiler.steps"].data.is_monotonic
    provider.shutdown()


def test_otlp_names_the_machine_and_the_job():
    labels = (("training_job", "a"), ("host", "gpu-17"), ("user", "anna"), ("account", "nlp"))
    reader = InMemoryMetricReader()
    provider = start_telemetry(Board("algo-1", Clock(), None, labels), reader=reader)
    (resource,) = reader.get_metrics_data().resource_metrics
    named = {"host.name": "gpu-17", "sm_profiler.job": "a", "user.name": "anna", "sm_profiler.account": "nlp"}
    assert named.items() <= dict(resource.resource.attributes).items()
    provider.shutdown()


def test_an_unreachable_collector_is_one_line(caplog):
    silence_retries()
    exporter = logging.getLogger("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    for attempt in range(5):
        exporter.warning(
            "Transient error %s encountered while exporting metrics batch, retrying in %ss.", "refused", attempt
        )
        logging.getLogger("urllib3.connectionpool").warning("Retrying (Retry(total=%d))", attempt)
        exporter.error("Failed to export")
    assert len(caplog.records) == 1
    assert "the OpenTelemetry collector cannot be reached" in caplog.text
    exporter.filters.clear()
    logging.getLogger("urllib3.connectionpool").setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    "send", [partial(requests.post, timeout=0.2), partial(urllib3.request, "POST", timeout=0.2, retries=False)]
)
@pytest.mark.parametrize(("listens", "reason"), [(False, "Connection refused"), (True, "no answer in time")])
def test_the_reason_of_an_unreachable_collector_is_a_few_words(caplog, send, listens, reason):
    """The line had the text of three nested errors with their addresses in memory, cut after 300 characters."""
    silence_retries()
    exporter = logging.getLogger("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if listens:
            silent.listen(1)
        with pytest.raises(Exception) as caught:
            send(url=f"http://127.0.0.1:{silent.getsockname()[1]}/v1/metrics")
    try:
        exporter.warning("Transient error %s encountered while exporting, retrying in %.2fs.", caught.value, 1.0)
        assert caplog.messages == [
            f"sm-profiler: the OpenTelemetry collector cannot be reached; metrics are dropped until it can: {reason}"
        ]
    finally:
        exporter.filters.clear()
        logging.getLogger("urllib3.connectionpool").setLevel(logging.NOTSET)


@pytest.fixture
def collector(monkeypatch):
    """Names of the metrics, and attributes of their resources, that arrive at a collector, to which `OTEL_*` points."""

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                got.update(metric.name for scope in resource.scope_metrics for metric in scope.metrics)
                got.update(f"{one.key}={one.value.string_value}" for one in resource.resource.attributes)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            """Log nothing."""

    got = set()
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield got
        server.shutdown()
        thread.join()


def test_metrics_arrive_at_a_collector_by_otlp(tmp_path, collector):
    command = [sys.executable, "-m", "sm_profiler", "monitor", "--out", tmp_path, "--otlp", "--interval-ms", "100"]
    environment = {**os.environ, "OTEL_METRIC_EXPORT_INTERVAL": "300"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as monitor:
        until = time.monotonic() + 120
        while "system.cpu.utilization" not in collector and time.monotonic() < until:
            time.sleep(0.05)
        monitor.terminate()
    assert {"system.cpu.utilization", "system.memory.utilization"} <= collector
    assert monitor.returncode == 0


def test_a_job_pushes_its_metrics_by_otlp(tmp_path, collector):
    board = serve_metrics(tmp_path, "algo-1", {"SM_PROFILER_METRICS_OTLP": "1"}, "train-101")
    board.update(rows())
    for end in board.ends:
        end()
    assert {"system.cpu.utilization", "sm_profiler.build.info", "sm_profiler.job=train-101"} <= collector


def test_a_collector_that_is_away_neither_stops_nor_delays_a_job(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    exporter = logging.getLogger("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    monkeypatch.setattr(exporter, "filters", [])
    board = serve_metrics(tmp_path, "algo-1", {"SM_PROFILER_METRICS_OTLP": "1"})
    started = time.monotonic()
    for end in board.ends:
        with contextlib.suppress(Exception):
            end()
    assert time.monotonic() - started < 30
    assert caplog.text.count("the OpenTelemetry collector cannot be reached") == 1


@contextlib.contextmanager
def answering(monkeypatch, answer):
    """Listen as a collector, to which `OTEL_*` points, and give each request an answer; yield their headers."""

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(dict(self.headers))
            self.rfile.read(int(self.headers["Content-Length"]))
            with contextlib.suppress(OSError):
                answer(self)

        do_GET = do_PUT = do_POST

        def log_message(self, *_):
            """Log nothing."""

    got = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield got
        server.shutdown()


@pytest.fixture
def exporter(monkeypatch):
    """The exporter's logger, without what earlier tests have filtered."""
    logger = logging.getLogger("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    monkeypatch.setattr(logger, "filters", [])
    return logger


def reported(caplog):
    """Return the lines of a test, without the last one of an earlier test's job, whose thread may still end."""
    return [line for line in caplog.messages if "Shutdown in progress" not in line]


def test_an_answer_without_an_end_is_not_read(tmp_path, monkeypatch, exporter, caplog):
    def endless(request):
        request.send_response(200)
        request.end_headers()
        for _ in range(600):  # a minute
            request.wfile.write(b"x" * (64 << 10))
            sent.append(64 << 10)
            time.sleep(0.1)

    sent = []
    with answering(monkeypatch, endless) as got:
        board = serve_metrics(tmp_path, "algo-1", {"SM_PROFILER_METRICS_OTLP": "1"})
        started = time.monotonic()
        for end in board.ends:
            end()
        assert time.monotonic() - started < 4
    assert got
    assert sum(sent) < 20 << 20
    assert not reported(caplog)


@pytest.mark.parametrize("sent", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 100 Continue\r\n\r\n", b""])
def test_an_answer_that_comes_byte_by_byte_has_one_deadline(sent, tmp_path, monkeypatch, exporter, caplog):
    """Each byte was in time, so the exporter waited for hours."""

    def drip(request):
        for _ in range(30):
            request.wfile.write(sent or b"H")
            request.wfile.flush()
            time.sleep(0.2)

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with answering(monkeypatch, drip) as got:
        board = serve_metrics(tmp_path, "algo-1", {"SM_PROFILER_METRICS_OTLP": "1"})
        started = time.monotonic()
        for end in board.ends:
            end()
        assert time.monotonic() - started < 3
    assert got
    [line] = reported(caplog)
    assert "metrics are dropped until it can" in line


def test_a_redirect_gets_no_key_and_is_one_line(tmp_path, monkeypatch, exporter, caplog):
    def redirect(request):
        request.send_response(307)
        request.send_header("Location", "/elsewhere")
        request.end_headers()

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret")
    with answering(monkeypatch, redirect) as got:
        board = serve_metrics(tmp_path, "algo-1", {"SM_PROFILER_METRICS_OTLP": "1"})
        for end in board.ends:
            end()
    assert len(got) == 1
    [line] = caplog.messages
    assert line.endswith("metrics are dropped until it can: it answers with a redirect (HTTP status 307)")


def test_without_the_sdk_a_job_has_one_line(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
    assert serve_metrics(tmp_path, "algo-1", {"SM_PROFILER_METRICS_OTLP": "1"}) is None
    # the last push of an earlier test's job may still report that no collector answers
    assert [line for line in caplog.messages if "no metrics" in line] == [
        "sm-profiler: no metrics for OpenTelemetry: OpenTelemetry metrics need its SDK: pip install 'sm-profiler[otel]'"
    ]


def names_in(text):
    return set(re.findall(r"\b(?:hw|system|sm_profiler)_[a-z]+_[a-z_]+\b", text))


@pytest.mark.parametrize("name", ["grafana-dashboard.json", "prometheus-alerts.yml"])
def test_examples_name_metrics_that_exist(name):
    board = Board(
        "algo-1", Clock(), Counted(Progress(step_s=1.0, wait_share=0.1, samples=1.0)), (("training_job", "a"),)
    )
    board.update([Measurement("x", "gpu0" if "GPU" in key else key, key, 1.0) for key in GAUGES])
    board.update(rows())
    known = set(families(render(board.values()))) | {"sm_profiler_steps_total"}
    text = (ROOT / "examples/monitoring" / name).read_text()
    assert names_in(text)
    assert names_in(text) <= known
    assert STEPS.counts


def test_the_dashboard_has_what_grafana_requires():
    board = json.loads((ROOT / "examples/monitoring/grafana-dashboard.json").read_text())
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(board)
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    for panel in board["panels"]:
        assert {"type", "title", "gridPos", "targets", "datasource"} <= set(panel)
        assert all(target["expr"] for target in panel["targets"])
        assert len({target["legendFormat"] for target in panel["targets"]}) == len(panel["targets"])
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


def expressions():
    """Return the PromQL of the examples."""
    board = json.loads((ROOT / "examples/monitoring/grafana-dashboard.json").read_text())
    rules = yaml.safe_load((ROOT / "examples/monitoring/prometheus-alerts.yml").read_text())
    alerts = {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}
    return alerts, [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_examples_keep_jobs_apart():
    alerts, panels = expressions()
    for expression in [*alerts.values(), *panels]:
        assert expression.count("(") == expression.count(")")
        assert "node" not in expression
    for name, expression in alerts.items():  # a target that is down has an address only
        by = "instance" if name == "TrainingNotAnswering" else "training_job"
        assert re.match(rf"(sum|avg|max) by \({by}, ", expression), expression
    for expression in panels:
        assert " or " not in expression  # which drops series whose labels its left side has, too
        metrics = len(re.findall(r"\b(?:hw|system|sm_profiler)_[a-z_]+", expression))
        assert expression.count('{training_job=~"$training_job", host=~"$host"}') == metrics > 0
        assert " by (" not in expression or " by (training_job" in expression
    assert "== 0" in alerts["TrainingStopped"]
    assert (
        "sum by (training_job, user, account) (sm_profiler_steps_total) > 0" in alerts["TrainingStopped"]
    )  # else: not started
    assert "== 0" in alerts["TrainingNotStarted"]
    (steps,) = [expression for expression in panels if "sm_profiler_steps_total" in expression]
    assert steps.startswith("max by (training_job, mode) (rate(")  # all ranks make the same steps


def test_the_dashboard_chooses_jobs_by_account_and_user():
    board = json.loads((ROOT / "examples/monitoring/grafana-dashboard.json").read_text())
    chosen = {one["name"]: one["query"] for one in board["templating"]["list"] if one["type"] == "query"}
    assert list(chosen) == ["account", "user", "training_job", "host"]
    assert '{account=~"$account", user=~"$user"}' in chosen["training_job"]


def test_alerts_have_what_prometheus_requires():
    rules = yaml.safe_load((ROOT / "examples/monitoring/prometheus-alerts.yml").read_text())
    for group in rules["groups"]:
        assert group["name"]
        for rule in group["rules"]:
            assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
            by = set(re.findall(r"\w+", re.search(r"by \(([^)]*)\)", rule["expr"])[1]))
            used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
            assert used <= by, rule["alert"]


def test_the_alert_of_a_hang_names_a_rank_if_there_is_one():
    rules = yaml.safe_load((ROOT / "examples/monitoring/prometheus-alerts.yml").read_text())
    (hangs,) = (rule for group in rules["groups"] for rule in group["rules"] if rule["alert"] == "TrainingHangs")
    assert hangs["annotations"]["summary"].startswith("{{ if $labels.rank }}Rank {{ $labels.rank }} of {{ end }}")


def test_alerts_page_for_what_cannot_go_on():
    """A hang paged at once, each long evaluation did, and a lost node never."""
    rules = yaml.safe_load((ROOT / "examples/monitoring/prometheus-alerts.yml").read_text())
    alerts = {rule["alert"]: rule for group in rules["groups"] for rule in group["rules"]}
    critical = {name for name, rule in alerts.items() if rule["labels"]["severity"] == "critical"}
    assert critical == {"TrainingHangs", "TrainingLostNode"}
    assert all(rule["for"] for rule in alerts.values())
    assert "up{" in alerts["TrainingNotAnswering"]["expr"]
