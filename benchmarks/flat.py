"""Measure the memory and the CPU time of reports of ever longer jobs, each made by one process.

    python benchmarks/flat.py [--hours 1,3,6,12,24] [--nodes 8] [--keep FOLDER]

Jobs of one node and 8 GPUs are read as JSON and as Parquet; the longest is also read as Parquet with --nodes nodes. The
Parquet of a long job is one hour of training, repeated with other times, step numbers and nodes.
"""

from __future__ import annotations

import argparse
import calendar
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sm_profiler.formats.columns import Category
from sm_profiler.source.parquet import paths, schema
from sm_profiler.source.parquet.contents import PartFile
from sm_profiler.source.parquet.paths import PartKey
from sm_profiler.source.parquet.schema import KEY, SCHEMA_VERSION, Header, encode_header
from sm_profiler.source.parquet.storage import ParquetStorage
from sm_profiler.storage.base import LocalStorage

MAKE_JOB = Path(__file__).parents[1] / "tests" / "tools" / "make_job.py"
START_S = 1_700_002_800  # a full hour
GPUS = 8
HOUR_US = 3_600_000_000
RUN = """
import json, resource, sys
from sm_profiler.report import build_report
from sm_profiler.source import open_source
source = open_source(sys.argv[1], cache=False, progress=False)
build_report(source)
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps({"files": len(source.files), "own_mb": used[0].ru_maxrss / 1024, "helper_mb": used[1].ru_maxrss / 1024,
                  "cpu_s": sum(one.ru_utime + one.ru_stime for one in used)}))
"""


def make_job(folder: Path, hours: int, first_s: int = START_S) -> Path:
    """Make a job of one node as JSON."""
    if not folder.exists():
        shape = ["--gpus", GPUS, "--cpus", 32, "--minutes", 60 * hours, "--start-epoch", first_s]
        subprocess.run(list(map(str, [sys.executable, MAKE_JOB, "--out", folder, *shape])), check=True)
    return folder


def first_hours(job: Path, folder: Path, hours: int) -> Path:
    """Link the files of the first hours of a job."""
    last = time.strftime("%Y%m%d%H", time.gmtime(START_S + 3600 * hours))
    for file in () if folder.exists() else job.rglob("*.*"):
        if file.is_file() and not (file.parent.name.isdigit() and file.parent.name >= last):
            target = folder / file.relative_to(job)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, target)
    return folder


def repeat(hour: Path, folder: Path, hours: int, nodes: int) -> Path:
    """Write an hour's Parquet as that of many hours and nodes."""
    if folder.exists():
        return folder
    base = LocalStorage(str(hour))
    found = [(part, info) for info in base.list("") if (part := PartKey.parse(info.key)) is not None]
    full = time.strftime("%Y%m%d%H", time.gmtime(START_S + 3600))  # neither the start of the job nor its end
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for part, info in found:
            if part.table in schema.KINDS and part.hour == full:
                work = [
                    (str(hour), info, str(folder), number, node) for number in range(hours) for node in range(nodes)
                ]
                list(pool.map(_copy, work))
            elif part.table == paths.FILES:
                target = folder / attrs.evolve(part, job="day").key
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(base.read(info.key))
    made = LocalStorage(str(folder))
    dataset = ParquetStorage(made, "day")
    dataset.load()
    made.write(paths.contents_of("day"), dataset.new_contents())
    return folder


