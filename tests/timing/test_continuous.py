"""Calls without a pause, on a clock that the tests turn and a GPU that only keeps time."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import TrialFailed
from assay.timing.continuous import (
    MAX_QUEUED_SAMPLES,
    QUEUED_NS,
    EventCallStream,
    StreamSamples,
    WallCallStream,
    probe_calls_per_sample,
    run_continuously,
)
from assay.timing.wall import TimedSubject

if TYPE_CHECKING:
    from assay.timing.interleaved import SampleBlock

LAUNCH_NS = 5_000


@dataclass
class Host:
    """The host's clock, which passes only where something takes time."""

    now_ns: int = 7_000_000_000
    naps: list[float] = field(default_factory=list)

    def clock(self) -> int:
        self.now_ns += 50
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now_ns += round(seconds * 1e9)


@dataclass
class Gpu:
    """A stream: what is launched takes its time behind all that was launched before."""

    host: Host
    free_ns: int = 0
    waiting: int = 0
    deepest: int = 0
    made: int = 0
    hangs: bool = False

    def call(self, takes_ns: int) -> None:
        self.host.now_ns += LAUNCH_NS
        self.free_ns = max(self.free_ns, self.host.now_ns) + takes_ns

    def event(self) -> Mark:
        self.made += 1
        return Mark(self)

    def synchronize(self) -> None:
        self.host.now_ns = max(self.host.now_ns, self.free_ns)


@dataclass
class Mark:
    """An event."""

    gpu: Gpu
    at_ns: int = 0

    def record(self) -> None:
        self.at_ns = max(self.gpu.free_ns, self.gpu.host.now_ns)

    def query(self) -> bool:
        return not self.gpu.hangs and self.gpu.host.now_ns >= self.at_ns

    def elapsed_time(self, later: Mark) -> float:
        return float(np.float32((later.at_ns - self.at_ns) / 1e6))


def lane_of(gpu: Gpu, *takes_ns: int, together: int = 1, most: int = 10**6) -> EventCallStream:
    return EventCallStream(
        [lambda takes_ns=takes_ns: gpu.call(takes_ns) for takes_ns in takes_ns],  # type: ignore[misc]
        [together] * len(takes_ns),
        event=gpu.event,
        synchronize=gpu.synchronize,
        limit_s=60.0,
        most=most,
        clock=gpu.host.clock,
        sleep=gpu.host.sleep,
    )


def run(lane: EventCallStream | WallCallStream, host: Host, seconds: float, **how: float) -> SampleBlock:
    until_ns = host.now_ns + round(seconds * 1e9)
    return run_continuously(lane, until_ns=until_ns, clock=host.clock, sleep=host.sleep, **how)  # type: ignore[arg-type]


def arrays(stretch: SampleBlock, subject: int = 0) -> dict[str, np.ndarray]:
    return {s.quantity: np.array(s.samples) for s in stretch.series if s.subject == subject}


@pytest.mark.parametrize(("takes_ns", "seconds"), [(600_000, 3.0), (40_000_000, 5.0), (2_300_000_000, 30.0)])
def test_a_gpu_is_never_idle_between_calls_and_each_has_its_start_and_duration(takes_ns: int, seconds: float) -> None:
    host = Host()
    gpu = Gpu(host)
    stretch = run(lane_of(gpu, takes_ns), host, seconds)
    found = arrays(stretch)
    assert list(found) == ["span_us", "start_us"]
    assert found["span_us"] == pytest.approx(takes_ns / 1e3, abs=2 * LAUNCH_NS / 1e3)
    ends_us = found["start_us"] + found["span_us"]
    gaps_us = found["start_us"][1:] - ends_us[:-1]
    assert np.abs(gaps_us[1:]).max() < max(2.0, 1e-4 * takes_ns / 1e3)
    assert 0 <= found["start_us"][0] < 100
    lasted_s = (stretch.end_ns - stretch.start_ns) / 1e9
    assert seconds * 0.9 <= lasted_s <= seconds + 2 * takes_ns / 1e9 + 0.02
    assert ends_us[-1] == pytest.approx(1e6 * lasted_s, rel=0.01)


def test_a_few_milliseconds_are_queued_and_events_are_used_again() -> None:
    host = Host()
    gpu = Gpu(host)
    stretch = run(lane_of(gpu, 500_000), host, 0.5)
    assert len(arrays(stretch)["span_us"]) > 900
    assert gpu.made < 4 * QUEUED_NS / 500_000 + 8
    tiny = Gpu(Host())
    run(lane_of(tiny, 1_000), tiny.host, 0.01)
    assert tiny.made <= 2 * MAX_QUEUED_SAMPLES + 6


def test_before_it_is_known_how_long_a_call_takes_only_two_are_queued() -> None:
    host = Host()
    gpu = Gpu(host)
    lane = lane_of(gpu, 5_000_000_000)
    lane.start()
    begin = host.now_ns
    lane.launch(0)
    lane.launch(0)
    assert host.now_ns - begin >= 5_000_000_000
    assert gpu.free_ns - host.now_ns <= 5_000_000_000


def test_starts_stay_exact_where_the_distance_of_events_would_not_be() -> None:
    host = Host()
    gpu = Gpu(host)
    found = arrays(run(lane_of(gpu, 200_000_000), host, 1200.0))
    expected = found["start_us"][0] + 200_000.0 * np.arange(len(found["start_us"]))
    assert np.abs(found["start_us"][2:] - expected[2:]).max() < 100.0


