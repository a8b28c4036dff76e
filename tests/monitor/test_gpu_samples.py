"""GPUs under the recorder, on the fake's time: what is sampled, how often, and what happens when one falls away."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.machine import nvidia
from assay.monitor.client import StopRecording
from assay.monitor.recorder import BackgroundSampler
from assay.monitor.samplers import COUNTER_WRAP, GIVE_UP_AFTER, PCIE_WRAP_LIMIT_S, ByteCounter, GpuSampler
from assay.monitor.samples import GpuLost, GpuMeterSample, GpuPcie, GpuProcesses, GpuSample
from assay.monitor.statistics import summarise
from tests.fakes.fake_nvml import FakeNvml, GpuProcess, ampere, attached, hopper, volta
from tests.monitor.pacing import S, VirtualPace, at_once, header, recorded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.monitor.samples import RecordingLine
    from tests.fakes.plugin import MakeFakeNvml

UNKNOWN, UNINITIALIZED, NOT_SUPPORTED = 999, 1, 3
UNSIGNED_INT = 1
LineT = TypeVar("LineT")


def of(lines: list[RecordingLine], kind: type[LineT]) -> list[LineT]:
    return [line for line in lines if isinstance(line, kind)]


@contextmanager
def source(fake: FakeNvml, pace: VirtualPace) -> Iterator[GpuSampler]:
    uuids = [fake.gpu(index).uuid.decode() for index in range(fake.gpu_count)]
    with attached(fake), nvidia.open_sensors(uuids) as sensors:
        yield GpuSampler(dict(enumerate(sensors)), pace)


def watch(
    fake: FakeNvml, seconds: float, *, interval_s: float = 0.1, slowly_s: float | None = 1.0
) -> list[RecordingLine]:
    """Record all GPUs of a fake for some of its time."""
    pace = VirtualPace(fake)
    pace.order(fake.now_s() + seconds, StopRecording(reason="enough"))
    head = header(interval_s, fake.gpu_count, t_ns=fake.now_ns())
    with source(fake, pace) as gpus:
        beside = [BackgroundSampler(gpus.read_meters, max(1, round(0.1 / interval_s)), at_once)]
        if slowly_s is not None:
            beside.append(BackgroundSampler(gpus.read_processes_and_pcie, round(slowly_s / interval_s), at_once))
        shelf, _, _ = recorded(pace, head, gpus.read, beside=beside, pulse=gpus.pulse)
    return shelf.lines


def test_each_gpu_is_sampled_at_each_tick(make_fake_nvml: MakeFakeNvml) -> None:
    lines = watch(make_fake_nvml([hopper(), hopper(), ampere()]), 1.0)
    assert [(sample.tick, sample.gpu) for sample in of(lines, GpuSample)] == [
        (tick, gpu) for tick in range(10) for gpu in range(3)
    ]


def test_samples_follow_what_the_gpu_truly_does(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper()])
    fake.set_power(0, 500.0, at_s=2.0)
    lines = watch(fake, 6.0, interval_s=0.05)
    powers = {sample.t_ns / S: sample.power_instant_w for sample in of(lines, GpuSample)}
    assert (powers[1.0], powers[5.0]) == (78.0, 500.0)
    (found,) = summarise(lines).sources
    assert found.difference("energy_j") == pytest.approx(fake.true_energy_j(0, 0.0, 5.9), abs=0.01)


def test_the_dear_counters_are_read_ten_times_a_second_however_short_the_interval(
    make_fake_nvml: MakeFakeNvml,
) -> None:
    lines = watch(make_fake_nvml([hopper()]), 2.0, interval_s=0.005)
    assert len(of(lines, GpuSample)) == 400
    meters = of(lines, GpuMeterSample)
    assert len(meters) == 20
    assert all(meter.took_us is not None and meter.energy_j is not None for meter in meters)


def test_a_card_without_an_energy_counter_has_no_meter_lines(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([volta()])
    fake.fail("nvmlDeviceGetTotalEnergyConsumption", NOT_SUPPORTED)
    fake.fail_field(0, 83, NOT_SUPPORTED)
    assert of(watch(fake, 1.0), GpuMeterSample) == []


def test_processes_are_listed_at_most_once_a_second(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper()])
    fake.set_processes(0, [GpuProcess(pid=7, memory_bytes=3 * 2**30), GpuProcess(pid=8, memory_bytes=2**30)])
    listed = of(watch(fake, 10.0, interval_s=0.01), GpuProcesses)
    assert len(listed) == 10
    assert fake.calls("nvmlDeviceGetComputeRunningProcesses") <= 2 * 10  # the size is asked, then the list
    assert (listed[0].count, listed[0].memory_mib) == (2, 4096.0)


def test_the_memory_of_processes_is_null_when_one_of_them_does_not_say(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper()])
    fake.set_processes(0, [GpuProcess(pid=7, memory_bytes=2**30), GpuProcess(pid=8, memory_bytes=None)])
    assert of(watch(fake, 1.0), GpuProcesses)[0].memory_mib is None


def test_the_slow_pcie_call_is_never_made_where_bytes_are_counted(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper()])
    fake.set_field(0, 197, 0, rate_per_s=2e9)
    lines = watch(fake, 5.0)
    assert fake.calls("nvmlDeviceGetPcieThroughput") == 0
    assert of(lines, GpuPcie) == []
    sent = [sample.pcie_tx_bytes for sample in of(lines, GpuSample)]
    assert sent[-1] == pytest.approx(2e9 * 4.9)


@pytest.mark.parametrize("interval_s", [0.01, 0.1, 2.0])
def test_no_byte_is_lost_when_the_counter_of_32_bits_begins_anew(
    interval_s: float, make_fake_nvml: MakeFakeNvml
) -> None:
    fake = make_fake_nvml([hopper()])
    fake.set_field(0, 197, 4e9, rate_per_s=60e9, value_type=UNSIGNED_INT)
    fake.set_field(0, 198, 0, rate_per_s=1e3, value_type=UNSIGNED_INT)
    lines = watch(fake, 4.05, interval_s=interval_s, slowly_s=None)
    (found,) = summarise(lines).sources
    for quantity, rate in (("pcie_tx_bytes", 60e9), ("pcie_rx_bytes", 1e3)):
        (counted,) = (each for each in found.counted if each.quantity == quantity)
        assert counted.over_s == pytest.approx((found.n - 1) * interval_s, abs=PCIE_WRAP_LIMIT_S)
        assert counted.difference == pytest.approx(rate * counted.over_s)


def test_between_ticks_that_are_far_apart_only_the_bytes_are_read(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper()])
    watch(fake, 10.0, interval_s=5.0, slowly_s=None)
    assert fake.calls("nvmlDeviceGetUtilizationRates") == 2
    assert fake.calls("nvmlDeviceGetFieldValues") >= 10.0 / PCIE_WRAP_LIMIT_S


def test_a_card_that_does_not_count_bytes_is_left_alone_between_ticks(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([ampere()])
    watch(fake, 10.0, interval_s=5.0, slowly_s=None)
    assert fake.calls("nvmlDeviceGetFieldValues") == 2 + 2 * 2  # two looks, and two calls at each for the meters


@given(st.lists(st.integers(0, COUNTER_WRAP - 1), min_size=1, max_size=50))
def test_steps_smaller_than_the_counter_are_counted_exactly(steps: list[int]) -> None:
    counter, truth = ByteCounter(), 0
    assert counter.add(0) == 0
    for step in steps:
        truth += step
        assert counter.add(truth % COUNTER_WRAP) == truth


def test_a_counter_of_64_bits_that_goes_back_is_not_mistaken_for_one_that_wraps() -> None:
    counter = ByteCounter()
    assert [counter.add(raw) for raw in (COUNTER_WRAP + 5, 7, None, 9)] == [COUNTER_WRAP + 5, 7, None, 9]


def test_the_slow_pcie_call_is_made_once_a_second_where_they_are_not(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([ampere()])
    fake.gpu(0).pcie_tx_kb_per_s = 6_000_000
    rates = of(watch(fake, 5.0), GpuPcie)
    assert 4 <= len(rates) <= 5
    assert rates[0].tx_mb_per_s == 6000.0
    assert fake.calls("nvmlDeviceGetPcieThroughput") <= 2 * 5


def test_without_slow_looks_no_slow_call_is_made(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([ampere()])
    watch(fake, 5.0, slowly_s=None)
    assert fake.calls("nvmlDeviceGetPcieThroughput") == 0
    assert fake.calls("nvmlDeviceGetComputeRunningProcesses") == 0


def test_a_gpu_that_falls_off_the_bus_ends_its_own_series_and_the_others_go_on(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper(), hopper()])
    fake.lose(1, at_s=2.0)
    lines = watch(fake, 5.0)
    ticks = {gpu: [s.tick for s in of(lines, GpuSample) if s.gpu == gpu] for gpu in (0, 1)}
    assert ticks == {0: list(range(50)), 1: list(range(20))}
    (ended,) = of(lines, GpuLost)
    assert (ended.gpu, ended.t_ns) == (1, 2 * S)
    assert "lost" in ended.reason.lower()
    found = summarise(lines)
    assert [source.ended is None for source in found.sources] == [True, False]


def test_nvml_that_is_gone_ends_every_series_with_its_reason(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper(), hopper()])
    for name in (
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
    ):
        fake.fail(name, UNINITIALIZED, from_s=1.0)
    lines = watch(fake, 5.0)
    assert len(of(lines, GpuSample)) == 2 * 10
    ended = of(lines, GpuLost)
    assert [(line.gpu, line.t_ns) for line in ended] == [(gpu, S + (GIVE_UP_AFTER - 1) * S // 10) for gpu in (0, 1)]
    assert all("stopped answering" in line.reason and "Uninitialized" in line.reason for line in ended)


def test_what_fails_for_a_moment_is_asked_again(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper()])
    fake.fail("nvmlDeviceGetFieldValues", UNKNOWN, from_s=1.0, until_s=1.15)
    lines = watch(fake, 2.0)
    assert of(lines, GpuLost) == []
    nulls = [s.tick for s in of(lines, GpuSample) if s.power_instant_w is None]
    assert nulls == [10, 11]


def test_a_recording_of_a_fake_says_so() -> None:
    from assay.machine.model import GpuInventory
    from assay.monitor.options import driver_origin

    assert driver_origin(GpuInventory(driver="580.00-assay-fake")) == "fake"
    assert driver_origin(GpuInventory(driver="580.65.06")) == "real"
    assert driver_origin(GpuInventory()) == "real"
