"""Traces of TensorFlow's and JAX's profilers: recorded ones, made-up ones, damaged ones."""

import gzip
import json
import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm_profiler.formats.xplane_reader import DamagedMessageError, fields, op_origins, read_xplane
from tests.support.xplane import Plane, content, large, number, program, space, varint

DATA = Path(__file__).parents[1] / "data" / "xplane"
SAMPLES = ("jax", "tensorflow", "tensorflow_xla")
START_NS = 1_700_000_000_000_000_000


def sample(name):
    return gzip.decompress((DATA / f"{name}.xplane.pb.gz").read_bytes())


def rows(trace):
    events, lines = trace.events, trace.lines
    columns = (events.name.decode(), events.start_ns, events.duration_ns, events.hlo_op.decode(),
               events.hlo_module.decode(), events.program)  # fmt: skip
    return [
        [lines[line].plane, lines[line].name, name, *rest]
        for line, name, *rest in zip(events.line, *columns, strict=True)
    ]


@pytest.mark.parametrize("name", SAMPLES)
def test_reads_what_the_profilers_own_reader_reads(name):
    trace, outcome = read_xplane(sample(name))
    expected = json.loads(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))
    found = rows(trace)
    assert outcome.status == "read"
    assert [[*row[:3], *row[5:]] for row in found] == [[*row[:3], *row[5:]] for row in expected]
    assert [row[3:5] for row in found] == [pytest.approx(row[3:5], abs=0.01) for row in expected]
    assert trace.base_ns > START_NS


@pytest.mark.parametrize(
    ("name", "origins"),
    [
        ("jax", {"jit(train_step)/jvp(model)/dot_general", "jit(train_step)/transpose(jvp(model))/transpose"}),
        ("tensorflow_xla", {"gradient_tape/sequential_1/out_1/MatMul/MatMul_1", "adam/AssignAddVariableOp_2"}),
    ],
)
def test_compiled_operations_have_the_frameworks_names(name, origins):
    trace, _ = read_xplane(sample(name))
    assert origins <= {origin.name for origin in trace.origins.values}


def test_times_since_the_epoch_and_since_the_start_are_both_understood():
    environment = Plane("Task Environment").argument("profile_start_time", START_NS)
    host = Plane("/host:CPU").line("python", [("a", 5_000_000, 1_000, {})])
    host.line("other", [("b", 7_000_000, 0, {})], time_ns=START_NS)
    trace, _ = read_xplane(space(host, environment))
    assert trace.base_ns == START_NS
    assert trace.events.start_ns.tolist() == [5_000, 7_000]
    alone, _ = read_xplane(space(Plane("/host:CPU").line("other", [("b", 7_000, 0, {})], time_ns=START_NS)))
    assert (alone.base_ns, alone.events.start_ns.tolist()) == (START_NS, [7])


@pytest.mark.parametrize("refer", [True, False])
def test_what_ran_on_a_device_has_its_number_and_the_frameworks_name(refer):
    kernel = {"hlo_op": "dot", "hlo_module": "jit_f", "tf_op": "jit(f)/dot", "program_id": 3, "occupancy": 0.5}
    device = Plane("/device:GPU:1").line("Stream #13(Compute)", [("gemm", 0, 10, kernel)], refer=refer)
    trace, outcome = read_xplane(space(device))
    assert outcome.status == "read"
    assert trace.lines[0].device == 1
    assert trace.origins.of(0).name == "jit(f)/dot"
    assert (trace.events.hlo_module.decode()[0], trace.events.program[0]) == ("jit_f", 3)


