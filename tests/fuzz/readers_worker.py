"""Worker of test_fuzz_readers.py: gives damaged files, copies and listings to the readers, within limits.

    python readers_worker.py CORPUS FIRST COUNT

CORPUS is a folder of intact files, FIRST the seed of the first input. Writes `SEED KIND` per input to standard output
before it is read. An input that takes too much CPU time, memory or raises an error ends the process.
"""

# ruff: noqa: T201 - the protocol with the test is its output
from __future__ import annotations

import gzip
import os
import random
import resource
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from peak_memory import peak_bytes

from sm_profiler.executors import Remote
from sm_profiler.formats import layout
from sm_profiler.formats.outcome import LAST_US, Outcome
from sm_profiler.formats.system_reader import SystemRows, read_system
from sm_profiler.formats.trace_reader import read_trace
from sm_profiler.formats.trace_rows import EventAssembler, SystemAssembler, TraceRows
from sm_profiler.source import cache, profile
from sm_profiler.source.parse import ParsedFile
from sm_profiler.source.profile import Options, ProfileSource
from sm_profiler.storage import AccessDeniedError, FileInfo, LocalStorage, MissingFileError

MEMORY_BYTES = 700 << 20  # more than the process takes before its first input
CPU_SECONDS = 10

TOKENS = [
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\n", b"\r\n", b"\0", b"\xff", b"\xef\xbb\xbf", b"{}", b"[]", b"null", b"true",
    b"NaN", b"-1", b"1e400", b"-0.0", b"9" * 25, b"9" * 5000, b"9223372036854775808", b"-9223372036854775809", b"253402300800000001",
    b'"\\ud800"', b'"\\u0000"', b"[" * 3000, b'{"a":' * 3000, b"\n" * 5000, b"\n{" * 500, b"{}," * 2000, b'"x', "²".encode(),
    b'"ph":"B"', b'"ph":"E"', b'"ph":"i"', b'"ph":"M"', b'"ph":7', b'"tid":99999999999999999999', b'"pid":{}', b'"args":[1]', b'"dur":-1',
    b'"name":"sm_profiler/process"', b'"baseTimeNanoseconds":9999999999999999999', b'"traceEvents":', b'"Value":1e999', b'"NodeId":5',
]  # fmt: skip
PARTS = [
    "system", "framework", "incremental", "pevents", "detailed_profiling", "pytorch", "tensorflow", "cprofile", "pyinstrument", "2023111422",
    "9999999999", "1700000040.algo-1.json", "0.algo-1.json", "99999999999.algo-2.json", "²²².algo-1.json", "9" * 310 + ".algo-1.json",
    "1700000040.algo-99999999999.json", "1700000000000000_0-algo-1_pythontimeline.json", "999999999999999999_0-algo-1_model_timeline.json",
    "1_²_pythontimeline.json", "5__.json", "000000005", "9" * 400, "host.trace.json.gz", "a.trace.json", "python_stats", "python_stats.json",
    "0-algo-1_1_2.metadata", "0-algo-1_" + "9" * 18 + "_" + "9" * 300 + ".metadata", "training_job_end.ts", "", ".", "..", "\udcff\udcfe",
    "\x1b[2J", "a" * 300, "train-1-stepstart-1_train-1-stepend-" + "9" * 310, "train-²-stepstart-1_train-1-stepend-2", ".sagemaker-ignore", "x.tmp",
]  # fmt: skip


