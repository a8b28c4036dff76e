"""Energy per call at its edges: what is fitted, which sensor is believed, how a measurement goes, and what is said."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from assay.core.errors import MachineCannot
from assay.joules import measure as measuring
from assay.joules import per_call as judging
from assay.joules import per_call as percall
from assay.joules.measure import EnergyPlan
from assay.joules.observations import (
    EnergyRefused,
    KrigingFit,
    SensorStream,
    SensorView,
    bridge_covariance,
    combine_observations,
    integrated_covariance,
    observe_counter,
    observe_power,
)
from assay.joules.per_call import (
    CallEnergyEstimate,
    PerCallEnergy,
    estimate_call_energy,
    fit_call_energy,
    unseen_energy_share,
)
from assay.joules.readings import CallBoundary, DeviceActivity, MeterReading, build_activity
from assay.joules.ticks import SensorTicks
from assay.timing.options import TimingOptions
from tests.joules.test_joules_edges import model, power

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.joules.observations import Observations

S = 1_000_000_000
COURSE = DeviceActivity(np.array([0.25, 0.375, 0.5, 0.5625, 0.6875, 0.8125]), np.array([0.0, 1.0, 2.0, 2.0, 3.0, 4.0]))
"""Four calls of 0.125 s, and a rest of 0.0625 s in the middle."""
OPEN_S = 0.375
TICKS_S = [0.125, 0.375, 0.3125, 0.4375, 0.53125, 0.625, 0.8125, 0.875]
"""Not in order; four of them after the first call, the last of these at the very end of the calls."""


def counted(times_s: list[float], noise_j: float = 0.5) -> Observations:
    """Return what a counter shows at some moments: from 0 J to 2000 J, each 0.5 J off."""
    at = np.array(times_s)
    seen = observe_counter(
        SensorTicks(at, np.linspace(0.0, 2000.0, len(at)), np.zeros(len(at))), lag_s=0.0, lag_error_s=0.0, quantum_j=0.0
    )
    return replace(seen, noise=np.full(len(at), noise_j))


class Fits:
    """Least squares that write down what they are asked, and answer as they are told.

    ``likely``: the log-likelihood by the number of the fit, of those that ask for a target; 0 where none is told.
    """

    def __init__(self, coefficients: list[float], variances: list[float], likely: dict[int, float]) -> None:
        self.coefficients, self.variances, self.likely = np.array(coefficients), np.diag(variances), likely
        self.asked: list[Any] = []
        self.target: float | None = 16.0
        self.target_variance: float | None = 0.01

    def __call__(self, columns: Any, observed: Any, covariance: Any, target: Any = None) -> KrigingFit:
        number = len(self.asked) - 1
        self.asked.append(SimpleNamespace(columns=columns, observed=observed, covariance=covariance, target=target))
        likely = self.likely.get(number, 0.0)
        if target is None:
            return KrigingFit(self.coefficients, self.variances, 0.0)
        return KrigingFit(self.coefficients, self.variances, likely, self.target, self.target_variance)


USUAL = [100.0, 40.0, 10.0, 8.0, 15.0]
"""Where the counter begins, 40 W before calls and 10 W in a rest, 8 J for a call at first and 15 J afterwards."""
SURE = [1.0, 0.0625, 0.2, 1.0, 1.0]


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fits]:
    def made(
        coefficients: list[float] = USUAL, variances: list[float] = SURE, likely: dict[int, float] | None = None
    ) -> Fits:
        found = Fits(coefficients, variances, likely or {})
        monkeypatch.setattr(percall, "fit_kriging", found)
        return found

    return made


def test_what_a_counter_shows_is_a_start_and_rests_and_calls(fits: Callable[..., Fits]) -> None:
    made = fits()
    fit_call_energy(counted(TICKS_S), COURSE, OPEN_S)
    start, idle, pause, warm, calls = made.asked[0].columns.T.tolist()
    assert start == [1.0] * 8
    assert idle == [-0.125, 0, 0, 0, 0, 0, 0, 0]
    assert pause == [0, 0, 0, 0, 0.03125, 0.0625, 0.0625, 0.125]
    assert warm == [0, 1, 0.5, 1, 1, 1, 1, 1]
    assert calls == [0, 0, 0, 0.5, 1, 1.5, 3, 3]
    assert made.asked[0].observed[-1] == 2000.0


def test_a_rest_after_the_first_knot_is_a_pause_and_not_idle() -> None:
    course = DeviceActivity(np.array([0.25, 0.375, 0.5, 0.625]), np.array([0.0, 0.0, 1.0, 2.0]))
    found = percall._EnergyColumns.of(counted([0.125, 0.3125, 0.5, 0.625]), course, 0.5)
    assert found.names == ("start", "idle", "pause", "warm", "calls")
    assert found.values[:, 1:3].T.tolist() == [[-0.125, 0, 0, 0], [0, 0.0625, 0.125, 0.125]]


def test_the_rough_fit_takes_readings_for_a_thousandth_of_their_range_off_at_least(fits: Callable[..., Fits]) -> None:
    made = fits()
    fit_call_energy(counted(TICKS_S, noise_j=0.5), COURSE, OPEN_S)
    assert made.asked[0].covariance.tolist() == pytest.approx(4 * np.eye(8))
    made = fits()
    fit_call_energy(counted(TICKS_S, noise_j=3.0), COURSE, OPEN_S)
    assert made.asked[0].covariance.tolist() == pytest.approx(9 * np.eye(8))
    made = fits()
    still = replace(counted(TICKS_S, noise_j=0.0), values=np.full(8, 5.0))
    fit_call_energy(still, COURSE, OPEN_S)
    assert np.diag(made.asked[0].covariance).tolist() == [1e-12] * 8


DRIFTS = (0.0005, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
MEMORIES_S = (0.03, 0.1, 0.3)
JITTERS = (0.0, 0.01, 0.03, 0.1)
PHASES_S = np.array([0.0, 0.0, 0.0625, 0.0625, 0.0, 0.0625, 0.0, 0.0])
WORKED_S = np.array([0.25, 0.375, 0.3125, 0.4375, 0.5, 0.5625, 0.75, 0.75])
LEVELS_W = np.array([40.0, 120.0, 120.0, 120.0, 40.0, 120.0, 40.0, 40.0])


@pytest.mark.parametrize(("idle_w", "swing_w"), [(40.0, 112.0), (110.0, 42.0)])
def test_power_may_swing_in_calls_and_stray_from_call_to_call_and_ticks_may_jitter(
    fits: Callable[..., Fits], idle_w: float, swing_w: float
) -> None:
    """Calls draw 120 W: 1.4 times the 80 W above rest, or at least a quarter of it."""
    made = fits([100.0, idle_w, 10.0, 8.0, 15.0])
    fit_call_energy(counted(TICKS_S), COURSE, OPEN_S)
    tried = list(product(DRIFTS, MEMORIES_S, JITTERS))
    assert len(made.asked) == 1 + len(tried) == 85
    swings = swing_w**2 * bridge_covariance(PHASES_S, PHASES_S, 0.125, 0.125 / 6)
    levels = np.where(LEVELS_W == 40.0, idle_w, 120.0)
    for (drift, memory_s, jitter), asked in zip(tried, made.asked[1:], strict=True):
        strays = (120 * drift) ** 2 * integrated_covariance(WORKED_S, WORKED_S, memory_s)
        moved = np.diag((jitter * 0.09375 * levels) ** 2)  # the ticks are 3/32 s apart, in the middle
        assert asked.covariance == pytest.approx(swings + strays + 0.25 * np.eye(8) + moved)
        ends = integrated_covariance(WORKED_S, np.array([0.375, 0.75]), memory_s)
        assert asked.target.columns.tolist() == [0, 0, 0, 0, 1]
        assert asked.target.with_data == pytest.approx((120 * drift) ** 2 * (ends[:, 1] - ends[:, 0]) / 3)
        own = integrated_covariance(np.array([0.375]), np.array([0.375]), memory_s)[
            0, 0
        ]  # three calls worked for 0.375 s
        assert asked.target.variance == pytest.approx((120 * drift) ** 2 * own / 9)


T_2 = 4.302652729911275
"""Student's t at two degrees of freedom."""


