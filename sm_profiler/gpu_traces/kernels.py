"""Kinds of kernels, by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.kineto_reader import MEMCPY, MEMSET, KinetoColumns
from sm_profiler.gpu_traces.table import Groups, TraceTable, array_of

COMPUTATION, COMMUNICATION, MEMORY = "computation", "communication", "memory"
KINDS = (COMPUTATION, COMMUNICATION, MEMORY)

_COMMUNICATION = re.compile(
    r"^(void )?(nccl|rccl|msccl|oneccl|hccl|nvshmem)|(ncclDevKernel|ncclKernel|oneshot_all_?reduce)", re.IGNORECASE
)
_MEMORY = re.compile(r"^(Memcpy|Memset|dma|CopyHostToDevice|CopyDeviceToHost|__amd_rocclr_(copy|fill)Buffer)")
_MATMUL = re.compile(
    r"gemm|matmul|cutlass|cublas|xmma|(?<![a-z])wgrad|(?<![a-z])dgrad|fprop|implicit_convolve|convolve|flash|fmha|attention|attn_(fwd|bwd)|bwd_kernel_d|Cijk_|mma_",
    re.IGNORECASE,
)
# Names of kernels that use tensor cores (NVIDIA) or matrix cores (AMD): instruction shapes and the half precisions of the
# libraries, which have no other kernels in those precisions.
_TENSOR = re.compile(
    r"tensorop|(?<![a-z])(h|i|s)?(16816|1688|884|8816|16832|64x\d+x16)(gemm|fprop|dgrad|wgrad)?(?![0-9])|[hs]\d+gemm_(bf16|fp16)|"
    r"wgmma|hmma|imma|hgemm|bf16_s\d+gemm|f16_s\d+gemm|s16816|s1688|tf32|tensor\d+x\d+x\d+|_MI\d+x\d+x\d+|"
    r"sm(80|86|89|90|100)_xmma.*(f16|bf16|tf32|i8|e4m3)|flash_fwd|flash_bwd|fmha_cutlass|bf16bf16|e4m3",
    re.IGNORECASE,
)
# Documented names of kernels that multiply in single or double precision on the ordinary cores: BLAS's sgemm and dgemm,
# CUTLASS's SIMT kernels, cuBLAS's fused multiply-adds, Tensile's types S and D without a matrix instruction.  A kernel
# that is in neither list (Triton's, a user's) may use tensor cores or not.
_PLAIN = re.compile(
    r"(?<![a-z0-9])(volta_|ampere_|turing_|maxwell_|pascal_|hopper_)?[sd]gemm(?!_(bf16|fp16))(?=_|$)|_simt_|(?<![a-z])ffma|scudnn|"
    r"convolve_[sd]gemm|^Cijk_(?=.*_[SD]B_)(?!.*_MI\d)",
)
_ELEMENTWISE = re.compile(
    r"elementwise|vectorized|unrolled|_poi_|fill|copy_|cat_|CatArray|index|scatter|gather|dropout|batched_transpose|nchwTo|nhwcTo",
    re.IGNORECASE,
)


_TENSOR_CORES_SINCE = 7  # compute capability of the first NVIDIA GPUs with tensor cores
_TF32_SINCE = 8  # and of those that multiply bfloat16 and TF32


@attrs.frozen
class Peaks:
    """Peak rates of a device without sparsity, from its vendor's data sheet.

    Attributes:
        half: 10¹² operations a second of matrix units in half precision.
        single: of matrix units in single precision (TF32 or xf32); without such units the same as `plain`.
        plain: single precision without matrix units.
        gbps: bandwidth of its memory, 10⁹ bytes a second.
    """

    half: float
    single: float
    plain: float
    gbps: float

    def tflops(self, half_share: float) -> float:
        """Return the rate at which a mix of half and single precision would run."""
        return 1 / (half_share / self.half + (1 - half_share) / self.single)


_HALF = re.compile(r"bf16|fp16|f16|half|hgemm|Cijk_\w*_B?H_|Cijk_\w*_B_B", re.IGNORECASE)
_AMD = re.compile(r"AMD|Radeon|Instinct|\bMI\d", re.IGNORECASE)
_MATRIX_CORES = re.compile(r"\bMI\d{2,3}")  # AMD's Instinct, from MI100 on

_PEAKS: tuple[tuple[str, Peaks], ...] = (
    (r"GB200|B200", Peaks(2250.0, 1100.0, 80.0, 8000.0)),
    (r"H200", Peaks(989.0, 494.0, 67.0, 4800.0)),
    (r"H100.*(SXM|HBM3)|^H100$", Peaks(989.0, 494.0, 67.0, 3350.0)),
    (r"H100", Peaks(756.0, 378.0, 51.0, 2000.0)),
    (r"A100.*80GB", Peaks(312.0, 156.0, 19.5, 2039.0)),
    (r"A100|PG509", Peaks(312.0, 156.0, 19.5, 1555.0)),
    (r"A10G", Peaks(70.0, 35.0, 31.5, 600.0)),
    (r"A10\b", Peaks(125.0, 62.5, 31.2, 600.0)),
    (r"L40S", Peaks(362.0, 183.0, 91.6, 864.0)),
    (r"L4\b", Peaks(121.0, 60.0, 30.3, 300.0)),
    (r"V100", Peaks(125.0, 15.7, 15.7, 900.0)),
    (r"T4\b", Peaks(65.0, 8.1, 8.1, 320.0)),
    (r"MI300X", Peaks(1307.0, 653.0, 163.4, 5300.0)),
    (r"MI250X?", Peaks(181.0, 45.3, 22.6, 1638.0)),  # one of its two dies, which is a device
)


def name_of(properties: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of the first device; "" if the trace has none."""
    return str(properties[0].get("name", "")) if properties else ""


