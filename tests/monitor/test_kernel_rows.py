"""From the profiler's trace to rows: whose call each is, when it ran on the host's clock, and what the sensors said."""

from __future__ import annotations

import csv
import io
import json
import random
from typing import TYPE_CHECKING

import pytest

from assay.monitor import perfetto
from assay.monitor.kernel_trace import rows as kernel_rows
from assay.monitor.kernel_trace.report import CALL_ROWS, KERNEL_ROWS, OPERATOR_ROWS, build_timeline, with_sensors
from assay.monitor.kernel_trace.rows import KernelRow, calls_as_rows, format_csv
from assay.monitor.perfetto import write_events
from assay.monitor.samples import GpuSample
from tests.monitor.kernel_events import BASE_US, copy, kernel, launch, mark, operator, row, span
from tests.monitor.pacing import S, header

if TYPE_CHECKING:
    from pathlib import Path

    from assay.monitor.samples import RecordingLine

AT_NS = 45_000 * S
"""When the first mark was set, by the host's clock."""

CALLS_MADE = (span(AT_NS), span(AT_NS + 60_000))
EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": BASE_US, "args": {"name": "python"}},
    mark(0, 0.0, 53.0),
    operator("aten::softmax", 5.0, 20.0),
    launch(11, 10.0),
    launch(12, 20.0, "cudaMemcpyAsync"),
    mark(1, 60.0, 53.0),
    launch(13, 70.0, "cuLaunchKernelEx"),
    kernel("void softmax<4, float>(float *, int)", 11, 100.0, 40.0),
    copy(12, 141.0, 9.0, 4096),
    kernel("void softmax<4, float>(float *, int)", 13, 152.0, 41.0),
    {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "x", "ts": BASE_US, "dur": 9.0},
]


def test_each_kernel_and_copy_is_a_row_of_the_call_that_launched_it() -> None:
    shuffled = random.Random(3).sample(EVENTS, len(EVENTS))
    found = build_timeline("softmax", CALLS_MADE, shuffled, on_gpu=True)
    assert found.rows_are == KERNEL_ROWS
    first, copied, second = found.kernels
    assert [k.call for k in found.kernels] == [0, 0, 1]
    assert [k.kind for k in found.kernels] == ["kernel", "copy", "kernel"]
    assert (first.grid, first.block, first.registers, first.shared_memory_bytes) == ((4096, 1, 1), (1024, 1, 1), 32, 16)
    assert (first.stream, first.occupancy_estimate_percent, first.duration_us) == (7, 100, 40.0)
    assert first.start_s == pytest.approx(100e-6)
    assert (copied.copied_bytes, copied.grid, first.copied_bytes) == (4096, None, None)
    assert second.index == 2


def test_rows_lie_on_the_hosts_clock_within_the_error_that_is_told() -> None:
    rough = (span(AT_NS, before_us=9.0, after_us=30.0), span(AT_NS + 60_000, before_us=30.0, after_us=1.0))
    clock = kernel_rows.fit_clock(EVENTS, rough)
    assert clock is not None
    assert clock.error_us == pytest.approx(5.0, abs=0.01)
    assert abs(clock.host_ns(BASE_US + 100.0) - (AT_NS + 100_000)) <= 5_000


def test_a_clock_that_drifts_is_told_with_its_whole_error() -> None:
    drifting = (span(AT_NS), span(AT_NS + 160_000))
    clock = kernel_rows.fit_clock(EVENTS, drifting)
    assert clock is not None
    assert clock.error_us > 50
    assert kernel_rows.fit_clock([], CALLS_MADE) is None


def test_on_a_cpu_the_outermost_operators_are_the_rows() -> None:
    events = [
        mark(0, 0.0, 100.0),
        operator("autograd::engine::evaluate_function: MmBackward0", 0.0, 90.0),
        operator("aten::linear", 1.0, 30.0),
        operator("aten::addmm", 2.0, 28.0),
        operator("aten::relu", 40.0, 5.0),
        operator("aten::mm", 2.0, 60.0, thread=100),
    ]
    found = build_timeline("f", CALLS_MADE[:1], events, on_gpu=False)
    assert found.rows_are == OPERATOR_ROWS
    assert [k.name for k in found.kernels] == ["aten::linear", "aten::mm", "aten::relu"]
    assert {k.call for k in found.kernels} == {0}