def test_an_energy_is_as_open_as_the_fit_and_as_power_strays_and_a_little_more(fits: Callable[..., Fits]) -> None:
    """Ticks in the window: four, so two degrees of freedom. Power strays by 2 % for 0.3 s in three calls of 0.125 s."""
    at = 4 * 12 + 2 * 4 + 1
    fits(likely={at: 5.0, at + 1: 5.0, 80: 5.0})
    found = fit_call_energy(counted(TICKS_S), COURSE, OPEN_S)
    assert found is not None
    strayed_j = 15 * 0.02 * math.sqrt(1.6)
    assert found.error_j == pytest.approx(math.hypot(T_2 * math.hypot(0.1, strayed_j), 0.032), rel=1e-9)
    assert (found.joules, found.ticks, found.drift) == (16.0, 4, 0.02)
    assert (found.idle_w, found.idle_error_w) == pytest.approx((40.0, T_2 * 0.25), rel=1e-9)
    assert found.pause_w == found.rest_w == 10.0


def test_of_equally_likely_drifts_the_first_is_taken_and_a_short_memory_is_each_calls_own(
    fits: Callable[..., Fits],
) -> None:
    made = fits()
    found = fit_call_energy(counted(TICKS_S), COURSE, OPEN_S)
    assert found is not None
    assert found.drift == 0.0005
    assert found.error_j == pytest.approx(math.hypot(T_2 * 0.1, 0.032), rel=1e-9)
    made = fits()
    made.target = made.target_variance = None
    nothing = fit_call_energy(counted(TICKS_S), COURSE, OPEN_S)
    assert nothing is not None
    assert (nothing.joules, nothing.error_j) == (0.0, 0.0)


@pytest.mark.parametrize(("inside", "reach"), [(4, T_2), (5, 3.182446305284263), (6, 2.7764451051977987)])
def test_the_interval_reaches_as_far_as_ticks_but_two_allow(
    fits: Callable[..., Fits], inside: int, reach: float
) -> None:
    fits()
    more = [0.7, 0.75][: inside - 4]
    found = fit_call_energy(counted([*TICKS_S, *more]), COURSE, OPEN_S)
    assert found is not None
    assert found.ticks == inside
    assert found.idle_error_w == pytest.approx(reach * 0.25)


