"""Damage a profile the way disks, crashes, copies and strangers do; the same seed gives the same damage."""

import gzip
import os
import random
import re
import zlib
from pathlib import Path

HOSTILE = (
    "\x1b]0;owned\x07\x1b[31m",
    "</script><script>alert(1)</script>",
    "\u202egnp",
    "x" * 5000,
    "\x00",
    "\ud800",
    "²",
    "../../../etc/passwd",
)
NUMBERS = (
    b"1e308",
    b"-1e308",
    b"NaN",
    b"Infinity",
    b"-1",
    b"0",
    b"9" * 30,
    b"9" * 400,
    b"0.1e-400",
    b"null",
    b'"x"',
    b"[]",
    b"{}",
    b"true",
    b"\xc2\xb2",
    b"1" + b"0" * 18,
)
DIGITS = re.compile(rb"-?\d+(?:\.\d+)?")
STRINGS = re.compile(rb'"[^"\\\n]{1,60}"')


def _span(rng, data):
    start = rng.randrange(max(len(data), 1))
    return start, min(start + rng.choice((1, 5, 50, 500, 5000)), len(data))


def truncate(rng, data):
    return data[: rng.randrange(max(len(data), 1))]


def cut_start(rng, data):
    return data[rng.randrange(max(len(data), 1)) :]


def overwrite(rng, data):
    start, end = _span(rng, data)
    return data[:start] + rng.randbytes(end - start) + data[end:]


def zeros(rng, data):
    start, end = _span(rng, data)
    return data[:start] + bytes(end - start) + data[end:]


def flip_bits(rng, data):
    changed = bytearray(data)
    for _ in range(rng.choice((1, 3, 30))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def insert(rng, data):
    start, _ = _span(rng, data)
    return (
        data[:start]
        + rng.choice(
            (b"\n", b"{", b"}", b"]", b'"', b"\\", b"\xff\xfe", b"[" * 3000, b'{"a":' * 3000, rng.randbytes(300))
        )
        + data[start:]
    )


def repeat(rng, data):
    start, end = _span(rng, data)
    return data[:end] + data[start:end] * rng.choice((1, 2, 40)) + data[end:]


def remove(rng, data):
    start, end = _span(rng, data)
    return data[:start] + data[end:]


def shuffle_lines(rng, data):
    lines = data.split(b"\n")
    rng.shuffle(lines)
    return b"\n".join(lines)


def numbers(rng, data):
    share = rng.choice((0.001, 0.02, 0.5))
    return DIGITS.sub(lambda match: rng.choice(NUMBERS) if rng.random() < share else match[0], data)


def strings(rng, data):
    share = rng.choice((0.001, 0.02, 0.3))
    new = [
        b'"'
        + text.encode("utf-8", "surrogatepass")
        .replace(b"\x00", b"\\u0000")
        .replace(b"\x1b", b"\\u001b")
        .replace(b"\x07", b"\\u0007")
        + b'"'
        for text in HOSTILE
    ]
    return STRINGS.sub(lambda match: rng.choice(new) if rng.random() < share else match[0], data)


def empty(_rng, _data):
    return b""


def other_content(rng, _data):
    return rng.choice(
        (
            b"null",
            b"[]",
            b"{}",
            b"[[]]",
            b'"text"',
            b"[" * 100_000,
            b"\xef\xbb\xbf[]",
            rng.randbytes(2000),
            b"<xml/>",
            b"[1, 2, 3]",
            b'{"traceEvents": 5}',
            b'[{"ph": "X"}]' * 50,
        )
    )


def drop_a_line(rng, data):
    lines = data.split(b"\n")
    del lines[rng.randrange(len(lines))]
    return b"\n".join(lines)


CONTENT = (
    truncate,
    cut_start,
    overwrite,
    zeros,
    flip_bits,
    insert,
    repeat,
    remove,
    shuffle_lines,
    numbers,
    strings,
    empty,
    other_content,
    drop_a_line,
)
# Damage after which a file that yields fewer records cannot look complete.
VISIBLE = (overwrite, zeros, insert)


def change_content(rng, path):
    """Change the bytes of a file, of a compressed one before or after compression; return the function applied."""
    change, data = rng.choice(CONTENT), path.read_bytes()
    if path.suffix == ".gz" and rng.random() < 0.5:
        try:
            path.write_bytes(gzip.compress(change(rng, gzip.decompress(data))))
        except (OSError, EOFError, zlib.error):
            path.write_bytes(change(rng, data))
    else:
        path.write_bytes(change(rng, data))
    return change


def rename(rng, path):
    """Give a file another name: other times, another node, an odd ending."""
    name = path.name
    digits = re.search(r"\d+", name)
    new = rng.choice((
        name[: digits.start()] + rng.choice(("0", "1", "2160000000", "999999999999999999", "9" * 40, "9" * 310, "-5", "²")) + name[digits.end() :] if digits else name + "1",
        name.replace("algo-1", rng.choice(("algo-2", "algo-999999999999", "algo-", "\x1b[31m", "a" * 150, "algo-²"))),
        name.replace(".json", rng.choice((".jsonl", ".json.gz", ".json.tmp", "", ".JSON"))),
        name.replace("pythontimeline", rng.choice(("model_timeline", "horovod_timeline", "x", "pythontimeline_1_2_3"))),
        os.fsdecode(b"\xff\xfe" + os.fsencode(name)),
    ))  # fmt: skip
    if new and "/" not in new and len(os.fsencode(new)) < 255:
        path.rename(path.with_name(new))


def copy_elsewhere(rng, path, root):
    """Copy a file to the place or name of another."""
    other = rng.choice(files_of(root))
    target = other if rng.random() < 0.5 else other.with_name(f"{rng.randrange(10**16)}_{path.name}"[:200])
    target.write_bytes(path.read_bytes())


def delete(_rng, path):
    """Remove a file."""
    path.unlink()


def replace_by_folder(_rng, path):
    """Replace a file by a folder of its name."""
    path.unlink()
    path.mkdir()


def replace_by_link(rng, path):
    """Replace a file by a symbolic link: to itself, to nothing, to a device."""
    path.unlink()
    path.symlink_to(rng.choice((path, Path("/nonexistent"), Path("/dev/null"), path.parent)))


def damage(root, seed):
    """Damage some files of a profile; return True if each loss of records must be visible."""
    rng = random.Random(seed)  # no secret
    visible = True
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        found = files_of(root)
        if not found:
            break
        path = rng.choice(found)
        kind = rng.random()
        if kind < 0.75:
            visible &= change_content(rng, path) in VISIBLE
            continue
        visible = False
        if kind < 0.87:
            rename(rng, path)
        elif kind < 0.92:
            copy_elsewhere(rng, path, root)
        else:
            rng.choice((delete, replace_by_folder, replace_by_link))(rng, path)
    return visible


def files_of(root):
    """Return the regular files below a folder, in a fixed order."""
    return sorted(path for path in Path(root).rglob("*") if path.is_file() and not path.is_symlink())
