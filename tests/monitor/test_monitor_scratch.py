"""Temporary folders of windows whose process was killed."""

import os
import subprocess
import sys
import time

import pytest

from sm_profiler.monitor.scratch import LEAST_SECONDS, PREFIX, remove_left
from tests.support.hook import environment

MAKE = """
import sys
from sm_profiler.monitor.scratch import new_folder
folder = new_folder()
(folder / "raw.trace").write_text("{}")
print(folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def make_old(folder):
    before = time.time() - LEAST_SECONDS - 1
    os.utime(folder, (before, before))


def test_a_folder_is_removed_once_its_process_was_killed(temporary):
    command, pipe = [sys.executable, "-c", MAKE], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment(TMPDIR=str(temporary))) as owner:
        owner.stdout.readline()
        (folder,) = temporary.iterdir()
        make_old(folder)
        remove_left()
        assert (folder / "raw.trace").exists()
        owner.kill()
    remove_left()
    assert not list(temporary.iterdir())


def test_new_folders_links_and_those_of_others_stay(temporary, monkeypatch):
    new, target, other = temporary / f"{PREFIX}new", temporary / "target", temporary / "sm-profiler-other"
    for folder in (new, target, other):
        folder.mkdir()
    link = temporary / f"{PREFIX}link"
    link.symlink_to(target)
    (temporary / f"{PREFIX}file").touch()
    for folder in (target, other):
        make_old(folder)
    remove_left()
    assert len(list(temporary.iterdir())) == 5
    make_old(new)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    remove_left()
    assert new.is_dir()
    monkeypatch.undo()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    remove_left()
    assert not new.exists()
