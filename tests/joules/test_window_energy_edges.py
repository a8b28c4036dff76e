"""Pollers, series, rigs, plans and windows at the edges of what they take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.joules import devices as rigs
from assay.joules import readings
from assay.joules import window_energy as advice
from assay.joules import window_energy as windows
from assay.joules.measure import plan_measurement
from assay.joules.observations import EnergyRefused, SensorView, observe_counter, observe_power
from assay.joules.readings import MeterReading, counter_series, power_series
from assay.joules.ticks import SensorTicks
from assay.joules.window_energy import check_covered, check_ticks, count_ticks, estimate_window_energy
from tests.joules.test_joules_edges import MS, Turned, counter, model, power

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.joules.sensor_model import SensorModel


class Waits:
    """An event that writes down how long it was waited for."""

    def __init__(self) -> None:
        self.waited: list[float] = []
        self.is_it = False

    def is_set(self) -> bool:
        return self.is_it

    def set(self) -> None:
        self.is_it = True

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)


class AtOnce:
    """A thread that does its work when it is started, and then seems to go on."""

    def __init__(self, target: Callable[[], None], **_: Any) -> None:
        self._target = target
        self.joined: list[float] = []

    def start(self) -> None:
        self._target()

    def is_alive(self) -> bool:
        return True

    def join(self, seconds: float) -> None:
        self.joined.append(seconds)


class Answers:
    """A meter that takes so many ms to answer with a reading, or not to; lost where that is said."""

    def __init__(self, clock: Turned, *answers: tuple[int, bool], lost: str | None = None) -> None:
        self.lost = lost
        self.last_error = "no driver"
        self.clock, self.answers, self.asked = clock, answers, 0

    def read(self) -> MeterReading | None:
        took_ms, answered = self.answers[self.asked] if self.asked < len(self.answers) else (1, False)
        self.asked += 1
        self.clock.turn_ms(took_ms)
        return MeterReading(self.asked, 0, 0) if answered else None


@pytest.fixture
def threadless(monkeypatch: pytest.MonkeyPatch) -> tuple[Waits, list[AtOnce]]:
    event, threads = Waits(), []

    def thread(**how: Any) -> AtOnce:
        threads.append(AtOnce(**how))
        return threads[-1]

    monkeypatch.setattr(readings, "threading", SimpleNamespace(Event=lambda: event, Thread=thread))
    return event, threads


def test_a_meter_is_given_up_after_twenty_silences_in_a_row(threadless: tuple[Waits, list[AtOnce]]) -> None:
    event, threads = threadless
    clock = Turned()
    meter = Answers(clock, (4, True), *[(1, False)] * 19, (30, True))
    poller = readings.MeterPoller(meter, clock, 0.01)
    poller.start()
    assert meter.asked == 1 + 19 + 1 + 20
    assert (event.waited[0], event.waited[1], event.waited[20]) == pytest.approx((0.006, 0.009, 0.0))
    with pytest.raises(MachineCannot, match="no driver"):
        poller.stop()
    assert threads[0].joined == [5.0]
    event.is_it = False
    silent = Answers(clock)
    readings.MeterPoller(silent, clock, 0.0).start()
    assert silent.asked == 20


def test_a_lost_card_is_given_up_at_once_and_a_stopped_poller_does_not_read(
    threadless: tuple[Waits, list[AtOnce]],
) -> None:
    clock = Turned()
    meter = Answers(clock, (1, True), lost="off the bus")
    poller = readings.MeterPoller(meter, clock, 0.01)
    poller.start()
    assert meter.asked == 1
    with pytest.raises(MachineCannot, match="off the bus"):
        poller.readings()
    threadless[0].set()
    readings.MeterPoller(unread := Answers(clock), clock, 0.01).start()
    assert unread.asked == 0


def test_series_are_in_seconds_since_a_moment_and_leave_out_what_was_not_said() -> None:
    readings = [
        MeterReading(1020 * MS, 1030 * MS, 1050 * MS, energy_j=5.0, instant_w=70.0),
        MeterReading(1120 * MS, 1130 * MS, 1160 * MS),
        MeterReading(1220 * MS, 1230 * MS, 1270 * MS, energy_j=9.0, instant_w=80.0),
    ]
    counted = counter_series(readings, 1000 * MS)
    assert counted.begin_s.tolist() == pytest.approx([0.03, 0.23])
    assert counted.end_s.tolist() == pytest.approx([0.05, 0.27])
    assert counted.energy_j.tolist() == [5.0, 9.0]
    shown = power_series(readings, "instant", 1000 * MS)
    assert shown.t_s.tolist() == pytest.approx([0.02, 0.22])
    assert shown.watts.tolist() == [70.0, 80.0]
    assert len(counter_series([], 0)) == len(power_series(readings, "usage", 0)) == 0


class Counts:
    """A processor's counter that takes a millisecond to read, and counts a joule each time."""

    domains = ("package-0",)
    asked = 0

    def __init__(self, _: Path, clock: Turned) -> None:
        self.clock = clock

    def read(self) -> MeterReading:
        self.asked += 1
        begin_ns = self.clock.now_ns()
        self.clock.turn_ms()
        return MeterReading(begin_ns, begin_ns, self.clock.now_ns(), energy_j=float(self.asked))


