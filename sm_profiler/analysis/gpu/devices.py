"""Peak rates of devices, by the names in their properties."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs


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
