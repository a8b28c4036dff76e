"""Timing at its edges, on values worked out by hand: counts, alarms, kept picks, turns, looks at the clock."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import assay.machine.detect
from assay.core.errors import BadInput
from assay.core.results import GpuSnapshot
from assay.machine.model import Gpu
from assay.timing import conditions, do_bench, interleaved, saved_picks, setup
from assay.timing.conditions import ClockWatch
from assay.timing.interleaved import RoundOrder
from assay.timing.results import Comparison, Measurement, PickCandidate, ProcessTimes
from assay.timing.sampling import SampleBatch
from tests.machines import machine
from tests.timing.faking import KnownRig, nothing
from tests.timing.test_interleaved_pairs import taken
from tests.timing.test_saved_picks import pick
from tests.timing.test_timing_processes import compared, measured

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.timing.sampling import Instrument
    from tests.timing.faking import VirtualTime


def test_a_core_taken_away_exactly_often_enough_is_told_of() -> None:
    assert conditions.describe_switches(5, 0.25)
    assert conditions.describe_switches(20, 1.0)
    assert conditions.describe_switches(40, 2.0)
    assert (
        conditions.describe_switches(19, 1.0)
        == conditions.describe_switches(39, 2.0)
        == conditions.describe_switches(4, 0.1)
        == ()
    )


def test_switches_and_seconds_are_counted_from_when_counting_began(monkeypatch: pytest.MonkeyPatch) -> None:
    switches, seconds = iter([1000, 1010]), iter([50.0, 50.5])
    usage = SimpleNamespace(RUSAGE_SELF=0, getrusage=lambda _: SimpleNamespace(ru_nivcsw=next(switches)))
    monkeypatch.setattr(conditions, "resource", usage)
    monkeypatch.setattr(conditions, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    (note,) = conditions.ContextSwitchCounter().notes()
    assert "10 involuntary context switches in 0.5 s" in note


def test_what_nobody_says_is_one_process_and_no_rounds() -> None:
    assert ProcessTimes(process=1).samples == 0
    assert PickCandidate(name="a").rounds == 0
    assert (measured(1.0).processes, compared(1.5).processes) == (1, 1)
    assert Measurement.model_validate({**dict(measured(1.0)), "processes": 1}).processes == 1
    assert Comparison.model_validate({**dict(compared(1.5)), "processes": 1}).processes == 1


def test_the_verdict_is_that_of_the_second_function() -> None:
    both = compared(1.5, 0.5)
    others = tuple(o.model_copy(update={"verdict": v}) for o, v in zip(both.others, ("slower", "faster"), strict=True))
    assert both.model_copy(update={"others": others}).verdict == "slower"


class Alarm:
    """Stands for the module ``signal``: somebody's alarm rings in so many seconds, none where that is 0."""

    ITIMER_REAL, SIGALRM, SIG_DFL = 0, 14, 0

    def __init__(self, left_s: float, every_s: float = 0.0) -> None:
        self._left = left_s, every_s
        self.settings: list[tuple[float, float]] = []

    def getitimer(self, _which: int) -> tuple[float, float]:
        return self._left

    def setitimer(self, _which: int, seconds: float, interval: float = 0.0) -> None:
        self.settings.append((seconds, interval))

    def signal(self, _number: int, _handler: object) -> str:
        return "theirs"


