"""The file of a recording: three forms, read back whole, in part, or as far as a kill let it come."""

from __future__ import annotations

import csv
import json
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput, MachineCannot
from assay.machine.model import GpuProcess
from assay.monitor.options import format_of
from assay.monitor.recording_file import RecordingFile, formatter_for, read_header, read_recording, read_window
from assay.monitor.samples import (
    BusyProcess,
    GpuLost,
    GpuMeterSample,
    GpuPcie,
    GpuProcesses,
    GpuSample,
    Heartbeat,
    HostSample,
    Mark,
    RecordingEnd,
    TopProcesses,
)
from tests.monitor import pacing
from tests.monitor.pacing import WALL_NS, S

if TYPE_CHECKING:
    from pathlib import Path

    from assay.monitor.samples import RecordingLine

FORMS = ("jsonl", "json", "csv")
HEAD = pacing.header(0.1, 2, host_every=1)
HOST = HostSample(t_ns=1, tick=0, cpu_percent=12.5, core_percent={0: 25.0, 1: 0.0}, numa_hit={0: 7}, load_1m=0.5)
TICKS: list[list[RecordingLine]] = [
    [
        GpuSample(t_ns=0, tick=0, gpu=0, power_instant_w=100.5, throttle=("power cap", "idle")),
        GpuSample(t_ns=0, tick=0, gpu=1, utilisation_percent=0, throttle=(), memory_used_mib=0.0),
        HOST,
    ],
    [Mark(t_ns=5, name='a, "quoted" name', start_ns=3), Mark(t_ns=6, name="step", start_ns=1, end_ns=6)],
    [
        GpuSample(t_ns=S // 10, tick=1, gpu=0, power_instant_w=99.0),
        GpuMeterSample(t_ns=S // 20, tick=0, gpu=0, energy_j=1.25, took_us=2900.5),
        GpuProcesses(t_ns=S // 10, gpu=0, count=1, memory_mib=512.0),
        GpuPcie(t_ns=S // 10, gpu=1, tx_mb_per_s=1.5),
        GpuLost(t_ns=S // 10, gpu=1, reason="GPU is lost"),
    ],
]
END = RecordingEnd(t_ns=S, wall_ns=S + WALL_NS, reason="enough")


def write(path: Path, *, end: bool = True) -> list[RecordingLine]:
    """Write a small recording; return its lines."""
    sink = RecordingFile(path, formatter_for(path, HOST))
    last: list[RecordingLine] = [END] if end else []
    written: list[list[RecordingLine]] = [[HEAD], *TICKS, last]
    for lines in written:
        sink.write(lines)
    sink.close()
    return [line for lines in written for line in lines]


@pytest.mark.parametrize("form", FORMS)
def test_what_was_written_is_read_back(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{form}"
    written = write(path)
    found = list(read_recording(path))
    if form == "csv":
        nameless = [gpu.model_copy(update={"name": None}) for gpu in HEAD.gpus]
        written[0] = HEAD.model_copy(update={"gpus": tuple(nameless)})
    assert found == written


def test_a_finished_json_file_is_one_array_for_anybody(tmp_path: Path) -> None:
    write(tmp_path / "a.json")
    content = json.loads((tmp_path / "a.json").read_text())
    assert [line["kind"] for line in content][:2] == ["header", "gpu"]
    assert content[-1]["kind"] == "end"


def test_a_table_has_the_same_columns_in_every_row(tmp_path: Path) -> None:
    write(tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert {len(row) for row in rows} == {len(rows[0])}
    first = dict(zip(rows[0], rows[1], strict=True))
    assert first["gpu0_power_instant_w"] == "100.5"
    assert first["gpu0_throttle"] == "power cap; idle"
    assert first["gpu1_throttle"] == "none"
    assert first["gpu0_temperature_c"] == ""
    assert first["gpu1_memory_used_mib"] == "0.0"
    assert first["host_core_percent[0]"] == "25.0"
    assert first["wall_time"] == "2027-01-15T08:00:00.000+00:00"


def test_what_was_not_measured_is_left_out_of_a_line_and_never_zero(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl")
    lines = [json.loads(text) for text in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert "temperature_c" not in lines[1]
    assert lines[2]["utilisation_percent"] == 0


@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_lines_without_a_place_in_a_table_are_kept_in_the_other_forms(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{form}"
    sink = RecordingFile(path, formatter_for(path, None))
    lines: list[RecordingLine] = [
        HEAD,
        Heartbeat(t_ns=1, wall_ns=2, missed=0),
        TopProcesses(t_ns=2, processes=(BusyProcess(pid=1, name="x", cores=0.5, cpus=None),)),
        GpuProcesses(t_ns=3, gpu=0, count=1, memory_mib=None, processes=(GpuProcess(gpu="GPU-0", pid=4),)),
    ]
    sink.write(lines)
    sink.close()
    assert list(read_recording(path)) == lines


@pytest.mark.parametrize("form", FORMS)
def test_a_file_cut_off_at_any_byte_is_read_to_its_last_whole_line(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{form}"
    write(path)
    data = path.read_bytes()
    whole = list(read_recording(path))
    smallest = data.index(b"\n", data.index(b"\n") + 1) + 1 if form == "json" else data.index(b"\n") + 1
    for length in range(smallest, len(data), 7):
        path.write_bytes(data[:length])
        if form == "csv" and data[:length].count(b"\n") < 2:
            with pytest.raises(BadInput, match="does not begin with its header"):
                list(read_recording(path))
            continue
        found = list(read_recording(path))
        assert found == whole[: len(found)]
        assert len(found) >= data[:length].count(b"\n") - 2


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_file_is_not_a_recording(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{form}"
    path.write_bytes(b"")
    with pytest.raises(BadInput, match="is not a recording"):
        list(read_recording(path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"kind":"gpu","t_ns":1,"tick":0,"gpu":0}\n', "does not begin with its header"),
        ("hello\n", "does not begin with its header"),
        ('{"kernel_name": "x"}\n', "does not begin with its header"),
        ("[1, 2]\n", "does not begin with its header"),
        ('{"kind":"header"}\n', "header.t_ns is missing"),
        ('{"kind":"header","t_ns":0,"wall_ns":0,"interval_s":1,"schema_version":99}\n', "schema_version"),
        ('{"kind":"header","t_ns":0,"wall_ns":0,"interval_s":1}\n{"kind":"gpu","t_ns":"x"}\n', "does not write"),
    ],
)
def test_what_is_not_a_recording_is_said_in_one_sentence(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    with pytest.raises(BadInput, match=words) as caught:
        list(read_recording(path))
    assert str(path) in str(caught.value)


def test_a_table_of_something_else_is_not_a_recording(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name,age\nx,3\n")
    with pytest.raises(BadInput, match="does not begin with its header"):
        list(read_recording(tmp_path / "a.csv"))


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        read_header(tmp_path / "gone.jsonl")


@pytest.mark.parametrize("name", ["a.txt", "a", "a.jsonl.gz", "jsonl"])
def test_an_ending_that_stands_for_no_form_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"ends in \.jsonl, \.json or \.csv"):
        format_of(tmp_path / name)


def test_a_recording_is_replaced_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path)
    write(path)
    assert sum(line.kind == "header" for line in read_recording(path)) == 1


def test_a_file_that_is_no_recording_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"mine": 1}')
    with pytest.raises(BadInput, match="is not a recording; name another file"):
        RecordingFile(path, formatter_for(path, None))
    assert path.read_text() == '{"mine": 1}'


def test_two_recorders_never_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    first = RecordingFile(path, formatter_for(path, None))
    first.write([HEAD])
    first.flush()
    with pytest.raises(MachineCannot, match="another process"):
        RecordingFile(path, formatter_for(path, None))
    first.close()
    assert list(read_recording(path)) == [HEAD]


def test_a_folder_that_is_not_there_and_one_in_the_files_place_are_said(tmp_path: Path) -> None:
    for path in (tmp_path / "gone/a.jsonl", tmp_path / "folder.jsonl"):
        (tmp_path / "folder.jsonl").mkdir(exist_ok=True)
        with pytest.raises(BadInput):
            RecordingFile(path, formatter_for(path, None))


def test_a_full_disk_is_said_in_words() -> None:
    from pathlib import Path

    full = Path("/dev/full")
    descriptor = os.open(full, os.O_WRONLY)
    sink = RecordingFile.__new__(RecordingFile)
    sink._path, sink._descriptor, sink._waiting = full, descriptor, ["x"]
    with pytest.raises(MachineCannot, match="disk is full"):
        sink.flush()
    os.close(descriptor)


def long_recording(path: Path, ticks: int) -> list[RecordingLine]:
    sink = RecordingFile(path, formatter_for(path, None))
    lines: list[RecordingLine] = [HEAD]
    for tick in range(ticks):
        late = 3 * S if tick % 37 == 36 else 0  # as slow looks are
        t_ns = tick * S // 10
        lines.append(GpuSample(t_ns=t_ns, tick=tick, gpu=0, power_instant_w=float(tick)))
        if late:
            lines.append(GpuProcesses(t_ns=max(0, t_ns - late), gpu=0, count=tick, memory_mib=None))
    sink.write(lines)
    sink.close()
    return lines


@pytest.fixture(scope="module")
def hour(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[RecordingLine]]:
    path = tmp_path_factory.mktemp("hour") / "a.jsonl"
    return path, long_recording(path, 5000)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(-S, 600 * S), st.integers(0, 100 * S))
def test_a_window_holds_what_lies_in_it_wherever_it_lies(
    hour: tuple[Path, list[RecordingLine]], start_ns: int, length_ns: int
) -> None:
    path, lines = hour
    expected = [line for line in lines[1:] if start_ns <= line.t_ns <= start_ns + length_ns]
    assert list(read_window(path, start_ns, start_ns + length_ns)) == [HEAD, *expected]


def test_a_window_is_found_without_reading_the_whole_file(
    hour: tuple[Path, list[RecordingLine]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.monitor import recording_file

    path, _ = hour
    parsed = 0
    inner = recording_file._parse_line

    def counting(parse: object, where: Path) -> object:
        nonlocal parsed
        parsed += 1
        return inner(parse, where)  # type: ignore[arg-type]

    monkeypatch.setattr(recording_file, "_parse_line", counting)
    assert len(read_window(path, 400 * S, 401 * S)) >= 12
    assert parsed < 300


@pytest.mark.parametrize("form", FORMS)
def test_a_window_can_be_cut_from_every_form(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{form}"
    write(path)
    found = read_window(path, S // 10, S // 10)
    assert [line.kind for line in found] == ["header", "gpu", "processes", "pcie", "ended"]


def test_a_margin_widens_the_window_on_both_sides(hour: tuple[Path, list[RecordingLine]]) -> None:
    path, _ = hour
    found = [line for line in read_window(path, 10 * S, 10 * S, margin_s=0.25) if isinstance(line, GpuSample)]
    assert [sample.tick for sample in found] == [98, 99, 100, 101, 102]
