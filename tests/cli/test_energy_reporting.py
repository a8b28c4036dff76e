from __future__ import annotations

import csv
import fcntl
import json
import multiprocessing
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.cli.energy_reporters import check_writable, read_result, write_reports
from assay.core.errors import BadInput, MachineCannot
from assay.core.files import update_file
from assay.experiments.energy.config import EnergyReporter
from assay.experiments.energy.result import build_report_files
from tests.experiments.energy.made_rows import result, row

if TYPE_CHECKING:
    from assay.experiments.energy.result import EnergyResult


def run_folder(folder: Path, found: EnergyResult) -> Path:
    """Write what a finished run leaves."""
    for name, text in build_report_files(found).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "figures").mkdir()
    (folder / "figures/costs.png").write_bytes(b"png")
    (folder / "report.md").write_text("# Report\n\n![a figure](figures/costs.png)\n")
    (folder / "report.html").write_text("<!doctype html><p>Report</p>")
    return folder


def reporter(kind: str, path: Path) -> EnergyReporter:
    return EnergyReporter.model_validate({"type": kind, "output_file": str(path)})


def rows_in(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, strict=True))


def test_every_reporter_writes_its_file_in_folders_that_it_makes(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", result(row(4)))
    out = tmp_path / "results/today"
    kinds = {"csv": "a.csv", "json": "a.json", "markdown": "a.md", "html": "a.html", "ai_energy_score": "score.csv"}
    reporters = [reporter(kind, out / name) for kind, name in kinds.items()]
    check_writable(reporters)
    assert not out.exists(), "looking makes nothing"
    assert write_reports(folder, reporters) == [str(out / name) for name in kinds.values()]
    assert rows_in(out / "a.csv")[0]["config_device_ids"] == "0,1,2,3"
    assert json.loads((out / "a.json").read_text())["model"] == "random:llama-8b"
    assert "](a_figures/costs.png)" in (out / "a.md").read_text()
    assert (out / "a_figures/costs.png").read_bytes() == b"png"
    assert (out / "a.html").read_text().startswith("<!doctype")
    assert rows_in(out / "score.csv")[0]["number_of_gpus"] == "4"


def test_runs_of_one_and_four_gpus_share_a_file_and_a_run_that_goes_on_replaces_its_rows(tmp_path: Path) -> None:
    file = tmp_path / "all.csv"
    one = run_folder(tmp_path / "one", result(row(1), run="one"))
    four = run_folder(tmp_path / "four", result(row(4), run="four"))
    for folder in (one, four, one, four):
        write_reports(folder, [reporter("csv", file)])
    rows = rows_in(file)
    assert [line["run"] for line in rows] == ["one", "four"]
    assert [line["gpu_stats_gpu_3_power_draw_w"] for line in rows] == ["", "203.0"]


def test_a_run_that_measured_nothing_adds_nothing(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", result())
    assert write_reports(folder, [reporter("csv", tmp_path / "a.csv"), reporter("json", tmp_path / "a.json")]) == [
        str(tmp_path / "a.json")
    ]
    assert not (tmp_path / "a.csv").exists()


def test_a_file_of_something_else_is_refused_before_the_run_and_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "budget.csv"
    file.write_text("item,price\ntea,3\n")
    with pytest.raises(BadInput, match="holds another table"):
        check_writable([reporter("csv", file)])
    folder = run_folder(tmp_path / "run", result(row()))
    good = tmp_path / "good.csv"
    with pytest.raises(BadInput, match=r"holds another table.*What was measured is kept in .*written: .*good\.csv"):
        write_reports(folder, [reporter("csv", file), reporter("csv", good)])
    assert file.read_text() == "item,price\ntea,3\n"
    assert len(rows_in(good)) == 1


def test_what_can_never_be_written_is_said_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="is a folder"):
        check_writable([reporter("csv", tmp_path)])
    with pytest.raises(BadInput, match="is a file, but a folder is needed"):
        check_writable([reporter("json", tmp_path / "file/a.json")])
    with pytest.raises(MachineCannot, match="is not writable"):
        check_writable([reporter("csv", Path("/proc/none.csv"))])  # where even root makes nothing
    with pytest.raises(BadInput, match="Two reporters, csv and json"):
        check_writable([reporter("csv", tmp_path / "a"), reporter("json", tmp_path / "a")])


def test_an_unwritable_file_is_told_and_the_others_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_folder(tmp_path / "run", result(row()))
    shut, others = tmp_path / "a.csv", tmp_path / "b.csv"
    may, opened = os.access, os.open

    def guarded(path: str | Path, flags: int, *more: int) -> int:
        if path == shut:
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *more)

    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path and may(path, mode))
    monkeypatch.setattr("os.open", guarded)
    with pytest.raises(MachineCannot, match="permission denied"):
        check_writable([reporter("csv", shut)])
    with pytest.raises(MachineCannot, match=r"permission denied.*written: .*b\.csv"):
        write_reports(folder, [reporter("csv", shut), reporter("csv", others)])


