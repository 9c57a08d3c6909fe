"""The holder of a container that grows, and the user's lines that add to it.

The holder is found with the garbage collector's lists, without looking at local variables: Python before 3.13 would
keep copies of them. Functions that run now and add to a container by a name of their own are the candidates then.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import attrs

from sm_profiler.hook.caller import is_library
from sm_profiler.hook.other_threads import current_frames, stack_of
from sm_profiler.hook.tracked import referrers

MAX_DEPTH = 3  # containers inside containers
MAX_REFERRERS = 50
MAX_LINES = 5
MAX_FRAMES = 100
MAX_SOURCE_BYTES = 300_000  # of a file that is parsed
ADDING = {"append", "appendleft", "extend", "insert", "add", "update", "setdefault"}


@attrs.frozen
class Holder:
    """The name that a container has.

    Attributes:
        name: of a variable or an attribute; "" for any local variable.
        text: what the user calls it: `store of Features`.
        files: where lines that add to it may be.
        code: functions whose local variable it may be; empty for a variable of a module, or an attribute.
    """

    name: str
    text: str
    files: tuple[str, ...]
    code: tuple[CodeType, ...] = ()


def lines_adding_to(container: Any) -> tuple[str, list[tuple[str, int, str]]]:
    """Return what holds a container, and the user's lines that add to it: file, line, function; empty if unknown."""
    holder = find_holder(container)
    found = list(dict.fromkeys(_adding_lines(holder, type(container))))[:MAX_LINES]
    return holder.text, found


def find_holder(container: Any) -> Holder:
    """Return who holds a container, directly or inside others."""
    held: Any = container
    for _ in range(MAX_DEPTH):
        found, outer = _named_by(held)
        if found is not None:
            return found
        if outer is None:
            break
        held = outer
    return Holder("", "", (), tuple(_running_code()))


def _named_by(held: Any) -> tuple[Holder | None, Any]:
    """Return the module or object that has a name for a container; else a container that holds it."""
    for name, module in sys.modules.copy().items():
        key = _key_of(held, getattr(module, "__dict__", None)) if isinstance(module, ModuleType) else None
        if key is not None:
            return Holder(key, f"{key} in {name}", _files(module)), None
    outer = None
    for one in referrers(held)[:MAX_REFERRERS]:
        if type(one) in (list, dict):
            owner = _owner(one) if type(one) is dict else None
            if owner is not None and (key := _key_of(held, one)) is not None:
                return _of_object(key, owner), None
            outer = one if outer is None else outer
        elif not isinstance(one, (FrameType, ModuleType, type)):
            key = _key_of(held, _attributes(one))
            if key is not None:
                return _of_object(key, one), None
    return None, outer


def _owner(attributes: dict[Any, Any]) -> Any:
    """Return the object whose attributes a dict holds."""
    found = referrers(attributes)[:MAX_REFERRERS]
    return next((one for one in found if _attributes(one) is attributes), None)


def _attributes(one: Any) -> Any:
    try:
        return object.__getattribute__(one, "__dict__")
    except Exception:  # an object without attributes
        return None


def _key_of(held: Any, names: Any) -> str | None:
    if type(names) is not dict:
        return None
    # A copy, since other threads may add names; list(names.items()) may begin a collection, in which they run.
    return next((key for key, value in names.copy().items() if value is held and isinstance(key, str)), None)


def _of_object(key: str, owner: Any) -> Holder:
    kind = type(owner)
    return Holder(key, f"{key} of {kind.__qualname__}", _files(sys.modules.get(kind.__module__)))


def _files(module: ModuleType | None) -> tuple[str, ...]:
    """Return the files in which the user may add to something of a module: its own, and those that run now."""
    own = getattr(module, "__file__", None)
    running = (code.co_filename for code in _running_code())
    return tuple(dict.fromkeys(one for one in (own, *running) if isinstance(one, str) and not is_library(one)))


def _running_code() -> Iterator[CodeType]:
    """Yield the code of the user's functions that run now."""
    for thread in current_frames():
        for frame in stack_of(thread)[:MAX_FRAMES]:
            if not is_library(frame.f_code.co_filename):
                yield frame.f_code


def _adding_lines(holder: Holder, kind: type) -> Iterator[tuple[str, int, str]]:
    if not holder.name:
        for code in dict.fromkeys(holder.code):
            for scope, function in _functions(code.co_filename):
                if function == code.co_name != "<module>" and _first_line(scope) == code.co_firstlineno:
                    local = {*code.co_varnames, *code.co_cellvars}
                    yield from _lines(scope, code.co_filename, function, local, kind, attributes=False)
        return
    for file in holder.files:
        found = [
            line for scope, function in _functions(file) for line in _lines(scope, file, function, {holder.name}, kind)
        ]
        if found:
            yield from found
            return


def _first_line(scope: ast.AST) -> int:
    """Return the line on which a function's code begins: that of its first decorator, if it has any."""
    return int(min([getattr(scope, "lineno", 1), *(one.lineno for one in getattr(scope, "decorator_list", ()))]))


def _functions(file: str) -> list[tuple[ast.AST, str]]:
    """Return the functions of a file and their names, and the file itself; empty if it cannot be read."""
    try:
        path = Path(file)
        if path.stat().st_size > MAX_SOURCE_BYTES:
            return []
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found: list[tuple[ast.AST, str]] = [(tree, "<module>")]
    found += [(one, one.name) for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    return found


def _lines(  # one argument a restriction
    scope: ast.AST, file: str, function: str, names: set[str], kind: type, *, attributes: bool = True
) -> Iterator[tuple[str, int, str]]:
    """Yield the lines of a function, without those of functions in it, that add to one of some names."""
    for node in _own_nodes(scope):
        target = _grown_by(node, kind)
        if target is None:
            continue
        base = _base(target)
        name = (
            base.id
            if isinstance(base, ast.Name)
            else base.attr
            if isinstance(base, ast.Attribute) and attributes
            else ""
        )
        if name in names:
            yield file, getattr(node, "lineno", 1), function


def _own_nodes(scope: ast.AST) -> Iterable[ast.AST]:
    todo = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            todo.extend(ast.iter_child_nodes(node))


def _grown_by(node: ast.AST, kind: type) -> ast.expr | None:
    """Return what a statement or call adds to."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ADDING:
        return node.func.value
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and kind is list:
        return node.target
    if isinstance(node, ast.Assign) and kind is dict:
        return next((one.value for one in node.targets if isinstance(one, ast.Subscript)), None)
    return None


def _base(target: ast.expr) -> ast.expr:
    """Return the variable or attribute of `history["loss"]` or `self.values.setdefault(key, [])`."""
    while True:
        if isinstance(target, ast.Subscript):
            target = target.value
        elif isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
            target = target.func.value
        else:
            return target
