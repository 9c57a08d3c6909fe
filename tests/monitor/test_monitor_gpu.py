"""GPUs through a fake NVML that has the real module's structures and constants, and without any."""

import sys
import types

import pynvml
import pytest

from sm_profiler.monitor import gpu
from sm_profiler.monitor.gpu import GPM_METRICS, PCIE_COUNTERS, GpuSource, find_gpus, why_missing


class FakeNvml:
    """Two GPUs; `refuse` names functions that are not supported."""

    def __init__(self, refuse=(), *, gpm=True, count=2):
        self.refuse, self.gpm, self.count = set(refuse), gpm, count
        self.calls, self.pcie, self.samples = [], 0, 0
        self.reasons = 0
        self.gpm_values = {"NVML_GPM_METRIC_SM_UTIL": 81.5, "NVML_GPM_METRIC_PCIE_TX_PER_SEC": 2.0}

    def __getattr__(self, name):
        if name.startswith("nvml"):
            method = getattr(type(self), "fake_" + name, None)
            if method is None:
                raise AttributeError(name)

            def call(*args):
                self.calls.append(name)
                if name in self.refuse:
                    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
                return method(self, *args)

            return call
        return getattr(pynvml, name)

    def fake_nvmlInit(self):
        pass

    def fake_nvmlDeviceGetCount(self):
        return self.count

    def fake_nvmlDeviceGetHandleByIndex(self, number):
        return number

    def fake_nvmlDeviceGetUtilizationRates(self, handle):
        return types.SimpleNamespace(gpu=40 + handle, memory=7)

    def fake_nvmlDeviceGetMemoryInfo(self, handle):
        return types.SimpleNamespace(total=80 << 30, used=20 << 30, free=60 << 30)

    def fake_nvmlDeviceGetPowerUsage(self, handle):
        return 312_456

    def fake_nvmlDeviceGetEnforcedPowerLimit(self, handle):
        return 700_000

    def fake_nvmlDeviceGetClockInfo(self, handle, kind):
        return {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619}[kind]

    def fake_nvmlDeviceGetTemperature(self, handle, kind):
        return 55

    def fake_nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self.reasons

    def fake_nvmlDeviceGetFieldValues(self, handle, fields):
        answers = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for answer, field in zip(answers, fields, strict=True):
            answer.fieldId = field
            answer.value.ullVal = self.pcie * (1 if field == pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES else 3)
        return answers

    def fake_nvmlGpmQueryDeviceSupport(self, handle):
        return types.SimpleNamespace(isSupportedDevice=int(self.gpm))

    def fake_nvmlGpmSampleAlloc(self):
        return pynvml.c_nvmlGpmSample_t()

    def fake_nvmlGpmSampleGet(self, handle, sample):
        self.samples += 1
        return sample

    def fake_nvmlGpmMetricsGet(self, ask):
        assert ask.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        wanted = {getattr(pynvml, name): name for name, _ in GPM_METRICS.values()}
        for at in range(ask.numMetrics):
            name = wanted[ask.metrics[at].metricId]
            ask.metrics[at].nvmlReturn = (
                pynvml.NVML_SUCCESS if name in self.gpm_values else pynvml.NVML_ERROR_NOT_SUPPORTED
            )
            ask.metrics[at].value = self.gpm_values.get(name, 0.0)
        return ask


def rows(source, now):
    return {(row.name, row.dimension): row.value for row in source.measure(now)}


def family_of(nvml):
    return GpuSource(lambda: find_gpus(nvml))


def test_every_tick_has_utilization_and_memory_of_every_gpu():
    source = family_of(FakeNvml())
    for now in (0.0, 0.1, 0.2):
        found = rows(source, now)
        assert found["gpu0", "GPUUtilization"] == 40
        assert found["gpu1", "GPUUtilization"] == 41
        assert found["gpu0", "GPUMemoryUtilization"] == 25


def test_details_are_read_once_a_second():
    nvml = FakeNvml()
    source = family_of(nvml)
    first = rows(source, 0.0)
    assert first["gpu0", gpu.POWER] == pytest.approx(312.456)
    assert first["gpu0", gpu.POWER_LIMIT] == 700
    assert (first["gpu0", gpu.SM_CLOCK], first["gpu0", gpu.MEMORY_CLOCK]) == (1980, 2619)
    assert first["gpu0", gpu.TEMPERATURE] == 55
    assert all(("gpu0", gpu.POWER) not in rows(source, number / 10) for number in range(1, 10))
    assert ("gpu0", gpu.POWER) in rows(source, 1.0)


def test_rates_are_absent_the_first_time():
    nvml = FakeNvml(gpm=False)
    source = family_of(nvml)
    nvml.pcie = 1000
    assert not {(f"gpu{n}", name) for n in (0, 1) for name in PCIE_COUNTERS} & rows(source, 0.0).keys()
    nvml.pcie = 5000
    second = rows(source, 2.0)
    assert (second["gpu1", gpu.PCIE_SENT], second["gpu1", gpu.PCIE_RECEIVED]) == (2000, 6000)


