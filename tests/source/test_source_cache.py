import os
import shutil
import subprocess
import sys

import pytest

from sm_profiler.source import cache, open_source
from sm_profiler.source.cache import cache_root


@pytest.fixture(autouse=True)
def small_jobs_too(monkeypatch):
    monkeypatch.setattr(cache, "WORTH_BYTES", 0)
    monkeypatch.setattr("sm_profiler.source.profile.WORTH_BYTES", 0)


@pytest.fixture
def parsed(monkeypatch):
    """Counts the files that were parsed, not copied."""
    from sm_profiler.source import profile

    count = []
    real = profile.parse_all

    def counted(storage, items, **options):
        for each in real(storage, list(items), **options):
            count.append(each[0].info.key)
            yield each

    monkeypatch.setattr(profile, "parse_all", counted)
    return count


@pytest.fixture
def copy(job, tmp_path):
    return shutil.copytree(job, tmp_path / "copy")


def read(where, **options):
    source = open_source(where, **options)
    given = source.system(), source.events(), source.quality(), source.metadata()
    cache.wait_for_copies()
    return given


def test_reads_from_the_copy_the_second_time(copy, parsed, assert_same):
    first = read(copy)
    assert len(parsed) == sum(1 for _ in copy.rglob("*.json"))
    parsed.clear()
    second = read(copy)
    assert parsed == []
    assert_same(first[0], second[0])
    assert_same(first[1], second[1])
    assert first[2:] == second[2:]


def test_reads_batches_from_the_copy(copy, parsed, assert_same):
    read(copy)
    parsed.clear()
    with_copy = list(open_source(copy).batches())
    assert parsed == []
    without = list(open_source(copy, cache=False).batches())
    for one, other in zip(with_copy, without, strict=True):
        assert one.minute_us == other.minute_us
        assert_same(one.system, other.system)
        assert_same(one.events, other.events)


def test_reading_by_the_minute_writes_the_same_copy(copy, parsed, assert_same):
    assert len(list(open_source(copy).batches())) > 1
    cache.wait_for_copies()
    parsed.clear()
    again = open_source(copy)
    system, events = again.system(), again.events()
    assert parsed == []
    plain = open_source(copy, cache=False)
    assert_same(system, plain.system())
    assert_same(events, plain.events())


def test_reading_a_running_job_by_the_minute_writes_no_copy(copy):
    (copy / "system/training_job_end.ts").unlink()
    (copy / "framework/training_job_end.ts").unlink(missing_ok=True)
    list(open_source(copy).batches())
    cache.wait_for_copies()
    assert not list(cache_root().rglob("*.arrow"))


def test_is_switched_off_by_an_argument(copy, parsed):
    read(copy, cache=False)
    assert not list(cache_root().rglob("*.arrow"))


def test_adds_new_files(copy, parsed, assert_same):
    files = sorted(copy.rglob("*.json"), key=lambda path: path.name)
    late = {path: path.read_bytes() for path in files[-5:]}
    for path in late:
        path.unlink()
    read(copy)
    for path, data in late.items():
        path.write_bytes(data)
    parsed.clear()
    grown = read(copy)
    assert sorted(parsed) == sorted(path.relative_to(copy).as_posix() for path in late)
    plain = read(copy, cache=False)
    assert_same(grown[0], plain[0])
    assert_same(grown[1], plain[1])
    parsed.clear()
    assert_same(read(copy)[1], plain[1])
    assert parsed == []


def test_joins_events_open_in_the_copy_with_new_files(tmp_path, parsed):
    def trace(end_us, *records):
        path = tmp_path / f"framework/pevents/2023111422/{end_us}_0-algo-1_horovod_timeline.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        head = '{"ph":"M","name":"process_name","pid":0,"args":{"start_time_since_epoch_in_micros":1700000000000000}}'
        path.write_text("[\n" + ",\n".join([head, *records]) + "\n]")

    trace(1_700_000_000_000_010, '{"ph":"B","name":"ALLREDUCE","pid":1,"ts":10}')
    assert len(open_source(tmp_path).events()) == 0
    trace(1_700_000_060_000_020, '{"ph":"E","pid":1,"ts":60000020}')
    parsed.clear()
    events = open_source(tmp_path).events()
    assert len(parsed) == 1
    assert (events.name.decode().tolist(), events.duration_us.tolist()) == (["ALLREDUCE"], [60_000_010])
    assert open_source(tmp_path).events().duration_us.tolist() == [60_000_010]
    *_, batch = open_source(tmp_path).batches()
    assert batch.events.duration_us.tolist() == [60_000_010]


@pytest.mark.parametrize("change", ["content", "gone"])
def test_ignores_a_copy_of_changed_files(copy, change, parsed, assert_same):
    read(copy)
    path = min((copy / "system").rglob("*.json"), key=lambda path: path.name)
    if change == "content":
        text = path.read_bytes()
        path.write_bytes(text[: text.index(b"\n") + 1])
        os.utime(path, (1, 1))
    else:
        path.unlink()
    parsed.clear()
    rows = read(copy)[0]
    assert any(key.startswith("system") for key in parsed)
    assert_same(rows, read(copy, cache=False)[0])


