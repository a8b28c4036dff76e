"""What several fresh processes say together: hand-computed numbers first, then how often the interval holds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from assay.core.errors import TrialFailed
from assay.core.results import Estimate
from assay.timing.processes import (
    combine_processes,
    merge_comparisons,
    merge_measurements,
    summarize_comparison,
    summarize_measurement,
)
from assay.timing.results import ClockSummary, ComparedFunction, Comparison, Measurement

T_OF_2 = 4.302653
"""The 97.5 % quantile of Student's t with two degrees of freedom, from a table."""


def us(value: float, n: int = 20) -> Estimate:
    low, high = value * 0.999, value * 1.001
    return Estimate(value=value, low=low, high=high, unit="us", scope="process", method="median", n=n)


def measured(call_us: float, **more: object) -> Measurement:
    plain = Measurement(
        name="f", device="cpu", cache="warm", method="wall", why="on a CPU", call_us=us(call_us), decisive="call_us",
        precision_wanted=0.01, precision_reached=0.001, stopped="precise enough", shape="steady", warmed_up=True,
        samples=20, calls=200, took_s=1.5,
    )  # fmt: skip
    return plain.model_copy(update=more)


def compared(*ratios: float, cycles: tuple[float, ...] = (), clock: ClockSummary | None = None) -> Comparison:
    others = tuple(
        ComparedFunction(
            name=f"g{place}", verdict="slower", ratio=ratio, low=ratio * 0.999, high=ratio * 1.001,
            cycles_ratio=cycles[place] if cycles else None, time_us=us(10 * ratio),
        )
        for place, ratio in enumerate(ratios)
    )  # fmt: skip
    return Comparison(
        first="f", first_us=us(10.0), others=others, quantity="call_us", minimum_effect=0.01, device="cpu",
        cache="warm", methods={"f": "wall"}, pairs=64, stopped="decided", took_s=1.0, clock=clock or ClockSummary(),
    )  # fmt: skip


def merged(found: list[Measurement]) -> Measurement:
    return merge_measurements(found, [summarize_measurement(n, each) for n, each in enumerate(found, 1)])


def merged_all(found: list[Comparison]) -> Comparison:
    return merge_comparisons(found, [summarize_comparison(n, each) for n, each in enumerate(found, 1)])


def test_the_interval_is_over_processes_whatever_each_knows_of_itself() -> None:
    found = combine_processes([us(100.0), us(110.0), us(121.0)])
    half = T_OF_2 * math.log(1.1) / math.sqrt(3)
    assert found.value == pytest.approx(110.0)
    assert found.low == pytest.approx(110.0 * math.exp(-half), rel=1e-6)
    assert found.high == pytest.approx(110.0 * math.exp(half), rel=1e-6)
    assert (found.scope, found.n, found.unit) == ("run", 60, "us")
    assert "3 processes" in found.method


def test_where_processes_are_unsteady_the_interval_is_no_narrower_than_theirs() -> None:
    """Five processes in a row met a machine that switches between 350 and 500 for seconds, mostly at the same level."""
    wide = [us(v).model_copy(update={"low": 340.0 + n, "high": 510.0 + n}) for n, v in enumerate((352, 348, 356))]
    steady = [us(350.0), us(354.0)]
    alone = combine_processes([*wide, *steady], wide[:1])
    assert (alone.low, alone.high) == over_processes_bounds([*wide, *steady])
    found = combine_processes([*wide, *steady], wide)
    assert (found.low, found.high) == (341.0, 511.0)
    unknown = [each.model_copy(update={"low": None, "high": None}) for each in wide]
    refused = combine_processes([*unknown, us(500.0)], unknown)
    assert refused.low is not None
    assert refused.high is not None
    assert (refused.low <= 348.0, refused.high >= 500.0) == (True, True)
    assert alone.method_key == found.method_key


def over_processes_bounds(estimates: list[Estimate]) -> tuple[float | None, float | None]:
    found = combine_processes(estimates)
    return found.low, found.high


def test_a_measurement_of_unsteady_processes_is_as_wide_as_they_are() -> None:
    wide = us(100.0).model_copy(update={"low": 80.0, "high": 130.0})
    moved = measured(100.0).model_copy(update={"call_us": wide, "unsteady": "switching"})
    processes = [moved] * 2 + [measured(100.0)] * 3
    assert merged(processes).call_us == combine_processes([wide, wide, *[us(100.0)] * 3], [wide, wide])
    assert merged(processes).precision_reached == pytest.approx(0.25)


def test_a_measurement_over_processes_adds_up_what_was_done_and_keeps_each() -> None:
    found = merged([measured(100.0), measured(110.0), measured(121.0)])
    assert (found.processes, found.samples, found.calls, found.took_s) == (3, 60, 600, 4.5)
    assert [each.times["call_us"].value for each in found.by_process] == [100.0, 110.0, 121.0]
    assert {each.times["call_us"].scope for each in found.by_process} == {"process"}
    assert found.time.scope == "run"
    assert found.stopped == "all processes"
    assert found.precision_reached == found.time.relative_half_width
    assert found.busy_us is None


