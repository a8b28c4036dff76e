"""The recorder's loop on virtual time: steady ticks, honest counts, orders heard, everything written in time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.monitor.client import (
    AddMark,
    FlushRecording,
    GetLatest,
    LatestLines,
    RecorderReady,
    RecordingDone,
    RecordingFlushed,
    StopRecording,
)
from assay.monitor.recorder import BackgroundSampler
from assay.monitor.samples import GpuSample, Heartbeat, HostSample, Mark, RecordingEnd
from assay.monitor.statistics import summarise
from tests.monitor.pacing import S, Shelf, VirtualPace, at_once, header, recorded

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from assay.monitor.client import RecorderReply
    from assay.monitor.samples import RecordingLine


def looking(pace: VirtualPace, takes_s: dict[int, float] | None = None) -> Callable[[int], list[RecordingLine]]:
    """Return a look at one GPU that takes some time at some ticks."""

    def look(tick: int) -> list[RecordingLine]:
        t_ns = pace.now_ns()
        pace.spend((takes_s or {}).get(tick, 0.0))
        return [GpuSample(t_ns=t_ns, tick=tick, gpu=0, power_instant_w=100.0)]

    return look


def samples(shelf: Shelf) -> list[GpuSample]:
    return [line for line in shelf.lines if isinstance(line, GpuSample)]


def test_ticks_are_due_at_multiples_of_the_interval_and_nothing_adds_up() -> None:
    pace = VirtualPace()
    pace.order(60.0, StopRecording(reason="enough"))
    takes = dict.fromkeys(range(10_000), 0.003)
    shelf, end, _ = recorded(pace, header(0.01), looking(pace, takes))
    assert all(sample.t_ns == sample.tick * 10_000_000 for sample in samples(shelf))
    assert (end.ticks, end.missed) == (6000, 0)


def test_a_look_that_lasts_beyond_ticks_costs_them_and_they_are_counted() -> None:
    pace = VirtualPace()
    pace.order(1.0, StopRecording(reason="enough"))
    shelf, end, _ = recorded(pace, header(0.1), looking(pace, {2: 0.35}))
    assert [sample.tick for sample in samples(shelf)] == [0, 1, 2, 5, 6, 7, 8, 9]
    assert (end.ticks, end.missed) == (8, 2)
    assert samples(shelf)[3].t_ns == 550_000_000  # the latest tick that was due is taken late, the next on time
    assert samples(shelf)[4].t_ns == 600_000_000


@given(st.dictionaries(st.integers(0, 40), st.floats(0.0, 0.7), max_size=10))
def test_ticks_kept_and_ticks_missed_are_all_ticks(takes: dict[int, float]) -> None:
    pace = VirtualPace()
    pace.order(5.0, StopRecording(reason="enough"))
    shelf, end, recorder = recorded(pace, header(0.1), looking(pace, takes))
    ticks = [sample.tick for sample in samples(shelf)]
    assert ticks == sorted(set(ticks))
    between = ticks[-1] + 1 - len(ticks)
    after = recorder.missed - between
    assert 0 <= after <= max(takes.values(), default=0.0) / 0.1 + 1
    assert end.ticks == len(ticks)


def test_what_was_seen_is_written_at_least_once_a_second() -> None:
    pace = VirtualPace()
    at_risk: list[float] = []
    shelf = Shelf()

    def look(tick: int) -> list[RecordingLine]:
        unsafe = [line for line in shelf.lines[shelf.safe :] if isinstance(line, GpuSample)]
        at_risk.append((pace.now_ns() - unsafe[0].t_ns) / S if unsafe else 0.0)
        return looking(pace)(tick)

    from assay.monitor.recorder import Recorder

    pace.order(20.0, StopRecording(reason="enough"))
    Recorder(header(0.25), shelf, pace, sample=look, answer=lambda answer: None).run()
    assert max(at_risk) <= 1.0
    assert shelf.safe == len(shelf.lines)
    beats = [line for line in shelf.lines if isinstance(line, Heartbeat)]
    assert len(beats) == 19


def test_a_mark_between_ticks_minutes_apart_is_written_within_a_second() -> None:
    pace = VirtualPace()
    pace.order(30.0, AddMark(name="begun", start_ns=30 * S))
    pace.order(100.0, StopRecording(reason="enough"))
    shelf, _, _ = recorded(pace, header(300.0), looking(pace))
    where = next(number for number, line in enumerate(shelf.lines) if isinstance(line, Mark))
    written_at = next(count for count in shelf.flushes if count > where)
    later = [line.t_ns for line in shelf.lines[where:written_at] if isinstance(line, Heartbeat)]
    assert later[0] <= 31 * S


def test_that_it_has_begun_is_said_once_the_header_is_written() -> None:
    pace = VirtualPace()
    answers: list[RecorderReply] = []
    pace.order(0.0, StopRecording(reason="enough"))
    shelf, _, _ = recorded(pace, header(0.1), looking(pace), answers=answers)
    assert answers[0] == RecorderReady(header=header(0.1), pid=os.getpid())
    assert shelf.flushes[0] == 1


def test_a_flush_on_demand_writes_all_until_now_and_says_so() -> None:
    pace = VirtualPace()
    answers: list[RecorderReply] = []
    pace.order(0.45, FlushRecording())
    pace.order(0.5, StopRecording(reason="enough"))
    shelf, _, _ = recorded(pace, header(0.1), looking(pace), answers=answers)
    assert answers[1] == RecordingFlushed(until_ns=450_000_000)
    assert shelf.flushes[1] == 7  # header, five samples, a beat
    assert isinstance(answers[-1], RecordingDone)


def test_a_flush_while_a_slow_look_is_under_way_promises_only_what_was_before_it() -> None:
    from concurrent.futures import Future

    pace = VirtualPace()
    answers: list[RecorderReply] = []
    under_way: Future[list[RecordingLine]] = Future()
    slow = BackgroundSampler(host_look(pace), 3, lambda look, tick: under_way, first=3)
    pace.order(0.45, FlushRecording())
    pace.order(0.5, StopRecording(reason="enough"))
    recorded(pace, header(0.1), looking(pace), beside=[slow], answers=answers)
    assert answers[1] == RecordingFlushed(until_ns=300_000_000)


def test_the_newest_looks_can_be_asked_for() -> None:
    pace = VirtualPace()
    answers: list[RecorderReply] = []
    pace.order(0.35, GetLatest())
    pace.order(0.5, StopRecording(reason="enough"))
    recorded(pace, header(0.1), looking(pace), answers=answers)
    assert isinstance(answers[1], LatestLines)
    assert [line.t_ns for line in answers[1].lines] == [300_000_000]


def test_orders_are_heard_also_when_every_look_takes_longer_than_the_interval() -> None:
    pace = VirtualPace()
    pace.order(2.0, StopRecording(reason="enough"))
    _, end, recorder = recorded(pace, header(0.1), looking(pace, dict.fromkeys(range(1000), 0.25)))
    assert end.reason == "enough"
    assert recorder.missed > recorder.ticks


def test_the_last_line_says_when_and_why_it_ended() -> None:
    pace = VirtualPace()
    pace.order(0.25, StopRecording(reason="enough"))
    shelf, end, _ = recorded(pace, header(0.1), looking(pace))
    assert (
        shelf.lines[-1]
        == end
        == RecordingEnd(t_ns=250_000_000, wall_ns=pace.wall_ns(), ticks=3, missed=0, reason="enough")
    )
    assert shelf.safe == len(shelf.lines)


def host_look(pace: VirtualPace) -> Callable[[int], list[RecordingLine]]:
    return lambda tick: [HostSample(t_ns=pace.now_ns(), tick=tick)]


def test_looks_beside_the_loop_are_taken_every_so_many_ticks() -> None:
    pace = VirtualPace()
    pace.order(2.05, StopRecording(reason="enough"))
    beside = BackgroundSampler(host_look(pace), 5, at_once, first=5)
    shelf, _, _ = recorded(pace, header(0.1), looking(pace), beside=[beside])
    assert [line.tick for line in shelf.lines if isinstance(line, HostSample)] == [5, 10, 15, 20]


def test_a_slow_look_beside_the_loop_holds_up_nothing_and_is_never_taken_twice_at_once() -> None:
    from concurrent.futures import Future

    pace = VirtualPace()
    begun: list[Future[list[RecordingLine]]] = []

    def submit(look: Callable[[int], list[RecordingLine]], tick: int) -> Future[list[RecordingLine]]:
        begun.append(Future())
        return begun[-1]

    def look(tick: int) -> list[RecordingLine]:
        if tick == 12:
            begun[0].set_result([HostSample(t_ns=0, tick=0)])
        return looking(pace)(tick)

    pace.order(2.0, StopRecording(reason="enough"))
    shelf, end, _ = recorded(pace, header(0.1), look, beside=[BackgroundSampler(host_look(pace), 1, submit)])
    assert (end.ticks, end.missed) == (20, 0)
    assert len(begun) == 2
    assert sum(isinstance(line, HostSample) for line in shelf.lines) == 1


def test_a_look_beside_the_loop_that_breaks_is_not_hushed_up() -> None:
    pace = VirtualPace()

    def broken(tick: int) -> list[RecordingLine]:
        raise ZeroDivisionError

    def submit(look: Callable[[int], list[RecordingLine]], tick: int) -> Future[list[RecordingLine]]:
        from concurrent.futures import Future

        failed: Future[list[RecordingLine]] = Future()
        failed.set_exception(ZeroDivisionError("broken"))
        return failed

    with pytest.raises(ZeroDivisionError, match="broken"):
        recorded(pace, header(0.1), looking(pace), beside=[BackgroundSampler(broken, 1, submit)])


def test_a_wall_clock_that_is_set_meanwhile_moves_no_tick_and_is_told() -> None:
    pace = VirtualPace()

    def look(tick: int) -> list[RecordingLine]:
        if tick == 25:
            pace.wall_offset_ns -= 7200 * S
        return looking(pace)(tick)

    pace.order(5.0, StopRecording(reason="enough"))
    shelf, end, _ = recorded(pace, header(0.1, gpus=1), look)
    assert [sample.t_ns for sample in samples(shelf)] == [tick * S // 10 for tick in range(50)]
    assert end.missed == 0
    (note,) = summarise(shelf.lines).notes
    assert "the wall clock was set by -7200.0 s" in note
