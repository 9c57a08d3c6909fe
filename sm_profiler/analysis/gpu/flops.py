"""Arithmetic of a trace, from the shapes of its operators' inputs, and what the device could do."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from sm_profiler.analysis.gpu.breakdown import temporal
from sm_profiler.analysis.gpu.devices import name_of, peaks_of
from sm_profiler.analysis.gpu.table import Groups, Table
from sm_profiler.formats.kineto_reader import Inputs, KinetoTrace

_HALF = re.compile(r"half|bfloat16", re.IGNORECASE)
_DECODE = msgspec.json.decode
_Shapes = Sequence[Any]
_BACKWARD_OF_ATTENTION = 2.5  # five products instead of two


def is_half(inputs: Inputs) -> bool:
    """Return whether inputs are in half precision."""
    return _HALF.search(inputs.types) is not None


def flops_of(operator: str, inputs: Inputs) -> float:
    """Return the floating-point operations of an operator; 0 for one that is not dominated by multiplications."""
    formula = FORMULAS.get(operator)
    if formula is None:
        return 0.0
    try:
        found = float(formula(_DECODE(inputs.shapes), inputs))
    except (msgspec.MsgspecError, IndexError, TypeError, ValueError, KeyError, OverflowError, ZeroDivisionError):
        return 0.0
    return found if math.isfinite(found) and found > 0 else 0.0


def _product(first: int) -> Callable[[_Shapes, Inputs], float]:
    """Return the formula of a matrix product of the inputs at `first` and after it."""
    return lambda shapes, _: 2.0 * math.prod(shapes[first]) * shapes[first + 1][-1]


def _attention(first: int, times: float) -> Callable[[_Shapes, Inputs], float]:
    """Return the formula of attention: queries by keys, and weights by values; a mask saves nothing here."""

    def formula(shapes: _Shapes, _: Inputs) -> float:
        query, key, value = shapes[first : first + 3]
        return float(times * 2.0 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1]))

    return formula


def _convolution(shapes: _Shapes, inputs: Inputs) -> float:
    """Return the operations of a convolution, whose stride and padding are among its other inputs."""
    image, weight = shapes[:2]
    settings = _DECODE(inputs.values)
    stride, padding, dilation = (_DECODE(settings[at]) for at in (3, 4, 5))
    if settings[6] == "True":  # transposed: each input element meets the whole kernel
        return float(2.0 * math.prod(image) * math.prod(weight[1:]))
    out = 1
    for at, (size, kernel) in enumerate(zip(image[2:], weight[2:], strict=True)):
        one, pad, wide = (values[min(at, len(values) - 1)] for values in (stride, padding, dilation))
        out *= (size + 2 * pad - wide * (kernel - 1) - 1) // one + 1
    return float(2.0 * image[0] * out * math.prod(weight))


def _convolution_backward(shapes: _Shapes, _: Inputs) -> float:
    """Return the operations of both gradients of a convolution."""
    gradient, _image, weight = shapes[:3]
    return float(2 * 2.0 * gradient[0] * math.prod(gradient[2:]) * math.prod(weight))


FORMULAS: dict[str, Callable[[_Shapes, Inputs], float]] = {
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


def flops(trace: KinetoTrace) -> Table:
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
        return Table.of(columns, ())
    device = name_of(trace.device_properties)
    peaks, share = peaks_of(device), half / total
    peak = peaks.tflops(share) if peaks else math.nan
    rate = total / time_us / 1e6
    return Table.of(columns, [(total, share, rate, device, peak, rate / peak)])
