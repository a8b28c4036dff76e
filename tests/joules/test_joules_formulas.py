"""Formulas of energy on numbers worked out by hand: edges, lags, sums of windows, what a sensor adds to the error."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from assay.core.results import Estimate, Missing
from assay.joules.observations import (
    average_observations,
    combine_observations,
    observe_counter,
    observe_power,
    sensor_covariance,
    thin_observations,
)
from assay.joules.per_call import GAIN_SHARE
from assay.joules.ticks import SensorTicks
from assay.joules.trial_energy import estimate_host_domains, estimate_package_energy, merge_windows, sum_window_energies
from assay.joules.window_energy import WindowEnergy, fit_window_energy
from assay.monitor.samples import HostSample

S = 1_000_000_000


def host(t_s: float, **joules: float) -> HostSample:
    return HostSample(t_ns=round(t_s * S), tick=0, package_energy_j={k.replace("_", "-"): v for k, v in joules.items()})


def readings(**domains: float) -> list[HostSample]:
    """Return a counter's readings every second from 0 to 10 s, for domains of so many watts."""
    return [host(t, **{name: watts * t for name, watts in domains.items()}) for t in range(11)]


def test_edges_of_a_processors_counter_are_interpolated_and_as_open_as_the_readings_around_them() -> None:
    """From 1.5 s to 8.5 s at 20 W: 140 J; each edge lies between readings 20 J apart: ±20 J."""
    told = estimate_package_energy(readings(package_0=20.0), [(round(1.5 * S), round(8.5 * S))])
    assert told.energy is not None
    assert (told.energy.value, told.energy.low, told.energy.high) == pytest.approx((140.0, 120.0, 160.0))
    assert told.energy.n == 7
    assert f"±{GAIN_SHARE * 140:.3g} J" in str(told.note)


def test_packages_are_added_and_what_is_within_them_is_not() -> None:
    told = estimate_package_energy(readings(package_0=20.0, package_1=10.0, core=15.0), [(S, 9 * S)])
    assert told.energy is not None
    assert told.energy.value == pytest.approx(240.0)
    each = estimate_host_domains(readings(package_0=20.0, core=15.0), [(S, 9 * S)])
    assert not isinstance(each, Missing)
    assert {name: found.value for name, found in each.items()} == pytest.approx({"package-0": 160.0, "core": 120.0})


@pytest.mark.parametrize(
    ("windows", "code"),
    [([(-S, 5 * S)], "not_covered"), ([(5 * S, 11 * S)], "not_covered"), ([(4 * S + 1, 7 * S)], "too_few_ticks")],
)
def test_what_a_processors_counter_cannot_say_is_refused(windows: list[tuple[int, int]], code: str) -> None:
    told = estimate_package_energy(readings(package_0=20.0), windows)
    assert (told.energy, told.missing and told.missing.code) == (None, code)


def test_four_readings_are_enough_where_their_edges_are_a_quarter_at_most() -> None:
    told = estimate_package_energy(readings(package_0=20.0), [(4 * S, 7 * S)])
    assert (told.energy, told.missing and told.missing.code) == (None, "too_wide")  # ±20 J of 60 J
    told = estimate_package_energy(readings(package_0=20.0), [(4 * S, 8 * S)])
    assert told.energy is not None  # ±20 J of 80 J: just a quarter
    back = [*readings(package_0=20.0)[:6], *(host(t, package_0=1.0) for t in range(6, 11))]
    reset = estimate_package_energy(back, [(S, 9 * S)]).missing
    assert reset is not None
    assert reset.code == "counter_reset"


def part(value: float, error: float, systematic: float = 0.0) -> WindowEnergy:
    joules = Estimate(
        value=value, low=value - error, high=value + error, unit="J", scope="process", method="counter", n=5
    )
    return WindowEnergy(joules=joules, window_s=1.0, systematic_j=systematic)


def test_windows_are_added_and_their_errors_too_as_one_sensor_makes_them_alike() -> None:
    told = sum_window_energies([part(10.0, 3.0, 0.5), part(20.0, 4.0, 0.25)], "of the GPU")
    assert told.energy is not None
    assert (told.energy.value, told.energy.low, told.energy.high, told.energy.n) == (30.0, 23.0, 37.0, 10)
    assert told.note == "of the GPU; beside the interval the sensor may be off by ±0.75 J"


def test_windows_that_overlap_are_one() -> None:
    assert merge_windows([(5, 6), (0, 10), (10, 12), (13, 14)]) == [(0, 12), (13, 14)]
    assert merge_windows([(0, 10), (2, 3)]) == [(0, 10)]


def ticks(times: list[float], values: list[float], **more: Any) -> SensorTicks:
    return SensorTicks(np.array(times), np.array(values), np.full(len(times), 0.01), **more)


