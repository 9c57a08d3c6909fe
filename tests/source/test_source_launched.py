"""Reasons that a training job has no profile or no steps, by its description and its log."""

import json

import pytest

from sm_profiler.config.launched import Launched
from sm_profiler.source.job import missing_profile, outputs_of

CONFIG = {"S3OutputPath": "s3://own/path", "ProfilingParameters": {"LocalPath": "/opt/ml/output/profiler"}}
ENDED = {"TrainingJobStatus": "Completed", "OutputDataConfig": {"S3OutputPath": "s3://models"}}


def agent(config=None, **variables):
    """Return the description of an ended job with the agent's configuration in its environment."""
    carried = {"SM_PROFILER_CONFIG": json.dumps(config)} if config is not None else {}
    return {**ENDED, "Environment": {"SM_PROFILER_AUTO": "1", **carried, **variables}}


def service(**config):
    return {**ENDED, "ProfilerConfig": config}


def test_looks_where_the_agent_uploads_to_and_in_the_default_place():
    assert outputs_of(agent(CONFIG), "job") == ["s3://own/path/job/profiler-output", "s3://models/job/profiler-output"]
    parts = {
        f"SM_PROFILER_CONFIG_{n}": part for n, part in enumerate([json.dumps(CONFIG)[:20], json.dumps(CONFIG)[20:]])
    }
    assert outputs_of(agent(**parts), "job")[0] == "s3://own/path/job/profiler-output"
    assert outputs_of({**ENDED, "ProfilerConfig": {"S3OutputPath": "s3://models/"}}, "job") == [
        "s3://models/job/profiler-output"
    ]
    both = {**agent(CONFIG), "ProfilerConfig": {"S3OutputPath": "s3://service", "DisableProfiler": False}}
    assert outputs_of(both, "job")[0] == "s3://service/job/profiler-output"
    both["ProfilerConfig"] = {"S3OutputPath": "s3://service", "DisableProfiler": True}
    assert outputs_of(both, "job")[0] == "s3://own/path/job/profiler-output"


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (ENDED, "the profiler was not switched on: neither its request nor its environment has a configuration"),
        (agent(), "neither its request nor its environment has a configuration"),
        (service(DisableProfiler=True), "the profiler was off: DisableProfiler is true"),
        (service(S3OutputPath="s3://b"), "the managed service has stored nothing"),
        (
            agent({"DisableProfiler": False}),
            "uploads were off: the configuration in SM_PROFILER_CONFIG has no S3OutputPath",
        ),
        (agent({"S3OutputPath": "bucket/x"}), "uploads were off: 'bucket/x' in SM_PROFILER_CONFIG is not an S3 URI"),
        (agent(CONFIG, SM_PROFILER_AUTO="0"), "the hook was off: SM_PROFILER_AUTO is not on"),
        (agent({"DisableProfiler": True}), "the profiler was off: DisableProfiler is true"),
        (agent(SM_PROFILER_CONFIG="{broken"), "the hook was off: the profiler configuration is not JSON"),
        (agent(SM_PROFILER_CONFIG="s3://some/config.json"), "the agent has stored nothing"),
        (agent(CONFIG), "the agent has stored nothing"),
        ({**agent(CONFIG), "TrainingJobStatus": "InProgress", "TrainingStartTime": 1}, "nothing is stored yet"),
        ({**agent(CONFIG), "TrainingJobStatus": "InProgress"}, "its training has not started (InProgress)"),
        ({**service(DisableProfiler=True), "TrainingJobStatus": "InProgress"}, "DisableProfiler is true"),
        (
            {**ENDED, "TrainingJobStatus": "Failed", "FailureReason": "no capacity\nat all"},
            "its training has not started (Failed: no capacity at all)",
        ),
    ],
)
def test_names_the_reason_that_there_is_no_profile(job, why):
    assert why in Launched.of(job).why_no_profile()[0]


class Logs:
    """CloudWatch Logs with one page for each list of lines."""

    def __init__(self, *pages):
        self.pages, self.requests = list(pages), []

    def filter_log_events(self, **request):
        self.requests.append(request)
        page = {"events": [{"message": line} for line in self.pages.pop(0)]}
        return {**page, "nextToken": str(len(self.pages))} if self.pages else page


def test_the_message_has_reason_log_places_and_advice():
    logs = Logs([], ["sm-profiler: uploads are off: boto3\x1b[2J is missing"])
    text = missing_profile(agent(CONFIG), "job", ["s3://own/path", "s3://models"], client=logs)
    assert text == (
        "training job job has no profile: the agent has stored nothing; its log has: sm-profiler: uploads are off: "
        "boto3\\x1b[2J is missing. Looked in s3://own/path and s3://models. To do: check that sm-profiler[aws,gpu] is installed in "
        "the container (in its image or requirements.txt), and that the job's role may write there."
    )
    assert logs.requests[0]["logStreamNamePrefix"] == "job/"
    assert "To do" not in missing_profile({**ENDED, "TrainingJobStatus": "Failed"}, "job", ["s3://x"], client=logs)


def test_a_script_without_a_framework_is_named_as_the_reason_that_an_ended_job_stored_nothing():
    """The message named the installation and the role only: a script of NumPy alone starts no agent."""
    reason = "its script imported none of PyTorch, Keras, TensorFlow and JAX"
    text = missing_profile(agent(CONFIG), "job", ["s3://own/path"], client=Logs([]))
    assert reason in text
    assert text.endswith("'with get_hook().step():'.")
    spoke = Logs(["sm-profiler: upload failed"])  # the agent has started
    assert reason not in missing_profile(agent(CONFIG), "job", ["s3://own/path"], client=spoke)
    failed = {**agent(CONFIG), "TrainingJobStatus": "Failed", "TrainingStartTime": 1}
    assert reason not in missing_profile(failed, "job", ["s3://own/path"], client=Logs([]))


