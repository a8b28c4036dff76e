"""A run folder as the history keeps it: what identifies it, which of its records count, where its numbers come from."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from assay.core.errors import BadInput
from assay.store.history.importing import read_run, read_short_records, run_state
from assay.store.run_folder import RunFolder
from benchmarks.resealing import reseal
from tests.store.folders import HOST, measured_again, record, softmax, trial, write_run

if TYPE_CHECKING:
    from pathlib import Path


def opened(path: Path) -> RunFolder:
    return RunFolder.open(path)


def test_a_run_says_what_it_was_when_where_and_of_which_code(tmp_path: Path) -> None:
    host = HOST.model_copy(update={"git_commit": "c0ffee", "git_dirty": True, "driver": "580", "hostname": None})
    run = read_run(opened(write_run(tmp_path / "r", day=1, on=host))).run
    assert (run.started_at, run.experiment, run.host) == ("2026-01-02T00:00:00+00:00", "run", "0123456789abcdef")
    assert (run.git_commit, run.git_dirty, run.driver, run.hostname) == ("c0ffee", True, "580", None)
    assert (run.host_class, run.headline) == ("Example 9000, 4 cores", "It took a while.")
    assert (run.trials, run.failed, run.folder) == (1, 0, str(tmp_path / "r"))


def test_a_run_is_the_same_run_wherever_its_folder_is_moved(tmp_path: Path) -> None:
    before = run_state(opened(write_run(tmp_path / "a")))
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert run_state(opened(tmp_path / "b")) == before
    assert run_state(opened(write_run(tmp_path / "c", day=1))).id != before.id


def test_a_run_that_went_on_is_in_another_state(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r")
    before = run_state(opened(path))
    measured_again(path, 50.0)
    after = run_state(opened(path))
    assert (after.id, after.lines) == (before.id, before.lines + 2)
    assert after.digest != before.digest
    (point,) = read_run(opened(path)).points.values()
    assert point.value == 50.0


def test_the_records_that_count_are_those_of_the_run_folder(tmp_path: Path) -> None:
    trials = [trial(softmax(rows), block=f"repeat-{block}") for block in (1, 2) for rows in range(3)]
    taken = [(of, record(of, 100.0 + n)) for n, of in enumerate(trials)]
    taken.insert(2, (trials[1], record(trials[1], 1.0, take=2)))
    path = write_run(tmp_path / "r", records=taken)
    (path / "blocks.jsonl").write_text(
        (path / "blocks.jsonl").read_text().replace(trials[1].model_dump_json() + ",", "", 1)
    )
    reseal(path)
    found = read_short_records(opened(path))
    counting = opened(path).records()
    assert [(entry.trial, entry.estimates[0].estimate.value) for entry, _ in found] == [
        (one.trial, one.estimates[0].estimate.value) for one in counting
    ]
    assert all(entry.trial == of.id for entry, of in found)
    assert found[1][0].estimates[0].estimate.value == 1.0


@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_each_record_finds_its_own_trial_in_a_block_that_is_not_whole(tmp_path: Path, left_out: int) -> None:
    trials = [trial(softmax(rows)) for rows in range(3)]
    path = write_run(tmp_path / "r", records=[(of, record(of)) for of in trials])
    lines = (path / "records.jsonl").read_text().splitlines(keepends=True)
    (path / "records.jsonl").write_text("".join(lines[:left_out] + lines[left_out + 1 :]))
    reseal(path)
    assert all(entry.trial == of.id for entry, of in read_short_records(opened(path)))
    assert len(read_short_records(opened(path))) == 2


def test_a_trial_that_stands_twice_in_its_block_confuses_nothing(tmp_path: Path) -> None:
    trials = [trial(softmax(0)), trial(softmax(0)), trial(softmax(1))]
    path = write_run(tmp_path / "r", records=[(of, record(of)) for of in trials])
    assert [of.roles[0].subjects[0].params["rows"] for _, of in read_short_records(opened(path))] == [0, 1]


def test_the_least_real_of_its_records_marks_a_run(tmp_path: Path) -> None:
    trials = [trial(softmax(rows)) for rows in range(2)]
    mixed = [(trials[0], record(trials[0])), (trials[1], record(trials[1], origin="fake"))]
    assert read_run(opened(write_run(tmp_path / "r", records=mixed))).run.origin == "fake"
    assert read_run(opened(write_run(tmp_path / "s"))).run.origin == "real"


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("records.jsonl", '{"colour": "blue"}\n', r"records\.jsonl holds a line"),
        ("findings.json", '{"schema": 1}', r"findings\.json is not what this version of Assay writes"),
        ("findings.json", "{", r"findings\.json, line 1"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_sentence(tmp_path: Path, file: str, content: str, said: str) -> None:
    path = write_run(tmp_path / "r")
    (path / "seal.json").unlink()
    (path / file).write_text(content)
    with pytest.raises(BadInput, match=said):
        read_run(opened(path))


def test_a_record_of_a_newer_version_is_said_in_a_sentence(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r")
    reseal(path, lambda record: {**record, "schema_version": 99})
    with pytest.raises(BadInput, match=r"records\.jsonl holds a line.*less"):
        read_run(opened(path))


def test_a_moment_that_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="created_at is not a time: 'now'"):
        read_run(opened(write_run(tmp_path / "r", created_at="now")))