def mutate(draw: random.Random, data: bytes, other: bytes) -> bytes:
    """Return damaged contents of a file."""
    for _ in range(draw.choice((1, 1, 2, 3, 8, 40))):
        at, end = sorted(draw.randrange(len(data) + 1) for _ in range(2))
        kind = draw.randrange(9)
        if kind == 0:
            data = data[:at]
        elif kind == 1:
            data = data[:at] + draw.choice(TOKENS) + data[at:]
        elif kind == 2:
            data = data[:at] + data[min(end, at + 200) :]
        elif kind == 3 and data:
            place = draw.randrange(len(data))
            data = data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]
        elif kind == 4:
            data = data[:end] + data[at : at + 5000] * draw.choice((1, 2, 50)) + data[end:]
        elif kind == 5:
            lines = data.split(b"\n")
            draw.shuffle(lines)
            data = b"\n".join(lines)
        elif kind == 6:
            start = draw.randrange(len(other) + 1)
            data = data[:at] + other[start : start + 2000] + data[end:]
        elif kind == 7:
            data = data[:at] + draw.randbytes(draw.randrange(200)) + data[end:]
        else:
            word = draw.choice(
                (b'"ts"', b'"dur"', b'"ph"', b'"args"', b'"pid"', b'"name"', b'"Value"', b'"Timestamp"', b'"X"', b"1")
            )
            data = data.replace(word, draw.choice(TOKENS), draw.choice((1, -1)))
        data = data[: 4 << 20]
    return data


@Remote
def sent_files(files: list[ParsedFile]) -> list[ParsedFile]:
    """Return files as another process would."""
    return files


def check(rows: TraceRows | SystemRows, outcome: Outcome) -> None:
    """Fail if the result of a reader contradicts itself, or cannot be sent and assembled."""
    assert outcome.status in {"read", "repaired", "refused"}
    assert outcome.lost >= 0
    assert outcome.lost == 0 or outcome.status != "read"
    assert bool(outcome.reason) == (outcome.status != "read")
    assert len(rows.head) == 0 or 0 <= rows.head.min() <= rows.head.max() < len(rows.heads)
    (sent,) = sent_files.decode(b"\0" + sent_files.encode([ParsedFile.of(rows, outcome)]).partition(b"\0")[2])
    received = sent.rows
    assert sent.outcome == outcome
    assert received is not None
    assert len(received.head) == len(rows.head)
    assert received.heads == rows.heads
    if isinstance(rows, TraceRows):
        assert outcome.status != "refused" or len(rows.start_us) == 0
        assert ((rows.start_us >= 0) & (rows.duration_us >= 0) & (rows.start_us + rows.duration_us < LAST_US)).all()
        assert len(rows.argument) == 0 or rows.argument.max() < len(rows.numbers)
        events = EventAssembler()
        events.add(rows)
        assert len(events.columns().args.decode()) == len(rows.start_us)
        assert received.metadata == rows.metadata  # type: ignore[union-attr]
        assert received.open_events == rows.open_events  # type: ignore[union-attr]
    else:
        assert np.isfinite(rows.value).all()
        system = SystemAssembler()
        system.add(rows)
        system.columns().name.decode()


def fuzz_trace(draw: random.Random, corpus: list[bytes]) -> None:
    """Read a damaged trace."""
    data = mutate(draw, draw.choice(corpus), draw.choice(corpus))
    if draw.randrange(4) == 0:
        data = gzip.compress(data, 1)
        data = mutate(draw, data, data) if draw.randrange(2) else data
    check(*read_trace(data, "algo-1-0", "k", draw.choice((0, 1.7e15)), approximate=draw.randrange(2) == 0))


def fuzz_system(draw: random.Random, corpus: list[bytes]) -> None:
    """Read a damaged file of system metrics."""
    data = mutate(draw, draw.choice(corpus), draw.choice(corpus))
    check(*read_system(data, "algo-1"))