def test_the_end_of_a_long_line_and_the_last_line_are_quoted():
    """The address of the object filled the line, and the reason was cut off."""
    key = "s3://jobs/out/a-job-with-quite-a-long-name/profiler-output/system/incremental/2026112713/1795787700.algo-1.json"
    denied = (
        "these credentials may not write it (not authorized: kms:GenerateDataKey on arn:aws:kms:us-east-1:1:key/abc)"
    )
    failed = f"sm-profiler: upload failed, retrying: {key}: access denied: {denied}"
    logs = Logs([*["sm-profiler: the hook has started"] * 3, failed])
    text = missing_profile(agent(CONFIG), "job", ["s3://own/path"], client=logs)
    assert denied in text
    assert "sm-profiler: upload failed" in text


def test_the_lines_that_state_the_reason_are_quoted_and_a_folder_that_cannot_be_written_is_the_advice():
    """The advice was to check the installation, beside lines of no matter."""
    logs = Logs([
        "sm-profiler: requested, but not available in this version: horovod",
        "sm-profiler: no system metrics and no uploads: /proc/nope: No such file or directory",
        "sm-profiler: save_scalar: smdebug's calls that save tensors and scalars are accepted and do nothing",
        "sm-profiler: the profile cannot be written, training continues: No such file or directory (/proc/nope)",
        "sm-profiler: the profile ends incomplete: 296 events are lost",
    ])  # fmt: skip
    config = {**CONFIG, "ProfilingParameters": {"LocalPath": "/proc/nope"}}
    text = missing_profile(agent(config), "job", ["s3://own/path"], client=logs)
    assert "no uploads: /proc/nope: No such file or directory | sm-profiler: the profile cannot be written" in text
    assert not any(other in text for other in ("horovod", "save_scalar", "incomplete", "sm-profiler[aws,gpu]"))
    assert text.endswith("To do: name another folder as LocalPath, or none: /proc/nope cannot be written to.")


def test_lines_of_other_jobs_are_not_quoted():
    """The local endpoint ignored the prefix: a job without a profile was explained by the uploads of another job."""

    class Everything:
        def filter_log_events(self, **_request):
            return {
                "events": [
                    {"logStreamName": "other/algo-1-1", "message": "sm-profiler: upload failed"},
                    {"logStreamName": "job-2/algo-1-1", "message": "sm-profiler: upload failed"},
                    {"logStreamName": "job/algo-1-1", "message": "sm-profiler: mine"},
                ]
            }

    text = missing_profile(ENDED, "job", ["s3://x"], client=Everything())
    assert "its log has: sm-profiler: mine." in text
    assert "upload failed" not in text


def test_a_log_that_cannot_be_read_is_left_out():
    class Denied:
        def filter_log_events(self, **_request):
            raise ValueError("denied")

    assert "log" not in missing_profile(service(S3OutputPath="s3://b"), "job", ["s3://b"], client=Denied())


@pytest.mark.parametrize(
    ("job", "why", "advice"),
    [
        (service(S3OutputPath="s3://b"), "SM_PROFILER_AUTO is not on", "Set SM_PROFILER_AUTO=1"),
        ({**agent(), **service(S3OutputPath="s3://b")}, "asks for no framework metrics (ProfilingParameters are empty", "FrameworkProfile()"),
        (
            {**agent(), **service(S3OutputPath="s3://b"), "TrainingJobStatus": "InProgress"},
            "asks for no framework metrics",
            "Update the job: estimator.update_profiler(",
        ),
        (agent({"S3OutputPath": "s3://b"}), "asks for no framework metrics", "FrameworkProfile()"),
        (agent(CONFIG), "no step is stored", "No process made a step that is known: "),
        ({**agent(), **service(S3OutputPath="s3://b", ProfilingParameters=CONFIG["ProfilingParameters"])}, "no step is stored", "If sm-profiler is installed in the container, no process made a step that is known"),
        ({**agent(CONFIG), "TrainingJobStatus": "InProgress"}, "no step is stored", "mark each step with get_hook().step()"),
        ({**agent(CONFIG), "TrainingJobStatus": "Stopped"}, "was stored. Up to 60 s of data was in a file that was still open, and is lost.", "run longer"),
        ({**agent(CONFIG), "TrainingJobStatus": "Failed"}, "the job ended early, before any step was stored", "If it ran for longer: no process made a step that is known"),
    ],
)  # fmt: skip
def test_names_the_reason_that_there_are_no_steps(job, why, advice):
    found = Launched.of(job).why_no_steps()
    assert why in found[0]
    assert advice in found[1]
    assert ("Set SM_PROFILER_AUTO=1" in found[1]) == ("not on" in why)


def test_a_job_that_has_just_begun_is_accused_of_nothing():
    """Its steps are in a trace file that is still open."""
    parameters = {**CONFIG["ProfilingParameters"], "RotateFileCloseIntervalInSeconds": "90"}
    job = {**agent({**CONFIG, "ProfilingParameters": parameters}), "TrainingJobStatus": "InProgress"}
    why, advice = Launched.of(job).why_no_steps(30.0)
    assert why == "No trace file is stored yet."
    assert advice.startswith("A trace file is closed and stored after 90 s (RotateFileCloseIntervalInSeconds)")
    assert "--follow" in advice
    off = {**agent({"S3OutputPath": "s3://b"}), "TrainingJobStatus": "InProgress"}
    assert "asks for no framework metrics" in Launched.of(off).why_no_steps(30.0)[0]
