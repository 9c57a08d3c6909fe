import pickle
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from sm_profiler import processes
from sm_profiler.errors import SourceError
from sm_profiler.formats.columns import EventColumns, SystemColumns
from sm_profiler.source import open_source, parse
from sm_profiler.source.profile import reading_meter


def lines_of(job):
    """Numbers of measurements and events in the files, counted with the standard library only."""
    system = sum(path.read_bytes().count(b"\n") for path in (job / "system").rglob("*.json"))
    traces = [path.read_bytes() for path in (job / "framework").rglob("*.json")]
    return system, sum(text.count(b'"ph": "X"') + text.count(b'"ph": "E"') for text in traces)


def test_reads_every_record(job):
    source = open_source(job, cache=False)
    system, events = source.system(), source.events()
    assert (len(system), len(events)) == lines_of(job)
    assert {quality.status for quality in source.quality()} == {"read"}
    assert len(source.quality()) == sum(1 for _ in job.rglob("*.json"))
    assert set(system.node.decode()) == {"algo-1", "algo-2"}
    assert set(events.node.decode()) == {"algo-1-0", "algo-1-1", "algo-2-2", "algo-2-3"}
    assert set(events.kind.present()) == {"pythontimeline", "model_timeline", "horovod_timeline"}
    assert source.finished
    assert source.first_timestamp_us == 1_699_999_980_000_000
    assert source.first_timestamp_us / 1e6 <= system.timestamp.min()
    assert system.timestamp.max() * 1e6 <= source.last_timestamp_us


def test_yields_everything_minute_by_minute(job, assert_same):
    source = open_source(job, cache=False)
    batches = list(source.batches())
    minutes = [batch.minute_us for batch in batches]
    assert minutes == sorted(set(minutes))
    assert all(minute % 60_000_000 == 0 for minute in minutes)
    for batch in batches:
        seconds = batch.system.timestamp - batch.minute_us / 1e6
        assert ((seconds >= 0) & (seconds < 60)).all()
    assert_same(SystemColumns.concat([batch.system for batch in batches]), source.system())
    together = EventColumns.concat([batch.events for batch in batches])
    order = np.lexsort((together.name.decode(), together.duration_us, together.start_us))
    whole = source.events()
    other = np.lexsort((whole.name.decode(), whole.duration_us, whole.start_us))
    np.testing.assert_array_equal(together.start_us[order], whole.start_us[other])
    assert list(source.batches()) == []


def test_reads_the_same_with_several_processes(job, assert_same):
    alone = open_source(job, cache=False, processes=1)
    many = open_source(job, cache=False, processes=3, memory_limit=1 << 20)
    assert_same(alone.system(), many.system())
    assert_same(alone.events(), many.events())
    assert alone.quality() == many.quality()


def test_loses_nothing_with_a_killed_process(job, assert_same, monkeypatch):
    started = []
    real = subprocess.Popen

    def dying(command, **kwargs):
        process = real(command, **kwargs)
        started.append(process)
        process.send_signal(signal.SIGKILL)
        return process

    monkeypatch.setattr(processes.subprocess, "Popen", dying)
    crippled = open_source(job, cache=False, processes=3)
    expected = open_source(job, cache=False, processes=1).events()
    assert_same(crippled.events(), expected)
    assert len(started) == 3
    assert all(process.returncode is not None for process in started)


def test_refuses_a_file_removed_meanwhile(job, tmp_path):
    copy = shutil.copytree(job, tmp_path / "copy")
    source = open_source(copy, cache=False, processes=3)
    gone = max(copy.rglob("system/incremental/*/*.json"))
    gone.unlink()
    rows = len(source.system())
    assert 0 < rows < lines_of(job)[0]
    (refused,) = [quality for quality in source.quality() if quality.status == "refused"]
    assert copy / refused.path == gone


def test_ends_its_processes_when_reading_stops_early(job, monkeypatch):
    started = []
    real = subprocess.Popen
    monkeypatch.setattr(
        processes.subprocess, "Popen", lambda *args, **kwargs: started.append(real(*args, **kwargs)) or started[-1]
    )
    batches = open_source(job, cache=False, processes=3).batches()
    next(batches)
    batches.close()
    assert len(started) == 3
    assert all(process.returncode is not None for process in started)