def test_where_the_profiler_saw_nothing_the_calls_are_the_rows() -> None:
    found = build_timeline("f", CALLS_MADE, [mark(0, 0.0, 5.0)], on_gpu=True)
    assert found.rows_are == CALL_ROWS
    assert found.notes == ("PyTorch's profiler saw nothing on the GPU in these calls",)
    assert build_timeline("f", CALLS_MADE, [], on_gpu=False).notes == ()
    assert [(k.call, k.start_s, k.duration_us) for k in found.kernels] == [(0, 0.0, 50.0), (1, 60e-6, 50.0)]


def looks(*at_s: float) -> list[GpuSample]:
    return [
        GpuSample(t_ns=round(s * S), tick=n, gpu=1, sm_mhz=1000 + n, power_instant_w=100.0 + n, throttle=())
        for n, s in enumerate(at_s)
    ]


def test_a_row_has_what_the_nearest_look_saw_and_how_far_away_that_was() -> None:
    rows = [row(0, start_ns=10 * S), row(1, start_ns=11 * S + 90_000_000, duration_us=2e4), row(2, start_ns=30 * S)]
    near, middle, far = with_sensors(rows, looks(9.9, 10.04, 11.11), gpu=1)
    assert (near.sm_mhz, near.power_instant_w, near.throttle) == (1001, 101.0, "none")
    assert near.sensor_offset_ms == pytest.approx(40.0, abs=0.01)
    assert (middle.sm_mhz, middle.sensor_offset_ms) == (1002, 10.0)
    assert far == rows[2]


def test_rows_without_a_clock_or_of_another_gpu_have_no_sensors() -> None:
    assert with_sensors([row(0)], looks(0.0), gpu=1) == [row(0)]
    assert with_sensors([row(0, start_ns=0)], looks(0.0), gpu=0) == [row(0, start_ns=0)]


def test_the_table_has_a_column_for_everything_and_nothing_for_null() -> None:
    text = format_csv([row(0, 'a,"b"<c>', grid=(4, 2, 1), start_us=0.25, throttle="none")], origin="fake")
    (found,) = csv.DictReader(io.StringIO(text))
    assert [*found] == [*KernelRow.model_fields, "origin"]
    assert (found["name"], found["grid"], found["start_s"]) == ('a,"b"<c>', "4x2x1", "0.00000025")
    assert (found["sm_mhz"], found["throttle"], found["origin"]) == ("", "none", "fake")


def test_the_trace_for_perfetto_holds_kernels_and_sensors_on_one_clock(tmp_path: Path) -> None:
    found = build_timeline("softmax", CALLS_MADE, EVENTS, on_gpu=True)
    look = GpuSample(t_ns=AT_NS + 120_000, tick=0, gpu=1, power_instant_w=512.5)
    kernels = with_sensors(found.kernels, [look], gpu=1)
    zero_ns = AT_NS - 1_000_000
    lines: list[RecordingLine] = [header(0.1, 2, t_ns=AT_NS - S), look]
    write_events(perfetto.kernel_trace_events(kernels, EVENTS, found.clock, lines, zero_ns), tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    first = next(e for e in events if e.get("cat") == "kernel")
    assert first["ts"] == pytest.approx(1100.0, abs=0.6)
    assert (first["args"]["power_instant_w"], first["args"]["registers per thread"]) == (512.5, 32)
    (power,) = [e for e in events if e["ph"] == "C"]
    assert (power["ts"], power["args"]["value"]) == (1120.0, 512.5)
    assert power["pid"] not in {e["pid"] for e in events if e.get("cat")}
    assert not any(e.get("cat") == "Trace" for e in events)


def test_calls_by_the_hosts_clock_are_slices_of_their_own() -> None:
    rows = calls_as_rows(CALLS_MADE, "f")
    events = list(perfetto.kernel_trace_events(rows, [], None, [header(0.1, 0, host_every=1)], AT_NS))
    assert [(e["ts"], e["dur"]) for e in events if e["ph"] == "X"] == [(3.0, 50.0), (63.0, 50.0)]


def test_without_a_common_clock_no_sensor_is_put_in_a_wrong_place() -> None:
    found = build_timeline("f", CALLS_MADE, [kernel("k", 1, 0.0, 1.0)], on_gpu=True)
    assert found.clock is None
    assert "could not be tied" in found.notes[0]
    assert found.kernels[0].start_ns is None
    events = list(
        perfetto.kernel_trace_events(found.kernels, [kernel("k", 1, 0.0, 1.0)], None, [header(0.1, 1), *looks(0.0)], 0)
    )
    assert [e["ph"] for e in events] == ["X"]
