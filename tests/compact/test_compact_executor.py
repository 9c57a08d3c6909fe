"""Parts written by the workers of an executor: the same bytes as in one process."""

import json
import shutil

import attrs
import pytest

from sm_profiler.cli.main import main
from sm_profiler.compact import compact, rewrite_part
from sm_profiler.errors import SourceError
from sm_profiler.source import open_source
from sm_profiler.storage import LocalStorage
from tests.support.executors import ShuffledExecutor

START_US = 1_700_000_000_000_000


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.parquet"))}


def written(job, folder, **options):
    """Return what was done and the rows' files; the length of the list beside them depends on inodes and times."""
    done = compact(open_source(job), LocalStorage(folder), job="j", **options)
    return attrs.evolve(done, written_bytes=0), files_of(folder)


def parts_given(executor):
    """Return the tasks that write a part."""
    return [rewrite_part._decoders[0].decode(bytes(given).partition(b"\0")[2]) for (given,) in executor.given]


def test_dataset_has_the_same_bytes_although_each_task_runs_twice(two_nodes, tmp_path):
    executor = ShuffledExecutor(2, times=2)
    assert written(two_nodes, tmp_path / "there", executor=executor) == written(two_nodes, tmp_path / "here")
    assert len({task.part for task in parts_given(executor)}) >= 8
    again, _ = written(two_nodes, tmp_path / "there", executor=ShuffledExecutor())
    assert (again.files, again.parts) == (0, 0)


def test_events_over_hours_and_damage(two_nodes, tmp_path):
    job = shutil.copytree(two_nodes, tmp_path / "job")
    pevents = job / "framework" / "pevents"
    for at_s, kind in ((2700, "B"), (2790, "E"), (7000, "B"), (15000, "E"), (15010, "E"), (15020, "B")):
        at = START_US + at_s * 10**6
        rows = [
            {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": START_US}},
            {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "tensor"}},
            {"name": "NCCL_ALLREDUCE", "ph": kind, "pid": 1, "ts": at_s * 10**6},
        ]
        hour = pevents / f"2023111{4 + (at_s + 80000) // 86400}{(at_s // 3600 + 22) % 24:02}"
        hour.mkdir(exist_ok=True)
        (hour / f"{at}_0-algo-1_horovod_timeline.json").write_text(json.dumps(rows))
    for file in sorted(job.rglob("*.json"))[::6]:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    (job / "END_OF_JOB.ts").touch()
    executor = ShuffledExecutor(3)
    assert written(job, tmp_path / "there", executor=executor) == written(job, tmp_path / "here")
    tasks = parts_given(executor)
    assert len(tasks) > len({task.part for task in tasks})  # some were written by a second task


def test_new_files_in_old_parts(two_nodes, tmp_path):
    job = shutil.copytree(two_nodes, tmp_path / "job")
    late = sorted(job.rglob("*.json"))[1::3]
    for file in late:
        file.rename(file.with_name(file.name + ".later"))
    for name, options in (("here", {}), ("there", {"executor": ShuffledExecutor()})):
        written(job, tmp_path / name, **options)
    for file in late:
        file.with_name(file.name + ".later").rename(file)
    there = written(job, tmp_path / "there", executor=ShuffledExecutor(2))
    assert there == written(job, tmp_path / "here")
    assert there[0].files == len(late)


def test_command_uses_processes(two_nodes, tmp_path, capsys):
    for name, options in (("here", []), ("there", ["--executor", "local:2"])):
        assert main(["compact", str(two_nodes), "--job", "j", "--out", str(tmp_path / name), *options]) == 0
    assert files_of(tmp_path / "here") == files_of(tmp_path / "there")
    assert len(set(capsys.readouterr().err.splitlines())) == 1
    assert main(["compact", str(two_nodes), "--out", str(tmp_path / "x"), "--executor", "none"]) == 2
    assert "expected local" in capsys.readouterr().err


def test_worker_that_cannot_write_ends_in_one_line(two_nodes, tmp_path):
    (tmp_path / "system").write_text("in the way")
    with pytest.raises(SourceError, match="system"):
        written(two_nodes, tmp_path, executor=ShuffledExecutor())


def test_other_version_is_refused(two_nodes, tmp_path, monkeypatch):
    class OlderHere(ShuffledExecutor):
        def run(self):
            monkeypatch.setattr(rewrite_part, "_version", lambda: "newer")
            super().run()

    monkeypatch.setattr(rewrite_part, "_version", lambda: "0.0.1")
    with pytest.raises(SourceError, match=r"sm-profiler is 0\.0\.1 where the command runs"):
        written(two_nodes, tmp_path, executor=OlderHere())


def test_dataset_in_s3(two_nodes, tmp_path, bucket):
    from sm_profiler.storage import open_storage

    compact(open_source(two_nodes), open_storage("s3://profiles-here/root"), job="j", executor=ShuffledExecutor())
    written(two_nodes, tmp_path)
    found = bucket.list_objects_v2(Bucket="profiles-here", Prefix="root/")["Contents"]
    assert {one["Key"].removeprefix("root/") for one in found} == {
        *files_of(tmp_path),
        "states/job=j/files.state",
    }
