"""Rows from folders, files and spreadsheets, whole and broken: what cannot be read is named, the rest is used once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from assay.core.errors import BadInput
from assay.experiments.power.rows import (
    GPUS_FILE,
    SWEEP_FILE,
    GpuRow,
    SweepRow,
    add_racks,
    load_rows,
    read_racks,
    rows_to_csv,
)
from tests.experiments.power.simulated_fleets import Setting, simulate, write
from tests.experiments.power.simulated_sweeps import sweep_rows

if TYPE_CHECKING:
    from pathlib import Path

SMALL = Setting(nodes=2, gpus=2, runs=2)


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    write(simulate(SMALL, 1), tmp_path / "runs")
    return tmp_path / "runs"


def test_a_fleet_is_read_once_however_it_is_named(fleet: Path) -> None:
    assert len(load_rows([fleet], GPUS_FILE, GpuRow).rows) == 8
    again = load_rows([fleet, fleet / "latest", fleet / "latest" / GPUS_FILE, fleet.parent], GPUS_FILE, GpuRow)
    assert len(again.rows) == 8
    assert not again.notes
    copied = fleet.parent / "copy" / "power"
    copied.mkdir(parents=True)
    text = (fleet / "latest" / GPUS_FILE).read_text()
    (copied / "gpus.jsonl").write_text(text)
    found = load_rows([fleet, copied.parent], GPUS_FILE, GpuRow)
    assert len(found.rows) == 8
    assert "2 rows" in found.notes[0]
    assert "count once" in found.notes[0]
    assert found.origin == "simulated"


def test_lines_that_cannot_be_read_are_named_and_the_others_used(fleet: Path) -> None:
    file = fleet / "latest" / GPUS_FILE
    whole, other = file.read_text().splitlines()
    newer = json.dumps({**json.loads(other), "schema_version": 9})
    strange = json.dumps({**json.loads(other), "colour": "red"})
    stopped = json.dumps({**json.loads(other), "median_us": 0})
    file.write_text("\n".join([whole, newer, strange, stopped, "", other[:100]]))
    found = load_rows([fleet], GPUS_FILE, GpuRow)
    assert len(found.rows) == 7
    (said,) = found.unusable
    assert "line 2: it was written by a newer Assay: its schema is 9, this one reads up to 1" in said
    assert "line 3: colour is not known" in said
    assert "line 4: a median of 0 µs is no time" in said
    assert "and 1 more lines" in said
    file.write_text(f"{whole}\n{other[:100]}")
    assert load_rows([file], GPUS_FILE, GpuRow).unusable[0].endswith("line 2 is cut off")


def test_what_holds_nothing_is_said_in_words(fleet: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "e.jsonl").write_text("\n")
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\n")
    names = ("empty", "a.txt", "e.jsonl", "b.jsonl", "gone")
    said = load_rows([tmp_path / name for name in names], GPUS_FILE, GpuRow).unusable
    for name, words in zip(
        names,
        ("holds no run with a power/gpus.jsonl", "neither a folder nor", "is empty", "line 1", "is not there"),
        strict=True,
    ):
        assert any(name in each and words in each for each in said), name


def test_a_spreadsheet_of_rows_says_the_same_as_their_file(tmp_path: Path) -> None:
    rows = sweep_rows(1)
    (tmp_path / "sweep.csv").write_text(rows_to_csv(rows), encoding="utf-8")
    found = load_rows([tmp_path / "sweep.csv"], SWEEP_FILE, SweepRow)
    assert found.rows == tuple(rows)
    (tmp_path / "short.csv").write_text("run,host\na,b\n", encoding="utf-8")
    assert "has no column" in load_rows([tmp_path / "short.csv"], SWEEP_FILE, SweepRow).unusable[0]
    lines = rows_to_csv(rows).splitlines()
    (tmp_path / "bad.csv").write_text("\n".join([lines[0], lines[1].replace("sgemm@torch", "").replace("100", "x")]))
    assert "line 2" in load_rows([tmp_path / "bad.csv"], SWEEP_FILE, SweepRow).unusable[0]
    (tmp_path / "list.csv").write_text(rows_to_csv(rows[:1]).replace('"[', '"').replace(']"', '"').replace(", ", ";"))
    assert load_rows([tmp_path / "list.csv"], SWEEP_FILE, SweepRow).rows == tuple(rows[:1])


def test_racks_come_from_a_file_where_rows_do_not_know_them(tmp_path: Path) -> None:
    rows = [row.model_copy(update={"rack": None}) for row in simulate(SMALL, 1).all_rows]
    file = tmp_path / "racks.csv"
    file.write_text("host,rack\nnode0000, a1\n\n")
    found, notes = add_racks(rows, read_racks(file))
    assert {row.rack for row in found if row.host == "node0000"} == {"a1"}
    assert notes == ("--racks does not name node0001.",)
    for text, words in (("node0000\n", "line 1"), ("host,rack\n", "names no host")):
        file.write_text(text)
        with pytest.raises(BadInput, match=words):
            read_racks(file)
    with pytest.raises(BadInput, match="cannot be read"):
        read_racks(tmp_path / "gone.csv")


def test_racks_that_are_no_table_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "racks.csv"
    file.write_text(f"host,{'x' * 200_000}\n")
    with pytest.raises(BadInput, match="is not a table in CSV: field larger"):
        read_racks(file)
    file.write_bytes(b"n1,bar\xe9\n")
    with pytest.raises(BadInput, match=r"cannot be read: .*line 1, column 7: not UTF-8 text"):
        read_racks(file)