def test_fewer_than_four_ticks_or_no_call_say_nothing(fits: Callable[..., Fits]) -> None:
    fits()
    assert fit_call_energy(counted([t for t in TICKS_S if t != 0.625]), COURSE, OPEN_S) is None
    assert fit_call_energy(counted(TICKS_S), DeviceActivity(COURSE.times_s, np.zeros(6)), OPEN_S) is None


def test_ticks_next_to_the_edges_are_kept_and_sixty_four_others(
    fits: Callable[..., Fits], monkeypatch: pytest.MonkeyPatch
) -> None:
    fits()
    asked: list[Any] = []

    def thinned(seen: Observations, *how: Any) -> Observations:
        asked.append(how)
        return seen

    monkeypatch.setattr(percall, "thin_observations", thinned)
    fit_call_energy(counted(TICKS_S), COURSE, OPEN_S)
    assert asked == [((0.25, 0.375, 0.8125), 4, 64)]


@pytest.mark.parametrize(("variance", "told"), [(0.2, 10.0), (0.25, None)])
def test_the_power_of_a_rest_is_told_where_it_is_known_to_a_fifth(
    fits: Callable[..., Fits], variance: float, told: float | None
) -> None:
    fits(variances=[1.0, 0.0625, variance, 1.0, 1.0])
    found = fit_call_energy(counted(TICKS_S), COURSE, OPEN_S)
    assert found is not None
    assert found.pause_w == told
    assert found.rest_w == (10.0 if told else 40.0)


def test_a_rest_known_to_just_a_fifth_is_told_and_one_that_is_not_seen_is_not(
    fits: Callable[..., Fits], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, int]] = []

    def quantile(confidence: float, freedom: int) -> float:
        asked.append((confidence, freedom))
        return 2.0

    monkeypatch.setattr(percall, "t_quantile", quantile)
    fits(variances=[1.0, -1e-20, 1.0, 1.0, 1.0])
    found = fit_call_energy(counted(TICKS_S), COURSE, OPEN_S)
    assert found is not None
    assert asked == [(0.95, 2)]
    assert (found.pause_w, found.idle_error_w) == (10.0, 0.0)
    straight = DeviceActivity(np.array([0.25, 0.375, 0.5, 0.625, 0.75]), np.array([0.0, 1.0, 2.0, 3.0, 4.0]))
    made = fits([100.0, 8.0, 15.0], [1.0, 1.0, 1.0])
    unseen = fit_call_energy(counted([0.3, 0.4, 0.5, 0.6, 0.7]), straight, OPEN_S)
    assert unseen is not None
    assert (unseen.idle_w, unseen.idle_error_w, unseen.pause_w, unseen.rest_w) == (None, None, None, None)
    assert made.asked[0].columns.shape == (5, 3)


def columns_of(names: tuple[str, ...], values: list[list[float]]) -> Any:
    return percall._EnergyColumns(names, np.array(values))


@pytest.mark.parametrize(
    ("coefficients", "joules", "rest_w"),
    [
        ({"idle": 40.0, "pause": 10.0, "calls": 15.0}, 15.0, 40.0),
        ({"pause": 10.0, "calls": -15.0}, 0.0, 10.0),
        ({"idle": -40.0, "pause": 10.0}, 0.0, 0.0),
        ({"start": 7.0, "calls": 15.0}, 15.0, 0.0),
    ],
)
def test_what_is_roughly_known_is_never_negative_and_nothing_where_it_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, coefficients: dict[str, float], joules: float, rest_w: float
) -> None:
    shown = columns_of(tuple(coefficients), [[1.0] * len(coefficients)] * 8)
    monkeypatch.setattr(percall, "fit_kriging", Fits(list(coefficients.values()), [4.0] * len(coefficients), {}))
    calls = percall._MeasuredCalls.of(counted(TICKS_S), COURSE, OPEN_S, shown)
    assert (calls.joules, calls.rest_w) == (joules, rest_w)
    assert (calls.count, calls.call_s) == (3.0, 0.125)
    assert calls.phase_s.tolist() == PHASES_S.tolist()
    assert calls.worked_s.tolist() == [*WORKED_S, 0.375, 0.75]
    assert calls.level_w.tolist() == [120 * joules / 15 if w == 120.0 else rest_w for w in LEVELS_W]


def test_the_mean_of_many_calls_strays_less_and_what_is_over_within_a_call_does_not_count() -> None:
    nothing = np.array([])
    calls = percall._MeasuredCalls(counted(TICKS_S), 15.0, 0.1, 10.0, 0.0, nothing, nothing, nothing)

    def strayed(memory_s: float) -> float:
        found: Any = SimpleNamespace(drift=0.02, memory_s=memory_s)
        return calls.strays_j(found)

    assert strayed(0.3) == pytest.approx(0.2 * math.sqrt(0.4))
    assert strayed(0.1) == pytest.approx(0.2 * math.sqrt(0.2 / 1.5))
    assert strayed(0.099) == 0.0


def test_a_column_is_shown_where_it_is_more_than_next_to_nothing() -> None:
    shown: Any = percall._is_visible
    assert not shown(np.array([5.0, 5.0]), counts=True)
    assert shown(np.array([5.0, 5.0]), counts=False)
    assert not shown(np.array([0.0, 1e-9]), counts=True)
    assert shown(np.array([0.0, 1.2e-9]), counts=True)
    assert not shown(np.array([-1e-9, 0.0]), counts=False)
    assert shown(np.array([-1.2e-9, 0.0]), counts=False)


