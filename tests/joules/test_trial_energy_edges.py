"""Energy of recordings and of windows at their edges: what is told and refused, what is fitted, how meters are read."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from assay.core.errors import MachineCannot
from assay.core.results import Estimate, Missing
from assay.joules import readings, trial_energy, window_energy
from assay.joules.devices import CpuCallLoad
from assay.joules.observations import (
    KrigingFit,
    Observations,
    SensorView,
    combine_observations,
    integrated_covariance,
    observe_counter,
    observe_power,
)
from assay.joules.readings import MeterReading, counter_series, power_series
from assay.joules.sensor_model import CounterModel, PowerModel, SensorModel
from assay.joules.ticks import SensorTicks
from assay.joules.trial_energy import (
    ASSUMED_SENSOR_MODEL,
    GpuWindowEnergies,
    estimate_gpu_windows,
    estimate_host_domains,
    estimate_package_energy,
    gpu_readings,
    merge_windows,
    sum_gpu_energy,
    sum_window_energies,
)
from assay.joules.window_energy import PowerVariation, WindowEnergy, expected_error_j, fit_window_energy
from assay.monitor.samples import GpuMeterSample, GpuSample, HostSample
from tests.joules.test_joules_edges import MS, Turned
from tests.joules.test_window_energy_edges import AtOnce, Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.monitor.samples import RecordingLine

S = 1_000_000_000


# --- recordings


def test_of_a_gpu_that_was_not_looked_at_ten_ticks_a_second_are_assumed() -> None:
    counter = CounterModel(period_s=0.1, jitter_s=0.05, quantum_j=0.001, lag_s=0.05, lag_error_s=0.05, read_s=0.01)
    average = PowerModel(period_s=0.1, window_s=1.0, lag_s=0.1, lag_error_s=0.1, with_counter=False, explained=0.0)
    assert SensorModel(device="assumed", driver="any", counter=counter, average=average) == ASSUMED_SENSOR_MODEL


def part(value: float, error: float | None = 1.0, systematic: float | None = 0.5, **more: Any) -> WindowEnergy:
    low, high = (None, None) if error is None else (value - error, value + error)
    told: dict[str, Any] = {"unit": "J", "scope": "process", "method": "counter", "n": 5, **more}
    return WindowEnergy(joules=Estimate(value=value, low=low, high=high, **told), window_s=1.0, systematic_j=systematic)


def test_each_gpu_is_asked_for_each_window_by_what_is_known_of_its_sensors(monkeypatch: pytest.MonkeyPatch) -> None:
    known = SensorModel(device="GPU-1", driver="580")
    asked: list[Any] = []

    def told(readings: Any, start_ns: int, end_ns: int, model: SensorModel, *, precision: float) -> WindowEnergy:
        asked.append((len(readings), start_ns, end_ns, model, precision))
        return part(float(start_ns))

    monkeypatch.setattr(
        trial_energy, "load_sensor_model", lambda uuid, driver: known if (uuid, driver) == ("b", "580") else None
    )
    monkeypatch.setattr(trial_energy, "estimate_window_energy", told)
    lines: list[RecordingLine] = [GpuSample(t_ns=1, tick=0, gpu=3, power_average_w=5.0)]
    found = estimate_gpu_windows(lines, {0: "a", 3: "b"}, [(1, 5), (7, 9)], "580")
    assert asked == [
        (0, 1, 5, ASSUMED_SENSOR_MODEL, 0.25),
        (0, 7, 9, ASSUMED_SENSOR_MODEL, 0.25),
        (1, 1, 5, known, 0.25),
        (1, 7, 9, known, 0.25),
    ]
    assert found == {
        0: GpuWindowEnergies((part(1.0), part(7.0)), True),
        3: GpuWindowEnergies((part(1.0), part(7.0)), False),
    }
    told_of_all = sum_gpu_energy(found.values())
    assert told_of_all.energy is not None
    assert (told_of_all.energy.value, told_of_all.energy.low, told_of_all.energy.high) == (16.0, 12.0, 20.0)
    assert told_of_all.note == (
        "of the GPU, and of nothing else in the machine; its sensor was not probed (assay.energy does so), "
        "so that the interval is wide; beside the interval the sensor may be off by ±2 J"
    )
    known_alone = sum_gpu_energy([found[3]])
    assert known_alone.note == (
        "of the GPU, and of nothing else in the machine; beside the interval the sensor may be off by ±1 J"
    )


def test_a_sum_has_all_methods_once_and_leaves_out_what_is_not_known() -> None:
    found = sum_window_energies([part(10.0), part(20.0, None, None, method="RAPL"), part(5.0, 2.0)], "of it")
    assert found.energy is not None
    assert (found.energy.value, found.energy.low, found.energy.high) == (35.0, 32.0, 38.0)
    assert (found.energy.method, found.energy.n, found.energy.unit) == ("counter; RAPL", 15, "J")
    assert found.note == "of it; beside the interval the sensor may be off by ±1 J"
    assert found.missing is None
    refused = WindowEnergy(joules=None, reason="it was dark", code="no_sensor", window_s=1.0)
    told = sum_window_energies([part(1.0), refused], "of it")
    assert (told.energy, told.missing) == (None, Missing(code="no_sensor", detail="it was dark"))
    assert sum_window_energies([], "of it").missing == Missing(code="not_covered", detail="nothing was timed")


def host(t_s: float, **joules: float) -> HostSample:
    return HostSample(t_ns=round(t_s * S), tick=0, package_energy_j={k.replace("_", "-"): v for k, v in joules.items()})


def uneven(moments: Sequence[float], joules: Sequence[float]) -> list[RecordingLine]:
    return [host(t, package_0=j) for t, j in zip(moments, joules, strict=True)]


NOT_THERE = "the processor's energy counters are not there, or may not be read"


def test_only_what_the_host_said_of_its_energy_counts() -> None:
    others: list[RecordingLine] = [GpuSample(t_ns=0, tick=0, gpu=0), HostSample(t_ns=0, tick=0)]
    for found in (estimate_package_energy(others, [(0, S)]), estimate_package_energy([], [(0, S)])):
        assert (found.energy, found.missing) == (None, Missing(code="no_sensor", detail=NOT_THERE))
    assert estimate_host_domains(others, [(0, S)]) == Missing(code="no_sensor", detail=NOT_THERE)
    only = estimate_package_energy([host(0, psys=1.0)], [(0, S)])
    assert only.missing == Missing(code="no_sensor", detail="no energy counter of a processor package answers")
    mixed = [*others, *uneven(range(6), range(6))]
    whole = estimate_package_energy(mixed, [(0, 5 * S)]).energy
    assert whole is not None
    assert (whole.value, whole.n) == (5.0, 6)
    domains = estimate_host_domains(mixed, [(0, 5 * S)])
    assert not isinstance(domains, Missing)
    assert domains["package-0"].value == 5.0


def told_of(lines: list[RecordingLine], start_s: float, end_s: float) -> Any:
    return estimate_package_energy(lines, [(round(start_s * S), round(end_s * S))])


def test_edges_are_as_open_as_the_readings_around_them_which_may_be_the_first_and_the_last() -> None:
    """From the first reading to the last, 100 J: 2 J before the second reading and 16 J after the last but one."""
    lines = uneven([0.0, 1.0, 2.0, 3.0, 4.0, 6.0], [0.0, 2.0, 2.0, 50.0, 84.0, 100.0])
    found = told_of(lines, 0.0, 6.0)
    assert (found.energy.value, found.energy.low, found.energy.high, found.energy.n) == (100.0, 91.0, 109.0, 6)
    assert found.energy.method == "RAPL, edges interpolated"
    assert found.note == (
        "of the processor's packages, whoever ran on them; beside the interval the sensor may be off by ±5 J"
    )
    inner = told_of(lines, 0.5, 5.0)
    assert (inner.energy.value, inner.energy.low, inner.energy.high, inner.energy.n) == (91.0, 82.0, 100.0, 4)
    for start_s, end_s in ((-0.01, 6.0), (0.0, 6.01)):
        refused = told_of(lines, start_s, end_s)
        assert (refused.missing.detail, refused.missing.code) == (
            "the window was not watched to its ends",
            "not_covered",
        )


def test_two_readings_cover_a_window_and_are_too_few_for_it() -> None:
    few = told_of(uneven([0.0, 1.0], [0.0, 5.0]), 0.0, 1.0)
    assert few.missing.code == "too_few_ticks"
    assert few.missing.detail == (
        "a window of 1 s is too short for a counter that was read every 1 s: 4 readings at least must fall into it"
    )
    assert told_of(uneven([0.0], [0.0]), 0.0, 0.0).missing.code == "not_covered"


def test_a_window_whose_edges_are_more_than_a_quarter_is_too_short() -> None:
    """The readings are 0.5 s apart in the middle; 8 J at each end of 30 J."""
    moments = [0.0, 0.5, 1.0, 1.5, 4.0]
    wide = told_of(uneven(moments, [0.0, 8.0, 15.0, 22.0, 30.0]), 0.0, 4.0)
    expected = "a window of 4 s is too short for a counter that was read every 0.5 s"
    assert wide.missing == Missing(code="too_wide", detail=expected)
    assert told_of(uneven(moments, [0.0, 8.0, 16.0, 24.0, 32.0]), 0.0, 4.0).energy is not None  # just a quarter
    still = told_of(uneven(moments, [5.0] * 5), 0.0, 4.0)
    assert (still.energy.value, still.energy.low) == (0.0, 0.0)
    back = told_of(uneven(moments, [0.0, 8.0, 7.0, 24.0, 32.0]), 0.0, 4.0)
    expected = "the processor's energy counter went back meanwhile"
    assert back.missing == Missing(code="counter_reset", detail=expected)


def test_a_processors_energy_says_how_far_it_may_be_off_and_what_power_that_is() -> None:
    t_s, spent = np.arange(10.0, 16.0), np.array([0.0, 10.0, 20.0, 30.0, 40.0, math.nan])
    found = trial_energy._interpolate_counter(t_s, spent, 10.0, 14.0)
    assert (found.window_s, found.systematic_j, found.power_w, found.method) == (4.0, 2.0, 10.0, "RAPL")
    assert found.joules is not None
    assert (found.joules.value, found.joules.low, found.joules.high, found.joules.n) == (40.0, 30.0, 50.0, 5)
    refused = trial_energy._interpolate_counter(t_s, spent, 10.0, 14.5)
    assert (refused.joules, refused.code, refused.window_s) == (None, "not_covered", 4.5)


def test_a_domain_that_cannot_be_told_takes_the_others_with_it_and_says_why() -> None:
    lines: list[RecordingLine] = [host(t, core=5.0 * t, package_0=10.0 * t if t < 3 else 1.0) for t in range(6)]
    expected = "the processor's energy counter went back meanwhile"
    assert estimate_host_domains(lines, [(0, 5 * S)]) == Missing(code="counter_reset", detail=expected)
    two: list[RecordingLine] = [host(t, core=5.0 * t, package_0=10.0 * t) for t in range(11)]
    each = estimate_host_domains(two, [(0, 5 * S), (6 * S, 10 * S)])
    assert not isinstance(each, Missing)
    assert {name: found.value for name, found in each.items()} == {"core": 45.0, "package-0": 90.0}


def test_domains_that_the_first_reading_does_not_have_are_left_out() -> None:
    more: list[RecordingLine] = [host(t, package_0=10.0 * t, package_1=5.0 * t) for t in range(1, 6)]
    lines = [host(0, package_0=0.0), *more]
    domains = estimate_host_domains(lines, [(0, 5 * S)])
    assert not isinstance(domains, Missing)
    assert set(domains) == {"package-0"}
    assert told_of(lines, 0.0, 5.0).energy.value == 50.0


def test_a_gpus_readings_are_in_order_and_a_counters_answer_takes_as_long_as_was_written() -> None:
    lines: list[RecordingLine] = [
        GpuMeterSample(t_ns=900, tick=0, gpu=0, energy_j=7.0, took_us=2.5),
        GpuMeterSample(t_ns=500, tick=0, gpu=0, energy_j=6.0),
        GpuMeterSample(t_ns=400, tick=0, gpu=0),
        GpuMeterSample(t_ns=300, tick=0, gpu=1, energy_j=5.0),
        GpuSample(t_ns=700, tick=0, gpu=0, power_instant_w=1.0, power_average_w=2.0, power_usage_w=3.0),
        GpuSample(t_ns=600, tick=0, gpu=1, power_instant_w=1.0),
        host(0.1, package_0=1.0),
    ]
    assert gpu_readings(lines, 0) == [
        MeterReading(500, 500, 500, energy_j=6.0),
        MeterReading(700, 700, 700, instant_w=1.0, average_w=2.0, usage_w=3.0),
        MeterReading(900, 900, 3400, energy_j=7.0),
    ]


def test_windows_that_touch_or_lie_within_each_other_are_one() -> None:
    assert merge_windows([(5, 9), (0, 3), (2, 4), (9, 12), (6, 7), (13, 14)]) == [(0, 4), (5, 12), (13, 14)]
    assert merge_windows([(0, 10), (2, 3), (11, 12)]) == [(0, 10), (11, 12)]
    assert merge_windows([]) == []


def test_series_hold_each_reading_in_seconds_since_a_moment() -> None:
    readings = [MeterReading(3 * S, 4 * S, 6 * S, 1.0, 2.0, 3.0, 4.0), MeterReading(5 * S, 7 * S, 8 * S, 5.0)]
    counted = counter_series(readings, S)
    assert len(counted) == 2
    assert (counted.begin_s.tolist(), counted.end_s.tolist(), counted.energy_j.tolist()) == ([3, 6], [5, 7], [1, 5])
    later = counted.part(slice(1, None))
    assert (later.begin_s.tolist(), later.end_s.tolist(), later.energy_j.tolist()) == ([6], [7], [5])
    shown = power_series(readings, "average", S)
    assert (shown.t_s.tolist(), shown.watts.tolist(), len(shown)) == ([2], [3], 1)


# --- windows


def counted(times_s: Sequence[float]) -> Observations:
    """Return a counter's ticks, each 0.5 J off and all of them 0.1 s; the last shows 1000 J."""
    at = np.array(times_s, dtype=np.float64)
    ticks = SensorTicks(at, np.linspace(0.0, 1000.0, len(at)), np.zeros(len(at)), shift_s=0.1)
    seen = observe_counter(ticks, lag_s=0.0, lag_error_s=0.0, quantum_j=0.0)
    return replace(seen, noise=np.full(len(at), 0.5))