@pytest.mark.parametrize(
    ("left_s", "took_s", "settings"),
    [
        (0.0, 1.0, [(2.0, 0.0), (0, 0.0)]),
        (0.5, 1.0, []),
        (2.0, 1.0, []),
        (10.0, 4.0, [(2.0, 0.0), (0, 0.0), (6.0, 3.0)]),
        (3.0, 5.0, [(2.0, 0.0), (0, 0.0), (1e-6, 3.0)]),
    ],
)
def test_an_alarm_that_rings_no_later_goes_first_and_a_later_one_rings_when_it_would_have(
    left_s: float, took_s: float, settings: list[tuple[float, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    alarm, now = Alarm(left_s, 3.0 if left_s else 0.0), iter([100.0, 100.0 + took_s])
    monkeypatch.setattr(setup, "signal", alarm)
    monkeypatch.setattr(setup, "time", SimpleNamespace(monotonic=lambda: next(now)))
    with setup.time_limit(2.0, "f"):
        pass
    assert alarm.settings == settings


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """A machine with two GPUs and four cores, under a driver that the test names."""

    def here(driver: str | None) -> None:
        gpus = tuple(Gpu(index=n, uuid=f"GPU-{n}", name=name) for n, name in enumerate(("First", "Second")))
        made = machine(cores=(4,)).model_copy(update={"gpus": gpus, "driver": driver})
        monkeypatch.setattr(assay.machine.detect, "detect", lambda: made)

    return here


@pytest.mark.parametrize(
    ("device", "gpu", "driver"),
    [
        ("cuda", "First", "580.1"),
        ("cuda:0", "First", "580.1"),
        ("cuda:1", "Second", "580.1"),
        ("cuda:2", "cpu, 4 cores", "none"),
        ("cpu", "cpu, 4 cores", "none"),
    ],
)
def test_a_pick_is_kept_for_the_device_it_was_made_on(device: str, gpu: str, driver: str, two_gpus: Any) -> None:
    two_gpus("580.1")
    place = saved_picks.save(pick().model_copy(update={"device": device}), "g").key
    assert (place.gpu, place.driver) == (gpu, driver)


def test_what_is_not_said_of_a_place_is_taken_from_this_machine(two_gpus: Any) -> None:
    two_gpus("580.1")
    saved = saved_picks.save(pick(), "g", {"m": 1})
    assert saved_picks.lookup("g", {"m": 1}) == saved
    assert saved_picks.save(pick(), "g", gpu="L4").key == saved.key.model_copy(update={"gpu": "L4", "shape": {}})
    assert saved_picks.save(pick(), "g", driver="1.0").key.gpu == "First"
    two_gpus(None)
    assert saved_picks.save(pick(), "g").key.driver == "unknown"


def test_only_a_pick_can_be_kept_and_only_for_a_shape_by_names() -> None:
    with pytest.raises(BadInput, match=r"result of assay\.pick"):
        saved_picks.save("b", "g", gpu="L4", driver="1.0")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="given by names"):
        saved_picks.save(pick(), "g", [("m", 512)], gpu="L4", driver="1.0")  # type: ignore[arg-type]


@dataclass
class Tape:
    """An instrument that plays batches, the last one over and over, and notes whose turn it was."""

    name: str
    batches: Sequence[Sequence[float]]
    turns: list[str] = field(default_factory=list)
    taken: int = 0
    method: str = "tape"
    primary: str = "call_us"
    calls_per_sample: int = 1

    def take(self) -> SampleBatch:
        self.turns.append(self.name)
        self.taken += 1
        return SampleBatch({"call_us": np.array(self.batches[min(self.taken, len(self.batches)) - 1])})

    def replan(self) -> bool:
        return False

    def close(self) -> None: ...


def in_turns(tapes: Sequence[Tape], repeat: int, patch: pytest.MonkeyPatch) -> list[float]:
    instruments: dict[str, Instrument] = {f"number {place}": tape for place, tape in enumerate(tapes)}
    patch.setattr(do_bench, "select_timer_setup", lambda _: KnownRig(instruments))
    return do_bench.interleaved_bench([nothing] * len(tapes), repeat=repeat)


@pytest.mark.parametrize(("repeat", "rounds"), [(1, 3), (22, 6), (24, 6), (400, 100), (10_000, 100)])
def test_there_are_as_many_rounds_as_the_smallest_batch_needs_within_bounds(
    repeat: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tapes = [Tape("a", [[1.0] * 4]), Tape("b", [[1.0] * 8])]
    in_turns(tapes, repeat, monkeypatch)
    assert [tape.taken for tape in tapes] == [2 + rounds] * 2  # one to try out, one to see how large a batch is


def test_in_turns_each_gets_the_median_of_its_rounds_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    tape = Tape("a", [[1.0], [1.0], [1000.0], [7000.0], [1000.0]])
    assert in_turns([tape], 3, monkeypatch) == pytest.approx([1.0])


def test_the_order_of_turns_is_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []
    in_turns([Tape(name, [[1.0]], turns) for name in "012"], 8, monkeypatch)
    order = RoundOrder(seed=0)
    assert "".join(turns[6:]) == "".join(str(place) for _ in range(8) for place in order.next(range(3)))


def test_the_clock_is_looked_at_again_exactly_when_a_look_is_due(virtual: VirtualTime) -> None:
    told = iter([("heat",), (), None])
    watch = ClockWatch(lambda: GpuSnapshot(uuid="GPU-1", throttle=next(told)))
    for now_s in (100.0, 100.01, 100.0 + 0.02, 101.0):
        virtual.now_s = now_s
        watch.label_batch()
    assert watch.labels[:3] == [1.0, 1.0, 0.0]
    assert math.isnan(watch.labels[3])


@pytest.mark.parametrize(("until_ns", "rounds"), [(999, 4), (1000, 4), (1001, 6)])
def test_no_round_begins_once_the_time_is_up_but_for_the_first_four(
    until_ns: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interleaved, "time", SimpleNamespace(perf_counter_ns=lambda: 1000))
    series, _ = taken(until_ns=until_ns)
    assert {len(each.samples) for each in series} == {rounds}
    assert {each.calls_per_sample for each in series if each.quantity == "clock_mhz"} == {1}


def test_with_a_reader_each_round_of_both_is_labelled_where_that_is_known() -> None:
    def labelled(throttle: tuple[str, ...] | None, rounds: int) -> list[tuple[int, list[float], int]]:
        series, _ = taken(rounds=rounds, reader=lambda: GpuSnapshot(uuid="GPU-1", throttle=throttle))
        return [(s.subject, list(s.samples), s.calls_per_sample) for s in series if s.quantity == "throttled"]

    assert labelled(("heat",), 1) == [(4, [1.0], 1), (5, [1.0], 1)]
    assert labelled((), 2) == [(4, [0.0, 0.0], 1), (5, [0.0, 0.0], 1)]
    assert labelled(None, 2) == labelled((), 0) == []