def peaks_of(device: str) -> Peaks | None:
    """Return the peak rates of a device; None for an unknown one."""
    return next((peaks for pattern, peaks in _PEAKS if re.search(pattern, device)), None)


@attrs.frozen
class MatrixUnits:
    """Types that the matrix units of a device multiply.

    Attributes:
        known: it is known to have some.
        bfloat16: they multiply bfloat16.
        tf32: they multiply single precision as TF32.
    """

    known: bool
    bfloat16: bool = True
    tf32: bool = False

    @classmethod
    def of(cls, properties: Sequence[Mapping[str, Any]]) -> MatrixUnits:
        """Return those of the first device: NVIDIA's from compute capability 7, AMD's by their names."""
        name, major = name_of(properties), properties[0].get("computeMajor") if properties else None
        if _AMD.search(name):
            return cls(_MATRIX_CORES.search(name) is not None)
        major = major if isinstance(major, int) else 0
        return cls(major >= _TENSOR_CORES_SINCE, major >= _TF32_SINCE, major >= _TF32_SINCE)


def memory_bandwidth(events: KinetoColumns) -> TraceTable:
    """Return the copies by direction.

    Returns:
        Columns direction (`Memcpy HtoD`, `Memset`, …), pageable, count, bytes, sum_us, gbps (bytes through time, 10⁹ bytes a
        second), mean_gbps, min_gbps, median_gbps and max_gbps (of single copies). A copy of unknown size has none.
    """
    chosen = events[np.isin(events.category, (MEMCPY, MEMSET)) & events.on_device]
    names = chosen.name.values
    directions = sorted({copy_direction(name) for name in names})
    number = np.array([directions.index(copy_direction(name)) for name in names] or [0])[chosen.name.codes]
    pageable = np.array([is_pageable(name) for name in names] or [False])[chosen.name.codes]
    size = np.where(chosen.bytes >= 0, chosen.bytes, np.nan).astype(float)
    # old traces round to microseconds; a copy took some of one
    rate = size / np.maximum(chosen.duration_us, 1e-3 if np.any(chosen.duration_us % 1) else 1.0) / 1e3
    groups = Groups(number, pageable)
    total, moved = groups.sum(chosen.duration_us), groups.sum(size)
    with np.errstate(divide="ignore", invalid="ignore"):
        overall = np.where(total > 0, moved / total / 1e3, np.nan)
    return TraceTable({
        "direction": array_of([directions[code] for code in groups.first(number).tolist()]),
        "pageable": groups.first(pageable), "count": groups.count, "bytes": moved, "sum_us": total, "gbps": overall,
        "mean_gbps": groups.mean(rate), "min_gbps": groups.min(rate), "median_gbps": groups.median(rate),
        "max_gbps": groups.max(rate),
    })  # fmt: skip


@lru_cache(maxsize=1 << 14)
def kind_of(name: str) -> str:
    if _MEMORY.search(name):
        return MEMORY
    return COMMUNICATION if _COMMUNICATION.search(name) else COMPUTATION


def kinds(events: KinetoColumns) -> NDArray[np.int8]:
    """Return the kind of each event as an index into KINDS; events on the host count as computation."""
    by_name = np.array([KINDS.index(kind_of(name)) for name in events.name.values] or [0], np.int8)
    found = by_name[events.name.codes]
    found[(events.category == MEMCPY) | (events.category == MEMSET)] = KINDS.index(MEMORY)
    return found


def is_matmul(name: str) -> bool:
    """Return whether a kernel multiplies matrices, convolves, or computes attention."""
    return kind_of(name) == COMPUTATION and _MATMUL.search(name) is not None


def uses_tensor_cores(name: str) -> bool:
    """Return whether a kernel uses tensor cores, by its name."""
    return is_matmul(name) and _TENSOR.search(name) is not None


def avoids_tensor_cores(name: str) -> bool:
    """Return whether a kernel is known to multiply without tensor cores, by its name; False if that is unknown."""
    return is_matmul(name) and _TENSOR.search(name) is None and _PLAIN.search(name) is not None


def is_half(name: str) -> bool:
    """Return whether a kernel multiplies matrices in half precision, by its name."""
    return is_matmul(name) and _HALF.search(name) is not None


def is_fused_attention(name: str) -> bool:
    """Return whether a kernel computes attention as a whole."""
    return re.search("flash|fmha|attn_fwd|cudnn.*sdpa", name) is not None


def is_elementwise(name: str) -> bool:
    """Return whether a kernel computes element by element, so that memory limits it."""
    return kind_of(name) == COMPUTATION and not is_matmul(name) and _ELEMENTWISE.search(name) is not None


def copy_direction(name: str) -> str:
    """Return the direction of a copy, such as `Memcpy HtoD`."""
    if name.startswith("Memset"):
        return "Memset"
    match = re.match(r"Memcpy ([A-Z]to[A-Z])", name)
    if match:
        return f"Memcpy {match[1]}"
    sides = {"CopyHostToDevice": "Memcpy HtoD", "CopyDeviceToHost": "Memcpy DtoH", "CopyDeviceToDevice": "Memcpy DtoD"}
    return sides.get(name.split(" ", maxsplit=1)[0], "Memcpy other")


def is_pageable(name: str) -> bool:
    """Return whether the host's memory is pageable, by the name of a copy."""
    return "Pageable" in name
