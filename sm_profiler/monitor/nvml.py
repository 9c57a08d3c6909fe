"""NVIDIA's GPUs through NVML (package nvidia-ml-py), loaded only where a driver is."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sm_profiler.monitor import gpu

DRIVER = Path("/proc/driver/nvidia/version")
DEVICE = Path("/dev/nvidiactl")
MIB = 1 << 20
REFUSALS = ("Not Supported", "Function Not Found")  # NVML's words for what will not change
PATIENCE = 10  # failures in a row, then a reading is given up
PCIE_COUNTERS = {gpu.PCIE_SENT: "NVML_FI_DEV_PCIE_COUNT_TX_BYTES", gpu.PCIE_RECEIVED: "NVML_FI_DEV_PCIE_COUNT_RX_BYTES"}
GPM_METRICS = {
    gpu.SM_ACTIVE: ("NVML_GPM_METRIC_SM_UTIL", 1.0),
    gpu.SM_OCCUPANCY: ("NVML_GPM_METRIC_SM_OCCUPANCY", 1.0),
    gpu.TENSOR_ACTIVE: ("NVML_GPM_METRIC_ANY_TENSOR_UTIL", 1.0),
    gpu.DRAM_ACTIVE: ("NVML_GPM_METRIC_DRAM_BW_UTIL", 1.0),
    gpu.PCIE_SENT: ("NVML_GPM_METRIC_PCIE_TX_PER_SEC", float(MIB)),
    gpu.PCIE_RECEIVED: ("NVML_GPM_METRIC_PCIE_RX_PER_SEC", float(MIB)),
}
# The bits of "clocks event reasons"; all is ours to say here because their names changed with NVML's versions.
REASONS = {
    gpu.THROTTLED_POWER: 0x04,  # software power cap
    gpu.THROTTLED_HEAT: 0x20 | 0x40,  # software and hardware thermal slowdown
    gpu.THROTTLED_HARDWARE: 0x08 | 0x80,  # hardware slowdown, external power brake
}


def driver_present() -> bool:
    """Whether this machine has NVIDIA's driver."""
    return DRIVER.exists() or DEVICE.exists()


def find_gpus(nvml: Any = None) -> list[NvmlGpu]:
    """The GPUs that this container sees.

    Args:
        nvml: the module `pynvml`, or something like it; by default imported where a driver is present.

    Raises:
        ImportError: there is a driver, but nvidia-ml-py is not installed.
        Exception: NVML cannot be started.
    """
    if nvml is None:
        if not driver_present():
            return []
        nvml = _load()
    nvml.nvmlInit()
    return [
        NvmlGpu(nvml, number, nvml.nvmlDeviceGetHandleByIndex(number)) for number in range(nvml.nvmlDeviceGetCount())
    ]


def _load() -> Any:
    try:
        import pynvml  # noqa: PLC0415 - only where there is a GPU
    except ImportError:
        raise ImportError("nvidia-ml-py is not installed: pip install 'sm-profiler[gpu]'") from None
    return pynvml