def test_several_subjects_are_called_in_turn() -> None:
    host = Host()
    stretch = run(lane_of(Gpu(host), 1_000_000, 3_000_000), host, 1.0)
    one, other = arrays(stretch, 0), arrays(stretch, 1)
    assert len(one["span_us"]) == len(other["span_us"])
    assert (one["start_us"] < other["start_us"]).all()
    assert (one["start_us"][1:] > other["start_us"][:-1]).all()


def test_a_sample_of_several_calls_tells_the_time_of_one() -> None:
    host = Host()
    stretch = run(lane_of(Gpu(host), 100_000, together=6), host, 0.5)
    assert {s.calls_per_sample for s in stretch.series} == {6}
    assert np.median(arrays(stretch)["span_us"]) == pytest.approx(100.0, rel=0.01)


def test_a_gpu_that_does_not_come_back_fails_within_its_limit() -> None:
    host = Host()
    gpu = Gpu(host, hangs=True)
    lane = lane_of(gpu, 1_000)
    lane.start()
    lane.launch(0)
    with pytest.raises(TrialFailed, match="not finished a sample within 60 s"):
        lane.finish()


def test_more_samples_than_there_is_room_for_are_put_together_two_by_two() -> None:
    host = Host()
    stretch = run(lane_of(Gpu(host), 1_000_000, most=100), host, 1.0)
    found = arrays(stretch)
    (calls,) = {s.calls_per_sample for s in stretch.series}
    assert len(found["span_us"]) <= 100
    assert calls >= 16
    assert found["span_us"] == pytest.approx(1000.0, rel=0.01)
    assert np.median(np.diff(found["start_us"])) == pytest.approx(1000.0 * calls, rel=0.01)
    assert (found["span_us"] * calls).sum() > 0.97e6


@given(duty=st.floats(0.05, 0.95), takes_ms=st.floats(4.0, 300.0), seed=st.integers(0, 99))
@settings(max_examples=12, deadline=None)
def test_calls_fill_the_share_of_the_time_that_is_their_duty(duty: float, takes_ms: float, seed: int) -> None:
    for queued in (True, False):
        host = Host()
        gpu = Gpu(host)
        takes_ns = round(takes_ms * 1e6)
        lane = lane_of(gpu, takes_ns) if queued else wall_lane(host, takes_ns)
        stretch = run(lane, host, 10.0, duty=duty, seed=seed)
        found = arrays(stretch)
        busy_us = found["span_us" if queued else "call_us"].sum()
        lasted_us = (stretch.end_ns - stretch.start_ns) / 1e3
        assert busy_us / lasted_us == pytest.approx(duty, rel=0.06)


def test_bursts_do_not_keep_step_with_a_sensor_that_ticks_ten_times_a_second() -> None:
    host = Host()
    starts_us = arrays(run(lane_of(Gpu(host), 50_000_000), host, 60.0, duty=0.5, seed=3))["start_us"]
    phases = np.exp(2j * np.pi * (starts_us % 1e5) / 1e5)
    assert abs(phases.mean()) < 0.3


def test_what_holds_a_load_can_end_it_in_a_burst_and_in_a_gap() -> None:
    for duty in (1.0, 0.01):
        host = Host()
        asked = iter(range(100))
        stretch = run_continuously(
            lane_of(Gpu(host), 20_000_000),
            stop=lambda asked=asked: next(asked) >= 5,  # type: ignore[misc]
            duty=duty,
            clock=host.clock,
            sleep=host.sleep,
        )
        assert 1 <= len(arrays(stretch)["span_us"]) <= 6
        assert (stretch.end_ns - stretch.start_ns) / 1e9 < 0.5


def wall_lane(host: Host, takes_ns: int, *, reports: bool = False) -> WallCallStream:
    def call() -> dict[str, float]:
        host.now_ns += takes_ns
        return {"call_us": 1.5, "kernel_gflops": 3.0}

    return WallCallStream([TimedSubject(call, lambda: None, reports)], [1], clock=host.clock)


def test_on_the_host_calls_are_timed_by_its_clock() -> None:
    host = Host()
    found = arrays(run(wall_lane(host, 1_000_000), host, 0.5))
    assert found["call_us"] == pytest.approx(1000.0, rel=0.01)
    assert np.diff(found["start_us"]) == pytest.approx(1000.0, rel=0.01)


def test_what_a_call_reports_of_itself_is_kept_beside() -> None:
    host = Host()
    found = arrays(run(wall_lane(host, 1_000_000, reports=True), host, 0.01))
    assert set(found["call_us"]) == {1.5}
    assert set(found["kernel_gflops"]) == {3.0}
    assert len(found["start_us"]) == len(found["kernel_gflops"])


@pytest.mark.parametrize(("takes_ns", "expected"), [(10_000, 200), (1_900_000, 2), (2_100_000, 1), (3_000_000_000, 1)])
def test_short_calls_are_put_together_in_a_sample(takes_ns: int, expected: int) -> None:
    host = Host()
    slow_first = iter([80_000_000])

    def call() -> None:
        host.now_ns += next(slow_first, takes_ns)

    assert probe_calls_per_sample(call, lambda: None, host.clock) == expected


def test_thinning_keeps_the_first_of_two_starts_and_the_mean_of_two_times() -> None:
    kept = StreamSamples(1, most=5)
    for n in range(5):
        kept.add(10.0 * n, 10.0 + n)
    assert kept.full
    kept.thin_out()
    by_name = {s.quantity: list(s.samples) for s in kept.series(0, "span_us")}
    assert by_name == {"span_us": [10.5, 12.5], "start_us": [0.0, 20.0]}
    assert kept.calls == 2
    assert all(later > earlier for earlier, later in pairwise(by_name["start_us"]))
