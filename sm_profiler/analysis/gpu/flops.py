"""Arithmetic of a trace, from the shapes of its operators' inputs, and what the device could do."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import msgspec
import numpy as np

from sm_profiler.analysis.gpu.breakdown import temporal
from sm_profiler.analysis.gpu.table import Groups, Table
from sm_profiler.formats.kineto_reader import Inputs, KinetoTrace

# Peak rates without sparsity, 10¹² operations a second, from the vendors' data sheets: matrix units in half precision,
# matrix units in single precision (TF32 or xf32), and single precision without them.
_PEAKS: tuple[tuple[str, tuple[float, float, float]], ...] = (
    (r"GB200|B200", (2250.0, 1100.0, 80.0)),
    (r"H200|H100.*(SXM|HBM3)|^H100$", (989.0, 494.0, 67.0)),
    (r"H100", (756.0, 378.0, 51.0)),
    (r"A100|PG509", (312.0, 156.0, 19.5)),
    (r"A10G", (70.0, 35.0, 31.5)),
    (r"A10\b", (125.0, 62.5, 31.2)),
    (r"L40S", (362.0, 183.0, 91.6)),
    (r"L4\b", (121.0, 60.0, 30.3)),
    (r"V100", (125.0, 15.7, 15.7)),
    (r"T4\b", (65.0, 8.1, 8.1)),
    (r"MI300X", (1307.0, 653.0, 163.4)),
    (r"MI250X?", (362.0, 90.5, 45.3)),
)
_HALF = re.compile(r"half|bfloat16", re.IGNORECASE)
_DECODE = msgspec.json.decode


def peaks_of(device: str) -> tuple[float, float, float] | None:
    """Return a device's peak rates in 10¹² operations a second: half, single with and without matrix units."""
    return next((peaks for pattern, peaks in _PEAKS if re.search(pattern, device)), None)


def flops_of(operator: str, inputs: Inputs) -> float:
    """Return the floating-point operations of an operator; 0 for one that is not dominated by multiplications."""
    try:
        shapes = _DECODE(inputs.shapes)
        return float(_FORMULAS[operator](shapes)) if operator in _FORMULAS else 0.0
    except (msgspec.MsgspecError, IndexError, TypeError, ValueError, KeyError, OverflowError):
        return 0.0


def _mm(a: Sequence[int], b: Sequence[int]) -> float:
    return 2.0 * math.prod(a) * b[-1]


_FORMULAS = {
    "aten::mm": lambda shapes: _mm(shapes[0], shapes[1]),
    "aten::addmm": lambda shapes: _mm(shapes[1], shapes[2]),
    "aten::bmm": lambda shapes: _mm(shapes[0], shapes[1]),
    "aten::baddbmm": lambda shapes: _mm(shapes[1], shapes[2]),
    "aten::_scaled_mm": lambda shapes: _mm(shapes[0], shapes[1]),
}


def flops(trace: KinetoTrace) -> Table:
    """Return the arithmetic of the matrix multiplications whose shapes were recorded; no row if none were.

    Returns:
        Columns flops, half_share (in half precision), tflops (10¹² a second of the whole time), device, peak_tflops (for
        these precisions; NaN for an unknown device), mfu (tflops through peak_tflops).
    """
    columns = ["flops", "half_share", "tflops", "device", "peak_tflops", "mfu"]
    events, total, half = trace.events, 0.0, 0.0
    rows = np.flatnonzero(events.inputs >= 0)
    names, shapes = events.name.codes[rows], events.inputs[rows]
    groups = Groups(names, shapes)
    for name, shape, count in zip(groups.first(names), groups.first(shapes), groups.count, strict=True):
        inputs = trace.inputs[shape]
        amount = flops_of(events.name.values[name], inputs) * int(count)
        total += amount
        half += amount if _HALF.search(inputs.types) else 0.0
    time_us = temporal(events)["total_us"]
    if not total or not time_us:
        return Table.of(columns, ())
    properties = trace.device_properties
    device = str(properties[0].get("name", "")) if properties else ""
    peaks, share = peaks_of(device), half / total
    peak = 1 / (share / peaks[0] + (1 - share) / peaks[1]) if peaks else math.nan
    rate = total / time_us / 1e6
    return Table.of(columns, [(total, share, rate, device, peak, rate / peak)])
