"""Only regular files are read: a pipe would wait for a writer, a device may have no end."""

import errno
import os
import socket

import pytest

from sm_profiler.descriptors import read_regular, written_whole
from sm_profiler.hook import memory, stacks


def kind(path, name):
    if name == "pipe":
        os.mkfifo(path)
    elif name == "link to a pipe":
        os.mkfifo(path.with_suffix(".pipe"))
        path.symlink_to(path.with_suffix(".pipe"))
    elif name == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    elif name == "folder":
        path.mkdir()
    elif name == "large":
        path.write_bytes(b"x = 1\n")
        os.truncate(path, 1 << 33)
    else:
        return name
    return str(path)


KINDS = [
    "pipe",
    "link to a pipe",
    "socket",
    "folder",
    "large",
    "/dev/zero",
    "/dev/random",
    "/proc/kmsg",
    "/proc/self/mem",
]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", KINDS)
def test_code_whose_file_is_no_regular_file_has_no_lines(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    file = kind(tmp_path.joinpath("code.py"), name)
    assert stacks.source_line(file, 1) == ""
    assert memory._functions(file) == [] or name.startswith("/proc")
    if not name.startswith("/proc"):
        with pytest.raises(OSError, match=r"regular|File too large"):
            read_regular(file, 1000)


def test_a_writer_that_waits_for_a_reader_of_its_pipe_goes_on_waiting(tmp_path):
    os.mkfifo(path := tmp_path / "pipe")
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(path, os.O_WRONLY)
    os.write(writer, b"for another reader")
    with pytest.raises(OSError, match="regular"):
        read_regular(path, 1000)
    assert os.read(reader, 100) == b"for another reader"
    os.close(reader)
    os.close(writer)


def test_a_source_is_read_in_its_encoding(tmp_path):
    (file := tmp_path / "code.py").write_bytes("# coding: latin-1\nx = 'é'\r\ny = 2\x0c3".encode("latin-1"))
    assert [stacks.source_line(str(file), line) for line in (0, 2, 3, 4)] == ["", "x = 'é'", "y = 2\x0c3", ""]


def test_a_file_that_cannot_be_written_whole_leaves_nothing(tmp_path):
    """A window's statistics that did not fit took the last megabyte of the disk from the profile."""

    def write(content):
        with written_whole(tmp_path / "a" / "stats") as temporary:
            temporary.write_bytes(content)
            if not content:
                raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write(b"")
    assert list((tmp_path / "a").iterdir()) == []
    write(b"whole")
    assert (tmp_path / "a" / "stats").read_bytes() == b"whole"
    assert len(list((tmp_path / "a").iterdir())) == 1
