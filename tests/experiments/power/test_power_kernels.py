"""The trace: sensors laid over kernels, a row for each kernel of every card, written without holding it all."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from assay.core.results import Window
from assay.experiments.power.characterize.export import (
    SENSORS,
    collect_readings,
    overlay_sensors,
    overlay_throttling,
    trace_kernels,
    trace_to_csv,
    trace_to_json_lines,
)
from assay.experiments.power.characterize.plan import build_block, cases_by_trial
from assay.monitor.samples import GpuSample, RecordingHeader
from assay.store.run_folder import RunFolder, RunPlan
from tests.experiments.power.characterized import BESIDE, FOUR, S, options, record_of, series_of
from tests.experiments.remembered import Remembered

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.results import Record
    from assay.monitor.samples import RecordingLine
    from assay.store.records import Records

MS = 1_000_000


def look(at_ms: float, gpu: int = 0, **seen: Any) -> GpuSample:
    return GpuSample(t_ns=round(at_ms * MS), tick=round(at_ms), gpu=gpu, **seen)


def header(interval_s: float = 0.05) -> RecordingHeader:
    return RecordingHeader(t_ns=0, wall_ns=0, interval_s=interval_s)


def moments(*at_ms: float) -> Any:
    return np.array([round(each * MS) for each in at_ms], dtype=np.int64)


def test_a_kernel_gets_the_mean_of_the_looks_within_it_else_the_nearest_else_nothing() -> None:
    looks = collect_readings(
        [header(), *(look(at, sm_mhz=mhz, gpu=gpu) for at, mhz, gpu in [(10, 1000, 0), (50, 1200, 0), (50, 9, 1)])], 0
    )
    clocks = overlay_sensors(looks, moments(0, 20, 49, 310), moments(60, 30, 51, 400))["sm_mhz"]
    np.testing.assert_array_equal(clocks[:3], [1100.0, 1000.0, 1200.0])
    assert np.isnan(clocks[3])
    rare = collect_readings([header(interval_s=1.0), look(10, sm_mhz=1000)], 0)
    assert overlay_sensors(rare, moments(310), moments(400))["sm_mhz"] == [1000.0]


def test_what_a_card_does_not_offer_is_nothing_and_each_quantity_stands_for_itself() -> None:
    looks = collect_readings([header(), look(10, power_instant_w=500.0), look(30, temperature_c=60)], 0)
    found = overlay_sensors(looks, moments(0), moments(40))
    assert found["power_instant_w"] == [500.0]
    assert found["temperature_c"] == [60.0]
    assert np.isnan(found["power_average_w"])
    assert overlay_throttling(looks, moments(0), moments(40)) == [None]
    assert set(found) == set(SENSORS)


def test_a_kernel_is_held_back_by_whatever_any_look_within_it_names() -> None:
    looks = collect_readings(
        [header(), look(10, throttle=()), look(20, throttle=("power cap",)), look(30, throttle=("power cap", "idle"))],
        0,
    )
    said = overlay_throttling(looks, moments(0, 15, 15, 900), moments(12, 25, 35, 990))
    assert said == ["none", "power cap", "power cap; idle", None]


def two_cards(folder: Path, *, watched: bool = True) -> Records:
    """Return one record: 4 kernels of 25 ms on the timed card, 10 calls of 10 ms on each of two loads."""
    asked = options(BESIDE)
    trial = (build_block(FOUR, asked, 1) or pytest.fail("nothing is asked")).trials[0]
    kept: dict[str, Any] = {}
    series = [*series_of(kept, trial.id, trial.roles[0].name, np.full(4, 25_000.0), 5 * S)]
    for load in trial.roles[1:]:
        series += series_of(kept, trial.id, load.name, np.full(10, 10_000.0), 5 * S)
    record = record_of(trial, 4 * S, tuple(series), {})
    path = folder / "monitor/a.jsonl"
    if watched:
        path.parent.mkdir()
        lines: list[RecordingLine] = [header().model_copy(update={"t_ns": 4 * S})]
        for tick in range(100):
            for gpu in range(4):
                at = {"t_ns": 4 * S + tick * 20 * MS, "tick": tick, "gpu": gpu}
                seen = {"power_instant_w": 100.0 * gpu + tick, "power_average_w": 1.0 * gpu, "sm_mhz": 1500}
                lines.append(GpuSample(**at, **seen, throttle=("power cap",)))
        path.write_text("".join(f"{line.model_dump_json(exclude_none=True)}\n" for line in lines))
    return _With([record.model_copy(update={"sensors": "monitor/a.jsonl"})], kept, folder)


class _With(Remembered):
    """Remembered samples beside a recording in a folder."""

    def __init__(self, records: list[Record], kept: dict[str, Any], folder: Path) -> None:
        super().__init__(records, kept)
        self._folder = folder


def test_every_kernel_of_every_card_has_a_row_loads_too(tmp_path: Path) -> None:
    asked, records = options(BESIDE), two_cards(tmp_path)
    rows = list(csv.DictReader(io.StringIO("".join(trace_to_csv(trace_kernels(FOUR, asked, records))))))
    where = cases_by_trial(FOUR, asked, 4)[records[0].trial]
    assert [row["role"] for row in rows] == ["base"] * 4 + ["noise"] * 20
    assert {row["device"] for row in rows[4:]} == {each.device for each in where.noise}
    first = rows[1]
    gpu = int(where.base[0].removeprefix("cuda:"))
    assert (first["case"], first["repeat"], first["uuid"], first["workload"]) == (
        "beside", "1", f"GPU-{gpu}", "sgemm@torch"
    )  # fmt: skip
    assert (first["kernel"], first["start_ns"], first["start_s"]) == ("1", str(5 * S + 25 * MS), "1.025")
    assert (first["duration_us"], first["throttle"], first["sm_mhz"]) == ("25000.0", "power cap", "1500.0")
    inside = [tick for tick in range(100) if 1025 <= tick * 20 <= 1050]
    assert float(first["power_instant_w"]) == pytest.approx(100 * gpu + np.mean(inside))
    assert float(first["power_average_w"]) == gpu
    assert first["temperature_c"] == ""


def test_the_same_trace_is_in_json_a_line_a_worker_with_lists_as_columns(tmp_path: Path) -> None:
    asked, records = options(BESIDE), two_cards(tmp_path)
    lines = [json.loads(line) for line in trace_to_json_lines(trace_kernels(FOUR, asked, records))]
    assert [len(line["kernel"]) for line in lines] == [4, 10, 10]
    assert lines[0]["temperature_c"] == [None] * 4
    rows = list(csv.DictReader(io.StringIO("".join(trace_to_csv(trace_kernels(FOUR, asked, records))))))
    flat = [(line["device"], start) for line in lines for start in line["start_ns"]]
    assert flat == [(row["device"], int(row["start_ns"])) for row in rows]


def test_without_a_monitor_kernels_have_times_and_no_sensors(tmp_path: Path) -> None:
    records = two_cards(tmp_path, watched=False)
    rows = list(csv.DictReader(io.StringIO("".join(trace_to_csv(trace_kernels(FOUR, options(BESIDE), records))))))
    assert len(rows) == 24
    assert {row[name] for row in rows for name in (*SENSORS, "throttle")} == {""}


def test_a_run_that_went_on_after_a_reboot_counts_seconds_by_the_wall_clock(tmp_path: Path) -> None:
    records = two_cards(tmp_path, watched=False)
    again = Window(host="h", boot_id="other", start_ns=S, end_ns=9 * S, started_at="2026-01-01T00:00:30+00:00")
    before = records[0].window.model_copy(update={"started_at": "2026-01-01T00:00:00+00:00"})
    later = records[0].model_copy(update={"window": again})
    both = _With([records[0].model_copy(update={"window": before}), later], records._kept, tmp_path)  # type: ignore[attr-defined]
    starts = [kernels.columns["start_s"][0] for kernels in trace_kernels(FOUR, options(BESIDE), both)]
    assert starts == [1.0, 1.0, 1.0, 34.0, 34.0, 34.0]


def test_a_trace_of_many_kernels_is_made_and_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.experiments.power.characterize.export.CHUNK_KERNELS", 100)
    asked = options(BESIDE)
    trial = (build_block(FOUR, asked, 1) or pytest.fail("nothing is asked")).trials[0]
    kept: dict[str, Any] = {}
    series = series_of(kept, trial.id, trial.roles[0].name, np.full(1050, 100.0), 5 * S)
    records = Remembered([record_of(trial, 4 * S, tuple(series), {})], kept)
    parts = [part.count("\n") for part in trace_to_csv(trace_kernels(FOUR, asked, records))]
    assert parts == [1, *[100] * 10, 50]
    plan = RunPlan(experiment="power", options={}, seed=0, versions={}, cwd="/", created_at="now")
    folder = RunFolder.create(tmp_path / "runs", plan, FOUR)
    folder.keep_files({"power/kernels.csv": trace_to_csv(trace_kernels(FOUR, asked, records))})
    written = (folder.path / "power/kernels.csv").read_text().splitlines()
    assert [int(row["kernel"]) for row in csv.DictReader(written)] == list(range(1050))
