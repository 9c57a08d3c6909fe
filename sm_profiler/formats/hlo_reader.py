"""Compiled programs of XLA (HloProto) in traces: which of the framework's operations each instruction comes from."""

from __future__ import annotations

from collections.abc import Iterator

from sm_profiler.formats.protobuf import LENGTH, DamagedMessageError, Field, fields, text

_PATH_TO_NAME = (1, 1)  # HloProto.hlo_module, HloModuleProto.name
_PATH_TO_INSTRUCTIONS = (1, 3, 2)  # HloProto.hlo_module, HloModuleProto.computations, HloComputationProto.instructions
_NAME, _METADATA = 1, 7  # of an instruction
_OP_NAME = 2  # of OpMetadata


def op_names(program: bytes) -> dict[str, str]:
    """Return the framework's name of each instruction, `jit(step)/transpose(jvp())/dot_general`.

    Args:
        program: an HloProto; of a damaged one, the part before the damage counts.
    """
    view = memoryview(program)
    names: dict[str, str] = {}
    for instruction in _descend(view, _whole(view), _PATH_TO_INSTRUCTIONS):
        name = origin = ""
        for field in _sound(view, instruction):
            if field.wire != LENGTH:
                continue
            if field.number == _NAME:
                name = text(view, field)
            elif field.number == _METADATA:
                found = [text(view, part) for part in _sound(view, field) if part[:2] == (_OP_NAME, LENGTH)]
                origin = found[-1] if found else ""
        if name and origin:
            names[name] = origin
    return names


def module_name(program: bytes) -> str:
    """Return the name of a program's module, `jit_step`; "" if there is none."""
    view = memoryview(program)
    return next((text(view, field) for field in _descend(view, _whole(view), _PATH_TO_NAME)), "")


def _whole(view: memoryview) -> Field:
    return Field(0, LENGTH, 0, len(view))


def _descend(view: memoryview, message: Field, path: tuple[int, ...]) -> Iterator[Field]:
    if not path:
        yield message
        return
    for field in _sound(view, message):
        if field.number == path[0] and field.wire == LENGTH:
            yield from _descend(view, field, path[1:])


def _sound(view: memoryview, message: Field) -> Iterator[Field]:
    try:
        yield from fields(view, message.value, message.end)
    except DamagedMessageError:
        return
