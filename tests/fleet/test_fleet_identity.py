"""Names of users, accounts, jobs and labels, from Slurm, Kubernetes and the job's own variables."""

import getpass
import json
import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import attrs
import numpy as np
import pytest

from sm_profiler.container import Resources, read_resources
from sm_profiler.fleet.analysis import assemble
from sm_profiler.fleet.page import render_html
from sm_profiler.fleet.wording import summary
from sm_profiler.formats.columns import Category, SystemColumns
from sm_profiler.formats.system_writer import Measurement, SystemWriter
from sm_profiler.formats.trace_records import validated
from sm_profiler.hook import clock
from sm_profiler.identity import MAX_LABELS, identity, machine_of
from sm_profiler.metrics.system_fold import MAX_OWNERS, SystemFold
from sm_profiler.monitor.place import user_name
from sm_profiler.monitor.sampler import Identity
from sm_profiler.report.build import build_report
from sm_profiler.report.report_json import to_json
from sm_profiler.source import open_source
from tests.support.fleets import START_S, description, finding, priced, report_json

SLURM = {
    "SLURM_JOB_USER": "anna", "SLURM_JOB_ACCOUNT": "vision", "SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "resnet",
    "SLURM_JOB_PARTITION": "h100", "SLURMD_NODENAME": "gpu-17",
}  # fmt: skip
LABELS = 'team="nlp"\nowner="ben"\nkueue.x-k8s.io/queue-name="low"\nquote="a\\"b"\nnot a label\n'


def found(environment, tmp_path, **options):
    return identity(environment, **{"input_config": str(tmp_path / "none"), "namespace_file": str(tmp_path / "none"), **options})  # fmt: skip


def test_slurm(tmp_path):
    assert found(SLURM, tmp_path) == {
        "user": "anna", "account": "vision", "job_id": "4711", "job": "resnet", "queue": "h100", "host": "gpu-17",
    }  # fmt: skip


def test_kubernetes(tmp_path):
    (tmp_path / "labels").write_text(LABELS)
    (tmp_path / "namespace").write_text("research\n")
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-worker-0", "SM_PROFILER_HOST": "ip-10-1-2-3"}
    known = found(pod, tmp_path, labels_file=str(tmp_path / "labels"), namespace_file=str(tmp_path / "namespace"))
    assert known == {
        "user": "ben", "account": "nlp", "queue": "low", "namespace": "research", "pod": "train-worker-0", "host": "ip-10-1-2-3",
        "label:team": "nlp", "label:owner": "ben", "label:kueue.x-k8s.io/queue-name": "low", "label:quote": 'a"b',
    }  # fmt: skip