def watts(times_s: Sequence[float]) -> Observations:
    at = np.array(times_s, dtype=np.float64)
    ticks = SensorTicks(at, np.full(len(at), 100.0), np.zeros(len(at)))
    return observe_power(ticks, window_s=0.5, lag_s=0.0, lag_error_s=0.0, since_s=0.0)


class Fits:
    """Least squares that write down what they are asked, and answer as they are told."""

    def __init__(self, rough: list[float], likely: dict[int, float]) -> None:
        self.rough, self.likely = np.array(rough), likely
        self.asked: list[Any] = []

    def __call__(self, columns: Any, observed: Any, covariance: Any, target: Any = None) -> KrigingFit:
        number = len(self.asked) - 1
        self.asked.append(SimpleNamespace(columns=columns, observed=observed, covariance=covariance, target=target))
        if target is None:
            return KrigingFit(self.rough, np.eye(len(self.rough)), 0.0)
        return KrigingFit(self.rough, np.eye(1), self.likely.get(number, 0.0), 360.0, 4.0)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fits]:
    def made(rough: Sequence[float] = (100.0, 40.0, 120.0, 60.0), likely: dict[int, float] | None = None) -> Fits:
        found = Fits(list(rough), likely or {})
        monkeypatch.setattr(window_energy, "fit_kriging", found)
        return found

    return made


