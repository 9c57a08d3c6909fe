"""Files parsed by the workers of an executor: the same rows in the same order."""

import functools
import shutil

import pytest

from sm_profiler.cli.main import main
from sm_profiler.errors import SourceError
from sm_profiler.metrics.scaling import folding as reading
from sm_profiler.report.write import export_timeline
from sm_profiler.source import open_source, parse
from tests.support.executors import ShuffledExecutor
from tests.support.jobs import make_job


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    monkeypatch.setenv("SM_PROFILER_CACHE", "off")
    monkeypatch.setattr(reading, "GROUP_FILES", 2)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return make_job(
        tmp_path_factory.mktemp("job") / "job", "--minutes 4 --nodes 2 --gpus 2 --cpus 2 --horovod --steps-per-second 1"
    )


def test_timeline_has_the_same_bytes(job, tmp_path):
    damaged = shutil.copytree(job, tmp_path / "job")
    for file in sorted(damaged.rglob("*.json"))[::5]:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    here, there = open_source(damaged), open_source(damaged)
    expected = export_timeline(here, tmp_path / "here.json")
    assert export_timeline(there, tmp_path / "there.json", executor=ShuffledExecutor()) == expected
    assert (tmp_path / "here.json").read_bytes() == (tmp_path / "there.json").read_bytes()
    assert here.quality() == there.quality()
    assert {one.status for one in here.quality()} > {"read"}


def test_command_uses_processes(job, tmp_path, capsys):
    for name, options in (("here", []), ("there", ["--executor", "local:2"])):
        assert main(["merge-timeline", str(job), "--out", str(tmp_path / name), *options]) == 0
    assert (tmp_path / "here").read_bytes() == (tmp_path / "there").read_bytes()
    assert main(["merge-timeline", str(job), "--out", str(tmp_path / "x"), "--executor", "none"]) == 2
    assert "expected local" in capsys.readouterr().err


def test_source_parses_here_again_afterwards(job):
    source = open_source(job)
    here = source.parse
    with reading.reading_with(source, ShuffledExecutor()):
        assert source.parse is not here
    assert source.parse is here


def test_worker_of_another_version_ends_in_one_line(job, tmp_path, monkeypatch):
    encode = type(parse.parse_files).encode

    def older(self, task):
        return b"0.0.1" + encode(self, task)[len(self._version()) :]

    monkeypatch.setattr(type(parse.parse_files), "encode", older)
    with pytest.raises(SourceError, match=r"sm-profiler is 0\.0\.1 where the command runs"):
        export_timeline(open_source(job), tmp_path / "out.json", executor=ShuffledExecutor())


def test_worker_that_fails_ends_in_one_line(job, tmp_path, monkeypatch):
    @functools.wraps(parse.parse_files.function)  # tasks are decoded by its annotations
    def fails(_task):
        return 1 / 0

    monkeypatch.setattr(parse.parse_files, "function", fails)
    with pytest.raises(SourceError, match="the workers failed: ZeroDivisionError"):
        export_timeline(open_source(job), tmp_path / "out.json", executor=ShuffledExecutor())
