"""The space of a profile on the local disk."""

import os
import types
from pathlib import Path

import pytest

from sm_profiler.monitor.agent import LocalSpace, limit_of, local_space
from sm_profiler.monitor.uploader import Uploader
from sm_profiler.source import open_source
from sm_profiler.storage import LocalStorage

EARLIER = ".sagemaker-ignore/earlier/20231114/"


class Bucket(LocalStorage):
    """A bucket in a folder."""

    def upload(self, key, file, size):
        assert size == os.fstat(file.fileno()).st_size
        self.write(key, file.read())


def minute(number):
    return f"system/incremental/2023111422/{1_700_000_040 + 60 * number}.algo-1.json"


def fill(root, *keys, size=1000):
    for number, key in enumerate(keys):
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def sizes(root):
    return {info.key: info.size for info in LocalStorage(root).list()}


@pytest.mark.parametrize(
    ("text", "limit"),
    [("20GB", 20 * 10**9), ("10.5 M", 10_500_000), ("50000000", 50_000_000), ("2tb", 2 * 10**12), ("off", 0)],
)
def test_the_limit_is_a_size(tmp_path, text, limit):
    assert limit_of(tmp_path, {"SM_PROFILER_LOCAL_MAX": text}) == limit


@pytest.mark.parametrize(("disk", "limit"), [(10**13, 20 * 10**9), (5 * 10**10, 5 * 10**9), (10**8, 10**9)])
def test_the_default_is_less_on_small_disks(tmp_path, monkeypatch, disk, limit):
    monkeypatch.setattr("shutil.disk_usage", lambda _: types.SimpleNamespace(total=disk))
    assert limit_of(tmp_path, {}) == limit


def test_a_limit_that_is_no_size_is_reported(tmp_path, caplog):
    assert local_space(tmp_path, {"SM_PROFILER_LOCAL_MAX": "much"}).limit == limit_of(tmp_path, {})
    assert "or off, found 'much'; using the default" in caplog.text


def test_uploaded_files_go_first_then_earlier_jobs_then_the_oldest(tmp_path, caplog):
    root = tmp_path / "profile"
    fill(root, minute(0), minute(1), minute(2), minute(3), EARLIER + minute(0), "system/training_job_end.ts")
    (root / "system/open.json.tmp").write_bytes(b"x" * 1000)
    uploaded = {minute(2)}
    space = LocalSpace(root, 3400, take_uploaded=lambda info: info.key in uploaded)
    space.check()
    left = sizes(root)
    assert minute(2) not in left  # it is in the bucket
    assert [left[key] for key in (EARLIER + minute(0), minute(0), minute(1), minute(3))] == [0, 0, 0, 1000]
    assert left["system/open.json.tmp"] == left["system/training_job_end.ts"] == 1000
    assert (space.lost, space.lost_bytes) == (3, 3000)
    assert len(caplog.messages) == 1
    assert "has reached its limit of 3.4 kB (SM_PROFILER_LOCAL_MAX)" in caplog.text
    space.check()
    assert space.lost == 3


def test_a_report_counts_what_was_emptied(tmp_path):
    fill(tmp_path, minute(0), minute(1))
    LocalSpace(tmp_path, 1500).check()
    source = open_source(tmp_path, cache=False)
    source.system()
    assert [(one.status, one.reason) for one in source.quality() if Path(one.path).name in minute(0)] == [
        ("refused", "empty")
    ]


def test_nothing_is_removed_within_the_limit(tmp_path):
    fill(tmp_path, minute(0), minute(1))
    for limit in (2000, 0):
        LocalSpace(tmp_path, limit, take_uploaded=lambda _: True).check()
        assert len(sizes(tmp_path)) == 2


def test_uploaded_files_are_removed_on_request(tmp_path):
    root, bucket = tmp_path / "profile", tmp_path / "bucket"
    fill(root, minute(0), minute(1))
    uploader = Uploader(root, Bucket(bucket))
    assert uploader.upload_new() == 2
    fill(root, minute(2))
    LocalSpace(root, 0, deletes=True, take_uploaded=uploader.take_uploaded).check()
    assert list(sizes(root)) == [minute(2)]
    (root / minute(0)).write_bytes(b"yy")  # a monitor that started again within the minute
    uploader.upload_new()
    assert (bucket / minute(0)).read_bytes() == b"x" * 1000 + b"yy"
