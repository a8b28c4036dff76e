"""What the fake sensors show of the true power."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.fake_nvml import FakeNvml, Sensor, ampere, attached, hopper, volta

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.plugin import MakeFakeNvml

AVERAGE, INSTANT, ENERGY, CAPPED_TIME = 185, 186, 83, 74
IDLE_W = 78.0


class Meter:
    """Reads one GPU through pynvml."""

    def __init__(self, nvml: Any, index: int = 0) -> None:
        self.nvml = nvml
        self.handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def usage_w(self) -> float:
        return float(self.nvml.nvmlDeviceGetPowerUsage(self.handle)) / 1e3

    def energy_mj(self) -> int:
        return int(self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle))

    def field(self, number: int) -> Any:
        return self.nvml.nvmlDeviceGetFieldValues(self.handle, [number])[0]

    def instant_w(self) -> float:
        return float(self.field(INSTANT).value.uiVal) / 1e3

    def clock_mhz(self) -> int:
        return int(self.nvml.nvmlDeviceGetClockInfo(self.handle, self.nvml.NVML_CLOCK_SM))


@pytest.fixture
def meter(fake_nvml: FakeNvml) -> Iterator[Meter]:
    with attached(fake_nvml) as nvml:
        nvml.nvmlInit()
        yield Meter(nvml)


def test_average_power_lags_a_step_by_its_window(fake_nvml: FakeNvml, meter: Meter) -> None:
    fake_nvml.set_power(0, IDLE_W + 500.0, at_s=10.0)
    shown = {}
    for t_s in (9.99, 10.05, 10.1, 10.35, 10.9, 10.99, 11.0, 12.0):
        fake_nvml.set_time(t_s)
        shown[t_s] = meter.usage_w() - IDLE_W
    assert shown == {9.99: 0, 10.05: 0, 10.1: 50, 10.35: 150, 10.9: 450, 10.99: 450, 11.0: 500, 12.0: 500}
    assert meter.field(AVERAGE).value.uiVal == 578_000


def test_instant_power_follows_a_step_at_the_next_tick(fake_nvml: FakeNvml, meter: Meter) -> None:
    fake_nvml.set_power(0, 500.0, at_s=10.01)
    fake_nvml.set_time(10.099)
    assert meter.instant_w() == IDLE_W
    fake_nvml.set_time(10.1)
    assert meter.instant_w() == 500.0


def test_instant_power_sees_only_the_end_of_each_period(fake_nvml: FakeNvml, meter: Meter) -> None:
    fake_nvml.add_load(0, 400.0, 10.0, 10.07)
    fake_nvml.add_load(0, 100.0, 10.095, 10.1)
    fake_nvml.set_time(10.15)
    assert meter.instant_w() == pytest.approx(IDLE_W + 100.0 * 5 / 25, abs=1e-3)


def test_the_counter_equals_the_truth_at_its_ticks(fake_nvml: FakeNvml, meter: Meter) -> None:
    begin_mj = meter.energy_mj()
    fake_nvml.set_power(0, 321.0, at_s=0.123)
    fake_nvml.set_power(0, 654.0, at_s=0.777)
    for tick in range(1, 20):
        fake_nvml.set_time(tick / 10)
        truth_mj = fake_nvml.true_energy_j(0, 0.0, tick / 10) * 1e3
        assert meter.energy_mj() - begin_mj == pytest.approx(truth_mj, abs=1.0)
        assert meter.field(ENERGY).value.ullVal == meter.energy_mj()


def test_between_ticks_the_counter_stands_still(fake_nvml: FakeNvml, meter: Meter) -> None:
    fake_nvml.set_time(5.0)
    at_tick = meter.energy_mj()
    fake_nvml.set_time(5.099)
    assert meter.energy_mj() == at_tick
    fake_nvml.set_time(5.1)
    assert meter.energy_mj() == at_tick + 7800


def test_the_counter_counts_in_quanta(fake_nvml: FakeNvml, meter: Meter) -> None:
    fake_nvml.set_sensor(0, Sensor(counter_quantum_mj=1000))
    begin_mj = meter.energy_mj()
    fake_nvml.set_time(0.1)
    assert meter.energy_mj() - begin_mj == 7000
    fake_nvml.set_time(1.0)
    assert meter.energy_mj() - begin_mj == 78_000


def test_a_gain_error_shows_in_power_and_counter_but_not_in_the_truth(fake_nvml: FakeNvml, meter: Meter) -> None:
    fake_nvml.set_sensor(0, Sensor(gain=1.05))
    begin_mj = meter.energy_mj()
    fake_nvml.set_power(0, 100.0)
    fake_nvml.advance(10.0)
    assert meter.usage_w() == meter.instant_w() == 105.0
    assert meter.energy_mj() - begin_mj == 1_050_000
    assert fake_nvml.true_energy_j(0, 0.0, 10.0) == pytest.approx(1000.0)


def test_a_lag_shows_the_world_of_earlier(fake_nvml: FakeNvml, meter: Meter) -> None:
    fake_nvml.set_sensor(0, Sensor(lag_ms=300.0))
    fake_nvml.set_power(0, 500.0, at_s=10.0)
    fake_nvml.set_time(10.3)
    assert meter.instant_w() == IDLE_W
    fake_nvml.set_time(10.4)
    assert meter.instant_w() == 500.0


def test_phases_shift_the_ticks_of_sensor_and_counter(fake_nvml: FakeNvml, meter: Meter) -> None:
    fake_nvml.set_sensor(0, Sensor(phase_ms=30.0, counter_phase_ms=70.0))
    fake_nvml.set_time(1.05)
    before = meter.energy_mj()
    assert meter.field(INSTANT).timestamp == 1_030_000
    assert meter.field(ENERGY).timestamp == 970_000
    fake_nvml.set_time(1.07)
    assert meter.energy_mj() > before


@pytest.mark.parametrize(("start_s", "share"), [(10.0, 0.5), (10.075, 2.5)])
def test_a_load_at_the_sensors_period_aliases_instant_power(
    fake_nvml: FakeNvml, meter: Meter, start_s: float, share: float
) -> None:
    """A quarter of each period at 500 W, the rest at 100 W: 200 W on average, whatever the phase."""
    fake_nvml.square_wave(0, low_w=100.0, high_w=500.0, duty=0.25, period_s=0.1, from_s=start_s, until_s=20.0)
    readings, begin_s, end_s = [], 11.0, 19.0
    fake_nvml.set_time(begin_s)
    begin_mj = meter.energy_mj()
    while fake_nvml.now_s() < end_s:
        readings.append(meter.instant_w())
        fake_nvml.advance(0.03)
    fake_nvml.set_time(end_s)
    truth_j = fake_nvml.true_energy_j(0, begin_s, end_s)
    assert truth_j == pytest.approx(200.0 * (end_s - begin_s))
    assert sum(readings) / len(readings) == pytest.approx(share * 200.0)
    assert (meter.energy_mj() - begin_mj) / 1e3 == pytest.approx(truth_j, rel=1e-4)


def test_presets_differ_in_what_power_usage_means(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper(), ampere(), volta()])
    for gpu in range(3):
        fake.set_power(gpu, 200.0, at_s=10.0)
    fake.set_time(10.05)
    with attached(fake) as nvml:
        nvml.nvmlInit()
        meters = [Meter(nvml, index) for index in range(3)]
        assert [meter.usage_w() for meter in meters] == pytest.approx([78.0, 60.0 + 140.0 * 0.05, 200.0])
        assert [meter.field(INSTANT).nvmlReturn for meter in meters] == [0, 3, 3]
        assert [meter.field(ENERGY).nvmlReturn for meter in meters] == [0, 0, 0]


def test_the_clock_follows_the_power_cap(fake_nvml: FakeNvml, meter: Meter) -> None:
    nvml = meter.nvml
    assert meter.clock_mhz() == 345
    fake_nvml.set_power(0, 650.0)
    assert (meter.clock_mhz(), fake_nvml.true_power_w(0)) == (1980, 650.0)
    clocks = []
    for limit_w in (600, 400, 200):
        nvml.nvmlDeviceSetPowerManagementLimit(meter.handle, limit_w * 1000)
        assert fake_nvml.true_power_w(0) == limit_w
        assert nvml.nvmlDeviceGetCurrentClocksEventReasons(meter.handle) == nvml.nvmlClocksThrottleReasonSwPowerCap
        clocks.append(meter.clock_mhz())
    assert clocks == sorted(clocks, reverse=True)
    assert clocks[-1] == fake_nvml.true_clock_mhz(0) == int(1980 * (122 / 572) ** (1 / 3)) // 15 * 15


def test_a_new_limit_leaves_the_past_as_it_was(fake_nvml: FakeNvml, meter: Meter) -> None:
    fake_nvml.set_power(0, 600.0, at_s=0.0)
    fake_nvml.set_power(0, 500.0, at_s=3.0)
    fake_nvml.set_time(2.0)
    meter.nvml.nvmlDeviceSetPowerManagementLimit(meter.handle, 300_000)
    assert fake_nvml.true_energy_j(0, 0.0, 4.0) == pytest.approx(2 * 600.0 + 2 * 300.0)
    fake_nvml.set_time(3.5)
    fake_nvml.set_power_limit(0, 700.0)
    assert fake_nvml.true_energy_j(0, 3.0, 4.0) == pytest.approx(0.5 * 300.0 + 0.5 * 500.0)


def test_time_under_the_cap_is_counted(fake_nvml: FakeNvml, meter: Meter) -> None:
    fake_nvml.add_load(0, 900.0, 1.0, 3.5)
    fake_nvml.set_time(10.0)
    assert meter.field(CAPPED_TIME).value.ullVal == 2_500_000_000
    assert meter.nvml.nvmlDeviceGetViolationStatus(meter.handle, 0).violationTime == 2_500_000_000


def test_a_locked_clock_lowers_power(fake_nvml: FakeNvml, meter: Meter) -> None:
    fake_nvml.set_power(0, 578.0)
    meter.nvml.nvmlDeviceSetGpuLockedClocks(meter.handle, 990, 990)
    assert meter.clock_mhz() == 990
    assert fake_nvml.true_power_w(0) == pytest.approx(78.0 + 500.0 / 8)
    meter.nvml.nvmlDeviceResetGpuLockedClocks(meter.handle)
    assert (meter.clock_mhz(), fake_nvml.true_power_w(0)) == (1980, 578.0)


def test_a_counter_can_begin_anew_and_go_back(fake_nvml: FakeNvml, meter: Meter) -> None:
    fake_nvml.set_time(10.0)
    before = meter.energy_mj()
    fake_nvml.step_counter(0, -5000)
    assert meter.energy_mj() == before - 5000
    fake_nvml.reset_counter(0)
    assert meter.energy_mj() == 0
    fake_nvml.advance(1.0)
    assert meter.energy_mj() == 78_000


def test_a_recorded_trace_is_replayed(fake_nvml: FakeNvml, meter: Meter) -> None:
    fake_nvml.set_power(0, 333.0, at_s=50.0)
    fake_nvml.replay(0, [(1000.0, 100.0), (1000.5, 300.0), (1001.0, 90.0)], start_s=2.0)
    assert fake_nvml.true_energy_j(0, 2.0, 3.0) == pytest.approx(200.0)
    fake_nvml.set_time(60.0)
    assert meter.usage_w() == 90.0


def test_loads_of_several_tenants_add_up(fake_nvml: FakeNvml) -> None:
    fake_nvml.add_load(0, 100.0, 1.0, 3.0)
    fake_nvml.add_load(0, 50.0, 2.0, 4.0)
    powers = [fake_nvml.true_power_w(0, at_s) - IDLE_W for at_s in (0.5, 1.5, 2.5, 3.5, 4.5)]
    assert powers == [0, 100, 150, 50, 0]


def test_the_counter_goes_on_when_old_segments_are_forgotten(fake_nvml: FakeNvml, meter: Meter) -> None:
    begin_mj, steps = meter.energy_mj(), 17_000
    for step in range(steps):
        fake_nvml.set_power(0, 100.0 + step % 2 * 100.0, at_s=step / 100)
    fake_nvml.set_time(steps / 100)
    assert meter.energy_mj() - begin_mj == pytest.approx(150.0 * steps / 100 * 1e3, abs=1)
    assert fake_nvml.true_energy_j(0, 100.0, 150.0) == pytest.approx(150.0 * 50)
    with pytest.raises(ValueError, match="forgotten"):
        fake_nvml.true_energy_j(0, 0.0, 150.0)


@settings(max_examples=25, deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(0, 5000), st.floats(0.0, 900.0)), max_size=30),
    period_ms=st.integers(1, 200),
    phase_ms=st.integers(0, 200),
    window_ms=st.integers(1, 1500),
    at_ms=st.integers(0, 6000),
)
def test_every_reading_is_the_truth_of_its_window(
    changes: list[tuple[int, float]], period_ms: int, phase_ms: int, window_ms: int, at_ms: int
) -> None:
    sensor = Sensor(period_ms=period_ms, phase_ms=phase_ms, average_window_ms=window_ms, counter_period_ms=period_ms)
    with TemporaryDirectory() as folder:
        fake = FakeNvml.create(Path(folder) / "scenario", [replace(hopper(), sensor=sensor)])
        for t_ms, watts in changes:
            fake.set_power(0, watts, at_s=t_ms / 1e3)
        with attached(fake) as nvml:
            nvml.nvmlInit()
            meter = Meter(nvml)
            begin_mj = meter.energy_mj()
            fake.set_time(at_ms / 1e3)
            tick_s = (phase_ms + (at_ms - phase_ms) // period_ms * period_ms) / 1e3
            energy_mj, usage_w = meter.energy_mj(), meter.usage_w()
    truth_w = fake.true_energy_j(0, tick_s - window_ms / 1e3, tick_s) / (window_ms / 1e3)
    assert usage_w == pytest.approx(truth_w, abs=1e-3)
    if tick_s >= 0:
        assert energy_mj - begin_mj == pytest.approx(fake.true_energy_j(0, 0.0, tick_s) * 1e3, abs=1.001)


def test_real_time_passes_by_itself(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml(virtual=False)
    with attached(fake) as nvml:
        nvml.nvmlInit()
        begin_s = fake.now_s()
        assert Meter(nvml).usage_w() == IDLE_W
        assert fake.now_s() > begin_s
    with pytest.raises(ValueError, match="real time"):
        fake.advance(1.0)