class NvmlGpu:
    """One GPU.  A reading that it does not support is not asked for again."""

    def __init__(self, nvml: Any, number: int, handle: Any) -> None:
        self.number = number
        self._nvml = nvml
        self._handle = handle
        self._unsupported: set[str] = set()
        self._failed: dict[str, int] = {}
        self._gpm = self._find_gpm()
        self._pcie: tuple[float, dict[str, int]] | None = None

    def basics(self) -> dict[str, float]:
        """Utilisation and used memory in percent."""
        found: dict[str, float] = {}
        used = self._try("utilisation", lambda: self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
        if used is not None:
            found[gpu.UTILISATION] = float(used)
        memory = self._try("memory", lambda: self._nvml.nvmlDeviceGetMemoryInfo(self._handle))
        if memory is not None and memory.total:
            found[gpu.MEMORY] = 100 * memory.used / memory.total
        return found

    def details(self, now: float) -> dict[str, float]:
        """Power, clocks, temperature, throttling, PCIe, and GPM's counters."""
        nvml, handle = self._nvml, self._handle
        readings: dict[str, Callable[[], float]] = {
            gpu.POWER: lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            gpu.POWER_LIMIT: lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
            gpu.SM_CLOCK: lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            gpu.MEMORY_CLOCK: lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            gpu.TEMPERATURE: lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        }
        found: dict[str, float] = {}
        for name, read in readings.items():
            value = self._try(name, read)
            if value is not None:
                found[name] = float(value)
        reasons = self._try("throttling", self._reasons)
        if reasons is not None:
            found |= {name: 100.0 if reasons & bits else 0.0 for name, bits in REASONS.items()}
        found |= self._try("PCIe counters", lambda: self._pcie_rates(now)) or {}
        if self._gpm is not None:
            found |= self._try("GPM", self._gpm.read) or {}
        return found

    def _reasons(self) -> int:
        read = getattr(self._nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        read = read or self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        return int(read(self._handle))

    def _pcie_rates(self, now: float) -> dict[str, float]:
        """From counters; the call that measures PCIe traffic itself stands still for 20 ms, twice a GPU."""
        nvml = self._nvml
        fields = nvml.nvmlDeviceGetFieldValues(self._handle, [getattr(nvml, name) for name in PCIE_COUNTERS.values()])
        counts = {}
        for name, field in zip(PCIE_COUNTERS, fields, strict=True):
            if field.nvmlReturn != nvml.NVML_SUCCESS:
                raise nvml.NVMLError(field.nvmlReturn)
            counts[name] = int(field.value.ullVal)
        last, self._pcie = self._pcie, (now, counts)
        if last is None or now <= last[0]:
            return {}
        seconds = now - last[0]
        return {name: max(count - last[1][name], 0) / seconds for name, count in counts.items()}

    def _find_gpm(self) -> Gpm | None:
        def start() -> Gpm | None:
            supported = self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice
            return Gpm(self._nvml, self._handle) if supported else None

        found: Gpm | None = self._try("GPM", start)
        return found

    def _try(self, name: str, read: Callable[[], Any]) -> Any:
        """A reading, or None; what is not supported, or fails again and again, is given up."""
        if name in self._unsupported:
            return None
        try:
            value = read()
        except Exception as error:  # noqa: BLE001 - old drivers, MIG and passthrough refuse in many ways; each reading stands alone
            self._failed[name] = self._failed.get(name, 0) + 1
            refused = isinstance(error, AttributeError) or str(error) in REFUSALS
            if refused or self._failed[name] >= PATIENCE:
                self._unsupported.add(name)
            return None
        self._failed.pop(name, None)
        return value


class Gpm:
    """NVML's GPU performance monitoring: what the multiprocessors did between two samples.

    Raises:
        Exception: it cannot be started.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        self._taken = 0

    def read(self) -> dict[str, float]:
        """Averages since the last call; nothing at the first one."""
        nvml = self._nvml
        older, newer = self._samples[(self._taken + 1) % 2], self._samples[self._taken % 2]
        nvml.nvmlGpmSampleGet(self._handle, newer)
        self._taken += 1
        if self._taken == 1:
            return {}
        ask = nvml.c_nvmlGpmMetricsGet_t()
        ask.version = nvml.NVML_GPM_METRICS_GET_VERSION
        ask.numMetrics = len(GPM_METRICS)
        ask.sample1, ask.sample2 = older, newer
        for at, (name, _) in enumerate(GPM_METRICS.values()):
            ask.metrics[at].metricId = getattr(nvml, name)
        nvml.nvmlGpmMetricsGet(ask)
        answers = (
            (ask.metrics[at], dimension, factor) for at, (dimension, (_, factor)) in enumerate(GPM_METRICS.items())
        )
        return {
            dimension: float(metric.value) * factor
            for metric, dimension, factor in answers
            if metric.nvmlReturn == nvml.NVML_SUCCESS and math.isfinite(metric.value)
        }