def test_a_full_disk_is_told_and_the_old_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "all.csv"
    write_reports(run_folder(tmp_path / "one", result(row(), run="one")), [reporter("csv", file)])
    before = file.read_bytes()
    folder = run_folder(tmp_path / "two", result(row(), run="two"))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(MachineCannot, match="The disk is full"):
        write_reports(folder, [reporter("csv", file)])
    assert file.read_bytes() == before
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_last_line_that_was_cut_short_is_kept_beside_the_file(tmp_path: Path) -> None:
    file = tmp_path / "all.csv"
    write_reports(run_folder(tmp_path / "one", result(row(), run="one")), [reporter("csv", file)])
    file.write_text(file.read_text() + 'made,two,"2026-11')
    done = write_reports(run_folder(tmp_path / "two", result(row(), run="three")), [reporter("csv", file)])
    assert [line["run"] for line in rows_in(file)] == ["one", "three"]
    assert (tmp_path / "all.csv.torn").read_text() == 'made,two,"2026-11\n'
    assert "cut short" in done[1]


def test_a_locked_file_is_waited_for_and_then_given_up_with_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "all.csv"
    file.write_text("x")
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(MachineCannot, match="was locked by another process"):
            update_file(file, lambda before: before + b"y", timeout_s=0.0)
    update_file(file, lambda before: before + b"y", timeout_s=0.0)
    assert file.read_text() == "xy"


def _add(folder: str, file: str, gate: multiprocessing.synchronize.Barrier) -> None:
    gate.wait()
    write_reports(Path(folder), [EnergyReporter(type="csv", output_file=file)])


def test_processes_that_add_at_once_lose_no_row(tmp_path: Path) -> None:
    names = [f"run-{n}" for n in range(6)]
    folders = [run_folder(tmp_path / name, result(row(1 + n % 4), run=name)) for n, name in enumerate(names)]
    file = tmp_path / "all.csv"
    context = multiprocessing.get_context("fork")
    gate = context.Barrier(len(folders))
    crowd = [context.Process(target=_add, args=(str(folder), str(file), gate)) for folder in folders]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join(60)
    assert [one.exitcode for one in crowd] == [0] * len(crowd)
    rows = {line["run"]: line for line in rows_in(file)}
    assert sorted(rows) == names
    for number, name in enumerate(names):
        assert (rows[name]["gpu_stats_gpu_1_power_draw_w"] == "") == (number % 4 == 0)


def test_a_change_that_fails_leaves_no_new_file_and_links_stay_links(tmp_path: Path) -> None:
    def fails(before: bytes) -> bytes:
        raise BadInput("no")

    with pytest.raises(BadInput):
        update_file(tmp_path / "new/file", fails)
    assert not (tmp_path / "new/file").exists()
    (tmp_path / "real.txt").write_text("a")
    (tmp_path / "link.txt").symlink_to("real.txt")
    (tmp_path / "real.txt").chmod(0o640)
    update_file(tmp_path / "link.txt", lambda before: before + b"b")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "ab"
    assert (tmp_path / "real.txt").stat().st_mode & 0o777 == 0o640


def test_a_folder_without_a_result_or_with_that_of_another_version_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"holds no energy\.json"):
        read_result(tmp_path)
    (tmp_path / "energy.json").write_text('{"name": "x"}')
    with pytest.raises(BadInput, match="not what this version of Assay writes"):
        read_result(tmp_path)
    (tmp_path / "energy.json").write_text(build_report_files(result(row(), run=None))["energy.json"])
    assert read_result(tmp_path).run == tmp_path.name