def test_inserts_late_files_in_order(copy, parsed, assert_same):
    for pattern in ("system/**/*.json", "framework/**/*pythontimeline.json"):
        late = sorted(copy.glob(pattern), key=lambda path: path.name)[1]
        data = late.read_bytes()
        late.unlink()
        read(copy)
        late.write_bytes(data)
        with_copy, without = read(copy), read(copy, cache=False)
        assert_same(with_copy[0], without[0])
        assert_same(with_copy[1], without[1])


@pytest.mark.parametrize("damage", [b"", b"ARROW1\0\0", b"x" * 5000])
def test_discards_damaged_copies(copy, damage, assert_same):
    expected = read(copy)
    for path in cache_root().rglob("*.arrow"):
        path.write_bytes(damage)
    again = read(copy)
    assert_same(expected[0], again[0])
    assert_same(expected[1], again[1])


def test_discards_truncated_copies(copy, assert_same):
    expected = read(copy)
    for path in cache_root().rglob("*.arrow"):
        path.write_bytes(path.read_bytes()[:-2000])
    assert_same(expected[1], read(copy)[1])


def test_discards_copies_with_one_flipped_byte(copy, parsed, assert_same):
    """Arrow trusts its files: without a checksum most of these end the process with a segmentation fault."""
    expected = read(copy)
    for place in (10, 300, 1000, -10, -300, -3000):
        for path in cache_root().rglob("*.arrow"):
            data = bytearray(path.read_bytes())
            data[place] ^= 0xFF
            path.write_bytes(data)
        parsed.clear()
        again = read(copy)
        assert_same(expected[0], again[0])
        assert_same(expected[1], again[1])
        assert parsed


def test_ignores_copies_of_another_user(copy, parsed, monkeypatch):
    read(copy)
    kept = set(cache_root().rglob("*.arrow"))
    parsed.clear()
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    read(copy)
    assert parsed
    assert set(cache_root().rglob("*.arrow")) == kept


@pytest.mark.parametrize("value", ["off", "OFF", "0", "no", "none", "false"])
def test_is_switched_off_by_the_environment(copy, parsed, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SM_PROFILER_CACHE", value)
    assert cache_root() is None
    assert len(read(copy)[0])
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_deletes_no_files_of_others(copy, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    theirs = [scratch / name for name in ("work/data.arrow", "a" * 24 + "-00000000.arrow", "notes.txt")]
    monkeypatch.setenv("SM_PROFILER_CACHE", str(scratch))
    root = cache_root()
    theirs += [root.parent / "elsewhere" / ("0" * 24 + "-00000000.arrow")]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1000)
        os.utime(path, (1, 1))
    monkeypatch.setattr(cache, "MAX_BYTES", 1)
    read(copy)
    theirs += [root / name for name in ("mine.arrow", "x/" + "0" * 24 + ".arrow", "0" * 24 + "/data.arrow")]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1000)
        os.utime(path, (1, 1))
    read(copy)
    assert all(path.exists() for path in theirs)


def test_leaves_a_folder_without_its_mark_alone(copy, tmp_path, monkeypatch):
    monkeypatch.setenv("SM_PROFILER_CACHE", str(tmp_path))
    root = cache_root()
    root.mkdir()
    (root / "important").write_text("x")
    assert len(read(copy)[0])
    assert [path.name for path in root.iterdir()] == ["important"]


def test_ignores_an_unwritable_cache(copy, monkeypatch):
    monkeypatch.setenv("SM_PROFILER_CACHE", "/proc/no/such/place")
    assert len(read(copy)[0]) > 0


def test_is_safe_for_two_processes(copy, assert_same, job):
    script = (
        "import sys\nfrom sm_profiler.source import cache, open_source, profile\n"
        "cache.WORTH_BYTES = profile.WORTH_BYTES = 0\n"
        "for _ in range(6):\n"
        "    source = open_source(sys.argv[1]); print(len(source.system()), len(source.events())); cache.wait_for_copies()\n"
        "    [path.unlink(missing_ok=True) for path in cache.cache_root().rglob('*.arrow')]\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script, copy], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    printed = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    expected = read(job, cache=False)
    assert set("".join(printed).splitlines()) == {f"{len(expected[0])} {len(expected[1])}"}
    assert not list(cache_root().rglob("*.tmp"))


def test_deletes_the_oldest_copies_beyond_the_limit(copy, monkeypatch, tmp_path):
    read(copy)
    held = sum(path.stat().st_size for path in cache_root().rglob("*.arrow"))
    monkeypatch.setattr(cache, "MAX_BYTES", held + 1000)
    before = set(cache_root().rglob("*.arrow"))
    other = shutil.copytree(copy, tmp_path / "other")
    read(other)
    kept = set(cache_root().rglob("*.arrow"))
    assert sum(path.stat().st_size for path in kept) <= held * 1.2
    assert kept - before


def test_reads_a_copy_without_pandas(copy, job):
    read(copy)
    script = (
        "import sys\nfrom sm_profiler.source import cache, open_source, profile\n"
        "cache.WORTH_BYTES = profile.WORTH_BYTES = 0\n"
        "profile.parse_all = lambda _storage, items, **_: (each for each in ()) if not items else 1 / 0\n"
        "source = open_source(sys.argv[1]); print(len(source.system()) > 0, len(source.events()) > 0, 'pandas' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, copy], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "False"]