def test_a_processors_counter_is_watched_for_just_fifty_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rigs, "RaplMeter", Counts)
    monkeypatch.setattr(rigs, "MeterPoller", lambda _meter, _clock, every_s: every_s)
    monkeypatch.setattr(rigs, "make_first_calls", lambda *_: SimpleNamespace(least_us=2500.0, notes=()))
    clock = Turned()
    rig = rigs.CpuEnergyDevice(Path("/"), clock)
    assert clock.now_ns() == 57 * MS
    every_s: Any = rig.sampler()
    assert every_s == 0.01
    bound: Any = SimpleNamespace(call=lambda: None)
    options: Any = SimpleNamespace(limit_s=1.0, on_gpu=False)
    assert rig.prepare_load(bound, options).call_s == pytest.approx(0.0025)
    monkeypatch.setattr(rigs, "HostMonotonicClock", Turned)
    with rigs.open_device(options) as found:
        assert found.device == "cpu"


def rapl(*took_ms: int) -> SensorModel:
    """Return the model of a counter read so often, 10 ms apart, that counts 2 J each time."""
    told = [
        MeterReading(10 * i * MS, 10 * i * MS, (10 * i + ms) * MS, energy_j=2.0 * i) for i, ms in enumerate(took_ms)
    ]
    return rigs.rapl_sensor_model(told, "package-0")


