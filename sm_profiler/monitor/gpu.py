"""GPU metrics: those of SageMaker's monitor, and under our own names further ones that explain why a GPU is slow.

They come from NVIDIA's NVML (package nvidia-ml-py), which is loaded only if the machine has its driver.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sm_profiler.formats.system_writer import Measurement
from sm_profiler.monitor.procfs import Rates

UTILIZATION, MEMORY = "GPUUtilization", "GPUMemoryUtilization"  # percent; the service's own names

POWER = "GPUPowerWatts"
POWER_LIMIT = "GPUPowerLimitWatts"
SM_CLOCK = "GPUSMClockMHz"
MAX_SM_CLOCK = "GPUSMClockMaxMHz"
MEMORY_CLOCK = "GPUMemoryClockMHz"
TEMPERATURE = "GPUTemperatureCelsius"
# 100 while the GPU is throttled for that reason, else 0: the average is the percentage of time.
THROTTLED_POWER = "GPUThrottledByPower"
THROTTLED_HEAT = "GPUThrottledByHeat"
THROTTLED_HARDWARE = "GPUThrottledByHardware"
PCIE_RECEIVED, PCIE_SENT = "GPUPCIeReceiveBytesPerSecond", "GPUPCIeTransmitBytesPerSecond"
# Percent of the time, averaged since the last reading (Hopper and newer)
SM_ACTIVE, SM_OCCUPANCY = "GPUSMUtilization", "GPUSMOccupancy"
TENSOR_ACTIVE, DRAM_ACTIVE = "GPUTensorUtilization", "GPUDRAMBandwidthUtilization"
SINGLE_ACTIVE, DOUBLE_ACTIVE = "GPUFP32Utilization", "GPUFP64Utilization"

DETAILS_EVERY_S = 1.0  # slow values, or values that cost a driver call each, are read no more often

DRIVER = Path("/proc/driver/nvidia/version")
DEVICES = (Path("/dev/nvidiactl"), Path("/dev/nvidia0"))
AMD_DEVICE = Path("/dev/kfd")
NO_LIBRARY = "nvidia-ml-py is not installed: pip install 'sm-profiler[gpu]'"
NO_AMD = "AMD's GPUs are not supported"
MIB = 1 << 20
REFUSALS = ("Not Supported", "Function Not Found")  # NVML's errors that are permanent
PATIENCE = 10  # failures in a row, after which a reading is no longer tried
PCIE_COUNTERS = {PCIE_SENT: "NVML_FI_DEV_PCIE_COUNT_TX_BYTES", PCIE_RECEIVED: "NVML_FI_DEV_PCIE_COUNT_RX_BYTES"}
GPM_METRICS = {
    SM_ACTIVE: ("NVML_GPM_METRIC_SM_UTIL", 1.0),
    SM_OCCUPANCY: ("NVML_GPM_METRIC_SM_OCCUPANCY", 1.0),
    TENSOR_ACTIVE: ("NVML_GPM_METRIC_ANY_TENSOR_UTIL", 1.0),
    DRAM_ACTIVE: ("NVML_GPM_METRIC_DRAM_BW_UTIL", 1.0),
    SINGLE_ACTIVE: ("NVML_GPM_METRIC_FP32_UTIL", 1.0),
    DOUBLE_ACTIVE: ("NVML_GPM_METRIC_FP64_UTIL", 1.0),
    PCIE_SENT: ("NVML_GPM_METRIC_PCIE_TX_PER_SEC", float(MIB)),
    PCIE_RECEIVED: ("NVML_GPM_METRIC_PCIE_RX_PER_SEC", float(MIB)),
}
# Bits of "clocks event reasons", spelled out because their names changed between versions of NVML.
REASONS = {
    THROTTLED_POWER: 0x04,  # software power cap
    THROTTLED_HEAT: 0x20 | 0x40,  # software and hardware thermal slowdown
    THROTTLED_HARDWARE: 0x08 | 0x80,  # hardware slowdown, external power brake
}


class GpuSource:
    """Metrics of all GPUs of this machine.

    Args:
        find: returns the GPUs; called once, at the first tick.
    """

    name = "gpu"

    def __init__(self, find: Callable[[], list[NvmlGpu]]) -> None:
        self._find: Callable[[], list[NvmlGpu]] | None = find
        self._gpus: list[NvmlGpu] = []
        self._detailed: float | None = None

    def measure(self, now: float) -> list[Measurement]:
        """Return two rows per GPU, and once a second the other metrics too."""
        if self._find is not None:
            find, self._find = self._find, None
            self._gpus = find()
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


def driver_present() -> bool:
    """Return whether this machine has NVIDIA's driver."""
    return DRIVER.exists() or any(device.exists() for device in DEVICES)


