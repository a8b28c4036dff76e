"""A run folder that was damaged or edited is not believed: the file is named, exit 2, and nothing good is replaced."""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from assay.cli.main import main
from assay.core.errors import BadInput, DamagedFile
from assay.core.results import Series
from assay.store import records
from assay.store.run_folder import RunFolder
from benchmarks import evidence
from benchmarks.mutations import mutate, numbers_in
from benchmarks.resealing import reseal
from tests.experiments.comparisons import a_run

if TYPE_CHECKING:
    from collections.abc import Callable

    Called = Callable[..., tuple[int, str, str]]


@pytest.fixture
def called(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Called:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))

    def call(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        told = capsys.readouterr()
        return code, told.out, told.err

    return call


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, object]:
    """A run on a GPU as it was kept, with its findings and reports; and what it says."""
    path = tmp_path_factory.mktemp("reported") / "run"
    with evidence.unpacked("run") as kept:
        shutil.copytree(kept.path, path)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["report", str(path), "--json"]) == 0
    return path, numbers_in(out.getvalue())


@pytest.fixture
def good(tmp_path: Path, reported: tuple[Path, object]) -> Path:
    """A copy of that run."""
    return Path(shutil.copytree(reported[0], tmp_path / "good"))


def first_sample(folder: Path) -> Path:
    return min((folder / "samples").iterdir())


def doubled(path: Path) -> None:
    np.save(path, 2 * np.load(path))


def halved(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    value = json.loads(lines[1])["estimates"][0]["estimate"]["value"]
    assert repr(value) in lines[1]
    path.write_text("".join([lines[0], lines[1].replace(repr(value), repr(value / 2), 1), *lines[2:]]))


def test_doubled_samples_are_named_by_every_verb_and_no_report_is_replaced(good: Path, called: Called) -> None:
    before = {name: (good / name).read_bytes() for name in ("report.md", "findings.json", "seal.json")}
    file = first_sample(good)
    shutil.copytree(good, good.parent / "other")
    doubled(file)
    for words in (("report", good), ("compare", good, good.parent / "other"), ("resume", good)):
        code, out, err = called(*words)
        assert (code, out) == (2, ""), err
        assert f"{file.name} is damaged" in err
        assert len(err.strip().splitlines()) == 1
    assert {name: (good / name).read_bytes() for name in before} == before


def test_a_halved_estimate_is_named_with_its_line(good: Path, called: Called) -> None:
    shutil.copytree(good, good.parent / "other")
    halved(good / "records.jsonl")
    for words in (("report", good), ("compare", good, good.parent / "other"), ("resume", good)):
        code, out, err = called(*words)
        assert (code, out) == (2, "")
        assert "records.jsonl, line 2 is damaged" in err
    assert "records.jsonl, line 2 is damaged" in called("list", "runs", "--output-dir", good.parent, "--json")[1]


def test_the_history_keeps_the_good_run(good: Path, called: Called) -> None:
    assert called("history", "import", good)[0] == 0
    kept = called("history", "export", "-")[1]
    halved(good / "records.jsonl")
    code, _, err = called("history", "import", good)
    assert code == 2
    assert "records.jsonl, line 2 is damaged" in err
    assert called("history", "export", "-")[1] == kept
    code, _, err = called("history", "import", "--rebuild", good)
    assert code == 2
    assert called("history", "export", "-")[1] == kept


def test_the_others_are_imported_beside_a_damaged_run(good: Path, called: Called) -> None:
    a_run(good.parent / "more" / "second", {"softmax": 90.0})
    shutil.move(good, good.parent / "more" / "first")
    halved(good.parent / "more" / "first" / "records.jsonl")
    code, out, err = called("history", "import", good.parent / "more")
    assert (code, out.split(" with")[0]) == (2, "1 new run")
    assert "Left out" in err


@pytest.mark.parametrize("lost", [0, 1, -1])
def test_a_lost_line_is_noticed_wherever_it_was(good: Path, called: Called, lost: int) -> None:
    path = good / "records.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    del lines[lost]
    path.write_text("".join(lines))
    code, _, err = called("report", good)
    assert code == 2
    assert "records.jsonl" in err


def test_a_run_that_was_killed_while_it_wrote_goes_on(good: Path) -> None:
    """Without a seal the findings were never written, and what is torn was never promised."""
    (good / "seal.json").unlink()
    path = good / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-7])
    folder = RunFolder.open(good)
    folder.verify(lost_samples=True)
    assert len(folder.records()) == 5
    folder.keep(folder.records()[0])
    assert len(RunFolder.open(good).all_records()) == 6