TICKS_S = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
SINCE_S = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 1.0, 4.0])
"""Of the ticks and of both edges, at 2 s and at 5 s."""
STEPS = np.array([[0, 0], [0, 0], [1, 0], [2, 0], [3, 0], [4, 1], [0, 0], [3, 0]], dtype=np.float64)
LEVELS_W = np.array([40.0, 120.0, 120.0, 120.0, 120.0, 60.0])
T_2 = 4.302652729911275


def strayed(stray: float, memory_s: float, jump: float) -> Any:
    """Return the covariance of what strays, at 120 W and ticks of 0.5 s."""
    unseen = 1.21 * integrated_covariance(SINCE_S, SINCE_S, 0.125)
    return 14400 * (unseen + jump**2 * STEPS @ STEPS.T + stray**2 * integrated_covariance(SINCE_S, SINCE_S, memory_s))


def test_a_window_is_a_start_and_a_level_and_what_strays_unseen_with_a_memory_and_by_jumps(
    fits: Callable[..., Fits],
) -> None:
    made = fits()
    fit_window_energy(counted(TICKS_S), 2.0, 5.0, period_s=0.5)
    rough, *others = made.asked
    before, within, after = [-1, 0, 0, 0, 0, 0], [0, 0, 1, 2, 3, 3], [0, 0, 0, 0, 0, 1]
    assert rough.columns.T.tolist() == [[1] * 6, before, within, after]
    assert np.diag(rough.covariance).tolist() == pytest.approx([100.25] * 6)
    tried = list(product((0.02, 0.1, 0.5, 2.0), (0.001, 0.01, 0.03, 0.1, 0.3, 1.0), (0.0, 1.0)))
    sensor = 0.25 * np.eye(6) + 0.01 * np.outer(LEVELS_W, LEVELS_W)
    for (memory_s, stray, jump), asked in zip(tried, others, strict=True):
        assert asked.columns.T.tolist() == [[1] * 6, [-1, 0, 1, 2, 3, 4]]
        process = strayed(stray, memory_s, jump)
        assert asked.covariance == pytest.approx(process[:6, :6] + sensor)
        assert asked.target.columns.tolist() == [0.0, 3.0]
        assert asked.target.with_data == pytest.approx(process[:6, 7] - process[:6, 6])
        lasting = integrated_covariance(np.array([3.0]), np.array([3.0]), memory_s)[0, 0]
        unseen = integrated_covariance(np.array([3.0]), np.array([3.0]), 0.125)[0, 0]
        own = 14400 * (1.21 * unseen + 9 * jump**2 + stray**2 * lasting)
        assert asked.target.variance == pytest.approx(own)