def _copy(task: tuple) -> None:
    source, info, folder, number, node = task
    part = PartKey.parse(info.key)
    file = PartFile.open(LocalStorage(source), part, info)
    shift_us = HOUR_US * number
    moved = attrs.evolve(part, job="day", node=f"algo-{node + 1}", hour=_hour(part.hour, number))
    target = Path(folder) / moved.key
    target.parent.mkdir(parents=True, exist_ok=True)
    level = {"compression": "zstd", "compression_level": 1, "write_page_checksum": True, "version": "1.0"}
    texts = [field.name for field in schema.SCHEMAS[part.table] if field.type not in {pa.float64(), pa.binary()}]
    writer = pq.ParquetWriter(target, schema.SCHEMAS[part.table], store_schema=False, use_dictionary=texts, **level)
    kept = []
    for each in file.header.files:
        if node and "model_timeline" in each.key:
            each.rows = 0
        each.key, each.at_us = _key(each.key, shift_us, node), each.at_us + shift_us
        each.start_us += shift_us if each.start_us else 0
        kept.append(each)
    counts: dict[int, int] = {}
    for group in range(pq.ParquetFile(Path(source) / info.key).metadata.num_row_groups):
        columns = file.columns(group)
        if part.table == paths.SYSTEM:
            columns = attrs.evolve(
                columns, timestamp=columns.timestamp + shift_us / 1e6, node=_renamed(columns.node, node)
            )
        else:
            if node:
                columns = columns[
                    ~np.asarray([kind == "model_timeline" for kind in columns.kind.values])[columns.kind.codes]
                ]
            known = columns.step >= 0
            columns = attrs.evolve(
                columns, start_us=columns.start_us + shift_us, node=_renamed(columns.node, node),
                step=np.where(known, columns.step + 12_000 * number, -1),
            )  # fmt: skip
        if len(columns):
            counts[group] = len(counts)
            writer.write_table(
                schema.to_batch(columns, part.table).cast(schema.SCHEMAS[part.table]), row_group_size=len(columns)
            )
    for each in kept:
        each.group = counts.get(each.group, 0)
    files = [each for each in kept if each.rows or not node]
    header = encode_header(Header(SCHEMA_VERSION, "a repeated hour", files))
    writer.add_key_value_metadata({KEY.decode(): header.decode()})
    writer.close()


def _renamed(names: Category, node: int) -> Category:
    def new(name: str) -> str:
        host, _, rank = name.removeprefix("algo-").partition("-")
        return f"algo-{node + int(host)}" + (f"-{int(rank) + GPUS * node}" if rank else "")

    return attrs.evolve(names, values=tuple(map(new, names.values)))


def _hour(hour: str, later: int) -> str:
    at = calendar.timegm(time.strptime(hour, "%Y%m%d%H")) + 3600 * later
    return time.strftime("%Y%m%d%H", time.gmtime(at))


def _key(key: str, shift_us: int, node: int) -> str:
    folder, name = key.rsplit("/", 1)
    parent, hour = folder.rsplit("/", 1)
    if parent.startswith("system"):
        at, _, rest = name.partition(".")
        name = f"{int(at) + shift_us // 1_000_000}.{rest.replace('algo-1', f'algo-{node + 1}')}"
    else:
        at, source, kind = name.split("_", 2)
        rank = int(re.match(r"\d+", source)[0]) + GPUS * node
        name = f"{int(at) + shift_us}_{rank}-algo-{node + 1}_{kind}"
    return f"{parent}/{_hour(hour, shift_us // HOUR_US)}/{name}"


def measure(label: str, where: Path) -> None:
    done = subprocess.run([sys.executable, "-c", RUN, str(where)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found = json.loads(done.stdout.splitlines()[-1])
    sizes = f"{found['files']:,} | {found['own_mb']:.0f} | {found['helper_mb']:.0f}"
    print(f"| {label} | {sizes} | {found['cpu_s']:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hours", default="1,3,6,12,24")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--formats", default="json,parquet")
    parser.add_argument("--keep", type=Path, help="a folder for the jobs, which a second call reads again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sm-profiler-flat-") as name:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        hours = sorted(map(int, options.hours.split(",")))
        print("| job | files | MiB | largest helper, MiB | CPU seconds |\n|---|---|---|---|---|")
        if "json" in options.formats:
            whole = make_job(folder / f"json-{hours[-1]}", hours[-1])
            for each in hours:
                job = first_hours(whole, folder / f"json-{hours[-1]}-first-{each}", each) if each < hours[-1] else whole
                measure(f"{each} h of {GPUS} GPUs, JSON", job)
        if "parquet" in options.formats:
            hour = folder / "hour"
            if not hour.exists():
                three = make_job(folder / "three", 3)
                command = [sys.executable, "-m", "sm_profiler", "compact", str(three), "--out", str(hour)]
                subprocess.run(command, check=True, capture_output=True)
            for each, nodes in dict.fromkeys([*((each, 1) for each in hours), (hours[-1], options.nodes)]):
                job = repeat(hour, folder / f"parquet-{each}-{nodes}", each, nodes)
                measure(f"{each} h of {GPUS * nodes} GPUs, Parquet", job)


if __name__ == "__main__":
    main()