def test_a_counter_shows_the_integral_as_it_was_a_lag_ago() -> None:
    seen = observe_counter(ticks([1.0, 2.0], [5.0, 6.0], shift_s=0.03), lag_s=0.2, lag_error_s=0.04, quantum_j=0.12)
    assert seen.times_s.tolist() == seen.points_s.tolist() == pytest.approx([0.8, 1.8])
    assert seen.shift_s == pytest.approx(0.05)
    assert seen.noise.tolist() == pytest.approx([0.12 / math.sqrt(12)] * 2)


def test_a_power_reading_shows_how_far_the_integral_went_in_its_window() -> None:
    seen = observe_power(
        ticks([1.0, 2.0, 3.0], [100.0, 200.0, 400.0], shift_s=0.03),
        window_s=0.5, lag_s=0.1, lag_error_s=0.04, since_s=1.0,
    )  # fmt: skip
    assert seen.times_s.tolist() == pytest.approx([1.9, 2.9])  # the first began before anything was known
    assert seen.points_s.tolist() == pytest.approx([1.9, 2.9, 1.4, 2.4])
    assert seen.operator.tolist() == [[2.0, 0.0, -2.0, 0.0], [0.0, 2.0, 0.0, -2.0]]
    assert seen.noise.tolist() == pytest.approx([2.0, 2.0])
    assert seen.shift_s == pytest.approx(0.05)
    exactly = observe_power(ticks([1.6], [1.0]), window_s=0.5, lag_s=0.1, lag_error_s=0.0, since_s=1.0)
    assert len(exactly) == 1


def test_two_sensors_are_off_in_time_by_the_worse_of_the_two() -> None:
    one = observe_counter(ticks([1.0], [5.0], shift_s=0.03, stretch=0.2), lag_s=0.0, lag_error_s=0.0, quantum_j=0.0)
    other = observe_counter(ticks([2.0], [6.0], shift_s=0.05, stretch=0.1), lag_s=0.0, lag_error_s=0.0, quantum_j=0.0)
    both = combine_observations(one, other)
    assert (both.shift_s, both.stretch) == pytest.approx((0.05, 0.2))
    assert both.operator.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_to_be_off_in_time_is_to_be_off_by_that_times_the_power() -> None:
    seen = observe_counter(
        ticks([1.0, 3.0], [0.0, 0.0], shift_s=0.03, stretch=0.1), lag_s=0.0, lag_error_s=0.0, quantum_j=0.0
    )
    found = sensor_covariance(seen, np.array([100.0, 200.0]))
    own = np.diag([1.0, 4.0])  # 0.01 s
    together = 0.03**2 * np.outer([100, 200], [100, 200])
    stretched = 0.1**2 * np.outer([-100, 200], [-100, 200])  # a second before the middle, and one after it
    assert found == pytest.approx(own + together + stretched)


def test_observations_are_thinned_but_for_those_next_to_edges() -> None:
    seen = observe_counter(ticks([float(t) for t in range(20)], [0.0] * 20), lag_s=0.0, lag_error_s=0.0, quantum_j=0.0)
    assert thin_observations(seen, (9.5,), 2, 4).times_s.tolist() == [0, 5, 8, 9, 10, 11, 15]


def test_readings_away_from_edges_are_averaged_and_their_noise_with_them() -> None:
    seen = observe_power(
        ticks([float(t) for t in range(1, 9)], [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0]),
        window_s=0.5, lag_s=0.0, lag_error_s=0.0, since_s=0.0,
    )  # fmt: skip
    found = average_observations(seen, (4.5,), 1, 3)
    assert found.values.tolist() == pytest.approx([15.0, 30.0, 40.0, 50.0, 65.0, 80.0])
    assert found.times_s.tolist() == pytest.approx([1.5, 3.0, 4.0, 5.0, 6.5, 8.0])
    assert found.noise.tolist() == pytest.approx([0.4 / math.sqrt(2), 0.4, 0.4, 0.4, 0.4 / math.sqrt(2), 0.4])


def test_a_steady_power_is_its_joules_and_the_edges_are_what_is_open() -> None:
    """At 100 W for 5 s between ticks of 0.1 s: 500 J, known to a part of what two ticks hold."""
    times = [0.1 * n for n in range(101)]
    seen = observe_counter(ticks(times, [100.0 * t for t in times]), lag_s=0.0, lag_error_s=0.0, quantum_j=0.001)
    spent = fit_window_energy(seen, 2.05, 7.05, period_s=0.1)
    assert spent is not None
    assert spent.joules == pytest.approx(500.0, rel=1e-3)
    assert spent.power_w == pytest.approx(100.0, rel=0.01)
    assert 1.0 < spent.error_j < 20.0
    late = observe_counter(ticks(times, [100.0 * t for t in times]), lag_s=0.0, lag_error_s=0.05, quantum_j=0.001)
    later = fit_window_energy(late, 2.05, 7.05, period_s=0.1)
    assert later is not None
    assert later.error_j == pytest.approx(spent.error_j, rel=0.2)  # both edges are late alike, where power is the same
    assert fit_window_energy(seen, 2.05, 2.3, period_s=0.1) is None
