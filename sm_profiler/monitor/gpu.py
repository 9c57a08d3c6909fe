"""GPUs: what SageMaker's monitor measures of them, and under names of our own what else tells why one is slow.

`Gpu` is all that the family knows of a GPU, so that tests, and other makers' libraries, can stand in for NVML.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from sm_profiler.formats.system_writer import Measurement

UTILISATION, MEMORY = "GPUUtilization", "GPUMemoryUtilization"  # percent; the service's own names

POWER = "GPUPowerWatts"
POWER_LIMIT = "GPUPowerLimitWatts"
SM_CLOCK = "GPUSMClockMHz"
MEMORY_CLOCK = "GPUMemoryClockMHz"
TEMPERATURE = "GPUTemperatureCelsius"
# 100 while the GPU runs slower than it could for that reason, else 0: an average is the percentage of time.
THROTTLED_POWER = "GPUThrottledByPower"
THROTTLED_HEAT = "GPUThrottledByHeat"
THROTTLED_HARDWARE = "GPUThrottledByHardware"
PCIE_RECEIVED, PCIE_SENT = "GPUPCIeReceiveBytesPerSecond", "GPUPCIeTransmitBytesPerSecond"
# Percent of the time, averaged since the last reading (Hopper and newer)
SM_ACTIVE, SM_OCCUPANCY = "GPUSMUtilization", "GPUSMOccupancy"
TENSOR_ACTIVE, DRAM_ACTIVE = "GPUTensorUtilization", "GPUDRAMBandwidthUtilization"

DETAILS_EVERY_S = 1.0  # what changes slowly, or costs a driver call each, is read no more often


class Gpu(Protocol):
    """One GPU.  What it cannot tell is left out of the answers."""

    number: int

    def basics(self) -> Mapping[str, float]:
        """Utilisation and used memory in percent, at every tick."""

    def details(self, now: float) -> Mapping[str, float]:
        """The rest, once a second; rates are absent the first time.  `now` in seconds, never running backwards."""


class GpuFamily:
    """Rows of all GPUs of this machine.

    Args:
        find: gives the GPUs; asked once, at the first tick.
    """

    name = "gpu"

    def __init__(self, find: Callable[[], Iterable[Gpu]]) -> None:
        self._find: Callable[[], Iterable[Gpu]] | None = find
        self._gpus: list[Gpu] = []
        self._detailed: float | None = None

    def measure(self, now: float) -> list[Measurement]:
        """Two rows a GPU, and once a second what else it can tell."""
        if self._find is not None:
            find, self._find = self._find, None
            self._gpus = list(find())
        detailed = self._detailed is None or now - self._detailed >= DETAILS_EVERY_S * 0.99
        if detailed:
            self._detailed = now
        rows = []
        for gpu in self._gpus:
            name = f"gpu{gpu.number}"
            rows += [Measurement("gpu", name, dimension, value) for dimension, value in gpu.basics().items()]
            if detailed:
                rows += [Measurement("gpu", name, dimension, value) for dimension, value in gpu.details(now).items()]
        return rows