def test_the_likeliest_way_to_stray_is_told_and_the_first_of_equals(fits: Callable[..., Fits]) -> None:
    fits()
    found = fit_window_energy(counted(TICKS_S), 2.0, 5.0, period_s=0.5)
    assert found is not None
    assert (found.model, found.joules, found.power_w) == (PowerVariation(0.001, 0.02, 0.0), 360.0, 120.0)
    assert found.error_j == pytest.approx(2 * T_2)  # six ticks, less a start, a level and two edges
    fits(likely={19: 2.0, 20: 3.0, 40: 3.0})
    likely = fit_window_energy(counted([*TICKS_S, 7.0]), 2.0, 5.0, period_s=0.5)
    assert likely is not None
    assert likely.model == PowerVariation(0.3, 0.1, 0.0)
    assert likely.error_j == pytest.approx(2 * 3.182446305284263)


def test_a_window_of_four_ticks_is_told_counting_those_at_its_edges(fits: Callable[..., Fits]) -> None:
    fits()
    assert fit_window_energy(counted(TICKS_S), 2.0, 5.0, period_s=0.5) is not None
    assert fit_window_energy(counted(TICKS_S), 2.01, 5.0, period_s=0.5) is None
    assert fit_window_energy(counted(TICKS_S), 2.0, 4.99, period_s=0.5) is None