@pytest.mark.parametrize(
    ("variables", "name"),
    [({}, "4101000"), ({"LOGNAME": "anna"}, "anna"), ({"USER": "ben", "LOGNAME": "anna"}, "ben")],
)
def test_a_user_without_an_entry_has_the_name_in_the_environment_or_its_number(tmp_path, monkeypatch, variables, name):
    """In a container, the folders of a cluster's users were named by numbers."""
    monkeypatch.setattr(os, "getuid", lambda: 4_101_000)
    monkeypatch.setattr(os, "geteuid", os.getuid)
    for variable in ("USER", "LOGNAME"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert found(variables, tmp_path)["user"] == user_name() == name


def test_own_variables_come_first(tmp_path):
    assert found({**SLURM, "SM_PROFILER_USER": "carla"}, tmp_path)["user"] == "carla"


def test_a_machine_has_its_name_and_its_user(tmp_path):
    known = found({}, tmp_path)
    assert known["host"] == socket.gethostname()
    assert known.get("user", "") == ("" if os.getuid() == 0 else getpass.getuser())
    (tmp_path / "config").mkdir()
    assert found({}, tmp_path, input_config=str(tmp_path / "config")) == {}


def test_odd_files_and_names_are_harmless(tmp_path):
    (tmp_path / "labels").write_bytes(b"\xff\x00" + b"".join(b'k%d="v"\n' % number for number in range(1000)))
    known = found({"SLURM_JOB_USER": "x" * 999 + "\x1b[31m"}, tmp_path, labels_file=str(tmp_path / "labels"))
    assert len(known["user"]) == 200
    assert sum(key.startswith("label:") for key in known) <= MAX_LABELS
    assert "label:x" not in found({}, tmp_path, labels_file=str(tmp_path))
    assert validated({"identity": {"user": "a", "b": 3}, "host": "h"}) == {"identity": {"user": "a"}, "host": "h"}
    assert validated({"identity": ["user"]}) == {}


def test_the_instance_type_of_a_machine_outside_of_the_service(tmp_path):
    environment = {"SM_PROFILER_ROOT": str(tmp_path), "SM_PROFILER_INSTANCE_TYPE": "p5.48xlarge", "SLURM_NODEID": "1"}
    resources = read_resources(environment)
    assert (resources.node, resources.instance_type) == ("algo-2", "p5.48xlarge")


def test_the_hook_records_it(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ACCOUNT", "vision")
    assert clock.birth(0).identity["account"] == "vision"
    assert attrs.asdict(clock.Birth())["identity"] == {}


def test_the_hook_records_the_script(tmp_path):
    """Only SageMaker's descriptions name it; elsewhere no repaired training was recognized."""
    found = {}
    for words in (["job.py"], ["-m", "job"], ["-c", "import job"]):
        (tmp_path / "job.py").write_text(
            "from sm_profiler.hook import clock\nprint(clock.birth(0).identity.get('script', ''))\n"
        )
        found[words[0]] = subprocess.check_output([sys.executable, *words], cwd=tmp_path, text=True).strip()
    assert found == {"job.py": str(tmp_path / "job.py"), "-m": "job", "-c": ""}
    job = priced(report_json("a", identity={"user": "anna", "script": "/home/anna/job.py"}))
    assert job.script == "/home/anna/job.py"


@pytest.mark.parametrize(("state", "status"), [("crashed", "Failed"), ("completed", "Completed"), ("running", "InProgress"), ("unknown", "")])  # fmt: skip
def test_a_fleet_has_what_was_recorded(state, status):
    who = {"user": "anna", "account": "vision", "namespace": "research", "label:team": "nlp"}
    report = report_json("a", finding("INPUT_BOUND", 600), identity=who, instance_type="p5.48xlarge")
    report["end"] = {"state": state, "exit_code": 1, "error": "ValueError: x", "step": 3}
    job = priced(report)
    assert (job.user, job.account, job.namespace, job.tags) == ("anna", "vision", "research", {"team": "nlp"})
    assert (job.status, job.price) == (status, 55.04)
    assert job.failure == ("ValueError: x" if status == "Failed" else "")
    fleet = assemble([job], group_by=("user", "account", "namespace", "host", "team"))
    assert {group.key: group.value for group in fleet.groups} == {
        "user": "anna", "account": "vision", "namespace": "research", "host": "i-1", "team": "nlp",
    }  # fmt: skip


def test_the_description_of_the_service_comes_first():
    report = report_json("a", identity={"user": "root", "label:team": "x"})
    tags = [{"Key": "user", "Value": "anna"}, {"Key": "team", "Value": "nlp"}]
    job = priced(report, description("a", Tags=tags))
    assert (job.user, job.tags["team"], job.status) == ("anna", "nlp", "Completed")


def test_a_profile_carries_it_to_the_report(tmp_path):
    """From the job's environment to report.json, through files on disk."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nmodel = torch.nn.Linear(4, 4)\nopt = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(5):\n    model(torch.ones(2, 4)).sum().backward()\n    opt.step()\n"
    )
    environment = {
        **os.environ, "SLURM_JOB_USER": "anna", "SLURM_JOB_ACCOUNT": "vision", "SLURMD_NODENAME": "gpu-17",
        "SM_PROFILER_INSTANCE_TYPE": "p5.48xlarge",
    }  # fmt: skip
    run = [sys.executable, "-m", "sm_profiler", "run", "--no-monitor", "--out", str(tmp_path / "p"), str(script)]
    subprocess.run(run, check=True, env=environment, cwd=tmp_path, capture_output=True, timeout=120)
    report = [sys.executable, "-m", "sm_profiler", "report", str(tmp_path / "p"), "--out", str(tmp_path / "r")]
    subprocess.run(report, check=True, env=environment, cwd=tmp_path, capture_output=True, timeout=120)
    job = json.loads((tmp_path / "r/report.json").read_text())["job"]
    assert job["identity"]["user"] == "anna"
    assert job["identity"]["account"] == "vision"
    assert [rank["host"] for rank in job["ranks"]] == ["gpu-17"]
    assert job["instance_type"] == "p5.48xlarge"


WHO = {"user": "anna", "job": "a,b: c}", "host": "gpu-17", "label:team": "nlp"}


def owner(node="algo-1", machine="i-0123456789abcdef0", **who):
    return Identity(lambda: {**WHO, **who}, lambda: machine, lambda: Resources(node, instance_type="p5.48xlarge"))


def test_a_profile_without_steps_has_it(tmp_path):
    """The monitor's rows are the only record of it: of two nodes, those texts count that both have."""
    for number in (1, 2):
        node = f"algo-{number}"
        source, writer = owner(node, f"i-{number:017}", host=f"gpu-{number}"), SystemWriter(tmp_path, node)
        for second in range(0, 121, 10):
            rows = [Measurement("cpu", "cpu0", "CPUUtilization", 50.0), *source.measure(float(second))]
            writer.write(START_S + second, rows)
        writer.finish()
    report = json.loads(to_json(build_report(open_source(str(tmp_path)))))
    job = report["job"]
    assert job["identity"] == {"user": "anna", "job": "a,b: c}", "label:team": "nlp"}
    assert job["instance_type"] == "p5.48xlarge"
    row = priced(report)
    assert (row.user, row.tags, row.price) == ("anna", {"team": "nlp"}, 55.04)
    assert [node.host for node in row.nodes] == ["gpu-1", "gpu-2"]
    assert {one.value for one in assemble([row], group_by=("host",)).groups} == {"gpu-1", "gpu-2"}
    lines = [line for file in tmp_path.rglob("*.json") for line in file.read_text().splitlines()]
    assert sum('"Name":"user"' in line for line in lines) == 6  # once a minute


@pytest.mark.parametrize(
    ("who", "machine", "name"),
    [
        ({"host": "gpu-17"}, "vm", "gpu-17"),  # SM_PROFILER_HOST or Slurm
        ({"host": "ip-10-0-0-7.ec2.internal", "pod": "train-0"}, "i-0123456789abcdef0", "ip-10-0-0-7.ec2.internal"),
        ({"host": "ip-10-0-0-7.ec2.internal"}, "i-0123456789abcdef0", "i-0123456789abcdef0"),
        ({"host": "train-worker-0", "pod": "train-worker-0"}, "GPU-1", "GPU-1"),  # nothing but the pod's own name
        ({"host": "a1b2c3d4e5f6"}, "GPU-1", "GPU-1"),  # a container's
        ({"host": "a1b2c3d4e5f6"}, "", "a1b2c3d4e5f6"),
        ({}, "i-1", "i-1"),
        ({}, "", ""),
    ],
)
def test_a_machine_has_the_name_that_the_cluster_has_for_it(who, machine, name):
    assert machine_of(who, machine) == name


def window(kinds, names, nodes):
    count = len(kinds)
    columns = [Category.of(texts) for texts in (nodes, kinds, names, ["x" * 999] * count)]
    return SimpleNamespace(new_system=SystemColumns(np.full(count, float(START_S)), np.ones(count), *columns))


def test_rows_of_other_people_are_bounded():
    fold = SystemFold()
    count = MAX_OWNERS + 10
    fold.update(window(["label"] * 200, [f"k{number}" for number in range(200)], ["algo-1"] * 200))
    fold.update(window(["identity"] * 3, ["user", "PATH", "machine"], ["algo-1"] * 3))
    other = SystemFold()
    other.update(window(["identity"] * count, ["user"] * count, [f"algo-{number}" for number in range(2, count + 2)]))
    fold.merge(other)
    owners = fold.result().owners
    assert len(owners) == MAX_OWNERS
    assert len(owners["algo-1"]) <= MAX_LABELS + 12
    assert owners["algo-1"]["machine"] == "x" * 200
    assert "PATH" not in owners["algo-1"]


@pytest.mark.parametrize("kind", ["DEAD_RANK", "UNEQUAL_STEPS", "HANG"])
@pytest.mark.parametrize(
    "described", [{}, description("a", status="Failed", FailureReason="AlgorithmError: exit code 1")]
)
def test_a_failed_job_has_the_cause_that_its_report_found(kind, described):
    """It was the launcher's error, and the advice to read the reason."""
    report = report_json("a", {**finding(kind), "share_of": "job"})
    report["end"] = {"state": "crashed", "exit_code": 1, "error": "RuntimeError: Connection closed by peer", "step": 3}
    job = priced(report, described)
    assert (job.status, job.failure) == ("Failed", f"{kind} leads.")
    (loss,) = job.losses
    assert (loss.cause, loss.headline, loss.next_step) == ("FAILED", f"{kind} leads.", f"Repair {kind}.")
    assert f"a: Failed: {kind} leads.\n" in summary(assemble([job]))


def test_an_exception_is_named_before_the_words_of_the_service():
    report = report_json("a")
    end = {"state": "crashed", "exit_code": 1, "error": "ValueError: bad label", "where": "train.py:67", "step": 3}
    described = description("a", status="Failed", FailureReason="AlgorithmError: exit code 1")
    assert priced({**report, "end": end}, described).failure == "ValueError: bad label (train.py:67)"
    assert (
        priced({**report, "end": {**end, "error": "", "where": ""}}, described).failure == "AlgorithmError: exit code 1"
    )


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ({"state": "crashed", "exit_code": 7, "error": ""}, "exit code 7"),
        ({"state": "crashed", "exit_code": 1, "error": "ValueError: x", "where": "train.py:12"}, "ValueError: x (train.py:12)"),
        ({"state": "crashed", "exit_code": 3, "error": "OSError: y"}, "OSError: y (exit code 3)"),
        ({"state": "killed", "exit_code": None, "error": ""}, "The job was killed."),
        ({"state": "out_of_memory", "exit_code": 137, "error": ""}, "Out of memory."),
        ({"state": "out_of_memory", "exit_code": 1, "error": "MemoryError", "where": "train.py:5"}, "Out of memory. MemoryError (train.py:5)"),
        ({"state": "crashed", "exit_code": None, "error": ""}, ""),
    ],
)  # fmt: skip
def test_each_job_that_failed_has_its_reason(end, reason):
    failed = [report_json(f"job-{number}", duration=3600.0 + number) for number in range(3)]
    for report in failed:
        report["end"] = {"step": 600, **end}
    fleet = assemble([priced(report) for report in failed])
    assert [one.reason for one in fleet.top] == [reason] * 3
    shown = summary(fleet)
    assert shown.count(f": Failed: {reason}\n" if reason else ": Failed\n") == 3
    page = render_html(fleet)
    assert page.count(f"<p>Failed: {reason}</p>") == (3 if reason else 0)


