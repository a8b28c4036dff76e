"""Formulas of timing on numbers worked out by hand: what the loop costs, groups of calls, shares, what is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.core.results import GpuSnapshot
from assay.timing import wall
from assay.timing.conditions import READ_INTERVAL_S, ClockWatch
from assay.timing.continuous import WallCallStream, run_continuously
from assay.timing.do_bench import do_bench
from assay.timing.pick import pick
from assay.timing.processes import merge_measurements, summarize_measurement
from assay.timing.sampling import group_durations
from assay.timing.wall import TimedSubject
from tests.timing.machine_clock import VirtualMachine
from tests.timing.test_continuous import Host
from tests.timing.test_timing_processes import measured

if TYPE_CHECKING:
    from tests.timing.faking import VirtualTime


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> VirtualMachine:
    made = VirtualMachine(read_ns=0)
    made.install(monkeypatch)
    return made


def test_what_the_loop_costs_is_taken_off_each_call(machine: VirtualMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wall, "_loop_overhead_ns", lambda times: 0.0 if times == 1 else 30.0)
    clock = wall.WallTimer(machine.call(1_000))
    assert clock.calls_per_sample == 50
    assert clock.sample_us() == pytest.approx(0.970)
    alone = wall.WallTimer(machine.call(1_000), single_calls=True)
    assert alone.sample_us() == pytest.approx(1.0)
    nothing = wall.WallTimer(machine.call(20))
    assert nothing.sample_us() == 0.0


def test_durations_with_others_in_between_are_one_group_however_far_its_ends_are_apart() -> None:
    assert group_durations([1.0, 1.9, 3.6, 8.0]) == [1.0, 1.0, 1.0, 8.0]
    assert group_durations([3.6, 1.0]) == [3.6, 1.0]
    assert group_durations([2.0, 1.0]) == [2.0, 1.0]  # twice as long is no longer about the same


def test_calls_fill_the_share_of_the_time_that_is_asked_for() -> None:
    host = Host()

    def call() -> None:
        host.now_ns += 1_000_000

    lane = WallCallStream([TimedSubject(call, lambda: None)], [1], most=100_000, clock=host.clock)
    begin = host.now_ns
    stretch = run_continuously(lane, until_ns=begin + 40_000_000_000, duty=0.25, clock=host.clock, sleep=host.sleep)
    assert lane.busy_ns / (stretch.end_ns - stretch.start_ns) == pytest.approx(0.25, rel=0.02)


def test_the_throttled_share_is_of_the_looks_that_told(virtual: VirtualTime) -> None:
    told = iter([("power cap",), None, (), None, ("heat",)])
    watch = ClockWatch(lambda: GpuSnapshot(uuid="GPU-1", throttle=next(told)))
    for _ in range(5):
        watch.label_batch()
        virtual.now_s += 2 * READ_INTERVAL_S
    assert watch.summary(None, []).throttled_share == pytest.approx(2 / 3)


def test_the_worst_error_of_an_instrument_is_that_of_all_processes() -> None:
    found = [measured(10.0, instrument_error_us=error) for error in (0.2, 0.5, 0.3)]
    merged = merge_measurements(found, [summarize_measurement(n, each) for n, each in enumerate(found, 1)])
    assert merged.instrument_error_us == 0.5


def test_do_bench_gives_the_mean_unless_asked_otherwise(machine: VirtualMachine) -> None:
    calls = iter(range(10**9))

    def uneven() -> None:
        machine.passes(900_000 if next(calls) % 4 == 0 else 100_000)

    by_default, every = do_bench(uneven, rep=40), do_bench(uneven, rep=40, return_mode="all")
    assert by_default == pytest.approx(float(np.mean(every)), rel=0.1)
    assert by_default > 2 * float(np.median(every))


def test_the_time_of_a_winner_is_the_median_of_its_samples(machine: VirtualMachine) -> None:
    calls = iter(range(10**9))

    def uneven() -> None:
        machine.passes(100_000 + 10_000 * (next(calls) % 3))

    found = pick({"uneven": uneven, "slow": machine.call(1_000_000)}, budget_s=0.2)
    assert found.winner == "uneven"
    assert found.time_us == pytest.approx(110.0, rel=0.02)