def test_what_is_not_seen_beside_a_window_is_taken_for_the_power_within_it(fits: Callable[..., Fits]) -> None:
    made = fits([100.0, 120.0])
    fit_window_energy(counted([2.0, 3.0, 4.0, 5.0]), 2.0, 5.0, period_s=0.5)
    assert made.asked[0].columns.T.tolist() == [[1] * 4, [0, 1, 2, 3]]
    levels, power_w = window_energy._rough_power(counted([2.0, 3.0, 4.0, 5.0]), 1.5, 5.5)
    assert (levels.tolist(), power_w) == ([120.0] * 4, 120.0)


def test_power_is_never_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_energy, "fit_kriging", Fits([100.0, -40.0, -120.0, 60.0], {}))
    levels, power_w = window_energy._rough_power(counted(TICKS_S), 2.0, 5.0)
    assert power_w == 1e-9
    assert levels.tolist() == [0.0, 0.0, 0.0, 0.0, 0.0, 60.0]
    monkeypatch.setattr(window_energy, "fit_kriging", Fits([1e-9 * 1.2] * 4, {}))
    assert window_energy._rough_power(counted(TICKS_S), 2.0, 5.0)[1] == 1.2e-9


def test_power_readings_have_a_level_and_no_start(fits: Callable[..., Fits]) -> None:
    made = fits([40.0, 120.0])
    fit_window_energy(watts([1.5, 2.5, 3.5, 4.5, 5.0]), 2.0, 5.0, period_s=0.5)
    assert made.asked[0].columns.T.tolist() == [[1, 0, 0, 0, 0], [0, 1, 1, 1, 1]]
    assert made.asked[1].columns.tolist() == [[1.0]] * 5
    assert made.asked[1].target.columns.tolist() == [3.0]