class Bucket:
    """A bucket with arbitrary keys, some of which must not be read or vanish."""

    uri = "s3://bucket/job\udcff"
    parallel_reads = 1

    def __init__(self, draw: random.Random, files: dict[str, bytes]) -> None:
        self.draw = draw
        self.files = files
        self.times = {key: draw.choice((0.0, 1.7e9, 4e9)) for key in files}

    def list(self, prefix: str = "", start_after: str | None = None) -> Any:
        """List keys in order."""
        for key in sorted(self.files):
            if key.startswith(prefix) and key > (start_after or ""):
                yield FileInfo(key, len(self.files[key]), self.times[key], "etag")

    def read(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Read a file, or fail."""
        luck = self.draw.randrange(20)
        if luck == 0:
            raise AccessDeniedError(key)
        if luck == 1:
            raise MissingFileError(key)
        return self.files[key][start:end]


def fuzz_keys(draw: random.Random, corpus: list[bytes]) -> None:
    """Read a job whose keys are arbitrary."""
    files = {"system/incremental/2023111422/1700000040.algo-1.json": b""}
    for _ in range(draw.randrange(30)):
        key = "/".join(draw.choice(PARTS) for _ in range(draw.randrange(1, 7)))
        for folder in (
            "system/incremental/2023111422/",
            "framework/pevents/2023111422/",
            "framework/pytorch/detailed_profiling/2023111422/",
        ):
            if draw.randrange(3) == 0:
                key = folder + key.rpartition("/")[2]
        if draw.randrange(3) == 0 and key:
            at = draw.randrange(len(key))
            key = key[:at] + chr(draw.choice((0x661, 0xB2, 0xDCFF, 0x30, 0x2F, 0x2E))) + key[at + 1 :]
        files[key] = draw.choice(corpus) if draw.randrange(2) else b"[]"
    bucket = Bucket(draw, files)
    options = Options(cache=draw.randrange(2) == 0, processes=1, progress=False)
    try:
        source: Any = ProfileSource(bucket, options)
        if draw.randrange(2):
            source.system()
            source.events()
        else:
            list(source.batches())
        source.refresh()
        list(source.batches())
    except profile.SourceError as error:
        assert "\n" not in str(error)  # only the message is checked
        assert "access denied" in str(error)
        return
    finally:
        cache.wait_for_copies()
    data = {key for key in files if isinstance(layout.parse_path(key), (layout.SystemFile, layout.TraceFile))}
    accounted = {one.path for one in source.quality()}
    unread = {item.info.key for item in source.files if item.info.key not in accounted}
    assert data <= accounted | unread
    assert not unread or not source.finished


def fuzz_copy(draw: random.Random, job: Path) -> None:
    """Read a job whose columnar copies are damaged."""

    def counts() -> tuple[int, int]:
        source = ProfileSource(LocalStorage(job), Options(processes=1, progress=False))
        rows = len(source.system()), len(source.events())
        cache.wait_for_copies()
        return rows

    expected = counts()
    root = cache.cache_root()
    assert root is not None
    for path in root.rglob("*.arrow"):
        data = path.read_bytes()
        path.write_bytes(mutate(draw, data, data))
        if draw.randrange(10) == 0:
            path.rename(
                path.with_name(draw.choice(("events-zz.arrow", "system-00000000.arrow", "events-ffffffff.arrow")))
            )
    assert counts() == expected


def limit() -> None:
    """Limit the memory of this process from here on."""
    used = peak_bytes()
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY_BYTES,) * 2)


def main() -> None:
    """Run the inputs."""
    folder, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    cache.WORTH_BYTES = profile.WORTH_BYTES = 0  # type: ignore[attr-defined]
    os.environ["SM_PROFILER_CACHE"] = tempfile.mkdtemp(dir=folder)
    files = [path for path in sorted(folder.glob("corpus/**/*")) if path.is_file()]
    traces = [path.read_bytes() for path in files if "algo" not in path.name]
    traces = [gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data for data in traces]
    system = [path.read_bytes() for path in files if ".algo-" in path.name]
    limit()
    for seed in range(first, first + count):
        draw = random.Random(seed)  # inputs of a test
        kind = draw.choice(("trace",) * 8 + ("system",) * 6 + ("keys",) * 4 + ("copy",))
        print(seed, kind, flush=True)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # ends the process by its signal
        if kind == "trace":
            fuzz_trace(draw, traces)
        elif kind == "system":
            fuzz_system(draw, system)
        elif kind == "keys":
            fuzz_keys(draw, traces + system)
        else:
            fuzz_copy(draw, folder / "job")
    print("end", flush=True)


if __name__ == "__main__":
    main()