def of_slurm(end=None, **options):
    who = {"user": "anna", "account": "vision", "job": "pretrain", "job_id": "1008"}
    report = report_json("slurm-1008", **{"verdict": finding("INPUT_BOUND", 600), "identity": who, **options})
    return priced({**report, "end": end} if end else report)


def test_the_launchers_name_of_a_job_is_shown_and_found():
    job = of_slurm(end={"state": "crashed", "exit_code": 1, "error": "ValueError: x", "step": 3})
    assert (job.job_name, job.job_id, job.title) == ("pretrain", "1008", "slurm-1008 (pretrain)")
    fleet = assemble([job], group_by=("job",))
    assert [group.value for group in fleet.groups] == ["pretrain"]
    assert "slurm-1008 (pretrain): Failed: ValueError: x" in summary(fleet)
    page = render_html(fleet)
    assert "Job name" in page
    assert "slurm-1008 (pretrain)" in page
    assert "Job name" not in render_html(assemble([of_slurm(identity={})]))


def test_requested_groups_are_in_the_terminal():
    fleet = assemble([of_slurm()], group_by=("user", "account"))
    lines = summary(fleet, ("user", "account")).splitlines()
    assert "By user" in lines
    assert "By account" in lines
    (line,) = [line for line in lines if line.startswith("  anna")]
    assert line.endswith("wasted, 100 % judged, 1 job")
    assert "By user" not in summary(fleet)


def test_a_job_that_hung_and_was_stopped_has_a_reason():
    hung = of_slurm(verdict=finding("HANG", 600), end={"state": "stopped", "exit_code": None, "error": "", "step": 3})
    stopped = of_slurm(end={"state": "stopped", "exit_code": None, "error": "", "step": 3})
    assert [(one.status, one.failure) for one in (hung, stopped)] == [
        ("Stopped", "HANG leads."), ("Stopped", "The job was stopped."),
    ]  # fmt: skip
    assert assemble([hung]).failures[0].reason == "HANG leads."