def test_an_error_is_expected_under_a_model_whatever_is_read(fits: Callable[..., Fits]) -> None:
    made = fits()
    seen = counted(TICKS_S)
    error_j = expected_error_j(seen, 2.0, 5.0, period_s=0.5, model=PowerVariation(0.3, 0.7, 0.5), power_w=120.0)
    (asked,) = made.asked
    process = strayed(0.3, 0.7, 0.5)
    assert asked.covariance == pytest.approx(process[:6, :6] + 0.25 * np.eye(6) + 0.01 * np.full((6, 6), 14400.0))
    assert error_j == pytest.approx(2 * T_2)


def test_few_degrees_of_freedom_are_two_and_an_open_fit_is_no_error() -> None:
    asked = window_energy._WindowTarget(np.ones((4, 2)), np.ones(2), np.eye(4))
    fitted = KrigingFit(np.ones(2), np.eye(2), 0.0, 1.0, 9.0)
    assert asked.error_j(counted([1.0, 2.0, 3.0, 4.0]), fitted) == pytest.approx(3 * T_2)
    assert asked.error_j(counted(range(8)), fitted) == pytest.approx(3 * 2.7764451051977987)
    assert asked.error_j(counted(range(8)), replace(fitted, target_variance=None)) == 0.0


@pytest.fixture
def reduced(monkeypatch: pytest.MonkeyPatch) -> Callable[[Observations], list[Any]]:
    """Return how observations are made fewer for a window from 2 s to 5 s."""

    def of(seen: Observations) -> list[Any]:
        asked: list[Any] = []

        def noted(name: str) -> Any:
            def called(one: Observations, *how: Any) -> Observations:
                asked.append((name, *how))
                return one

            return called

        monkeypatch.setattr(window_energy, "thin_observations", noted("thinned"))
        monkeypatch.setattr(window_energy, "average_observations", noted("averaged"))
        assert window_energy._reduce_observations(seen, 2.0, 5.0) is seen
        return asked

    return of


def test_a_counter_is_thinned_and_power_readings_are_averaged(reduced: Callable[[Observations], list[Any]]) -> None:
    counter = [("thinned", (2.0, 5.0), 8, 40)]
    powers = [("thinned", (2.0, 5.0), 8, 600), ("averaged", (2.0, 5.0), 8, 40)]
    assert reduced(counted(TICKS_S)) == counter
    assert reduced(watts(TICKS_S)) == powers
    assert reduced(combine_observations(counted(TICKS_S), watts(TICKS_S))) == counter
    one = counted([3.0])
    assert reduced(replace(one, operator=np.array([[1e-9]]))) == powers
    assert reduced(replace(one, operator=np.array([[-1.2e-9]]))) == counter


def test_a_column_is_shown_where_it_is_more_than_next_to_nothing() -> None:
    columns = np.array([[0.0, 1e-9, -1.2e-9], [0.0, -1e-9, 0.0]])
    assert window_energy._visible_columns(columns).tolist() == [False, False, True]


# --- who keeps a device busy and reads its meter