def test_processes_that_agree_reach_the_precision() -> None:
    assert merged([measured(100.0), measured(100.01), measured(100.02)]).stopped == "precise enough"


def test_what_is_noted_in_some_processes_is_said_of_those_only_once() -> None:
    some = ("the loop costs 0.56 ns", "the times drift")
    found = merged([measured(1.0, notes=some), measured(1.1, notes=("the loop costs 0.57 ns",)), measured(1.2)])
    assert found.notes == (
        "in 2 of 3 processes: the loop costs 0.56 ns",
        "in 1 of 3 processes: the times drift",
    )


def test_a_time_that_not_every_process_has_is_left_out_and_said() -> None:
    found = merged([measured(1.0, busy_us=us(0.5)), measured(1.1)])
    assert found.busy_us is None
    assert found.notes == ("busy_us was not measured in every process",)
    with pytest.raises(TrialFailed, match="not every process could be timed by busy"):
        merged([measured(1.0, busy_us=us(0.5), decisive="busy_us"), measured(1.1)])


def test_methods_and_shapes_that_differ_are_all_named() -> None:
    found = merged([measured(1.0), measured(1.1, method="queue", shape="drift", warmed_up=False)])
    assert (found.method, found.shape, found.warmed_up) == ("wall and queue", "steady and drift", False)


def test_the_clock_is_that_of_all_processes() -> None:
    one = ClockSummary(mhz_low=1500, mhz=1600, mhz_high=1700, throttle=("power cap",), throttled_share=0.5)
    other = ClockSummary(mhz_low=1400, mhz=1800, mhz_high=1900, throttle=("power cap", "heat"), throttled_share=0.0)
    clock = merged([measured(1.0, clock=one), measured(1.1, clock=other)]).clock
    assert (clock.mhz_low, clock.mhz, clock.mhz_high) == (1400, 1700, 1900)
    assert (clock.throttle, clock.throttled_share) == (("power cap", "heat"), 0.25)


def test_a_ratio_is_judged_over_the_processes() -> None:
    found = merged_all([compared(1.5), compared(1.6), compared(1.7)])
    assert found.verdict == "slower"
    assert found.others[0].ratio == pytest.approx((1.5 * 1.6 * 1.7) ** (1 / 3))
    assert found.others[0].low is not None
    assert found.others[0].low > 1.3
    assert found.others[0].time_us.scope == found.first_us.scope == "run"
    assert [each.ratios for each in found.by_process] == [{"g0": 1.5}, {"g0": 1.6}, {"g0": 1.7}]


def test_a_difference_that_not_every_start_shows_is_no_verdict() -> None:
    assert merged_all([compared(1.05), compared(0.96), compared(1.02)]).verdict == "unsure"
    assert merged_all([compared(1.0005), compared(0.9998), compared(1.0001)]).verdict == "same"


def test_with_several_functions_each_interval_allows_for_all_of_them() -> None:
    one = merged_all([compared(1.5), compared(1.6), compared(1.7)]).others[0]
    two = merged_all([compared(1.5, 2.0), compared(1.6, 2.0), compared(1.7, 2.0)]).others[0]
    assert one.low is not None
    assert two.low is not None
    assert two.low < one.low


def test_a_difference_under_a_moving_clock_must_show_in_cycles_too() -> None:
    moved, steady = (
        ClockSummary(mhz_low=1400, mhz=1700, mhz_high=1900),
        ClockSummary(mhz_low=1700, mhz=1700, mhz_high=1700),
    )

    def found(clock: ClockSummary, *cycles: float) -> Comparison:
        ratios = (1.5, 1.52, 1.51)
        return merged_all([compared(r, cycles=(c,), clock=clock) for r, c in zip(ratios, cycles, strict=True)])

    assert found(moved, 1.0, 1.0, 1.0).verdict == "unsure"
    assert found(moved, 1.0, 1.0, 1.0).others[0].cycles_verdict == "same"
    assert found(moved, 1.5, 1.5, 1.5).verdict == "slower"
    assert found(steady, 1.0, 1.0, 1.0).verdict == "slower"


def test_processes_timed_by_different_times_are_not_mixed() -> None:
    with pytest.raises(TrialFailed, match="Not every process could be timed by call"):
        merged_all([compared(1.5), compared(1.5).model_copy(update={"quantity": "span_us"})])


@pytest.mark.parametrize("processes", [2, 5])
def test_the_interval_holds_the_typical_process_as_often_as_it_says(processes: int) -> None:
    rng = np.random.default_rng(7)
    held = 0
    tries = 600
    for _ in range(tries):
        found = combine_processes([us(value) for value in 200 * np.exp(0.04 * rng.standard_normal(processes))])
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 200 <= found.high
    assert 0.93 <= held / tries <= 0.97


def test_a_function_is_seldom_called_different_from_itself_though_every_start_is_another_draw() -> None:
    rng = np.random.default_rng(11)
    wrong = 0
    for _ in range(300):
        ratios = np.exp(0.03 * rng.standard_normal(5))
        wrong += merged_all([compared(float(ratio)) for ratio in ratios]).verdict in {"faster", "slower"}
    assert wrong <= 15
