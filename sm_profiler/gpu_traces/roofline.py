"""Roofline: what limits each operator on the device, its arithmetic, its memory or its launches."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from sm_profiler.formats.kineto_reader import KERNEL, KinetoTrace, OperatorInputs
from sm_profiler.gpu_traces.callers import Callers, launch_rows
from sm_profiler.gpu_traces.device_time import temporal
from sm_profiler.gpu_traces.kernels import COMPUTATION, KINDS, Peaks, kinds, name_of, peaks_of
from sm_profiler.gpu_traces.table import Groups, TraceTable

_HALF = re.compile(r"half|bfloat16", re.IGNORECASE)
_DECODE = msgspec.json.decode
_Shapes = Sequence[Any]
_BACKWARD_OF_ATTENTION = 2.5  # five products instead of two

COMPUTE, MEMORY, LAUNCH = "compute", "memory", "launch"
_BYTES = {"double": 8, "long": 8, "long int": 8, "c10::complex<float>": 8, "c10::Half": 2, "c10::BFloat16": 2, "short": 2,
          "bool": 1, "signed char": 1, "unsigned char": 1, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1}  # fmt: skip
_DEFAULT_BYTES = 4
_LOOKUP = re.compile(r"index|embedding|gather|select|scatter|slice|narrow|masked")
_LONGEST = 300  # characters of the shapes
_LARGEST = 1e18  # bytes or operations of a call; more is damage
# What damaged inputs raise: anything may be in the place of a list of numbers.
_DAMAGE = (msgspec.MsgspecError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)
_MOSTLY = 0.5  # share of kernels shorter than their launch from which the launches set the pace
COLUMNS = (
    "operator", "shapes", "calls", "kernels", "device_us", "share", "flops", "bytes", "tflops", "gbps", "intensity", "bound",
    "share_of_peak",
)  # fmt: skip


def is_half(inputs: OperatorInputs) -> bool:
    return _HALF.search(inputs.types) is not None


def flops_of(operator: str, inputs: OperatorInputs) -> float:
    """Return the floating-point operations of an operator; 0 for one that is not dominated by multiplications."""
    formula = FORMULAS.get(operator)
    if formula is None:
        return 0.0
    try:
        found = float(formula(_DECODE(inputs.shapes), inputs))
    except _DAMAGE:
        return 0.0
    return found if 0 < found < _LARGEST else 0.0


def _product(first: int) -> Callable[[_Shapes, OperatorInputs], float]:
    """Return the formula of a matrix product of the inputs at `first` and after it."""
    return lambda shapes, _: 2.0 * math.prod(shapes[first]) * shapes[first + 1][-1]


def _attention(first: int, times: float) -> Callable[[_Shapes, OperatorInputs], float]:
    """Return the formula of attention: queries by keys, and weights by values; a mask saves nothing here."""

    def formula(shapes: _Shapes, _: OperatorInputs) -> float:
        query, key, value = shapes[first : first + 3]
        return float(times * 2.0 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1]))

    return formula


def _convolution(shapes: _Shapes, inputs: OperatorInputs) -> float:
    """Return the operations of a convolution, whose stride and padding are among its other inputs."""
    image, weight = shapes[:2]
    settings = _DECODE(inputs.values)
    stride, padding, dilation = (_DECODE(settings[at]) for at in (3, 4, 5))
    if settings[6] == "True":  # transposed: each input element meets the whole kernel
        return float(2.0 * math.prod(image) * math.prod(weight[1:]))
    out = 1
    for at, (size, kernel) in enumerate(zip(image[2:], weight[2:], strict=True)):
        step, pad, wide = (values[min(at, len(values) - 1)] for values in (stride, padding, dilation))
        out *= (size + 2 * pad - wide * (kernel - 1) - 1) // step + 1
    return float(2.0 * image[0] * out * math.prod(weight))


def _convolution_backward(shapes: _Shapes, _: OperatorInputs) -> float:
    """Return the operations of both gradients of a convolution."""
    gradient, _image, weight = shapes[:3]
    return float(2 * 2.0 * gradient[0] * math.prod(gradient[2:]) * math.prod(weight))


FORMULAS: dict[str, Callable[[_Shapes, OperatorInputs], float]] = {
    "aten::mm": _product(0),
    "aten::addmm": _product(1),
    "aten::_addmm_activation": _product(1),
    "aten::bmm": _product(0),
    "aten::baddbmm": _product(1),
    "aten::_scaled_mm": _product(0),
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::_scaled_dot_product_flash_attention": _attention(0, 1.0),
    "aten::_scaled_dot_product_efficient_attention": _attention(0, 1.0),
    "aten::_scaled_dot_product_cudnn_attention": _attention(0, 1.0),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(1, _BACKWARD_OF_ATTENTION),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention(1, _BACKWARD_OF_ATTENTION),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention(1, _BACKWARD_OF_ATTENTION),
}


def flops(trace: KinetoTrace) -> TraceTable:
    """Return the arithmetic of matrix products, convolutions and attention with recorded shapes; no row without any.

    Returns:
        Columns flops, half_share (in half precision), tflops (10¹² a second of the whole time), device, peak_tflops (for
        these precisions; NaN for an unknown device), mfu (tflops through peak_tflops).
    """
    columns = ("flops", "half_share", "tflops", "device", "peak_tflops", "mfu")
    events, total, half = trace.events, 0.0, 0.0
    rows = np.flatnonzero(events.inputs >= 0)
    names, shapes = events.name.codes[rows], events.inputs[rows]
    groups = Groups(names, shapes)
    firsts = zip(groups.first(names).tolist(), groups.first(shapes).tolist(), groups.count.tolist(), strict=True)
    for name, shape, count in firsts:
        inputs = trace.inputs[shape]
        amount = flops_of(events.name.values[name], inputs) * count
        total += amount
        half += amount if is_half(inputs) else 0.0
    time_us = temporal(events)["total_us"]
    if not total or not time_us:
        return TraceTable.of(columns, ())
    device = name_of(trace.device_properties)
    peaks, share = peaks_of(device), half / total
    peak = peaks.tflops(share) if peaks else math.nan
    rate = total / time_us / 1e6
    return TraceTable.of(columns, [(total, share, rate, device, peak, rate / peak)])


def roofline(trace: KinetoTrace, callers: Callers | None = None) -> TraceTable:
    """Return the operators with recorded shapes and what limits them, the most expensive first.

    Bytes are those of the inputs and, for products, of the output: what must be moved at least. An operator whose kernels
    are mostly shorter than their launches is bound by these; of the others, one with more operations per byte than the
    device can do while it moves one is bound by its arithmetic, the rest by memory.

    Returns:
        Columns operator, shapes (JSON, its first 300 characters), calls, kernels, device_us, share (of the time in all kernels), flops, bytes (of all
        calls), tflops, gbps (as achieved), intensity (operations per byte), bound (`compute`, `memory` or `launch`; "" for
        an unknown device or unknown bytes), share_of_peak (of the rate that binds it; NaN for `launch` and on an unknown device).
    """
    events = trace.events
    device = events.device_events
    device = device[(device.category == KERNEL) & (kinds(device) == KINDS.index(COMPUTATION))]
    launch = launch_rows(events, device)
    callers = callers or Callers(events)
    known = events.inputs >= 0
    operator = callers.among(known & events.name.mask(lambda name: name in FORMULAS)).around(launch)
    other = callers.among(known).around(launch)
    operator = np.where(operator >= 0, operator, other)
    chosen = operator >= 0
    if not chosen.any():
        return TraceTable.of(COLUMNS, ())
    rows, time = operator[chosen], device.duration_us[chosen]
    short = time < events.duration_us[launch[chosen]]
    names, inputs = events.name.codes[rows], events.inputs[rows]
    groups = Groups(names, inputs)
    calls = _calls(groups.number, rows, len(groups))
    peaks = peaks_of(name_of(trace.device_properties))
    whole, found = float(device.duration_us.sum()), []
    firsts = zip(groups.first(names).tolist(), groups.first(inputs).tolist(), strict=True)
    shorts = groups.sum(short.astype(float)) / groups.count
    for (name, at), kernels, count, us, launched in zip(
        firsts, groups.count.tolist(), calls.tolist(), groups.sum(time).tolist(), shorts.tolist(), strict=True
    ):
        inputs = trace.inputs[at]
        text = events.name.values[name]
        work, moved = flops_of(text, inputs) * count, bytes_of(text, inputs) * count
        tflops, gbps = (amount / us if us > 0 else math.nan for amount in (work / 1e6, moved / 1e3))
        bound, peak = _bound(work, moved, inputs, peaks, is_short=launched >= _MOSTLY)
        rate = {COMPUTE: tflops, MEMORY: gbps}.get(bound, math.nan)
        found.append((
            text, inputs.shapes[:_LONGEST], count, kernels, us, us / whole if whole else 0.0, work, moved, tflops, gbps,
            work / moved if moved else math.nan, bound, rate / peak,
        ))  # fmt: skip
    return TraceTable.of(COLUMNS, sorted(found, key=lambda row: -row[4]))


def _calls(group: Any, rows: Any, count: int) -> Any:
    """Return the number of calls of each group: a call may launch several kernels."""
    _, first = np.unique(rows, return_index=True)
    return np.bincount(group[first], minlength=count)


def _bound(
    work: float, moved: float, inputs: OperatorInputs, peaks: Peaks | None, *, is_short: bool
) -> tuple[str, float]:
    """Return what limits an operator, and the device's peak rate of it."""
    if is_short:
        return LAUNCH, math.nan
    if peaks is None:
        return "", math.nan
    tflops = peaks.tflops(float(is_half(inputs)))
    if not work and not moved:
        return "", math.nan
    if work and (not moved or work / moved >= tflops * 1e3 / peaks.gbps):
        return COMPUTE, tflops
    return MEMORY, peaks.gbps