def watts(times_s: list[float]) -> Observations:
    at = np.array(times_s)
    ticks = SensorTicks(at, np.full(len(at), 100.0), np.zeros(len(at)))
    return observe_power(ticks, window_s=0.0625, lag_s=0.0, lag_error_s=0.0, since_s=0.0)


def test_a_power_reading_has_no_start_and_a_counter_beside_it_has_one() -> None:
    alone = percall._EnergyColumns.of(watts([0.125, 0.4375, 0.5625, 0.8125]), COURSE, OPEN_S)
    assert alone.names == ("idle", "pause", "calls")
    assert alone.values.tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 8.0], [0.0, 1.0, 0.0], [0.0, 0.0, 8.0]]
    both = percall._EnergyColumns.of(combine_observations(counted(TICKS_S), watts([0.125, 0.4375])), COURSE, OPEN_S)
    assert both.names == ("start", "idle", "pause", "warm", "calls")
    assert both.values[:, 0].tolist() == [1.0] * 8 + [0.0] * 2


def test_joules_of_calls_come_out_as_they_went_in() -> None:
    """At 480 W in calls of 0.125 s and 80 W in between, read every 1/32 s: 60 J a call."""
    at = [n / 32 for n in range(41)]
    knots = [0.25, 0.375, 0.5, 0.5625, *(0.5625 + n / 8 for n in range(1, 5))]
    course = DeviceActivity(np.array(knots), np.array([0.0, 1.0, 2.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
    rested = course.rested_s(np.array(at))
    spent = 80 * rested + 480 * (np.array(at) - rested)
    seen = replace(counted(at), values=spent, noise=np.full(len(at), 0.001))
    found = fit_call_energy(seen, course, OPEN_S)
    assert found is not None
    assert (found.joules, found.idle_w, found.pause_w) == pytest.approx((60.0, 80.0, 80.0), rel=1e-3)
    assert (found.drift, found.ticks) == (0.0005, 22)


# --- who is believed


def per_call(joules: float = 10.0, error_j: float = 0.5, **more: Any) -> PerCallEnergy:
    told: dict[str, Any] = {"idle_w": 40.0, "idle_error_w": 2.0, "pause_w": None, "ticks": 9, "drift": 0.01, **more}
    return PerCallEnergy(joules=joules, error_j=error_j, **told)


def judged(found: PerCallEnergy | None = None, **more: Any) -> CallEnergyEstimate:
    told: dict[str, Any] = {
        "method": "counter",
        "coverage": 1.0,
        "seen_share": 1.0,
        "unseen_share": 0.0,
        "crosscheck": None,
        "calls": 4,
        "window_s": 3.0,
        "rests_s": 1.0,
        **more,
    }
    return CallEnergyEstimate(per_call=found or per_call(), **told)


def test_a_call_lasts_what_rests_leave_and_may_be_off_by_gain_by_what_is_unseen_and_by_rests() -> None:
    one = judged(unseen_share=0.1)
    assert (one.call_s, one.power_w) == (0.5, 20.0)
    assert one.systematic_j == pytest.approx(4.0)  # 15 % of 10 J, and a quarter of the 10 J of a call's rest
    paused = judged(per_call(-10.0, pause_w=8.0))
    assert paused.systematic_j == pytest.approx(1.0)
    assert judged(per_call(idle_w=None)).systematic_j == pytest.approx(0.5)


def test_calls_as_long_as_what_a_power_reading_sees_may_be_missed_by_half_of_what_it_does_not() -> None:
    assert unseen_energy_share(0.25, 0.5, 0.0625) == 0.1875  # half of the calls' time falls beside
    assert unseen_energy_share(0.25, 0.5, 0.125) == 0.375
    assert unseen_energy_share(0.25, 0.5, 9.0) == 0.375
    assert unseen_energy_share(1.0, 0.5, 9.0) == 0.0


EVENLY = [0.125 * i for i in range(33)]
CALLS = [CallBoundary(S + i * S // 4, i) for i in range(5)] + [
    CallBoundary(9 * S // 4 + i * S // 4, 4 + i) for i in range(5)
]
"""Four calls of 0.25 s from 1 s on, a quarter of rest, and four more until 3.25 s."""


def by_counter(times_s: list[float] = EVENLY, shift_s: float = 0.015) -> SensorView:
    at = np.array(times_s)
    ticks = SensorTicks(at, 100 * at, np.zeros(len(at)), shift_s=shift_s)
    return SensorView("counter", observe_counter(ticks, lag_s=0.0, lag_error_s=0.0, quantum_j=0.0), ticks, 0.125)


def by_power(times_s: list[float] = EVENLY, name: str = "instant power", seen_share: float = 1.0) -> SensorView:
    at = np.array(times_s)
    ticks = SensorTicks(at, np.full(len(at), 100.0), np.zeros(len(at)))
    seen = observe_power(ticks, window_s=0.0625, lag_s=0.0, lag_error_s=0.0, since_s=0.0)
    return SensorView(name, seen, ticks, 0.125, 0.0, 0.0625, seen_share)


@pytest.fixture
def judge_by(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return what is judged of calls from 1.2 s on by sensors that each find what is told."""

    def of(
        *by: tuple[SensorView, PerCallEnergy | None], open_ns: int = 12 * S // 10, knots: list[CallBoundary] = CALLS
    ) -> Any:
        asked: list[Any] = []
        answers = [answer for _, answer in by]

        def found(*what: Any) -> Any:
            asked.append(what)
            return answers.pop(0)

        spans: list[Any] = []

        def sights(_: Any, span: Any) -> list[SensorView]:
            spans.append(span)
            return [sight for sight, _ in by]

        monkeypatch.setattr(judging, "select_sensor_views", sights)
        monkeypatch.setattr(judging, "fit_call_energy", found)
        one = estimate_call_energy([MeterReading(0, 0, 0)], knots, open_ns, model())
        return SimpleNamespace(judged=one, asked=asked, spans=spans)

    return of


def test_calls_are_judged_from_the_first_that_begins_after_the_warm_up(judge_by: Callable[..., Any]) -> None:
    seen = judge_by((by_counter(), per_call()))
    assert seen.spans == [(1.0, 3.25)]
    observed, _, open_s = seen.asked[0]
    assert open_s == 1.25
    assert observed.shift_s == pytest.approx(0.025)  # an edge is as sharp as 0.02 s
    one = seen.judged
    assert (one.calls, one.window_s, one.rests_s, one.method) == (7, 2.0, 0.25, "counter")
    assert (one.coverage, one.seen_share, one.unseen_share, one.crosscheck) == (1.0, 1.0, 0.0, None)
    assert judge_by((by_counter(), per_call()), open_ns=5 * S // 4).judged.calls == 7
    assert judge_by((by_counter(), per_call()), open_ns=5 * S // 4 + 1).judged.calls == 6


def test_without_a_call_after_the_warm_up_nothing_is_told(judge_by: Callable[..., Any]) -> None:
    late: list[dict[str, Any]] = [{"open_ns": 3 * S + 1}, {"open_ns": 4 * S}]
    none: list[dict[str, Any]] = [{"knots": []}, {"knots": [CallBoundary(5, 0), CallBoundary(6, 0)]}]
    for of in (*late, *none):
        with pytest.raises(EnergyRefused, match=r"^no call ended after the warm-up$") as refusal:
            judge_by((by_counter(), per_call()), **of)
        assert refusal.value.code == "no_calls"
    assert judge_by((by_counter(), per_call()), open_ns=3 * S).judged.calls == 1


def test_the_sensor_with_the_narrowest_bounds_together_is_believed(judge_by: Callable[..., Any]) -> None:
    half, whole = (by_power(seen_share=0.5), per_call(20.0, 0.2)), (by_power(name="average power"), per_call(10.0, 0.4))
    for both in ((half, whole), (whole, half)):
        assert judge_by(*both).judged.method == "average power"
    wide, narrow = (by_power(name="wide"), per_call(10.0, 0.4)), (by_power(name="narrow"), per_call(20.0, 0.5))
    for both in ((wide, narrow), (narrow, wide)):
        assert judge_by(*both).judged.method == "narrow"
    short = judge_by((replace(by_power(seen_share=0.5), period_s=1.0), per_call()))
    assert short.judged.unseen_share == pytest.approx(0.125)  # of calls of 0.25 s, half as long as what is seen
    unseen = judge_by(half).judged
    assert unseen.unseen_share == pytest.approx(0.25)
    assert (unseen.coverage, unseen.crosscheck) == (pytest.approx(0.5), None)


def test_one_sensor_that_can_tell_is_enough_and_the_first_refusal_is_told_otherwise(
    judge_by: Callable[..., Any],
) -> None:
    assert judge_by((by_counter(), None), (by_power(), per_call())).judged.method == "instant power"
    with pytest.raises(EnergyRefused) as refusal:
        judge_by((by_counter(), None), (by_power(), per_call(0.0)))
    assert refusal.value.code == "too_few_ticks"
    expected = "too few readings: the sensor ticks every 125 ms, and at least 4 ticks must fall into the calls"
    assert str(refusal.value) == expected
    with pytest.raises(EnergyRefused, match=r"^the sensor shows no energy that calls explain$") as refusal:
        judge_by((by_power(), per_call(0.0)), (by_counter(), None))
    assert refusal.value.code == "no_energy"
    assert judge_by((by_counter(), per_call(0.5))).judged.per_call.joules == 0.5


def test_power_may_be_missing_for_a_tenth_of_the_calls_and_that_counts_as_unseen(
    judge_by: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    holed = [t for t in EVENLY if not 1.5 < t < 2.0]  # from 1.5 s to 2 s of the 2 s from 1.25 s on
    with pytest.raises(EnergyRefused) as refusal:
        judge_by((by_power(holed), per_call()))
    assert refusal.value.code == "not_covered"
    assert str(refusal.value) == "readings are missing: instant power was not read for 0.5 s of the 2 s of calls"
    monkeypatch.setattr(judging, "MAX_GAP_SHARE", 0.25)
    assert judge_by((by_power(holed), per_call())).judged.unseen_share == 0.25
    monkeypatch.undo()
    assert judge_by((by_counter(holed), per_call())).judged.unseen_share == 0.0


def test_a_gap_of_an_eighth_is_too_much(judge_by: Callable[..., Any]) -> None:
    close = [t / 32 for t in range(129)]
    eighth, sixteenth = ([t for t in close if not 1.5 < t < until] for until in (1.75, 1.625))
    with pytest.raises(EnergyRefused, match=r"was not read for 0\.25 s of the 2 s"):
        judge_by((replace(by_power(eighth), period_s=0.03125), per_call()))
    told = judge_by((replace(by_power(sixteenth), period_s=0.03125, seen_share=0.5), per_call())).judged
    assert told.unseen_share == pytest.approx(0.25 + 0.0625)


def test_a_sensor_that_was_not_read_to_the_end_is_refused(judge_by: Callable[..., Any]) -> None:
    early = [t for t in EVENLY if t <= 2.75]
    for sight in (by_counter(early), by_power(early)):
        with pytest.raises(EnergyRefused) as refusal:
            judge_by((sight, per_call()))
        assert refusal.value.code == "not_covered"
        assert str(refusal.value) == f"readings are missing: {sight.method} was not read for 0.5 s of the 2 s of calls"


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Callable[..., float | None]:
    """Return the crosscheck of calls of 2 J against power readings at some moments."""
    course = build_activity(CALLS, 0)

    def of(shown: dict[str, dict[float, float]], found: PerCallEnergy, **powers: Any) -> float | None:
        def ticks(_: Any, which: str, *__: Any, **___: Any) -> SensorTicks | None:
            if which not in shown:
                return None
            at = np.array(list(shown[which]))
            return SensorTicks(at, np.array(list(shown[which].values())), np.zeros(len(at)))

        monkeypatch.setattr(judging, "find_power_ticks", ticks)
        stream = SensorStream([MeterReading(0, 0, 0)], model(**powers))
        return judging._crosscheck(stream, by_counter(), course, found, 1.25)

    return of


def test_power_is_checked_against_calls_from_the_first_to_the_last(check: Callable[..., float | None]) -> None:
    """A quarter of a second of calls of 2 J is 2 J; two windows of it at 12 W and 20 W are 8 J: twice as much."""
    late = power(0.125, 0.25).model_copy(update={"lag_s": 0.125})
    edges = {1.5: 900.0, 1.625: 12.0, 3.375: 20.0, 3.5: 900.0}
    assert check({"instant": edges}, per_call(2.0), instant=late) == pytest.approx(2.0)
    resting = {2.375: 12.0}  # what was spent from 2 s to 2.25 s, in which nothing was called
    assert check({"instant": resting}, per_call(2.0, idle_w=8.0), instant=late) == pytest.approx(1.5)
    assert check({"instant": resting}, per_call(2.0, idle_w=None), instant=late) is None
    assert check({"instant": {2.4375: 12.0}}, per_call(2.0, idle_w=8.0), instant=late) == pytest.approx(3 / 2)
    assert check({"instant": {2.4375: 12.0}}, per_call(2.0, idle_w=None), instant=late) == pytest.approx(3 / 0.5)


def test_the_best_power_that_shows_something_is_checked(check: Callable[..., float | None]) -> None:
    both = {"instant": power(0.125, 0.25), "average": power(0.125, 0.5)}
    shown = {"instant": {1.5: 12.0}, "average": {1.75: 16.0}}
    assert check(shown, per_call(2.0), **both) == pytest.approx(1.5)
    assert check({"average": shown["average"]}, per_call(2.0), **both) == pytest.approx(2.0)
    assert check({"instant": {0.5: 12.0}, "average": {1.75: 16.0}}, per_call(2.0), **both) == pytest.approx(2.0)
    assert check(shown, per_call(2.0), average=both["average"]) == pytest.approx(2.0)
    assert check(shown, per_call(2.0)) is None


# --- how it is measured


class Device:
    """A clock, a rig and a keeper at once, which write down what they are told; times in s since 5 s."""

    device = "fake:0"
    origin = "fake"
    gap_s: float | None = None

    def __init__(self, call_s: float = 0.125) -> None:
        self.at_ns = 5 * S
        self.clock, self.model, self.call_s = self, model(), call_s
        self.notes: tuple[str, ...] = ("as it came",)
        self.told: list[tuple[str, float]] = []

    def now_ns(self) -> int:
        return self.at_ns

    def _pass(self, what: str, seconds: float) -> None:
        self.told.append((what, seconds))
        self.at_ns += round(seconds * S)

    def run(self, seconds: float) -> None:
        self._pass("keep", seconds)

    def rest(self, seconds: float) -> None:
        self._pass("rest", seconds)

    def boundaries(self) -> list[CallBoundary]:
        return [CallBoundary(1, 2)]

    def sampler(self) -> Device:
        return self

    def start(self) -> None:
        self.told.append(("start", 0.0))

    def readings(self) -> list[MeterReading]:
        return [MeterReading(0, 0, 0)]

    def stop(self) -> list[MeterReading]:
        self.told.append(("stop", 0.0))
        return [MeterReading(7, 0, 0)]


class Even:
    """Chance that is always in the middle."""

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2


PLAN = EnergyPlan(idle_s=1.0, warm_s=0.5, round_s=0.375, measure_s=1.0, dither_s=0.0, after_s=0.25)
BEFORE = [("start", 0.0), ("rest", 1.0), ("keep", 0.5)]
ROUNDS = [("keep", 0.375), ("keep", 0.375), ("keep", 0.25)]


def chosen(budget_s: float = 3.5, precision: float = 0.05) -> TimingOptions:
    return TimingOptions("cpu", "warm", precision=precision, budget_s=budget_s)


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def of(on: Any, todo: EnergyPlan, options: TimingOptions, *errors: float) -> Any:
        left = [judged(per_call(10.0, error)) for error in errors]
        monkeypatch.setattr(measuring, "plan_measurement", lambda *_: todo)
        monkeypatch.setattr(measuring, "estimate_call_energy", lambda *_: left.pop(0))
        return measuring.run_measurement(on, on, options, Even())  # type: ignore[arg-type]

    return of


def test_a_device_rests_is_warmed_up_and_measured_once_where_that_is_precise_enough(
    take: Callable[..., Any],
) -> None:
    on = Device()
    taken = take(on, PLAN, chosen(10.0), 0.5)
    assert on.told == [*BEFORE, *ROUNDS, ("rest", 0.25), ("stop", 0.0)]
    assert (taken.open_ns, taken.took_s) == (6_500_000_000, 2.75)
    assert (taken.readings, taken.boundaries) == ([MeterReading(7, 0, 0)], [CallBoundary(1, 2)])
    cold = Device()
    assert take(cold, replace(PLAN, warm_s=None), chosen(10.0), 0.5).open_ns == 6 * S
    assert cold.told[:3] == [("start", 0.0), ("rest", 1.0), ("keep", 0.375)]


def test_it_is_measured_again_where_there_is_time_for_more_than_a_round_and_a_call(take: Callable[..., Any]) -> None:
    on = Device()
    take(on, PLAN, chosen(3.5), 0.51)
    assert on.told.count(("rest", 0.25)) == 1
    on = Device()
    again = take(on, PLAN, chosen(3.625), 0.51, 0.4)
    assert on.told == [
        *BEFORE,
        *ROUNDS,
        ("rest", 0.25),
        ("keep", 0.375),
        ("keep", 0.25),
        ("rest", 0.25),
        ("stop", 0.0),
    ]
    assert (again.estimate.per_call.error_j, again.took_s) == (0.4, 3.625)


def test_a_budget_ends_the_first_measurement_too(take: Callable[..., Any]) -> None:
    on = Device()
    take(on, PLAN, chosen(2.25), 0.5)
    assert on.told == [*BEFORE, ("keep", 0.375), ("keep", 0.125), ("rest", 0.25), ("stop", 0.0)]
    late = Device()
    take(late, PLAN, chosen(1.0), 0.5)
    assert late.told == [*BEFORE, ("keep", 0.0), ("rest", 0.25), ("stop", 0.0)]


def test_rounds_end_where_half_a_call_is_left_and_rest_in_between_where_calls_are_long() -> None:
    todo: Any = replace(PLAN, dither_s=0.125)
    chance: Any = Even()
    on: Any = Device()
    measuring._run_rounds(on, on, todo, 5 * S + 437_500_000, chance)  # 0.0625 s would be left, half a call
    assert on.told == [("keep", 0.375)]
    on = Device()
    measuring._run_rounds(on, on, todo, 5 * S + 500_000_000, chance)
    assert on.told == [("keep", 0.375), ("rest", 0.0625), ("keep", 0.0625)]
    on = Device()
    measuring._run_rounds(on, on, replace(todo, dither_s=0.0), 5 * S + 437_500_001, chance)
    assert [what for what, _ in on.told] == ["keep", "keep"]


def test_a_refusal_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> Any:
        raise EnergyRefused("no_calls", "no call ended")

    monkeypatch.setattr(measuring, "estimate_call_energy", refuses)
    on: Any = Device()
    with pytest.raises(MachineCannot, match=r"^Joules cannot be told: no call ended\.$"):
        measuring._estimate_now(on, on, on, PLAN, 0)


def told(
    one: CallEnergyEstimate, *, net: bool = False, on: Any = None, options: TimingOptions | None = None, **taken: Any
) -> Any:
    device: Any = on or Device()
    found = measuring.EnergyRun(one, taken.pop("plan", PLAN), [MeterReading(7, 0, 0)], [CallBoundary(1, 2)], 9, 2.5)
    bound: Any = SimpleNamespace(name="kernel")
    return measuring._build_result(bound, device, device, options or chosen(), found, net=net)


def test_an_energy_is_told_with_all_it_rests_on() -> None:
    """Seven calls of 0.25 s in a window of 2 s, 10 J each, give or take 0.5 J; beside them the device drew 40 W."""
    one = judged(calls=7, window_s=2.0, rests_s=0.25, crosscheck=1.05, coverage=0.9)
    found = told(one)
    assert (found.joules.value, found.joules.low, found.joules.high, found.joules.n) == (10.0, 9.5, 10.5, 9)
    assert found.joules.method == "counter, calls against ticks by least squares"
    assert (found.power_w, found.call_us) == pytest.approx((40.0, 250_000.0))
    assert found.systematic_j == pytest.approx(0.5 + 0.25 * 40 * 0.25 / 7)
    assert (found.calls, found.window_s, found.rests_s, found.idle_w, found.ticks) == (7, 2.0, 0.25, 40.0, 9)
    assert (found.precision_wanted, found.precision_reached, found.stopped) == (0.05, 0.05, "precise enough")
    assert (found.coverage, found.crosscheck, found.took_s, found.open_ns) == (0.9, 1.05, 2.5, 9)
    assert (found.readings, found.boundaries) == ((MeterReading(7, 0, 0),), (CallBoundary(1, 2),))
    assert found.notes == ("as it came", "as it came")
    assert told(judged(per_call(10.0, 0.51))).stopped == "budget spent"


def test_idle_power_is_taken_off_for_as_long_as_a_call_lasts_and_its_error_added() -> None:
    """A call of 0.25 s at 40 W ± 2 W: 10 J of 20 J, and 0.5 J beside the 1.2 J that it is off by."""
    one = judged(per_call(20.0, 1.2), calls=7, window_s=2.0, rests_s=0.25)
    found = told(one, net=True)
    assert (found.joules.value, found.joules.low, found.joules.high) == pytest.approx((10.0, 8.7, 11.3))
    assert (found.net, found.power_w, found.precision_reached) == (True, 80.0, pytest.approx(0.13))
    sure = told(judged(per_call(20.0, 1.2, idle_error_w=None), calls=7, window_s=2.0, rests_s=0.25), net=True)
    assert (sure.joules.low, sure.joules.high) == pytest.approx((8.8, 11.2))
    less = told(judged(per_call(5.0, 1.2), calls=7, window_s=2.0, rests_s=0.25), net=True)
    assert (less.joules.value, less.precision_reached) == pytest.approx((-5.0, 0.26))
    with pytest.raises(MachineCannot, match="Idle power was not seen, so it cannot be subtracted; give a longer"):
        told(judged(per_call(idle_w=None)), net=True)


def test_what_the_device_waits_for_the_host_is_taken_off_at_the_power_of_a_rest() -> None:
    on = Device()
    on.gap_s = 0.0625
    one = judged(per_call(20.0, 1.2, pause_w=32.0), calls=7, window_s=2.0, rests_s=0.25)
    found = told(one, on=on)
    assert (found.joules.value, found.joules.high) == pytest.approx((18.0, 19.2))
    assert (found.call_us, found.power_w) == pytest.approx((187_500.0, 96.0))
    assert found.systematic_j == pytest.approx(1.0 + 0.25 * 32 * 0.25 / 7 + 0.5)
    waited = "the device waited 62.50 ms a call for the host: taken off, at the power of a rest"
    assert found.notes == ("as it came", "as it came", waited)
    net = told(one, on=on, net=True)
    assert net.joules.value == pytest.approx(18.0 - 40 * 0.1875)
    unknown = told(judged(per_call(20.0, 1.2, idle_w=None), calls=7, window_s=2.0, rests_s=0.25), on=on)
    assert (unknown.joules.value, unknown.call_us) == (20.0, 250_000.0)
    assert unknown.notes == ("as it came", "as it came")


def said(
    one: CallEnergyEstimate, *, call_s: float = 0.125, budget_s: float = 3.5, warm_s: float | None = 0.5
) -> list[str]:
    keeper: Any = Device(call_s)
    taken: Any = SimpleNamespace(estimate=one, plan=replace(PLAN, warm_s=warm_s))
    return measuring._result_notes(taken, keeper, chosen(budget_s), None)


def test_long_and_cold_calls_are_said_so() -> None:
    assert said(judged(), call_s=3.5) == []
    assert said(judged(), call_s=3.501) == ["one call takes longer than the whole budget"]
    assert said(judged(), warm_s=None) == ["the calls were not warmed up: one takes too much of the budget"]


def test_power_that_is_a_tenth_off_the_counter_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for crosscheck in (1.09, 0.91, None):
        assert said(judged(crosscheck=crosscheck)) == []
    for crosscheck, written in ((1.12, "1.12"), (0.88, "0.88")):
        expected = (
            f"integrated power says {written} of what the counter does: a call may repeat at the period of the sensor, "
            "which power readings see only a part of; the counter is believed"
        )
        assert said(judged(crosscheck=crosscheck)) == [expected]
    monkeypatch.setattr(measuring, "DISAGREEMENT", 0.25)
    assert said(judged(crosscheck=1.25)) == said(judged(crosscheck=0.75)) == []


def test_a_missing_counter_and_missing_readings_are_said_so() -> None:
    none = "there is no energy counter: instant power sees 50% of the time"
    assert said(judged(method="instant power", coverage=0.4, seen_share=0.5)) == [none]
    few = "readings are missing: the sensor's ticks cover 39% of the window"
    assert said(judged(method="instant power", coverage=0.39, seen_share=0.5)) == [none, few]
    assert said(judged(coverage=0.79))[0].startswith("readings are missing")


def test_without_more_to_say_three_seconds_are_spent_for_five_percent() -> None:
    asked = inspect.signature(measuring.energy).parameters
    assert {name: asked[name].default for name in ("precision", "budget_s", "net", "limit_s")} == {
        "precision": 0.05,
        "budget_s": 3.0,
        "net": False,
        "limit_s": 60.0,
    }
