"""The sensors of a GPU through the real nvidia-ml-py: what is read, in which unit, by which calls."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from assay.core.errors import MachineCannot
from assay.machine import nvidia
from assay.machine.model import GpuMeter, GpuReading, PcieRate
from tests.fakes.fake_nvml import FakeNvml, Gpu, GpuProcess, MigInstance, ampere, attached, hopper, volta

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.machine.nvml import NvmlSensor
    from tests.fakes.plugin import MakeFakeNvml

NOT_SUPPORTED, NO_PERMISSION, UNKNOWN, GPU_IS_LOST = 3, 4, 999, 15
ALL_LINKS = 0xFFFFFFFF

CALLS = {
    "nvmlDeviceGetUtilizationRates": {"utilisation_percent", "memory_utilisation_percent"},
    "nvmlDeviceGetMemoryInfo": {"memory_used_mib", "memory_total_mib"},
    "nvmlDeviceGetTemperature": {"temperature_c"},
    "nvmlDeviceGetClockInfo": {"sm_mhz", "memory_mhz"},
}
FIELDS = {
    185: {"power_average_w"},
    186: {"power_instant_w"},
    82: {"memory_temperature_c"},
    74: {"power_cap_s"},
    197: {"pcie_tx_bytes"},
    198: {"pcie_rx_bytes"},
    138: {"nvlink_tx_bytes"},
    139: {"nvlink_rx_bytes"},
}


@pytest.fixture
def busy(make_fake_nvml: MakeFakeNvml) -> FakeNvml:
    """A Hopper that offers everything, 10 s into a load."""
    gpu = replace(
        hopper(), utilisation_percent=97, memory_utilisation_percent=40, temperature_c=66, memory_used_bytes=2**31
    )
    fake = make_fake_nvml([gpu])
    for field, value in {82: 71, 197: 123_456, 198: 789, 269: 2e9, 270: 1e9, 271: 5e8}.items():
        fake.set_field(0, field, value)
    fake.set_field(0, 138, 7, scope=ALL_LINKS)
    fake.set_field(0, 139, 8, scope=ALL_LINKS)
    fake.set_power(0, 1000.0, at_s=0.0)
    fake.advance(10.0)
    return fake


@contextmanager
def sensor_of(fake: FakeNvml) -> Iterator[NvmlSensor]:
    with attached(fake), nvidia.open_sensors([fake.gpu(0).uuid.decode()]) as (sensor,):
        yield sensor


def read(fake: FakeNvml) -> GpuReading | None:
    with sensor_of(fake) as sensor:
        return sensor.read()


def test_every_sensor_is_read_in_its_unit(busy: FakeNvml) -> None:
    assert read(busy) == GpuReading(
        utilisation_percent=97,
        memory_utilisation_percent=40,
        memory_used_mib=2048.0,
        memory_total_mib=143_771.0,
        power_average_w=700.0,
        power_instant_w=700.0,
        temperature_c=66,
        memory_temperature_c=71,
        sm_mhz=busy.true_clock_mhz(0),
        memory_mhz=3201,
        throttle=("power cap",),
        power_cap_s=10.0,
        pcie_tx_bytes=123_456,
        pcie_rx_bytes=789,
        nvlink_tx_bytes=7 * 1024,
        nvlink_rx_bytes=8 * 1024,
    )


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, UNKNOWN])
@pytest.mark.parametrize(("function", "lost"), CALLS.items())
def test_a_call_that_fails_leaves_its_own_readings_null_and_spoils_no_other(
    busy: FakeNvml, function: str, lost: set[str], code: int
) -> None:
    whole = read(busy)
    busy.fail(function, code)
    reading = read(busy)
    assert whole is not None
    assert reading == whole.model_copy(update=dict.fromkeys(lost))


@pytest.mark.parametrize(("field", "lost"), FIELDS.items())
def test_a_field_that_fails_is_null_and_spoils_no_other(busy: FakeNvml, field: int, lost: set[str]) -> None:
    whole = read(busy)
    busy.fail_field(0, field, NOT_SUPPORTED, scope=ALL_LINKS if field in {138, 139} else None)
    reading = read(busy)
    assert whole is not None
    assert reading == whole.model_copy(update=dict.fromkeys(lost))


def test_the_dear_counters_are_read_apart_and_say_how_long_they_took(busy: FakeNvml) -> None:
    with sensor_of(busy) as sensor:
        meter = sensor.meter()
    assert meter is not None
    assert meter.model_copy(update={"took_us": None}) == GpuMeter(
        energy_j=1_007_000.0, too_hot_s=3.0, power_brake_s=0.5
    )
    assert meter.took_us is not None


@pytest.mark.parametrize(("field", "lost"), [(270, {"too_hot_s": 2.0}), (271, {"power_brake_s": None})])
def test_a_dear_counter_that_fails_spoils_no_other(busy: FakeNvml, field: int, lost: dict[str, float | None]) -> None:
    with sensor_of(busy) as sensor:
        whole = sensor.meter()
        busy.fail_field(0, field, NOT_SUPPORTED)
        meter = sensor.meter()
    assert whole is not None
    assert meter is not None
    assert meter.model_copy(update={"took_us": None}) == whole.model_copy(update={**lost, "took_us": None})


def test_without_the_energy_field_the_counter_is_asked_by_its_own_call(busy: FakeNvml) -> None:
    busy.fail_field(0, 83, NOT_SUPPORTED)
    with sensor_of(busy) as sensor:
        meter = sensor.meter()
    assert meter is not None
    assert meter.energy_j == 1_007_000.0


def test_a_card_without_an_energy_counter_has_null_and_no_time_it_took(busy: FakeNvml) -> None:
    busy.fail_field(0, 83, NOT_SUPPORTED)
    busy.fail("nvmlDeviceGetTotalEnergyConsumption", NOT_SUPPORTED)
    with sensor_of(busy) as sensor:
        meter = sensor.meter()
        assert meter == GpuMeter(too_hot_s=3.0, power_brake_s=0.5)
        busy.fail("nvmlDeviceGetFieldValues", UNKNOWN)
        assert sensor.meter() is None


def test_the_bytes_can_be_asked_for_alone(busy: FakeNvml) -> None:
    with sensor_of(busy) as sensor:
        assert sensor.pcie_bytes() == (123_456, 789)
        busy.fail_field(0, 198, NOT_SUPPORTED)
        assert sensor.pcie_bytes() == (123_456, None)


def test_older_names_of_the_throttle_reasons_are_asked_where_the_newer_fail(busy: FakeNvml) -> None:
    busy.fail("nvmlDeviceGetCurrentClocksEventReasons", NOT_SUPPORTED)
    reading = read(busy)
    assert reading is not None
    assert reading.throttle == ("power cap",)


@pytest.mark.parametrize("gpu", [ampere(), volta()])
def test_a_card_that_names_neither_average_nor_instant_power_has_its_usage(
    gpu: Gpu, make_fake_nvml: MakeFakeNvml
) -> None:
    fake = make_fake_nvml([gpu])
    reading = read(fake)
    assert reading is not None
    assert (reading.power_average_w, reading.power_instant_w) == (None, None)
    assert reading.power_usage_w == fake.gpu(0).idle_w
    assert (reading.pcie_tx_bytes, reading.nvlink_tx_bytes, reading.memory_temperature_c) == (None, None, None)


def test_a_gpu_in_mig_mode_has_its_power_though_it_does_not_say_how_busy_it_is(make_fake_nvml: MakeFakeNvml) -> None:
    reading = read(make_fake_nvml([replace(hopper(), mig=(MigInstance(),))]))
    assert reading is not None
    assert reading.utilisation_percent is None
    assert reading.power_instant_w == 78.0


def test_a_reading_takes_only_cheap_calls(busy: FakeNvml) -> None:
    with sensor_of(busy) as sensor:
        for _ in range(100):
            sensor.read()
    assert busy.calls("nvmlDeviceGetPcieThroughput") == 0
    assert busy.calls("nvmlDeviceGetComputeRunningProcesses") == 0
    assert busy.calls("nvmlDeviceGetTotalEnergyConsumption") == 0
    assert busy.calls("nvmlDeviceGetFieldValues") == 100


def test_nothing_is_read_of_a_lost_gpu_and_the_reason_is_known(busy: FakeNvml) -> None:
    with sensor_of(busy) as sensor:
        assert sensor.read() is not None
        busy.lose(0)
        assert sensor.read() is None
        assert "lost" in (sensor.lost or "").lower()


def test_nothing_is_read_when_every_call_fails_and_the_last_error_is_known(busy: FakeNvml) -> None:
    with sensor_of(busy) as sensor:
        silence(busy)
        assert sensor.read() is None
        assert sensor.lost is None
        assert sensor.last_error == "Unknown Error"


def silence(fake: FakeNvml) -> None:
    """Let every call that a reading takes fail."""
    for name in (*CALLS, "nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage"):
        fake.fail(name, UNKNOWN)
    for name in ("Event", "Throttle"):
        fake.fail(f"nvmlDeviceGetCurrentClocks{name}Reasons", UNKNOWN)


def test_processes_are_listed_with_their_memory(busy: FakeNvml) -> None:
    busy.set_processes(
        0, [GpuProcess(pid=11, memory_bytes=2**30), GpuProcess(pid=12, memory_bytes=None, graphics=True)]
    )
    with sensor_of(busy) as sensor:
        listed = sensor.processes()
    assert listed is not None
    assert [(process.pid, process.memory_mib) for process in listed] == [(11, 1024.0), (12, None)]


def test_a_gpu_that_does_not_list_processes_says_null_and_not_none_of_them(busy: FakeNvml) -> None:
    for kind in ("Compute", "Graphics", "MPSCompute"):
        busy.fail(f"nvmlDeviceGet{kind}RunningProcesses", NO_PERMISSION)
    with sensor_of(busy) as sensor:
        assert sensor.processes() is None


def test_pcie_throughput_is_in_kilobytes_and_becomes_megabytes(busy: FakeNvml) -> None:
    busy.gpu(0).pcie_tx_kb_per_s, busy.gpu(0).pcie_rx_kb_per_s = 12_500_000, 1500
    with sensor_of(busy) as sensor:
        rate = sensor.pcie_rate()
    assert rate == PcieRate(tx_mb_per_s=12_500.0, rx_mb_per_s=1.5)


def test_sensors_come_in_the_order_asked_for(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper(), hopper()])
    uuids = [fake.gpu(index).uuid.decode() for index in (1, 0)]
    with attached(fake), nvidia.open_sensors(uuids) as sensors:
        assert [sensor.uuid for sensor in sensors] == uuids


def test_a_gpu_that_nvml_does_not_list_is_refused(busy: FakeNvml) -> None:
    with (
        attached(busy),
        pytest.raises(MachineCannot, match="NVML lists no GPU GPU-nowhere"),
        nvidia.open_sensors(["GPU-nowhere"]),
    ):
        pass


def test_without_a_driver_there_are_no_sensors(busy: FakeNvml) -> None:
    busy.fail("nvmlInit_v2", 9)
    with attached(busy), pytest.raises(MachineCannot, match="NVML does not answer"), nvidia.open_sensors(["GPU-0"]):
        pass