def why_missing() -> str:
    """Return why this machine's GPUs cannot be measured; "" if they can, or there are none."""
    if driver_present():
        return "" if find_spec("pynvml") else NO_LIBRARY
    return NO_AMD if AMD_DEVICE.exists() else ""


def find_gpus(nvml: Any = None) -> list[NvmlGpu]:
    """Return the GPUs that are visible in this container.

    Raises:
        ImportError: there are GPUs, but no library for them: nvidia-ml-py is not installed, or they are AMD's.
        Exception: NVML cannot be initialized.
    """
    if nvml is None:
        if not driver_present():
            if AMD_DEVICE.exists():
                raise ImportError(NO_AMD)
            return []
        nvml = _load()
    nvml.nvmlInit()
    return [
        NvmlGpu(nvml, number, nvml.nvmlDeviceGetHandleByIndex(number)) for number in range(nvml.nvmlDeviceGetCount())
    ]


def _load() -> Any:
    try:
        import pynvml  # optional, and useless without a GPU
    except ImportError:
        raise ImportError(NO_LIBRARY) from None
    return pynvml


class NvmlGpu:
    """One NVIDIA GPU. A reading that it does not support is not tried again."""

    def __init__(self, nvml: Any, number: int, handle: Any) -> None:
        self.number = number
        self._nvml = nvml
        self._handle = handle
        self._unsupported: set[str] = set()
        self._failed: dict[str, int] = {}
        self._gpm = self._find_gpm()
        self._pcie = Rates()

    def basics(self) -> dict[str, float]:
        """Return utilization and used memory in percent."""
        found: dict[str, float] = {}
        used = self._try("utilization", lambda: self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
        if used is not None:
            found[UTILIZATION] = float(used)
        memory = self._try("memory", lambda: self._nvml.nvmlDeviceGetMemoryInfo(self._handle))
        if memory is not None and memory.total:
            found[MEMORY] = 100 * memory.used / memory.total
        return found

    def details(self, now: float) -> dict[str, float]:
        """Return power, clocks, temperature, throttling, PCIe traffic and the counters of GPM."""
        nvml, handle = self._nvml, self._handle
        readings: dict[str, Callable[[], float]] = {
            POWER: lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            POWER_LIMIT: lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
            SM_CLOCK: lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            MAX_SM_CLOCK: lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
            MEMORY_CLOCK: lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            TEMPERATURE: lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
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
        """Return rates from counters; NVML's own measurement of PCIe traffic blocks for 20 ms, twice per GPU."""
        nvml = self._nvml
        fields = nvml.nvmlDeviceGetFieldValues(self._handle, [getattr(nvml, name) for name in PCIE_COUNTERS.values()])
        counts: dict[str, float] = {}
        for name, field in zip(PCIE_COUNTERS, fields, strict=True):
            if field.nvmlReturn != nvml.NVML_SUCCESS:
                raise nvml.NVMLError(field.nvmlReturn)
            counts[name] = int(field.value.ullVal)
        return self._pcie.measure(now, counts) or {}

    def _find_gpm(self) -> Gpm | None:
        def start() -> Gpm | None:
            supported = self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice
            return Gpm(self._nvml, self._handle) if supported else None

        found: Gpm | None = self._try("GPM", start)
        return found

    def _try(self, name: str, read: Callable[[], Any]) -> Any:
        """Return a reading, or None; a reading that is not supported or keeps failing is no longer tried."""
        if name in self._unsupported:
            return None
        try:
            value = read()
        except Exception as error:  # old drivers, MIG and passthrough fail in many ways; readings are independent
            self._failed[name] = self._failed.get(name, 0) + 1
            refused = isinstance(error, AttributeError) or str(error) in REFUSALS
            if refused or self._failed[name] >= PATIENCE:
                self._unsupported.add(name)
            return None
        self._failed.pop(name, None)
        return value


class Gpm:
    """NVML's GPU performance monitoring: activity of the multiprocessors between two samples.

    Raises:
        Exception: it cannot be initialized.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        self._taken = 0

    def read(self) -> dict[str, float]:
        """Return averages since the last call; the first call returns nothing."""
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
