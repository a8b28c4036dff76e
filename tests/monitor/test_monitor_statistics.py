"""Statistics of recordings whose truth is known."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput
from assay.monitor.samples import (
    BusyProcess,
    GpuLost,
    GpuMeterSample,
    GpuProcesses,
    GpuSample,
    Heartbeat,
    HostSample,
    Mark,
    RecordingEnd,
    TopProcesses,
)
from assay.monitor.statistics import summarise
from tests.monitor.pacing import WALL_NS, S, header

if TYPE_CHECKING:
    from assay.monitor.samples import RecordingLine
    from assay.monitor.statistics import CounterStatistics, SourceStatistics

LASTING = st.integers(1, 3 * S)
"""Longer gaps are not bridged."""
LEVELS = st.floats(-1e6, 1e6)


def gpu(tick: int, at_s: float, index: int = 0, **readings: object) -> GpuSample:
    return GpuSample.model_validate({"t_ns": round(at_s * S), "tick": tick, "gpu": index, **readings})


def meter(tick: int, at_s: float, energy_j: float, index: int = 0) -> GpuMeterSample:
    return GpuMeterSample(t_ns=round(at_s * S), tick=tick, gpu=index, energy_j=energy_j)


def only(lines: list[RecordingLine]) -> SourceStatistics:
    return summarise([header(gpus=1), *lines]).sources[0]


def counted(source: SourceStatistics, quantity: str) -> CounterStatistics:
    return next(one for one in source.counted if one.quantity == quantity)


def test_levels_have_their_mean_their_time_mean_and_their_extremes() -> None:
    source = only([gpu(0, 0.0, sm_mhz=1000), gpu(1, 0.1, sm_mhz=2000), gpu(20, 2.1, sm_mhz=2000)])
    level = source.level("sm_mhz")
    assert level is not None
    assert (level.n, level.minimum, level.maximum) == (3, 1000, 2000)
    assert level.mean == pytest.approx(5000 / 3)
    assert level.time_mean == pytest.approx((1500 * 0.1 + 2000 * 2.0) / 2.1)
    assert level.unit == "MHz"


@given(st.lists(st.tuples(LASTING, LEVELS), min_size=2, max_size=50))
def test_the_time_mean_is_the_area_under_straight_lines_over_the_time(steps: list[tuple[int, float]]) -> None:
    t_ns, area = 0, 0.0
    lines: list[RecordingLine] = []
    for tick, (lasting, value) in enumerate(steps):
        t_ns += lasting
        if lines:
            area += lasting / S * (value + steps[tick - 1][1]) / 2
        lines.append(GpuSample(t_ns=t_ns, tick=tick, gpu=0, memory_used_mib=value))
    level = only([*lines]).level("memory_used_mib")
    assert level is not None
    assert level.time_mean == pytest.approx(area / ((t_ns - steps[0][0]) / S), rel=1e-6, abs=1e-6)
    assert level.minimum <= level.mean <= level.maximum or math.isclose(level.minimum, level.maximum)


def test_no_mean_over_time_leads_across_a_long_gap() -> None:
    """By hand: 100 W for a second, then nothing known, then 300 W for a second: 200 W, whatever lies between."""
    watts = [(0.0, 100.0), (1.0, 100.0), (8.0, 300.0), (9.0, 300.0)]
    missed = only([gpu(round(10 * t), t, power_instant_w=w) for t, w in watts]).level("power_instant_w")
    silent = [*watts[:2], *((2.0 + t, None) for t in range(6)), *watts[2:]]
    absent = only([gpu(round(10 * t), t, power_instant_w=w, sm_mhz=1) for t, w in silent]).level("power_instant_w")
    for level in (missed, absent):
        assert level is not None
        assert level.n == 4
        assert level.time_mean == pytest.approx(200.0)


def test_a_reason_is_not_held_against_a_clock_over_a_long_gap() -> None:
    reasons = [(0.0, ("power cap",)), (1.0, ("idle",)), (9.0, ("idle",)), (10.0, ())]
    source = only([gpu(round(10 * t), t, throttle=why) for t, why in reasons])
    assert source.throttle_share == {"power cap": 0.5, "idle": 0.5}


@given(st.lists(st.one_of(st.none(), st.floats(0.0, 700.0)), min_size=1, max_size=40))
@settings(deadline=None)
def test_statistics_are_of_the_samples_that_have_the_value(watts: list[float | None]) -> None:
    source = only([gpu(tick, tick / 10, power_instant_w=w, sm_mhz=1500) for tick, w in enumerate(watts)])
    told = [w for w in watts if w is not None]
    level = source.level("power_instant_w")
    assert source.n == len(watts)
    assert (level is None) == (not told)
    if level is not None:
        assert level.n == len(told)
        assert level.mean == pytest.approx(sum(told) / len(told))
        assert (level.minimum, level.maximum) == (min(told), max(told))
        assert level.time_mean is None or min(told) - 1e-6 <= level.time_mean <= max(told) + 1e-6


def test_an_energy_counter_must_have_ticked_four_times() -> None:
    few = counted(only([meter(tick, tick / 10, 5.0 * tick) for tick in range(4)]), "energy_j")
    assert (few.difference, few.per_s) == (None, None)
    assert few.note == "0.3 s are too short for the energy counter: it must tick 4 times at least"
    enough = counted(only([meter(tick, tick / 10, 5.0 * tick) for tick in range(5)]), "energy_j")
    assert (enough.difference, enough.note) == (20.0, None)
    seldom = counted(only([meter(tick, float(tick), 50.0 * tick) for tick in range(3)]), "energy_j")
    assert seldom.difference == 100.0, "read once a second, a counter ticks ten times between two readings"


def test_energies_of_gpus_are_not_added_where_they_are_not_of_the_same_time() -> None:
    both: list[RecordingLine] = [meter(t, float(t), 10.0 * t, index) for t in range(11) for index in range(2)]
    assert summarise([header(gpus=2), *both]).together.energy_j == 200.0
    short = [line for line in both if not (isinstance(line, GpuMeterSample) and line.gpu == 1 and line.t_ns > 5 * S)]
    assert summarise([header(gpus=2), *short]).together.energy_j is None
    lost = summarise([header(gpus=2), *short, GpuLost(t_ns=5 * S, gpu=1, reason="GPU is lost")])
    assert (lost.partial, lost.together.energy_j) == (True, None)
    assert not summarise([header(gpus=2), *both]).partial


def test_one_sample_has_no_time_mean_and_no_difference() -> None:
    source = only([gpu(0, 0.0, sm_mhz=1000), meter(0, 0.0, 5.0)])
    level = source.level("sm_mhz")
    assert level is not None
    assert level.time_mean is None
    assert source.difference("energy_j") is None


def test_what_was_never_measured_has_no_statistics() -> None:
    source = only([gpu(0, 0.0, sm_mhz=1000), gpu(1, 0.1, sm_mhz=1000)])
    assert source.level("power_instant_w") is None
    assert source.difference("energy_j") is None


def test_a_sample_without_a_reading_leaves_it_out_of_the_mean() -> None:
    level = only([gpu(0, 0.0, sm_mhz=100), gpu(1, 0.1, temperature_c=50), gpu(2, 0.2, sm_mhz=300)]).level("sm_mhz")
    assert level is not None
    assert (level.n, level.mean) == (2, 200.0)
    assert level.time_mean == pytest.approx(200.0)


def test_joules_are_the_difference_of_the_counter_over_the_time_between_its_readings() -> None:
    source = only([meter(tick, tick / 10, 1e6 + 50.0 * tick) for tick in range(11)])
    energy = counted(source, "energy_j")
    assert (energy.difference, energy.over_s) == (500.0, 1.0)
    assert energy.per_s == pytest.approx(500.0)


@pytest.mark.parametrize("readings", [(100.0, 200.0, 0.0, 50.0), (100.0, 200.0, 199.0, 250.0)])
def test_a_counter_that_resets_or_goes_back_gives_no_joules_but_says_so(readings: tuple[float, ...]) -> None:
    lines: list[RecordingLine] = [meter(tick, tick / 10, value) for tick, value in enumerate(readings)]
    found = summarise([header(gpus=1), *lines])
    energy = counted(found.sources[0], "energy_j")
    assert (energy.difference, energy.per_s) == (None, None)
    assert energy.note is not None
    assert "went back by" in energy.note
    assert found.together.energy_j is None


def test_missed_samples_are_those_between_the_first_and_the_last_tick() -> None:
    assert only([gpu(tick, tick / 10, sm_mhz=1) for tick in (5, 6, 9, 10)]).missed == 2


def test_dear_counters_beside_the_ticks_are_not_taken_for_ticks() -> None:
    lines: list[RecordingLine] = [
        gpu(0, 0.0, sm_mhz=1),
        meter(0, 0.05, 1.0),
        gpu(1, 0.1, sm_mhz=1),
        meter(7, 0.15, 2.0),
    ]
    source = only(lines)
    assert (source.n, source.missed) == (2, 0)


def test_the_hosts_samples_are_expected_every_so_many_ticks() -> None:
    lines: list[RecordingLine] = [HostSample(t_ns=tick, tick=tick, load_1m=1.0) for tick in (0, 10, 20, 40)]
    found = summarise([header(host_every=10), *lines])
    host = found.of("host")
    assert host is not None
    assert (host.n, host.missed) == (4, 1)


def test_each_cpu_and_each_node_has_statistics_of_its_own() -> None:
    lines: list[RecordingLine] = [
        HostSample(t_ns=S * tick, tick=tick, core_percent={0: 10.0 * tick, 3: 50.0}, numa_miss={1: 7 * tick})
        for tick in range(3)
    ]
    host = summarise([header(host_every=1), *lines]).sources[0]
    busy = host.level("core_percent[0]")
    assert busy is not None
    assert busy.mean == 10.0
    assert host.difference("numa_miss[1]") == 14


def test_a_reason_counts_from_the_sample_that_gave_it_to_the_next() -> None:
    reasons = [("idle",), ("power cap",), ("power cap", "too hot (software)"), (), ()]
    source = only([gpu(tick, float(tick), throttle=why) for tick, why in enumerate(reasons)])
    assert source.throttle_share == {"idle": 0.25, "power cap": 0.5, "too hot (software)": 0.25}


def test_the_peak_of_the_sum_is_of_one_tick_and_not_the_sum_of_the_peaks() -> None:
    powers = [(700.0, 100.0), (100.0, 700.0), (450.0, 450.0)]
    lines: list[RecordingLine] = [
        gpu(tick, tick / 10, index, power_instant_w=watts, power_average_w=1.0)
        for tick, both in enumerate(powers)
        for index, watts in enumerate(both)
    ]
    lines += [meter(tick, tick / 10, 10.0 * tick, index) for tick in range(5) for index in range(2)]
    together = summarise([header(gpus=2), *lines]).together
    assert (together.peak_power_w, together.peak_power_of) == (900.0, "power_instant_w")
    assert together.energy_j == 80.0


def test_a_tick_at_which_one_gpu_says_nothing_has_no_sum() -> None:
    lines: list[RecordingLine] = [
        gpu(0, 0.0, 0, power_instant_w=100.0),
        gpu(0, 0.0, 1, power_instant_w=100.0),
        gpu(1, 0.1, 0, power_instant_w=900.0),
        gpu(1, 0.1, 1, temperature_c=40),
    ]
    assert summarise([header(gpus=2), *lines]).together.peak_power_w == 200.0


def test_cards_that_name_their_power_differently_are_summed_and_the_names_said() -> None:
    lines: list[RecordingLine] = [gpu(0, 0.0, 0, power_instant_w=300.0), gpu(0, 0.0, 1, power_usage_w=50.0)]
    together = summarise([header(gpus=2), *lines]).together
    assert (together.peak_power_w, together.peak_power_of) == (350.0, "power_instant_w, power_usage_w")


def test_a_wall_clock_that_jumps_is_told_and_touches_no_time() -> None:
    lines: list[RecordingLine] = [
        meter(0, 0.0, 0.0),
        Heartbeat(t_ns=S, wall_ns=WALL_NS + S, missed=0),
        meter(10, 1.0, 100.0),
        Heartbeat(t_ns=2 * S, wall_ns=WALL_NS + 2 * S + 3600 * S, missed=0),
        meter(20, 2.0, 200.0),
        Heartbeat(t_ns=3 * S, wall_ns=WALL_NS + 3 * S + 3600 * S + 10_000_000, missed=0),
    ]
    found = summarise([header(gpus=1), *lines])
    (note,) = found.notes
    assert "set by +3600.0 s, 2.0 s after the start" in note
    assert counted(found.sources[0], "energy_j").over_s == 2.0
    assert found.lasted_s == 3.0


def test_a_recording_tells_marks_processes_and_how_it_ended() -> None:
    lines: list[RecordingLine] = [
        Mark(t_ns=S, name="begun", start_ns=S),
        Mark(t_ns=3 * S, name="step", start_ns=2 * S, end_ns=3 * S),
        GpuProcesses(t_ns=S, gpu=0, count=3, memory_mib=1.0),
        GpuProcesses(t_ns=2 * S, gpu=0, count=1, memory_mib=1.0),
        GpuLost(t_ns=4 * S, gpu=0, reason="GPU is lost"),
    ]
    cut = summarise([header(gpus=1), *lines])
    assert [(mark.name, mark.start_s, mark.end_s) for mark in cut.marks] == [("begun", 1.0, None), ("step", 2.0, 3.0)]
    assert (cut.sources[0].most_processes, cut.sources[0].ended) == (3, "GPU is lost")
    assert not cut.finished
    end = RecordingEnd(t_ns=5 * S, wall_ns=WALL_NS + 5 * S, ticks=1, missed=0, reason="enough")
    assert summarise([header(gpus=1), *lines, end]).finished


def test_the_busiest_processes_are_means_over_all_looks() -> None:
    def look(*busy: tuple[int, float]) -> TopProcesses:
        told = tuple(BusyProcess(pid=pid, name=f"p{pid}", cores=cores, cpus=(0,)) for pid, cores in busy)
        return TopProcesses(t_ns=0, processes=told)

    found = summarise([header(host_every=1), look((1, 1.0), (2, 0.5)), look((2, 1.5))])
    assert [(p.pid, p.cores) for p in found.busiest] == [(2, 1.0), (1, 0.5)]


def test_a_window_lasts_as_long_as_it_did_whatever_was_sampled_in_it() -> None:
    found = summarise([header(gpus=1)], window=(S, 3 * S))
    assert (found.started_at_ns, found.lasted_s) == (S, 2.0)
    assert (found.sources[0].n, found.sources[0].missed, found.sources[0].levels) == (0, 0, ())
    assert found.wall_ns == WALL_NS + S


def test_without_a_header_nothing_is_said() -> None:
    with pytest.raises(BadInput, match="no header"):
        summarise([])
