"""``assay scaling analyse`` on results that are there: runs, folders, files of the older tool, and what is none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from assay.cli.main import main
from tests.experiments.scaling.results import content, write

if TYPE_CHECKING:
    from pathlib import Path

    from tests.running import Assay

SHEETS = ("scaling_efficiency_analysis.png", "memory_analysis.png", "performance_heatmaps.png")
REPORT = "scaling_analysis_report.txt"


@pytest.mark.full
def test_a_folder_of_files_gives_figures_and_a_report_and_names_what_cannot_be_used(
    assay: Assay, workplace: Path
) -> None:
    folder = workplace / "results"
    write(folder / "new.json")
    write(folder / "older.json", assay=None, lengths=(16384,))
    (folder / "latest.json").write_bytes((folder / "new.json").read_bytes())
    (folder / "broken.json").write_text("{", encoding="utf-8")
    (folder / "empty.json").touch()
    (folder / "other.json").write_text('{"kernel_name": "softmax"}', encoding="utf-8")
    ran = assay("scaling", "analyse", "results")
    assert ran.code == 0, ran.err
    for name in (*SHEETS, REPORT):
        assert (folder / name).stat().st_size > 1000, name
    report = (folder / REPORT).read_text(encoding="utf-8")
    for word in (
        "broken.json",
        "empty.json is empty",
        "other.json: it has no list of results",
        "Speedups of the older tool are invalid",
    ):
        assert word in report
    assert "latest.json" not in report


@pytest.mark.full
def test_the_american_spelling_the_older_flag_and_json_do_the_same(assay: Assay, workplace: Path) -> None:
    write(workplace / "results" / "new.json", lengths=(16384,))
    ran = assay("scaling", "analyze", "--results_dir", "results", "--output", "out", "--json")
    assert ran.code == 0, ran.err
    data = json.loads(ran.out)
    assert [f["facts"]["world"] for f in data["findings"]] == [2, 4, 8]
    assert data["findings"][2]["estimate"]["value"] == pytest.approx(0.9**3)
    assert data["unusable"] == []
    assert sorted(file.name for file in (workplace / "out").iterdir()) == sorted([*SHEETS, REPORT])
    assert not (workplace / "results" / REPORT).exists()


@pytest.mark.parametrize(
    ("told", "flags", "code"),
    [
        ({"known_to": 0.02}, ["0.7"], 0),
        ({"known_to": 0.02}, ["80%"], 1),
        ({"known_to": 0.3}, ["0.7"], 0),
        ({"known_to": 0.3}, ["0.7", "--unsure", "fail"], 1),
        ({}, ["0.99"], 2),
        ({"assay": None}, ["0.7"], 2),
        ({"worlds": (1,), "known_to": 0.02}, ["0.7", "--unsure", "fail"], 2),
    ],
)
def test_the_gate_answers_with_its_exit_code(
    told: dict[str, object],
    flags: list[str],
    code: int,
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("assay.cli.scaling_analyse.write_sheets", lambda *_: [])
    file = write(workplace / "results.json", **told)
    assert main(["scaling", "analyse", str(file), "--min-efficiency", *flags]) == code
    assert ("nothing to decide on" if code == 2 else "gate") in capsys.readouterr().err


def test_what_cannot_be_used_at_all_is_said_in_a_sentence(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workplace)
    folder = workplace / "results"
    folder.mkdir()
    (workplace / "nothing").mkdir()
    (folder / "bad.json").write_text("[]", encoding="utf-8")
    (folder / "none.json").write_text(json.dumps({**content(), "results": []}), encoding="utf-8")
    for words, said in (
        (["nowhere"], "nowhere is not there"),
        (["nothing"], "nothing is neither a run folder nor a folder of runs or of .json files"),
        (
            ["results"],
            "bad.json: it holds no JSON object with results; results/none.json: its list of results is empty",
        ),
        (["results", "--min-efficiency", "2"], "out of range"),
        (["results", "--unsure", "fail"], "--unsure fail needs --min-efficiency"),
    ):
        assert main(["scaling", "analyse", *words]) == 2
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1