def test_a_processors_counter_is_known_from_two_readings_and_its_period_from_three(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert rapl().counter is None
    assert rapl(1).counter is None
    two = rapl(1, 1).counter
    assert two is not None
    assert (two.period_s, two.jitter_s, two.lag_s, two.lag_error_s) == pytest.approx((0.01, 0.0025, 0.0, 0.001))
    assert two.quantum_j == 2.0
    times = np.array([0.0, 0.001, 0.003, 0.007, 0.015])
    monkeypatch.setattr(rigs, "find_ticks", lambda *_: SensorTicks(times, times, times))
    more = rapl(1, 3, 8).counter
    assert more is not None
    assert (more.period_s, more.read_s) == pytest.approx((0.004, 0.004))


def test_sensors_are_read_ten_times_a_period_within_bounds() -> None:
    assert rigs.polling_interval_s(model(counter=counter(0.05), average=power(0.07, 1.0))) == pytest.approx(0.005)
    assert rigs.polling_interval_s(model(counter=counter(0.001))) == 0.002
    assert rigs.polling_interval_s(model(average=power(1.0, 1.0))) == 0.01
    assert rigs.polling_interval_s(model()) == 0.002


class Half:
    """Chance that is always even."""

    def random(self) -> float:
        return 0.5


def planned(of: SensorModel, call_s: float, budget_s: float, precision: float = 0.01) -> Any:
    return plan_measurement(of, call_s, budget_s, precision, Half())  # type: ignore[arg-type]


EIGHTH = model(counter=counter(0.125, lag_s=0.0625, read_s=0.03125))
"""Settles in 0.1875 s: a lag and a period."""


def test_a_budget_is_spent_in_periods_of_the_sensor() -> None:
    short = planned(EIGHTH, 0.015625, 16.0)  # an eighth of a period is not yet long
    assert (short.idle_s, short.warm_s, short.round_s, short.dither_s) == (0.6875, 0.375, 0.5, 0.0)
    assert (short.measure_s, short.after_s) == (6.4375, 0.125)  # fifty periods, and settling
    long = planned(EIGHTH, 0.0157, 16.0, 0.1)
    assert (long.measure_s, long.dither_s, long.after_s) == (2.0625, 0.125, 0.625)  # fifteen periods
    assert planned(EIGHTH, 0.001, 4.0).measure_s == 4.0 - 0.6875 - 0.375 - 0.125


def test_a_fast_sensor_is_given_a_second_all_the_same() -> None:
    fast = planned(model(counter=counter(0.0078125, lag_s=-0.5)), 0.0001, 16.0)
    assert (fast.idle_s, fast.round_s, fast.measure_s) == (0.2578125, 0.2, 1.0078125)


def test_a_budget_is_refused_below_what_the_nearest_sensor_needs() -> None:
    assert planned(EIGHTH, 0.001, 2.1875).measure_s == 1.0
    with pytest.raises(MachineCannot, match=r"every 125 ms.*budget_s=2.2 "):
        planned(EIGHTH, 0.001, 2.1874)
    both = model(instant=power(0.5, 0.25), average=power(0.25, 0.25))
    with pytest.raises(MachineCannot, match="every 250 ms"):
        planned(both, 0.001, 0.5)
    with pytest.raises(MachineCannot, match="neither its energy nor a power"):
        planned(model(), 0.001, 60.0)


def test_a_call_longer_than_a_quarter_of_the_budget_is_not_warmed_up() -> None:
    assert planned(EIGHTH, 1.0, 4.0).warm_s == 0.375
    assert planned(EIGHTH, 1.001, 4.0).warm_s is None
    spent = planned(EIGHTH, 1.0, 1.0)
    assert (spent.warm_s, spent.measure_s) == (None, 0.0)


def test_without_a_counter_it_is_planned_for_the_power_that_misses_least_and_fits() -> None:
    """Of long calls instant power may miss 0.25 or 0.248 of the energy, which is alike, and average power nothing."""
    late = power(0.1, 0.0504).model_copy(update={"lag_s": 0.5})
    alike = planned(model(instant=power(0.1, 0.05), usage=late), 10.0, 60.0)
    assert alike.idle_s == pytest.approx(0.45)
    all_of_it = model(instant=power(0.1, 0.05), average=power(0.1, 1.0).model_copy(update={"lag_s": 0.25}))
    assert planned(all_of_it, 10.0, 60.0).idle_s == pytest.approx(1.65)
    assert planned(all_of_it, 10.0, 60.0).after_s == pytest.approx(1.75)  # two periods, settling, three periods
    assert planned(all_of_it, 3.0, 3.9).idle_s == pytest.approx(0.45)


EVENLY = [0.125 * i for i in range(81)]
"""Ten seconds of ticks."""


def of_ticks(times: list[float], values: list[float] | None = None) -> SensorView:
    at = np.array(times)
    ticks = SensorTicks(at, 100 * at if values is None else np.array(values), np.zeros(len(at)))
    return SensorView("counter", observe_counter(ticks, lag_s=0.0, lag_error_s=0.0, quantum_j=0.0), ticks, 0.125)


def of_watts(times: list[float], seen_share: float) -> SensorView:
    ticks = SensorTicks(np.array(times), np.full(len(times), 100.0), np.zeros(len(times)))
    seen = observe_power(ticks, window_s=0.125, lag_s=0.0, lag_error_s=0.0, since_s=0.0)
    return SensorView("instant power", seen, ticks, 0.125, 0.0, 0.125, seen_share)


def refusal(check: Callable[[SensorView, float, float], None], sight: SensorView, start_s: float, end_s: float) -> Any:
    try:
        check(sight, start_s, end_s)
    except EnergyRefused as refused:
        return refused.code, refused.needed_s
    return None


def test_four_ticks_are_enough_counting_those_at_the_ends() -> None:
    sight = of_ticks(EVENLY)
    assert count_ticks(sight, 0.5, 1.0) == 5
    assert refusal(check_ticks, sight, 0.5, 0.875) is None
    assert refusal(check_ticks, sight, 0.5, 0.8125) == ("too_few_ticks", 0.625)
    holed = of_ticks([0.0, 0.125, 0.25, 2.0, 2.125])
    assert refusal(check_ticks, holed, 0.25, 0.875) == ("not_covered", None)
    assert refusal(check_ticks, holed, 0.25, 0.75) == ("too_few_ticks", 0.625)


def test_a_counter_may_miss_half_of_a_window_and_no_more() -> None:
    sight = of_ticks([*EVENLY[:9], 2.0, 2.125])
    assert refusal(check_covered, sight, 0.0, 2.0) is None
    assert refusal(check_covered, sight, 0.125, 2.0) == ("not_covered", None)


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return the energy from 4 to 6 s by sensors of which each says so many J, give or take so many."""

    def told(
        by: list[tuple[SensorView, tuple[float, float] | None]],
        of: SensorModel | None = None,
        readings: list[MeterReading] | None = None,
        lengths: tuple[float | None, ...] = (None,),
        ticks: SensorTicks | None = None,
        **more: float,
    ) -> Any:
        answers, left, seen = [answer for _, answer in by], list(lengths), []

        def between(rows: Any, *_: float, **__: float) -> Any:
            seen.append(rows)
            answer = answers.pop(0)
            return None if answer is None else SimpleNamespace(joules=answer[0], error_j=answer[1])

        monkeypatch.setattr(windows, "select_sensor_views", lambda *_: [sight for sight, _ in by])
        monkeypatch.setattr(windows, "fit_window_energy", between)
        monkeypatch.setattr(windows, "sufficient_window_s", lambda *_: left.pop(0))
        monkeypatch.setattr(windows, "find_power_ticks", lambda *_: ticks)
        found = estimate_window_energy(readings or [MeterReading(0, 0, 0)], 4000 * MS, 6000 * MS, of or model(), **more)
        return found, seen

    return told


def test_a_window_is_told_to_just_the_precision_that_is_asked_for(tell: Callable[..., Any]) -> None:
    found, (seen,) = tell([(of_ticks(EVENLY), (100.0, 5.0))])
    assert (found.joules.value, found.joules.low, found.joules.high, found.joules.n) == (100.0, 95.0, 105.0, 17)
    assert (found.window_s, found.power_w, found.crosscheck) == (2.0, 50.0, None)
    assert found.systematic_j == pytest.approx(5.0)
    assert (seen.times_s.min(), seen.times_s.max()) == (2.5, 7.5)  # twelve periods on either side
    assert tell([(of_ticks(EVENLY), (100.0, 6.0))])[0].code == "too_wide"


def test_a_sensor_that_shows_no_energy_is_refused(tell: Callable[..., Any]) -> None:
    for answer in (None, (0.0, 0.0)):
        refused, _ = tell([(of_ticks(EVENLY), answer)])
        assert (refused.code, refused.window_s) == ("no_energy", 2.0)
    assert tell([(of_ticks(EVENLY), (0.5, 0.0))])[0].joules.value == 0.5


def test_the_narrowest_of_both_bounds_together_is_taken(tell: Callable[..., Any]) -> None:
    half, whole = (of_watts(EVENLY, 0.5), (200.0, 2.0)), (of_watts(EVENLY, 1.0), (100.0, 4.0))
    for both in ([half, whole], [whole, half]):
        assert tell(both)[0].joules.value == 100.0
    assert tell([half])[0].systematic_j == pytest.approx(60.0)  # gain, and half of what is not seen
    holed = of_watts([t for t in EVENLY if not 5.0 < t < 5.5], 1.0)
    assert tell([(holed, (100.0, 4.0))])[0].code == "not_covered"
    fine = replace(of_watts([t / 16 for t in range(161) if not 80 < t < 83], 1.0), period_s=0.0625)
    assert tell([(fine, (100.0, 4.0))])[0].systematic_j == pytest.approx(14.375)  # 0.1875 s of the 2 s were not seen


def test_the_shortest_window_that_would_do_is_advised_in_two_digits(tell: Callable[..., Any]) -> None:
    by = [(of_watts(EVENLY, 1.0), (100.0, error)) for error in (20.0, 10.0, 30.0)]
    for lengths, said in (
        ((3.0, None, 2.34), "about 2.4 s"),
        ((0.1 * 3, None, 9.0), "about 0.3 s"),
        ((2.00000000012, None, None), "about 2.1 s"),
    ):
        refused, _ = tell(by, lengths=lengths)
        assert refused.needed_s == min(length for length in lengths if length)
        assert said in refused.reason
        assert "a window of 2 s" in refused.reason
        assert "tells it to ±10 %" in refused.reason


def shown(*watts: tuple[int, float]) -> list[MeterReading]:
    return [MeterReading(0, 0, 0), *(MeterReading(ms * MS, 0, 0, instant_w=w) for ms, w in watts)]


def test_power_is_checked_against_the_counter_from_the_first_tick_to_the_last(tell: Callable[..., Any]) -> None:
    """The counter says 380 J at 4 s and 620 J at 6 s: 120 W."""
    values = [{4.0: 380.0, 6.0: 620.0}.get(t, 100 * t) for t in EVENLY]
    by = [(of_ticks(EVENLY, values), (240.0, 1.0))]
    readings = shown((3999, 900.0), (4000, 100.0), (5000, 100.0), (6000, 520.0), (6001, 900.0))
    just = model(instant=power(0.125, 0.1875))
    assert tell(by, just, readings)[0].crosscheck == pytest.approx(2.0)
    assert tell(by, model(instant=power(0.125, 0.19)), readings)[0].crosscheck is None
    assert tell(by, just, shown((3999, 900.0)))[0].crosscheck is None
    ticks = SensorTicks(
        np.array([4.0, 4.125, 5.0, 6.0, 6.125]), np.array([900.0, 100.0, 100.0, 520.0, 900.0]), np.zeros(5)
    )
    even = model(instant=power(0.125, 0.125))
    assert tell(by, even, readings, ticks=ticks)[0].crosscheck == pytest.approx(2.0)
    still = [(of_ticks(EVENLY, [5.0] * 81), (240.0, 1.0))]
    assert tell(still, just, readings)[0].crosscheck is None
    assert tell([(of_watts(EVENLY, 1.0), (240.0, 1.0))], just, readings)[0].crosscheck is None


def test_what_is_no_window_or_no_share_is_bad_input() -> None:
    for start_ns, end_ns, precision in ((5, 5, 0.05), (5, 6, 0.0), (5, 6, 1.0)):
        with pytest.raises(BadInput):
            estimate_window_energy([], start_ns, end_ns, model(), precision=precision)
    refused = estimate_window_energy([], 5000 * MS, 7000 * MS, model(), precision=0.5)
    assert (refused.code, refused.window_s) == ("no_readings", 2.0)


def advised(
    monkeypatch: pytest.MonkeyPatch, error_j: float, start_s: float = 2.0, sensors: tuple[SensorView, ...] | None = None
) -> tuple[float | None, list[Any]]:
    """Return the length for a window of 1 s whose error stays: 6 J would do for each second; and what was expected."""
    expected: list[Any] = []

    def error(seen: Any, *window: float, **more: Any) -> float:
        expected.append((seen, *window, more["period_s"]))
        return error_j

    monkeypatch.setattr(advice, "expected_error_j", error)
    spent: Any = SimpleNamespace(model=None, power_w=64.0)
    return advice.sufficient_window_s(sensors or (of_ticks(EVENLY),), spent, (start_s, start_s + 1.0), 0.125), expected


def test_the_advised_length_is_found_by_doubling_and_four_halvings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert advised(monkeypatch, 6.0)[0] == 1.0
    assert advised(monkeypatch, 12.0)[0] == 2.0
    assert advised(monkeypatch, 9.0)[0] == pytest.approx(2 ** (5 / 8))
    assert advised(monkeypatch, 360.0)[0] == 60.0
    assert advised(monkeypatch, 361.0)[0] is None
    _, expected = advised(monkeypatch, 12.0)
    assert [one[1:] for one in expected[:2]] == [(2.0, 3.0, 0.125), (2.0, 4.0, 0.125)]


def test_ticks_are_expected_at_the_phase_of_the_last_one_from_six_periods_before_a_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uneven = of_ticks([3.0, 3.5, 4.0625])
    seen = replace(
        uneven.observations, stretch=0.2, spread_s=np.array([0.01, 0.03, 0.02]), noise=np.array([1.0, 3.0, 2.0])
    )
    _, ((counted, *_),) = advised(monkeypatch, 6.0, 2.03, (replace(uneven, observations=seen),))
    assert counted.times_s.tolist() == [1.4375 + 0.125 * i for i in range(20)]
    assert counted.points_s.tolist() == counted.times_s.tolist()
    assert counted.operator.tolist() == np.eye(20).tolist()
    assert (set(counted.spread_s), set(counted.noise)) == ({0.03}, {3.0})
    assert counted.stretch == pytest.approx(0.2 * 17 / 38)  # ticks of 1.0625 s were seen, and 2.375 s are expected
    watched = of_watts(EVENLY, 0.5)
    watched = replace(watched, reach_s=0.0625, observations=replace(watched.observations, stretch=0.2))
    _, ((power_seen, *_),) = advised(monkeypatch, 6.0, 2.03, (watched,))
    assert power_seen.points_s.tolist() == [*power_seen.times_s, *(power_seen.times_s - 0.0625)]
    assert power_seen.operator.tolist() == np.hstack([16 * np.eye(20), -16 * np.eye(20)]).tolist()
    assert power_seen.stretch == 0.2