def test_opens_the_folder_of_the_job(job):
    assert open_source(job.parent, cache=False).uri == str(job)


@pytest.mark.parametrize(("where", "said"), [
    ("/no/such/folder", "/no/such/folder is not a folder"),
    ("./no/such/folder", "is not a folder"),
    ("", "the source is empty: name a folder"),
    ("  \n", "the source is empty: name a folder"),
    (" ./no/such/folder\n", "^./no/such/folder is not a folder"),
    ("ftp://host/x", "not a folder or s3:// URI$"),
    ("S3://bucket/x", "for a bucket, write s3://bucket/x$"),
    ("https://bucket.s3.amazonaws.com/x/y?X-Amz-Signature=0", "amazonaws.com/x/y: not .*, write s3://bucket/x/y$"),
    ("https://my.bucket.s3.eu-west-1.amazonaws.com/x", "write s3://my.bucket/x$"),
    ("https://s3.eu-west-1.amazonaws.com/bucket/x", "write s3://bucket/x$"),
    ("https://s3.evil.example/bucket/x", "not a folder or s3:// URI$"),
    ("account:", "name one of its jobs, as in account:us-east-1/my-training-job$"),
])  # fmt: skip
def test_reports_places_that_cannot_be_opened(where, said):
    with pytest.raises(SourceError, match=said) as caught:
        open_source(where)
    assert "\n" not in str(caught.value)


