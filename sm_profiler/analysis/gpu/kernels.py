"""Kinds of kernels, by their names."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.kineto_reader import MEMCPY, MEMSET, KinetoColumns

COMPUTATION, COMMUNICATION, MEMORY = "computation", "communication", "memory"
KINDS = (COMPUTATION, COMMUNICATION, MEMORY)

_COMMUNICATION = re.compile(
    r"^(void )?(nccl|rccl|msccl|oneccl|hccl|nvshmem)|(ncclDevKernel|ncclKernel|oneshot_all_?reduce)", re.IGNORECASE
)
_MEMORY = re.compile(r"^(Memcpy|Memset|dma|CopyHostToDevice|CopyDeviceToHost|__amd_rocclr_(copy|fill)Buffer)")
_MATMUL = re.compile(
    r"gemm|matmul|cutlass|cublas|xmma|(?<![a-z])wgrad|(?<![a-z])dgrad|fprop|implicit_convolve|convolve|flash|fmha|attention|Cijk_|mma_",
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
    r"elementwise|vectorized|unrolled|_poi_|fill|copy_|cat_|index|scatter|gather|dropout", re.IGNORECASE
)


@lru_cache(maxsize=1 << 14)
def kind_of(name: str) -> str:
    """Return the kind of a kernel."""
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
