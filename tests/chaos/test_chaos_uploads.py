"""The uploader against an S3 that fails: afterwards every record is on S3 exactly once, or counted as not uploaded."""

import os
import random
import threading
import time

import pytest
from chaos_s3 import FAULTS

from sm_profiler.monitor import uploader as uploader_module
from sm_profiler.monitor.uploader import Uploader, open_destination
from sm_profiler.storage import s3

pytestmark = pytest.mark.long
PREFIX = "job/profiler-output/"
URI = "s3://profiles/job/profiler-output"
SHARES = {"hanging": 0.15, "slow": 0.5}  # each hanging request takes a timeout
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))]


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(s3, "READ_SECONDS", 1)
    monkeypatch.setattr(uploader_module, "FIRST_PAUSE_S", 0.05)


def trace(number):
    return f"framework/pevents/2026112111/{1795261080000000 + number}_0-algo-1_pythontimeline.json"


def minute(number):
    return f"system/incremental/2026112111/{1795261080 + 60 * number}.algo-1.json"


def write(root, key, data):
    path = root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def profile(root, seed, traces=24, minutes=3):
    """Write a profile; return its keys with their bytes."""
    dice = random.Random(seed)  # not for cryptography
    files = {trace(number): dice.randbytes(dice.choice([0, 10, 5000, 200_000])) for number in range(traces)}
    files |= {minute(number): f'{{"minute": {number}, "seed": {seed}}}\n'.encode() * 50 for number in range(minutes)}
    for key, data in files.items():
        write(root, key, data)
    return files


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_record_arrives_once_in_spite_of(faulty_s3, tmp_path, fault, seed):
    files = profile(tmp_path, seed)
    # An interrupted attempt has uploaded the beginning of this minute.
    faulty_s3.objects["profiles", PREFIX + minute(0)] = b"earlier\n"
    files[minute(0)] = b"earlier\n" + files[minute(0)]
    faulty_s3.fail(fault, share=SHARES.get(fault, 0.5), seed=seed)
    uploader = Uploader(tmp_path, open_destination(URI))
    if fault == "access_denied":  # the earlier part cannot be read
        del files[minute(0)]
    assert uploader.drain(uploader.clock() + 90)
    found = faulty_s3.below(PREFIX)
    assert {key: found[key] for key in files} == files
    assert faulty_s3.met[fault] > 0
    assert uploader.remaining() == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_every_record_arrives_once_in_spite_of_all_faults_together(faulty_s3, tmp_path, seed):
    files = profile(tmp_path, seed)
    kinds = [fault for fault in FAULTS if fault not in ("access_denied", "hanging")]
    faulty_s3.fail(*kinds, share=0.7, seed=seed)
    uploader = Uploader(tmp_path, open_destination(URI))
    assert uploader.drain(uploader.clock() + 90)
    assert faulty_s3.below(PREFIX) == files


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "slow"])
def test_what_cannot_be_uploaded_is_counted_and_arrives_later(faulty_s3, tmp_path, fault, caplog):
    files = profile(tmp_path, 0, traces=9, minutes=0)
    faulty_s3.fail(fault)
    uploader = Uploader(tmp_path, open_destination(URI))
    began = time.monotonic()
    assert not uploader.drain(uploader.clock() + 2)
    assert time.monotonic() - began < 8
    assert uploader.remaining() == len(files) - uploader.uploaded == 9
    assert uploader.error
    assert 1 <= len(caplog.records) <= uploader_module.MAX_WARNINGS
    assert all(record.getMessage().isprintable() for record in caplog.records)
    faulty_s3.recover()
    assert uploader.drain(uploader.clock() + 60)
    assert faulty_s3.below(PREFIX) == files


def test_a_bucket_that_disappears_and_returns(faulty_s3, tmp_path):
    faulty_s3.fault = lambda *_: "missing_bucket" if 0.5 < time.monotonic() - began < 2.5 else None
    uploader = Uploader(tmp_path, open_destination(URI))
    stop, began, files = threading.Event(), time.monotonic(), {}
    thread = threading.Thread(target=uploader.run, args=(stop,))
    thread.start()
    for number in range(40):
        files[trace(number)] = os.urandom(100)
        write(tmp_path, trace(number) + ".tmp", files[trace(number)])
        (tmp_path / (trace(number) + ".tmp")).rename(tmp_path / trace(number))
        time.sleep(0.1)
    stop.set()
    thread.join(30)
    assert uploader.drain(uploader.clock() + 30)
    assert faulty_s3.below(PREFIX) == files
    assert faulty_s3.met["missing_bucket"] > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_files_that_appear_change_and_vanish_during_uploads(faulty_s3, tmp_path, seed):
    faulty_s3.fail("throttled", "reset_after", share=0.3, seed=seed)
    uploader, files = Uploader(tmp_path, open_destination(URI)), {}
    dice = random.Random(seed)  # not for cryptography
    stop = threading.Event()
    thread = threading.Thread(target=uploader.run, args=(stop,))
    thread.start()
    for number in range(60):
        key = trace(dice.randrange(30))
        if key in files and dice.random() < 0.2:
            (tmp_path / key).unlink()
            del files[key]
        else:
            files[key] = dice.randbytes(dice.randrange(3000)) + str(number).encode()
            write(tmp_path, key + ".tmp", files[key])
            (tmp_path / (key + ".tmp")).rename(tmp_path / key)
        time.sleep(dice.random() / 20)
    stop.set()
    thread.join(30)
    assert uploader.drain(uploader.clock() + 60)
    found = faulty_s3.below(PREFIX)
    assert {key: found.get(key) for key in files} == files


@pytest.mark.long
def test_ten_thousand_files(faulty_s3, tmp_path):
    files = {trace(number): b"%d" % number for number in range(10_000)}
    for key, data in files.items():
        write(tmp_path, key, data)
    faulty_s3.fail("throttled", "reset_before", "reset_after", share=0.02, seed=1)
    uploader = Uploader(tmp_path, open_destination(URI))
    assert uploader.drain(uploader.clock() + 240)
    assert faulty_s3.below(PREFIX) == files
    assert uploader.uploaded == len(files)