def test_rejects_a_file_for_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "train"):
        (tmp_path / name).touch()
        with pytest.raises(SourceError, match=f"^{name} is a file, not a folder of profiler output$"):
            open_source(name)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_dump_of_the_flight_recorder_is_named_and_not_opened(protocol, tmp_path, monkeypatch):
    """The answer was that it contains no profile, or is no folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dumps").mkdir()
    for rank in range(2):
        dump = {"version": "2.10", "entries": [{"record_id": rank}], "pg_config": {}}
        (tmp_path / "dumps" / f"_dump_{rank}").write_bytes(pickle.dumps(dump, protocol))
    monkeypatch.setattr(pickle, "load", pytest.fail)
    monkeypatch.setattr(pickle, "loads", pytest.fail)
    for name in ("dumps", "dumps/_dump_0"):
        with pytest.raises(
            SourceError, match=r"_dump_0 is a pickle, .* flight recorder .* is not opened\. To do: "
        ) as error:
            open_source(name)
        assert "\n" not in str(error.value)


def test_reports_a_missing_region(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    said = r"^there is no folder nope; to look up a training job of that name, set a region \(AWS_REGION\)$"
    with pytest.raises(SourceError, match=said):
        open_source("nope")


def test_rejects_folders_without_profiler_data(tmp_path):
    (tmp_path / "notes.txt").write_text("1")
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "training_job_end.ts").touch()
    with pytest.raises(SourceError, match="does not contain a profile"):
        open_source(tmp_path)


@pytest.fixture
def damaged(job, tmp_path):
    copy = shutil.copytree(job, tmp_path / "damaged")
    traces = sorted((copy / "framework").rglob("*pythontimeline.json"))
    system = sorted((copy / "system").rglob("*.json"))
    traces[0].write_bytes(traces[0].read_bytes()[:-100])
    traces[1].write_bytes(b"")
    system[0].write_bytes(system[0].read_bytes().replace(b'"Value":', b'"Value":x', 3))
    system[1].write_bytes(b"\x00" * 500)
    return copy


def test_accounts_for_every_file(damaged, job):
    source = open_source(damaged, cache=False)
    rows, events = len(source.system()), len(source.events())
    table = {quality.path: quality for quality in source.quality()}
    assert len(table) == sum(1 for _ in job.rglob("*.json"))
    spoilt = [quality for quality in table.values() if quality.status != "read"]
    assert sorted(quality.status for quality in spoilt) == ["refused", "refused", "repaired", "repaired"]
    assert all(quality.reason for quality in spoilt)
    whole_rows, whole_events = lines_of(job)
    refused = next(q.path for q in spoilt if q.status == "refused" and q.path.startswith("system"))
    assert rows == whole_rows - 3 - (job / refused).read_bytes().count(b"\n")
    assert events < whole_events
    listed = open_source(damaged, cache=False)
    list(listed.batches())
    assert listed.quality() == source.quality()


def test_raises_errors_for_losses_if_strict(damaged, job):
    source = open_source(damaged, strict=True, cache=False)
    for read in (source.system, source.events, lambda: list(source.batches())):
        with pytest.raises(SourceError, match="records lost") as caught:
            read()
        assert "\n" not in str(caught.value)
    assert len(open_source(job, strict=True, cache=False).system()) == lines_of(job)[0]


def test_refuses_removed_files(damaged):
    source = open_source(damaged, cache=False)
    victim = next((damaged / "system").rglob("*.json"))
    victim.unlink()
    source.system()
    (quality,) = [each for each in source.quality() if each.path == victim.relative_to(damaged).as_posix()]
    assert (quality.status, quality.reason) == ("refused", "removed before it was read")


def test_shows_a_progress_bar_only_on_a_terminal(job, capsys):
    source = open_source(job, cache=False)
    source.system()
    assert capsys.readouterr().err == ""
    open_source(job, cache=False, progress=True).system()
    drawn = capsys.readouterr().err
    assert " MB read, " in drawn
    assert drawn.endswith("\r\033[K")
    with reading_meter(source.files, show=False) as meter:
        meter.add(1)
    assert capsys.readouterr().err == ""


def test_import_loads_no_heavy_modules():
    script = "import sys, sm_profiler.source; print([m for m in ('pandas', 'boto3', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_refuses_files_too_large_for_the_memory(job, monkeypatch):
    real = parse.read_system

    def scarce(data, node, *more):
        if data and node == "algo-2":
            raise MemoryError
        return real(data, node, *more)

    monkeypatch.setattr(parse, "read_system", scarce)
    source = open_source(job, cache=False, processes=1)
    assert set(source.system().node.decode()) == {"algo-1"}
    assert {q.reason for q in source.quality() if q.status == "refused"} == {"too large for this machine's memory"}


def test_reads_with_prints_at_interpreter_start(job, tmp_path, monkeypatch, assert_same):
    (tmp_path / "sitecustomize.py").write_text("import sys\nprint('hello' * 1000, flush=True)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answered = []
    real = parse.Remote.decode
    monkeypatch.setattr(parse.Remote, "decode", lambda *both: answered.append(real(*both)) or answered[-1])
    noisy = open_source(job, cache=False, processes=3)
    assert_same(noisy.events(), open_source(job, cache=False, processes=1).events())
    assert answered  # by the helpers, not by this process in their place


def test_imports_nothing_from_the_working_directory_in_parser_processes(job, tmp_path, monkeypatch):
    for module in ("gzip", "zlib", "numpy", "msgspec", "attrs", "sm_profiler"):
        (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\nraise SystemExit\n")
    monkeypatch.chdir(tmp_path)
    assert len(open_source(job, cache=False, processes=3).events())
    assert not (tmp_path / "imported").exists()


def test_rows_far_from_their_file_are_lost(tmp_path):
    """A clock that was not set would make the job 54 years long."""
    minute = 1_700_000_040
    line = '{{"Type": "memory", "Name": "MemoryUsedPercent", "Value": 5.0, "Timestamp": {}, "NodeId": "algo-1"}}\n'
    path = tmp_path / f"system/incremental/2023111422/{minute}.algo-1.json"
    path.parent.mkdir(parents=True)
    path.write_text("".join(line.format(at) for at in (0, 0.5, minute - 3600, minute + 0.5, minute + 90_000)))
    source = open_source(tmp_path, cache=False)
    assert source.system().timestamp.tolist() == [minute - 3600, minute + 0.5]
    (outcome,) = source.quality()
    assert (outcome.status, outcome.lost, outcome.reason) == ("repaired", 3, "time far from that of the file: 3")
