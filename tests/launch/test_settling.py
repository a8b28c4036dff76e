"""When GPUs under load are steady: traces whose truth is known, on a clock that the tests turn."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.results import GpuSnapshot, SettlingResult
from assay.launch.conditions import (
    RESOLUTION_C,
    WINDOW_S,
    GpuTrace,
    clock_problem,
    combine_settled,
    fit_drift,
    temperature_problem,
    watch_until_steady,
)
from assay.launch.workers import WorkersFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.launch.conditions import Point

GPUS = {"GPU-a": "cuda:0"}


def points(value: Callable[[float], float], seconds: float) -> list[Point]:
    """Return whole readings, two a second."""
    return [(n / 2, float(round(value(n / 2)))) for n in range(int(2 * seconds))]


@given(slope=st.floats(-30, 30), start=st.floats(30, 80))
@settings(max_examples=60)
def test_a_drift_is_off_by_no_more_than_whole_degrees_make_it(slope: float, start: float) -> None:
    drift = fit_drift(points(lambda t: start + slope / 60 * t, 40))
    assert drift is not None
    assert abs(drift.slope_c - slope) <= 1.6 * RESOLUTION_C / WINDOW_S * 60


def test_too_few_readings_tell_no_drift() -> None:
    assert fit_drift([]) is None
    assert fit_drift(points(lambda _: 40.0, 2)) is None


def heating(t: float) -> float:
    return 65 - 30 * math.exp(-t / 12)


def test_a_gpu_that_heats_up_becomes_steady_only_when_it_hardly_moves() -> None:
    steady_at = next(t for t in range(3, 200) if temperature_problem(points(heating, t)) is None)
    assert abs(heating(steady_at) - 65) < 1.5
    assert steady_at < 80
    assert "°C a minute" in (temperature_problem(points(heating, 15)) or "")


def test_a_temperature_that_flickers_between_two_degrees_is_steady() -> None:
    drawn = random.Random(1)
    said = [temperature_problem(points(lambda _: drawn.choice((60, 61)), 30)) for _ in range(50)]
    assert sum(each is None for each in said) >= 35


def test_a_slow_but_steady_climb_is_not_steady() -> None:
    for start in (40.0, 40.3, 40.7):
        assert temperature_problem(points(lambda t, start=start: start + 4 / 60 * t, 40)) is not None  # type: ignore[misc]


def test_a_clock_that_jumps_about_under_a_cap_is_steady_and_one_that_falls_is_not() -> None:
    drawn = random.Random(2)
    said = [clock_problem(points(lambda _: drawn.gauss(1500, 90), 20)) for _ in range(40)]
    assert sum(each is None for each in said) >= 34
    assert clock_problem(points(lambda t: 1980 - 15 * t, 20)) == "its SM clock went from 1909 to 1759 MHz"
    assert clock_problem(points(lambda _: 1980, 20)) is None
    assert clock_problem([]) is None


def test_what_cannot_be_read_at_all_is_never_steady() -> None:
    trace = GpuTrace()
    trace.add(0.0, GpuSnapshot(uuid="GPU-a"))
    assert trace.unsteady() == "neither temperature nor clock can be read"


class Watching:
    """A GPU that is looked at on a clock that passes in the pauses."""

    def __init__(self, temperature: Callable[[float], float | None], *, lost_at_s: float = math.inf) -> None:
        self.now_s = 500.0
        self.temperature = temperature
        self.lost_at_s = lost_at_s

    def look(self) -> GpuSnapshot | None:
        t = self.now_s - 500
        if t >= self.lost_at_s:
            return None
        celsius = self.temperature(t)
        return GpuSnapshot(uuid="GPU-a", temperature_c=None if celsius is None else round(celsius), sm_mhz=1980)

    def pause(self, seconds: float) -> bool:
        self.now_s += seconds
        return False

    def watched(self, most_s: float) -> SettlingResult:
        return watch_until_steady({"GPU-a": self.look}, GPUS, most_s, pause=self.pause, clock=lambda: self.now_s)


def test_a_gpu_that_is_warm_already_is_waited_for_a_few_seconds_only() -> None:
    settled = Watching(lambda _: 61.0).watched(60.0)
    assert settled.steady
    assert settled.waited_s == pytest.approx(3.0)
    assert (settled.temperature_c, settled.drift_c, settled.note) == ({"GPU-a": 61.0}, {"GPU-a": 0.0}, None)


def test_a_gpu_that_heats_up_is_waited_for_until_it_is_steady() -> None:
    settled = Watching(heating).watched(120.0)
    assert settled.steady
    assert 20 < settled.waited_s < 90
    assert abs(settled.drift_c["GPU-a"]) <= 1


def test_when_the_time_allowed_is_up_it_is_told_what_was_not_steady() -> None:
    settled = Watching(lambda t: 40 + t / 3).watched(30.0)
    assert not settled.steady
    assert settled.waited_s == pytest.approx(30.0)
    assert settled.note is not None
    assert settled.note.startswith("cuda:0: its temperature moves by +20.")


def test_a_card_that_offers_no_temperature_is_judged_by_its_clock() -> None:
    settled = Watching(lambda _: None).watched(30.0)
    assert settled.steady
    assert settled.temperature_c == {}


def test_a_gpu_lost_meanwhile_is_trouble_by_its_name() -> None:
    with pytest.raises(WorkersFailed) as caught:
        Watching(heating, lost_at_s=5.0).watched(60.0)
    assert caught.value.failures[0].worker == "cuda:0"
    assert "lost while it was warmed up" in caught.value.failures[0].reason


def test_trouble_of_a_worker_ends_the_waiting() -> None:
    watching = Watching(heating)
    settled = watch_until_steady(
        {"GPU-a": watching.look}, GPUS, 60.0, pause=lambda _: True, clock=lambda: watching.now_s
    )
    assert not settled.steady


def test_over_restarts_all_must_have_been_steady_and_the_last_look_counts() -> None:
    first = SettlingResult(waited_s=30, steady=False, temperature_c={"a": 50.0}, drift_c={"a": 2.0}, note="it was cold")
    second = SettlingResult(waited_s=4, steady=True, temperature_c={"a": 60.0, "b": 40.0}, drift_c={"a": 0.1, "b": 0.0})
    both = combine_settled([first, second])
    assert both == SettlingResult(
        waited_s=34,
        steady=False,
        temperature_c={"a": 60.0, "b": 40.0},
        drift_c={"a": 0.1, "b": 0.0},
        note="it was cold",
    )
    assert combine_settled([]) is None