@pytest.mark.parametrize(
    ("call_s", "calls"), [(0.25, 1), (0.001, 1), (0.00025, 4), (1.0000005e-6, 999), (0.0, 1_000_000)]
)
def test_calls_are_put_together_up_to_a_millisecond(call_s: float, calls: int) -> None:
    assert CpuCallLoad(lambda: None, Turned(), call_s)._per_chunk == calls


def test_a_host_is_kept_busy_until_a_moment_and_knows_when_each_chunk_was_over() -> None:
    clock = Turned()
    keeper = CpuCallLoad(clock.turn_ms, clock, 0.0005, ("as it came",))
    keeper.run(0.004)
    keeper.rest(0.25)
    keeper.run(0.0)
    assert [(knot.t_ns // MS, knot.calls) for knot in keeper.boundaries()] == [
        (7, 0),
        (9, 2),
        (11, 4),
        (261, 4),
        (263, 6),
    ]
    assert (keeper.call_s, keeper.gap_s, keeper.notes) == (0.0005, None, ("as it came",))


class Silent:
    """A meter that answers at some of its first readings, and breaks after thirty."""

    last_error = "no driver"

    def __init__(self, *answered: int, lost: str | None = None) -> None:
        self.lost = lost
        self.asked = 0
        self._answered = answered

    def read(self) -> MeterReading | None:
        self.asked += 1
        if self.asked > 30:
            raise KeyError("asked for too long")
        return MeterReading(self.asked, 0, 0) if self.asked in self._answered else None


@pytest.fixture
def polled(monkeypatch: pytest.MonkeyPatch) -> Callable[[Silent], readings.MeterPoller]:
    """Return a poller that has read a meter until it gave it up, without a thread."""

    def of(meter: Silent) -> readings.MeterPoller:
        monkeypatch.setattr(readings, "threading", SimpleNamespace(Event=Waits, Thread=AtOnce))
        poller = readings.MeterPoller(meter, Turned(), 0.01)
        poller.start()
        return poller

    return of


def test_a_meter_is_given_up_at_the_twentieth_silence_in_a_row(
    polled: Callable[[Silent], readings.MeterPoller],
) -> None:
    for meter, asked in ((Silent(), 20), (Silent(1), 21), (Silent(5, 9), 29)):
        with pytest.raises(MachineCannot, match=r"^The device stopped saying what it spends: no driver\.$"):
            polled(meter).readings()
        assert meter.asked == asked
    lost = Silent(1, lost="off the bus")
    with pytest.raises(MachineCannot, match=r"^The device stopped saying what it spends: off the bus\.$"):
        polled(lost).readings()
    assert lost.asked == 1


# --- how long a window should be


def test_a_length_is_looked_for_by_doubling_up_to_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error stays at 24 J; at 64 W three quarters of an eighth are 6 J for each second."""
    at = np.arange(0.0, 9.0, 0.125)
    sensor = SensorView("counter", counted(at.tolist()), SensorTicks(at, at, at), 0.125)
    spent: Any = SimpleNamespace(model=None, power_w=64.0)

    def lengths(error_j: float, window_s: tuple[float, float]) -> tuple[float | None, list[float]]:
        tried: list[float] = []

        def error(_: Any, start_s: float, end_s: float, **__: Any) -> float:
            assert len(tried) < 20
            tried.append(end_s - start_s)
            return error_j

        monkeypatch.setattr(window_energy, "expected_error_j", error)
        return window_energy.sufficient_window_s((sensor,), spent, window_s, 0.125), tried

    found, tried = lengths(24.0, (2.0, 5.0))
    assert tried == pytest.approx([3.0, 6.0, 18**0.5, 3 * 2**0.25, 3 * 2**0.375, 3 * 2**0.4375])
    assert found == pytest.approx(3 * 2**0.4375)
    assert lengths(361.0, (2.0, 5.0)) == (None, [3.0, 6.0, 12.0, 24.0, 48.0, 60.0])
    assert lengths(18.0, (2.0, 5.0)) == (3.0, [3.0])
    assert lengths(420.0, (2.0, 72.0)) == (70.0, [70.0])
    assert lengths(421.0, (2.0, 72.0)) == (None, [70.0])