@pytest.mark.parametrize("name", ["plan.json", "machine.json", "blocks.jsonl", "records.jsonl", "seal.json"])
def test_a_file_of_another_run_is_noticed(good: Path, called: Called, tmp_path: Path, name: str) -> None:
    shutil.copy(a_run(tmp_path / "another", {"softmax": 100.0, "gemm": 300.0}) / name, good / name)
    code, out, _ = called("report", good)
    assert (code, out) == (2, "")


@pytest.mark.full
def test_findings_that_were_edited_are_not_compared_but_written_again(good: Path, called: Called) -> None:
    shutil.copytree(good, good.parent / "other")
    text = (good / "findings.json").read_text()
    (good / "findings.json").write_text(text.replace("yes", "no"))
    code, _, err = called("compare", good, good.parent / "other")
    assert code == 2
    assert "findings.json is damaged" in err
    assert "assay report" in err
    assert called("report", good)[0] == 0
    assert (good / "findings.json").read_text() == text
    assert called("compare", good, good.parent / "other")[0] == 0


@pytest.mark.full
@pytest.mark.parametrize("seed", range(30))
def test_damage_changes_no_number_and_is_no_defect(
    good: Path, reported: tuple[Path, object], called: Called, seed: int
) -> None:
    what, file = mutate(good, random.Random(seed))
    code, out, err = called("report", good, "--json")
    if code == 0:
        assert numbers_in(out) == reported[1], (what, file)
    else:
        assert code == 2, (what, file, err)
        assert len(err.strip().splitlines()) == 1, err
        assert "Stopped." not in err


@pytest.mark.parametrize("name", ["../outside.npy", "samples/../../outside.npy", "link.npy", "/etc/passwd", "a\0b"])
def test_a_record_that_names_a_file_outside_its_folder_is_refused(good: Path, name: str) -> None:
    data = records.samples_to_bytes(np.ones(3))
    (good.parent / "outside.npy").write_bytes(data)
    (good / "link.npy").symlink_to(good.parent / "outside.npy")
    series = Series(
        role="r", rank=0, subject=0, restart=0, quantity="call_us", unit="µs", file=name, n=3, start_ns=0, end_ns=1
    )
    with pytest.raises(BadInput, match="outside of it"):
        records.SampleFiles(good).load(series)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.ones(3, dtype=np.float32), "float32"),
        (np.ones((1, 3)), "2 dimensions"),
        (np.ones(4), "they are 4, but the record has 3"),
        (np.array([1.0, np.nan, 1.0]), "not a finite number"),
        (np.array([1.0, np.inf, 1.0]), "not a finite number"),
        (np.array([1.0, -1.0, 1.0]), "negative"),
        (np.array(["a", "b", "c"]), "not float64"),
    ],
)
def test_samples_that_no_measurement_gives_are_refused(tmp_path: Path, array: Any, said: str) -> None:
    (tmp_path / "s.npy").write_bytes(records.samples_to_bytes(array))
    series = Series(
        role="r", rank=0, subject=0, restart=0, quantity="call_us", unit="µs", file="s.npy", n=3, start_ns=0, end_ns=1
    )
    with pytest.raises(DamagedFile, match=said):
        records.SampleFiles(tmp_path).load(series)


def test_an_empty_sample_file_is_no_interruption(good: Path, called: Called) -> None:
    first_sample(good).write_bytes(b"")
    code, _, err = called("report", good)
    assert code == 2
    assert "Stopped" not in err


@pytest.mark.full
def test_what_is_changed_on_purpose_can_be_sealed_again(good: Path, called: Called) -> None:
    doubled(first_sample(good))
    reseal(good)
    assert called("report", good)[0] == 0
