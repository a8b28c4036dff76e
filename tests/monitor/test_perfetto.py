"""The trace for the Perfetto UI: Chrome's JSON format, counters for levels, slices for spans."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import BadInput
from assay.monitor.perfetto import check_writable, write_trace
from assay.monitor.samples import GpuSample, HostSample, Mark
from tests.monitor.pacing import S, header

if TYPE_CHECKING:
    from pathlib import Path

    from assay.monitor.samples import RecordingLine


def trace(path: Path, *lines: RecordingLine) -> list[dict[str, Any]]:
    head = header(0.1, 2, host_every=1, t_ns=5 * S)
    write_trace([head, *lines], path / "t.json")
    content = json.loads((path / "t.json").read_text())
    events: list[dict[str, Any]] = content["traceEvents"]
    for event in events:
        assert {"ph", "pid", "name"} <= event.keys()
        assert event["ph"] == "M" or event["ts"] >= 0
    return events


def test_gpus_and_the_host_are_named(tmp_path: Path) -> None:
    names = {e["pid"]: e["args"]["name"] for e in trace(tmp_path) if e["ph"] == "M"}
    assert list(names.values()) == ["marks", "host", "GPU 0 Example", "GPU 1 Example"]


def test_levels_are_counters_at_their_time_since_the_beginning(tmp_path: Path) -> None:
    sample = GpuSample(t_ns=6 * S, tick=10, gpu=1, power_instant_w=512.5)
    (event,) = [e for e in trace(tmp_path, sample) if e["ph"] == "C"]
    assert (event["ts"], event["args"], event["name"]) == (1e6, {"value": 512.5}, "power, instant (W)")


def test_what_counts_up_is_a_rate_and_has_none_where_it_went_back(tmp_path: Path) -> None:
    readings = [100, 300, 50, 250]
    samples = [HostSample(t_ns=(5 + n) * S, tick=n, context_switches=value) for n, value in enumerate(readings)]
    rates = [(e["ts"], e["args"]["value"]) for e in trace(tmp_path, *samples) if e["ph"] == "C"]
    assert rates == [(1e6, 200.0), (3e6, 200.0)]


def test_marks_are_instants_and_spans_are_slices(tmp_path: Path) -> None:
    moment = Mark(t_ns=6 * S, name="loaded", start_ns=6 * S)
    span = Mark(t_ns=9 * S, name="trial 1", start_ns=6 * S, end_ns=8 * S)
    instant, piece = (e for e in trace(tmp_path, moment, span) if e["ph"] in "iX")
    assert (instant["ph"], instant["ts"]) == ("i", 1e6)
    assert (piece["ph"], piece["ts"], piece["dur"]) == ("X", 1e6, 2e6)


def test_spans_that_overlap_stand_in_rows_of_their_own(tmp_path: Path) -> None:
    spans = [(6, 8), (7, 9), (8, 10)]
    marks = [Mark(t_ns=e * S, name=f"{b}-{e}", start_ns=b * S, end_ns=e * S) for b, e in spans]
    rows = {e["name"]: e["tid"] for e in trace(tmp_path, *marks) if e["ph"] == "X"}
    assert rows == {"6-8": 1, "7-9": 2, "8-10": 1}


def test_a_place_that_cannot_be_written_is_found_before_anything_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        check_writable(tmp_path / "gone/t.json")
    (tmp_path / "t.json").write_text("mine")
    check_writable(tmp_path / "t.json")
    assert (tmp_path / "t.json").read_text() == "mine"