def test_an_operation_is_looked_up_in_its_program_and_else_in_its_module():
    arguments = {"hlo_op": "dot", "hlo_module": "jit_f", "program_id": 9}
    host = Plane("/host:CPU").line("Eigen", [("dot", 0, 10, arguments), ("add", 0, 10, {**arguments, "hlo_op": "add"})])
    first = program("jit_g", {"dot": "wrong"})
    programs = (
        Plane("/host:metadata").program("jit_g(9)", first).program("jit_f(4)", program("jit_f", {"dot": "jit(f)/dot"}))
    )
    trace, _ = read_xplane(space(host, programs))
    assert [trace.origins.of(row).name for row in range(2)] == ["jit(f)/dot", ""]


def test_a_damaged_program_gives_the_names_before_the_damage():
    whole = program("jit_f", {f"op{at}": f"name{at}" for at in range(50)})
    assert len(op_origins(whole)) == 50
    assert op_origins(whole[:-3]) == {}  # the module's length is wrong then
    assert op_origins(b"\x0a\xff") == {}


def test_stacks_of_a_program_that_lead_in_circles_or_nowhere_end():
    place = number(1, 1) + number(2, 1) + number(3, 7)
    frames = content(1, "train.py") + content(2, "step") + content(3, place)
    frames += content(4, number(1, 1) + number(2, 2)) + content(
        4, number(1, 9) + number(2, 1)
    )  # each the other's caller
    instructions = [
        content(2, content(1, f"op{frame}") + content(7, content(2, "jit(f)/dot") + number(15, frame)))
        for frame in (1, 2, 3, 99)
    ]
    module = content(1, "jit_f") + content(3, content(1, "main") + b"".join(instructions)) + content(17, frames)
    found = op_origins(content(1, module))
    assert found["op1"].calls[:2] == (("train.py", 7, "step"), ("", 0, ""))
    assert len(found["op1"].calls) <= 100
    assert found["op3"].calls == found["op99"].calls == ()


def test_events_are_decoded_in_pieces_of_any_size(monkeypatch):
    data = sample("tensorflow")
    expected = rows(read_xplane(data)[0])
    monkeypatch.setattr("sm_profiler.formats.xplane_reader._CHUNK", 97)
    assert rows(read_xplane(data)[0]) == expected