@pytest.mark.parametrize(
    ("bits", "which"),
    [
        (pynvml.nvmlClocksEventReasonGpuIdle, None),
        (pynvml.nvmlClocksEventReasonSwPowerCap, gpu.THROTTLED_POWER),
        (pynvml.nvmlClocksEventReasonSwThermalSlowdown, gpu.THROTTLED_HEAT),
        (pynvml.nvmlClocksEventReasonHwThermalSlowdown, gpu.THROTTLED_HEAT),
        (pynvml.nvmlClocksThrottleReasonHwSlowdown, gpu.THROTTLED_HARDWARE),
        (pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown, gpu.THROTTLED_HARDWARE),
    ],
)
def test_throttle_reasons(bits, which):
    nvml = FakeNvml()
    nvml.reasons = bits
    found = rows(family_of(nvml), 0.0)
    throttled = {
        name for name in (gpu.THROTTLED_POWER, gpu.THROTTLED_HEAT, gpu.THROTTLED_HARDWARE) if found["gpu0", name]
    }
    assert throttled == ({which} if which else set())


def test_gpm_returns_averages_between_two_samples():
    nvml = FakeNvml()
    source = family_of(nvml)
    assert ("gpu0", gpu.SM_ACTIVE) not in rows(source, 0.0)
    second = rows(source, 1.0)
    assert second["gpu0", gpu.SM_ACTIVE] == 81.5
    assert second["gpu0", gpu.PCIE_SENT] == 2 << 20
    assert ("gpu0", gpu.TENSOR_ACTIVE) not in second  # not supported by this GPU
    assert nvml.samples == 4


def test_unsupported_readings_are_left_out_and_not_retried():
    nvml = FakeNvml({"nvmlDeviceGetTemperature", "nvmlDeviceGetUtilizationRates", "nvmlGpmQueryDeviceSupport"})
    source = family_of(nvml)
    for now in range(5):
        found = rows(source, float(now))
        assert ("gpu0", gpu.TEMPERATURE) not in found
        assert ("gpu0", gpu.UTILIZATION) not in found
        assert ("gpu0", gpu.POWER) in found
    assert nvml.calls.count("nvmlDeviceGetTemperature") == 2  # once per GPU
    assert nvml.calls.count("nvmlDeviceGetUtilizationRates") == 2


def test_older_nvml_has_throttle_reasons_under_another_name():
    class Old(FakeNvml):
        fake_nvmlDeviceGetCurrentClocksEventReasons = None

        def fake_nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
            return 0x04

    assert rows(family_of(Old()), 0.0)["gpu0", gpu.THROTTLED_POWER] == 100


def test_a_single_failure_is_retried():
    nvml = FakeNvml()
    source = family_of(nvml)
    rows(source, 0.0)
    broken = pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
    kept = FakeNvml.fake_nvmlDeviceGetPowerUsage

    def fail(self, handle):
        raise broken

    FakeNvml.fake_nvmlDeviceGetPowerUsage = fail
    try:
        assert ("gpu0", gpu.POWER) not in rows(source, 1.0)
    finally:
        FakeNvml.fake_nvmlDeviceGetPowerUsage = kept
    assert ("gpu0", gpu.POWER) in rows(source, 2.0)


def test_a_machine_without_a_driver_loads_nothing(monkeypatch):
    monkeypatch.setattr("sm_profiler.monitor.gpu.driver_present", lambda: False)
    assert rows(GpuSource(find_gpus), 0.0) == {}


def test_a_missing_package_is_reported(monkeypatch):
    monkeypatch.setattr("sm_profiler.monitor.gpu.driver_present", lambda: True)
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    with pytest.raises(ImportError, match=r"sm-profiler\[gpu\]"):
        find_gpus()


def test_constants_exist_in_the_real_module():
    for name in (*PCIE_COUNTERS.values(), *(name for name, _ in GPM_METRICS.values())):
        assert isinstance(getattr(pynvml, name), int)


@pytest.mark.parametrize(
    ("kind", "library", "reason"),
    [
        ("nvidia", None, "nvidia-ml-py is not installed: pip install 'sm-profiler[gpu]'"),
        ("nvidia", object(), ""),
        ("amd", None, "AMD's GPUs are not supported"),
        ("", None, ""),
    ],
)
def test_gpus_without_a_library_have_their_reason(tmp_path, monkeypatch, kind, library, reason):
    gpu = "sm_profiler.monitor.gpu."
    present, absent = tmp_path, tmp_path / "absent"
    monkeypatch.setattr(gpu + "DRIVER", absent)
    monkeypatch.setattr(gpu + "DEVICES", (absent, present if kind == "nvidia" else absent))  # /dev/nvidia0
    monkeypatch.setattr(gpu + "AMD_DEVICE", present if kind == "amd" else absent)
    monkeypatch.setattr(gpu + "find_spec", lambda _: library)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert why_missing() == reason
    if reason:
        with pytest.raises(ImportError) as caught:
            find_gpus()
        assert str(caught.value) == reason