def bytes_of(operator: str, inputs: OperatorInputs) -> float:
    """Return the bytes that an operator moves at least: its inputs and, for a product, its output; 0 if unknown.

    They are unknown for operators of other libraries and for look-ups, which read few rows of a table.
    """
    if not operator.startswith("aten::") or _LOOKUP.search(operator):
        return 0.0
    try:
        shapes, types = msgspec.json.decode(inputs.shapes), msgspec.json.decode(inputs.types or "[]")
        sizes = [_BYTES.get(str(kind), _DEFAULT_BYTES) for kind in types]
        sizes += [_DEFAULT_BYTES] * (len(shapes) - len(sizes))
        total = sum(_elements(shape) * size for shape, size in zip(shapes, sizes, strict=False))
        if operator in {"aten::mm", "aten::bmm", "aten::_scaled_mm"}:
            total += math.prod(shapes[0][:-1]) * shapes[1][-1] * sizes[0]
        elif operator in {"aten::addmm", "aten::baddbmm"}:
            total += math.prod(shapes[1][:-1]) * shapes[2][-1] * sizes[1]
        return float(total) if 0 < total < _LARGEST else 0.0
    except _DAMAGE:
        return 0.0


def _elements(shape: Any) -> int:
    """Return the number of elements of a tensor, or of all in a list of tensors; of a scalar, whose shape is [], none."""
    if not shape:
        return 0
    return sum(map(_elements, shape)) if isinstance(shape[0], list) else math.prod(shape)
