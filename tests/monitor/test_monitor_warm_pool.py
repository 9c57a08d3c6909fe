"""Two jobs in one container, one after another, and a job that is interrupted and goes on."""

import pytest

from sm_profiler.errors import ProfilerError
from sm_profiler.formats.layout import IGNORED_FOLDER
from sm_profiler.monitor import node_state
from sm_profiler.monitor.node_state import NodeLock, locked
from sm_profiler.monitor.place import JOB_FILE, set_aside_other_job
from sm_profiler.monitor.start import join
from sm_profiler.monitor.task import Task


def keys(s3, name):
    prefix = f"out/{name}/profiler-output/"
    listed = s3.list_objects_v2(Bucket="profiles", Prefix=prefix).get("Contents", ())
    return {item["Key"].removeprefix(prefix): item["LastModified"] for item in listed}


def test_a_second_job_in_the_same_container_has_a_profile_of_its_own(job, s3):
    assert job.start("time.sleep(0.5); writer.close()", RANK="4").wait(60) == 0
    first = keys(s3, "job-1")
    assert job.start("writer.close()", TRAINING_JOB_NAME="job-2", RANK="7").wait(60) == 0
    second = keys(s3, "job-2")
    assert keys(s3, "job-1") == first
    traces = [[key for key in found if "pevents" in key] for found in (first, second)]
    assert [len(found) for found in traces] == [1, 1]
    assert "_4-algo-1_" in traces[0][0]
    assert "_7-algo-1_" in traces[1][0]
    assert "system/training_job_end.ts" in second
    kept = list((job.root / ".sagemaker-ignore/earlier").rglob("*_4-algo-1_*.json"))
    assert len(kept) == 1  # nothing of the first job is deleted


def test_an_attempt_of_the_same_job_goes_on_with_its_profile(job, s3):
    process = job.start("time.sleep(60)", RANK="1")
    job.until(job.rows)
    process.kill()
    process.wait()
    job.until(lambda: not job.monitors())
    assert job.start("writer.close()", RANK="2").wait(60) == 0
    traces = [key for key in keys(s3, "job-1") if "pevents" in key]
    assert len(traces) == 2


def test_nodes_that_share_a_folder_set_aside_once(tmp_path):
    moved = []
    for name in ("first", "second", "second", "first"):
        old = tmp_path / f"system/incremental/{len(moved)}.json"
        old.parent.mkdir(parents=True, exist_ok=True)
        old.touch()
        moved.append(set_aside_other_job(tmp_path, name))
        assert old.exists() is not moved[-1]
    assert moved == [False, True, False, True]
    assert len(list((tmp_path / ".sagemaker-ignore/earlier").iterdir())) == 2  # even within a second


def test_a_profile_without_an_owner_is_kept(tmp_path):
    (tmp_path / "framework").mkdir()
    assert set_aside_other_job(tmp_path, "job") is False  # of a version that noted none, perhaps of this very job
    assert (tmp_path / "framework").exists()


def test_another_node_that_hangs_is_not_waited_for(tmp_path, monkeypatch):
    """A later process of this node can still start the monitor."""
    monkeypatch.setattr(node_state, "ENTRY_SECONDS", 0.01)
    with locked(tmp_path / IGNORED_FOLDER / JOB_FILE), pytest.raises(ProfilerError, match="held by another process"):
        join(Task(str(tmp_path), "algo-1", job="job-1"))
    assert not NodeLock(tmp_path, "algo-1").is_held()