def test_fields_of_an_event_come_in_any_order_and_number():
    event = content(4, number(1, 77)) + number(3, 2_000) + number(2, 1_000) + number(30, 5) + number(1, 1)
    line = content(4, event) + content(2, "late name") + content(4, b"\x08\x01" + content(9, b"x" * 300))
    plane = content(3, line) + content(4, number(1, 1) + content(2, content(2, "op")))
    trace, outcome = read_xplane(content(1, plane))
    assert outcome.status == "read"
    assert rows(trace)[0][:5] == ["", "late name", "op", 1, 2]
    assert trace.events.name.decode().tolist() == ["op", "op"]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_cut_file_gives_a_prefix_and_counts_the_loss(name):
    data = sample(name)
    whole = len(read_xplane(data)[0].events)
    for cut in (1, 10, len(data) // 3, len(data) // 2, len(data) - 5):
        trace, outcome = read_xplane(data[:cut])
        assert len(trace.events) <= whole
        assert outcome.status in {"repaired", "refused"}
        assert outcome.reason


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 100,
        b"\xff" * 100,
        b"{}",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        content(1, content(3, b"\x22\xff\xff\xff\xff\x0f")),
        content(1, content(3, b"\x22\x02\x08")),
        content(1, content(3, content(4, b"\x10" + b"\xff" * 10))),
        content(1, content(4, number(1, 1) + content(2, b"\xff\xff"))),
        content(1, content(3, content(4, b"\x0b\x0c"))),
        content(1, content(3, content(4, b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00"))),
        gzip.compress(content(1, b""), mtime=0),
        b"\x00" * 20_000_000,
        content(1, b"\x00" * 1_000_000),
        content(1, content(3, b"\x00" * 1_000_000)),
        b"\x08" + b"\xff" * 1_000,
        number(1 << 29, 1),
        number(1, 1) + varint(2 << 3 | 3) * 1_000,
        varint(1 << 3 | 5) + b"\x00",
    ],
    ids=lambda data: data[:12].hex() or "empty",
)
def test_what_is_no_trace_is_refused_with_one_line(data):
    trace, outcome = read_xplane(data)
    assert not len(trace.events)
    assert outcome.status == "refused"
    assert outcome.reason
    assert "\n" not in outcome.reason


HOSTILE = {
    "planes": content(1, b"") * 5_000,
    "lines": content(1, content(3, b"") * 5_000),
    "parts of lines": content(1, content(3, number(1, 1) * 5_000)),
    "names": content(1, content(4, number(1, 7) + content(2, content(2, b"x"))) * 5_000),
    "arguments of names": content(1, content(4, content(2, content(5, content(6, b"z")) * 5_000))),
    "arguments of planes": content(1, content(6, number(1, 1) + number(3, 5)) * 5_000),
    "errors": content(2, b"boom") * 5_000,
    "unknown parts": number(77, 1) * 5_000,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_file_with_more_parts_than_a_trace_has_is_read_no_further(kind, monkeypatch):
    monkeypatch.setattr("sm_profiler.formats.xplane_reader.MAX_PARTS", 1_000)
    event = content(4, number(1, 1) + number(3, 1_000))
    first = content(1, content(3, event) + content(4, number(1, 1) + content(2, content(2, b"op"))))
    trace, outcome = read_xplane(first + HOSTILE[kind])
    assert trace.events.name.decode().tolist() == ["op"]
    assert outcome.status == "repaired"
    assert "more parts than a trace has" in outcome.reason
    assert "\n" not in outcome.reason
    assert len(trace.lines) <= 1_000
    assert len(trace.errors) <= 100
    refused = read_xplane(HOSTILE[kind])[1]
    assert refused.status == "refused"


def test_a_line_that_ends_early_keeps_its_events(monkeypatch):
    monkeypatch.setattr("sm_profiler.formats.xplane_reader.MAX_PARTS", 20)
    event = content(4, number(1, 1) + number(3, 1_000))
    line = content(3, event + number(1, 9) * 100 + event)
    trace, outcome = read_xplane(content(1, line + content(3, event)))
    assert (trace.events.line.tolist(), outcome.status) == ([0, 1], "repaired")


def nested(depth):
    data = b""
    for _ in range(depth):
        data = content(1, content(3, data))
    return data


@pytest.mark.parametrize(
    ("data", "errors"),
    [
        (nested(500), ()),
        (content(2, b"\xff\xfe no text \x80"), ("\ufffd\ufffd no text \ufffd",)),
        (content(2, b"x" * 100_000), ("x" * 300,)),
    ],
    ids=["nested", "not UTF-8", "long"],
)
def test_texts_and_depths_are_bounded(data, errors):
    trace, outcome = read_xplane(data)
    assert (trace.errors, outcome.status) == (errors, "refused")


def test_names_need_not_be_text():
    host = content(2, b"/host:\xff") + content(3, content(2, b"\xc3") + content(4, number(1, 1) + number(3, 5)))
    trace, outcome = read_xplane(content(1, host + content(4, number(1, 1) + content(2, content(2, b"a\xf0")))))
    assert outcome.status == "read"
    assert (trace.events.name.decode()[0], trace.lines[0].name) == ("a\ufffd", "\ufffd")


def test_damage_in_every_length_is_survived():
    """Every byte of a small trace in turn takes values that change lengths, tags and the ends of numbers."""
    host = Plane("/host:CPU").line("a", [("x", 0, 9, {"hlo_op": "dot", "hlo_module": "jit_f", "program_id": 3})])
    data = space(host.program("jit_f(3)", program("jit_f", {"dot": "jit(f)/dot"})))
    for at in range(len(data)):
        for value in (0x00, 0x7F, 0x80, 0xFF):
            trace, outcome = read_xplane(data[:at] + bytes([value]) + data[at + 1 :])
            assert len(trace.origins.codes) == len(trace.events)
            assert len(trace.events) <= len(data) / 2
            assert "\n" not in outcome.reason


def test_nothing_is_read_behind_a_field_that_cannot_be():
    data = memoryview(b"\x08\x01\x00\x00\x08\x02")
    left = fields(data, 0, len(data))
    assert next(left)[:3] == (1, 0, 1)
    with pytest.raises(DamagedMessageError):
        next(left)


def test_many_planes_and_programs_are_read_in_proportion():
    plane = Plane("/host:CPU").line("a", [("x", 0, 1, {"hlo_op": "dot", "hlo_module": "jit_f"})])
    many = [Plane(f"/device:GPU:{at}").line("Stream #1", [("y", 0, 1, {})]) for at in range(1_000)]
    for at in range(1_000):
        plane.program(f"program {at}", program("jit_f", {"dot": f"jit(f)/dot {at}"}))
    trace, outcome = read_xplane(space(plane, *many))
    assert (len(trace.events), outcome.status) == (1_001, "read")
    assert trace.origins.of(0).name == "jit(f)/dot 0"


def test_times_that_cannot_be_are_dropped():
    host = Plane("/host:CPU").line("a", [("x", -5, -9, {}), ("y", 1_000, 1_000, {})])
    trace, outcome = read_xplane(space(host))
    assert trace.events.name.decode().tolist() == ["y"]
    assert (outcome.status, outcome.lost) == ("repaired", 1)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), name=st.sampled_from(SAMPLES))
def test_no_damage_raises(seed, name):
    chance = random.Random(seed)  # repeatable
    data = bytearray(sample(name))
    for _ in range(chance.choice((1, 5, 200))):
        data[chance.randrange(len(data))] = chance.randrange(256)
    if chance.random() < 0.3:
        at = chance.randrange(len(data))
        data[at : at + chance.randrange(50)] = chance.randbytes(chance.randrange(50))
    trace, outcome = read_xplane(bytes(data))
    assert outcome.status in {"read", "repaired", "refused"}
    assert np.isfinite(trace.events.start_ns).all()
    assert len(trace.origins.codes) == len(trace.events)


def test_an_event_with_very_many_arguments_takes_no_longer_than_its_bytes():
    event = number(1, 1) + content(4, number(1, 2) + number(4, 3)) * 10_000
    plane = content(3, content(4, event)) + content(4, number(1, 1) + content(2, content(2, "op")))
    trace, outcome = read_xplane(content(1, plane))
    assert trace.events.name.decode().tolist() == ["op"]
    assert "arguments of some events" in outcome.reason


def test_reads_a_large_trace():
    trace, outcome = read_xplane(large(6_400))
    assert (len(trace.events), outcome.status) == (6_400, "read")
    assert set(trace.events.hlo_module.decode()[::2]) == {"jit_step"}


def nested(number, content):
    size, length = len(content), b""
    while size >= 128:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


MANY = 1 << 19  # bytes
BOMBS = {
    "empty events": nested(1, nested(3, b"\x22\x00" * (MANY // 2))),
    "small events": nested(1, nested(3, b"\x22\x02\x08\x01" * (MANY // 4))),
    "empty lines": nested(1, b"\x1a\x00" * (MANY // 2)),
    "small lines": nested(1, b"\x1a\x02\x08\x01" * (MANY // 4)),
    "empty arguments": nested(1, nested(4, nested(2, b"\x2a\x00" * (MANY // 2)))),
}


@pytest.mark.long
@pytest.mark.parametrize("what", BOMBS)
def test_small_parts_take_a_multiple_of_the_file(what, monkeypatch):
    monkeypatch.setattr("sm_profiler.formats.xplane_reader.FREE_PARTS", 1000)
    tracemalloc.start()
    _, outcome = read_xplane(BOMBS[what])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 48 * MANY
    assert outcome.lost == (MANY // 2 if what == "empty events" else outcome.lost)
