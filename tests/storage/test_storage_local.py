import os

import pytest

from sm_profiler.errors import SourceError
from sm_profiler.storage import LocalStorage, MissingFileError, open_storage, read_all


@pytest.fixture
def storage(tmp_path):
    storage = open_storage(tmp_path / "root")
    for key in ("a/b/c", "a-b", "a/b.d", "b", "a/b/a"):
        storage.write(key, key.encode())
    return storage


def test_lists_in_the_order_of_keys(storage):
    keys = [info.key for info in storage.list()]
    assert keys == sorted(["a/b/c", "a-b", "a/b.d", "b", "a/b/a"])
    assert [info.key for info in storage.list("a/b")] == ["a/b.d", "a/b/a", "a/b/c"]
    for number, key in enumerate(keys):
        assert [info.key for info in storage.list(start_after=key)] == keys[number + 1 :]
    assert [info.key for info in storage.list("a/", "a/b/b")] == ["a/b/c"]
    assert list(open_storage("/no/such/folder").list()) == []


def test_reads_and_writes_atomically(storage, tmp_path):
    assert storage.read("a/b/c") == b"a/b/c"
    assert storage.read("a/b/c", 2, 4) == b"b/"
    assert storage.exists("b")
    assert not storage.exists("a")
    assert [data for _, data in read_all(storage, storage.list())] == [info.key.encode() for info in storage.list()]
    assert not list(tmp_path.rglob("*.tmp"))
    with pytest.raises(MissingFileError):
        storage.read("z")


@pytest.mark.parametrize("key", ["../x", "a/../../x", "/etc/passwd", "", "a//b", "a/./b", "a\\..\\b", "a\0b", ".."])
def test_keys_cannot_escape(storage, key):
    for call in (lambda: storage.write(key, b""), lambda: storage.read(key), lambda: storage.exists(key)):
        with pytest.raises(SourceError, match="is not a file name below"):
            call()


def test_links_to_folders_are_not_followed(storage, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_text("1")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root" / "loop").symlink_to(tmp_path / "root")
    (tmp_path / "root" / "gone").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "root" / "pipe")
    assert len(list(storage.list())) == 5


def test_links_to_files_are_followed_only_within_the_folder(storage, tmp_path):
    (tmp_path / "secret").write_text("1")
    (tmp_path / "root" / "out").symlink_to(tmp_path / "secret")
    (tmp_path / "root" / "up").symlink_to("../secret")
    (tmp_path / "root" / "hops").symlink_to("up")
    (tmp_path / "root" / "within").symlink_to("a/b/c")
    for key in ("out", "up", "hops"):
        with pytest.raises(SourceError, match="leads out of the profile"):
            storage.read(key)
    assert storage.read("within") == b"a/b/c"


def test_a_folder_may_itself_be_reached_through_a_link(storage, tmp_path):
    (tmp_path / "alias").symlink_to("root")
    assert LocalStorage(tmp_path / "alias").read("a/b/c") == b"a/b/c"


def test_a_file_below_a_folder_that_became_a_link_is_refused(storage, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "c").write_text("secret")
    (tmp_path / "root" / "a" / "b").rename(tmp_path / "root" / "a" / "was")
    (tmp_path / "root" / "a" / "b").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match="leads out of the profile"):
        storage.read("a/b/c")


def test_failures_are_one_line(storage, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="cannot be written"):
        open_storage(tmp_path / "file").write("x", b"")
    with pytest.raises(SourceError, match="cannot be read"):
        storage.read("a")


def test_a_file_that_became_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(SourceError, match="not a regular file"):
        LocalStorage(tmp_path).read("a.json")
