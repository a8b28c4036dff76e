"""The page of a recording: what is told, what is drawn, and that every report can draw it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.core.page import LinePlot, Table, Text, Timeline
from assay.monitor.report import recording_page
from assay.monitor.samples import GpuLost, GpuMeterSample, GpuSample, HostSample, Mark, RecordingEnd
from assay.reports.documents import write_report
from tests.monitor.pacing import WALL_NS, S, header

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.page import Page
    from assay.monitor.samples import RecordingLine


def story(*, end: bool = True) -> list[RecordingLine]:
    """Return ten seconds of two GPUs and a host: one GPU is held back for a while, the other is lost."""
    lines: list[RecordingLine] = [header(0.1, 2, host_every=1)]
    for tick in range(100):
        t_ns = tick * S // 10
        held = ("power cap",) if 30 <= tick < 60 else ("idle",)
        lines.append(
            GpuSample(
                t_ns=t_ns,
                tick=tick,
                gpu=0,
                power_instant_w=100.0 + tick,
                power_average_w=100.0,
                utilisation_percent=tick,
                memory_used_mib=512.0,
                memory_total_mib=1024.0,
                sm_mhz=1500 + tick,
                throttle=held,
                pcie_tx_bytes=tick * 10**8,
            )
        )
        if tick < 50:
            lines.append(GpuSample(t_ns=t_ns, tick=tick, gpu=1, power_usage_w=50.0))
        lines.append(HostSample(t_ns=t_ns, tick=tick, cpu_percent=50.0, core_percent={0: 1.0, 1: 99.0}))
    lines.append(GpuLost(t_ns=5 * S, gpu=1, reason="GPU is lost"))
    lines.append(Mark(t_ns=6 * S, name="epoch 1", start_ns=2 * S, end_ns=6 * S))
    if end:
        lines.append(RecordingEnd(t_ns=10 * S, wall_ns=WALL_NS + 10 * S, ticks=100, missed=0, reason="enough"))
    return lines


def page(*, end: bool = True) -> Page:
    return recording_page(story(end=end), name="a.jsonl")[1]


def figure(name: str) -> LinePlot | Timeline:
    found = next(one for one in page().figures if one.name == name)
    assert isinstance(found, LinePlot | Timeline)
    return found


def test_the_lead_says_who_was_watched_how_long_and_what_it_cost() -> None:
    assert page().lead == (
        "Watched 2 GPUs and the host for 10 s; at most 199 W at one moment. Partial: GPU 1 was lost."
    )
    assert "cut off" in page(end=False).lead


def test_each_gpu_and_the_host_has_a_figure() -> None:
    assert [one.name for one in page().figures] == ["gpu0_power", "gpu0_use", "gpu0_sm_clock", "gpu1_power", "host_use"]


def test_power_is_drawn_above_what_held_the_clock_back_and_what_was_marked() -> None:
    power = figure("gpu0_power")
    assert isinstance(power, Timeline)
    assert [line.label for line in power.lines] == ["instant", "average of a second"]
    bars = {(bar.lane, bar.label): (bar.start_s, bar.end_s) for bar in power.bars}
    assert bars["throttled", "power cap"] == (3.0, 6.0)
    assert bars["marks", "epoch 1"] == (2.0, 6.0)
    assert ("throttled", "idle") not in bars


def test_the_bar_of_a_lost_gpu_ends_where_it_was_last_seen_and_says_why() -> None:
    lost = figure("gpu1_power")
    assert isinstance(lost, Timeline)
    assert (lost.bars[0].end_s, lost.bars[0].label, lost.bars[0].tone) == (4.9, "GPU is lost", "bad")


def test_what_is_worth_knowing_stands_first() -> None:
    first = page().sections[0]
    assert first.title == "Worth knowing"
    assert [e.text for e in first.elements if isinstance(e, Text)] == [
        "GPU 1, Example: lost before the end, GPU is lost. Its figures are of 50 samples until then."
    ]


def test_how_many_samples_had_a_value_is_told() -> None:
    lines: list[RecordingLine] = [header(0.1, 1)]
    lines += [
        GpuSample(t_ns=tick * S // 10, tick=tick, gpu=0, power_average_w=100.0 if tick < 17 else None, sm_mhz=1500)
        for tick in range(61)
    ]
    found, shown = recording_page(lines, name="a.jsonl")
    level = found.sources[0].level("power_average_w")
    assert level is not None
    assert (level.n, found.sources[0].n) == (17, 61)
    assert level.silent_s == pytest.approx(4.4)
    texts = [e.text for s in shown.sections for e in s.elements if isinstance(e, Text)]
    assert "GPU 0, Example: 17 of 61 samples had power, average of a second." in texts
    (table,) = [e for s in shown.sections for e in s.elements if isinstance(e, Table) and "Levels" in e.title]
    assert {row[0]: row[2] for row in table.rows} == {"power, average of a second": 17, "SM clock": 61}


def test_a_counter_or_a_sensor_of_the_host_that_vanishes_is_told() -> None:
    lines: list[RecordingLine] = [header(0.1, 1, host_every=10)]
    for tick in range(200):
        t_ns = tick * S // 10
        lines.append(GpuSample(t_ns=t_ns, tick=tick, gpu=0, sm_mhz=1500))
        if tick % 10 == 0:
            lines.append(GpuMeterSample(t_ns=t_ns, tick=tick, gpu=0, energy_j=tick if tick < 60 else None, took_us=1.0))
            energy = {"package-0": float(tick)} if tick < 100 else {}
            lines.append(HostSample(t_ns=t_ns, tick=tick, cpu_percent=5.0, package_energy_j=energy))
    found, shown = recording_page(lines, name="a.jsonl")
    texts = [e.text for s in shown.sections for e in s.elements if isinstance(e, Text)]
    assert "GPU 0, Example: energy, counter difference: last read 14.9 s before the last sample." in texts
    assert "Host: processor package-0: energy, counter difference: last read 10.0 s before the last sample." in texts
    assert not any("SM clock" in text for text in texts)
    assert found.sources[0].difference("energy_j") == 50.0


def test_bytes_are_told_in_megabytes_and_null_stays_null() -> None:
    tables = [e for s in page().sections for e in s.elements if isinstance(e, Table)]
    rows = {row[0]: row for table in tables for row in table.rows}
    assert rows["PCIe sent"][1] == "MB"
    assert rows["PCIe sent"][2] == 9900.0
    _, clock, busy, memory, mean_w, most_w, *rest = rows["1, Example"]
    assert (busy, memory, most_w, clock, rest) == (None, None, 50.0, None, [None, None])
    assert mean_w == pytest.approx(50.0)


@pytest.mark.full
def test_every_report_draws_the_page(tmp_path: Path) -> None:
    written = write_report(page(), tmp_path)
    assert {path.name for path in written} >= {"report.md", "report.html", "gpu0_power.png", "host_use.png"}
    assert "fake" in (tmp_path / "report.md").read_text()


def test_a_recording_without_a_single_sample_has_a_page_too(tmp_path: Path) -> None:
    _, empty = recording_page([header(gpus=1)], name="a.jsonl")
    assert empty.figures == ()
    assert write_report(empty, tmp_path)
