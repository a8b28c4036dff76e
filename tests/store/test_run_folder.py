"""Run folders: made whole, read back, never harmed by truncation or by each other."""

from __future__ import annotations

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jsonschema
import numpy as np
import pytest

from assay.core.errors import BadInput, DamagedFile, MachineCannot
from assay.core.results import Record, Window
from assay.core.values import Adaptive, Block, Role, Subject, Trial
from assay.launch.workers import RawSeries
from assay.machine.detect import detect
from assay.store import schemas
from assay.store.run_folder import RunFolder, RunPlan, run_paths

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MACHINE = detect()
PLAN = RunPlan(experiment="run", options={}, seed=0, versions={}, cwd="/", created_at="now")
TRIAL = Trial(
    block="b",
    roles=(Role(name="cpu:0", subjects=(Subject(workload="w", impl="numpy"),), devices=("cpu:0",)),),
    mode=Adaptive(duration_s=1),
)


def record(attempt: int = 1, **changes: object) -> Record:
    window = Window(host="h", boot_id="b", start_ns=0, end_ns=1, started_at="now")
    fields = {"trial": TRIAL.id, "block": "b", "attempt": attempt, "window": window, "status": "ok", **changes}
    return Record.model_validate(fields)


class FullAtStep:
    """A disk that is full at one step: the so-many-th call that makes or writes something fails, all others do not."""

    CALLS = ("open", "write", "mkdir", "symlink", "fsync", "replace")

    def __init__(self, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.step, self.calls = step, 0
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self._failing(getattr(os, name)))

    def _failing(self, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: Any, **kwargs: Any) -> object:
            self.calls += 1
            if self.calls == self.step:
                raise OSError(errno.ENOSPC, "No space left on device")
            return call(*args, **kwargs)

        return counted


def create_on_full_disk(parent: Path, step: int) -> tuple[MachineCannot | None, int]:
    """Begin a run on a disk that is full at a step; return what was said, and how many steps there were."""
    with pytest.MonkeyPatch.context() as patch:
        disk = FullAtStep(step, patch)
        try:
            RunFolder.create(parent, PLAN, MACHINE)
        except MachineCannot as error:
            return error, disk.calls
        return None, disk.calls


def test_a_disk_that_is_full_while_a_run_is_begun_keeps_nothing_of_it(tmp_path: Path) -> None:
    for step in range(1, 100):
        error, steps = create_on_full_disk(tmp_path / "a" / "runs", step)
        if error is None:
            break
        assert "disk is full" in str(error)
        assert list(tmp_path.iterdir()) == [], f"at step {step}"
    assert steps == step - 1 > 10
    assert (tmp_path / "a" / "runs" / "latest" / "plan.json").is_file()


def test_a_run_that_cannot_be_begun_leaves_the_runs_that_are_there(tmp_path: Path) -> None:
    there = RunFolder.create(tmp_path, PLAN, MACHINE).path
    before = sorted(tmp_path.iterdir())
    for step in range(2, 14):
        error, _ = create_on_full_disk(tmp_path, step)
        assert "disk is full" in str(error)
        assert sorted(tmp_path.iterdir()) == before
        assert (tmp_path / "latest").resolve() == there


def test_a_new_folder_reads_back_and_latest_points_to_it(tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path / "runs", PLAN, MACHINE)
    opened = RunFolder.open(tmp_path / "runs" / "latest")
    assert (opened.plan, opened.machine, opened.path) == (PLAN, MACHINE, made.path)


def test_runs_started_at_the_same_moment_get_folders_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: RunFolder.create(tmp_path, PLAN, MACHINE).path, range(24)))
    assert len(set(made)) == 24
    assert sorted(run_paths(tmp_path)) == sorted(made)
    assert (tmp_path / "latest").resolve() in made
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_folder_of_the_users_called_latest_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    RunFolder.create(tmp_path, PLAN, MACHINE)
    assert (tmp_path / "latest").is_dir()
    assert not (tmp_path / "latest").is_symlink()


def test_samples_come_back_as_they_were_taken(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, PLAN, MACHINE)
    taken = np.array([3.0, 1.0, 2.0])
    series = folder.keep_samples("t", 1, [RawSeries("cpu:0", 0, 0, 0, "call_us", 1, 0, 1, taken.tobytes())])
    folder.decide(Block(name="b", why="because", trials=(TRIAL,)))
    folder.keep(record(series=series))
    records = RunFolder.open(folder.path).records()
    assert records.samples(records[0].series[0]).tolist() == [3.0, 1.0, 2.0]


def test_every_finished_record_is_readable_when_the_last_line_is_cut_anywhere(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, PLAN, MACHINE)
    folder.decide(Block(name="b", why="because", trials=(TRIAL,)))
    folder.keep(record())
    whole = (folder.path / "records.jsonl").read_bytes()
    second = record(reason="x", status="failed").model_dump_json().encode()
    for cut in range(0, len(second), 37):
        (folder.path / "records.jsonl").write_bytes(whole + second[:cut])
        assert len(folder.records()) == 1


def test_records_of_an_earlier_attempt_do_not_count_but_are_kept(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, PLAN, MACHINE)
    block = Block(name="b", why="because", trials=(TRIAL,))
    assert folder.decide(block) == 1
    folder.keep(record(1))
    assert folder.decide(block) == 2
    assert list(folder.records()) == []
    assert folder.finished(block) is None
    folder.keep(record(2))
    assert [r.attempt for r in folder.records()] == [2]
    assert [r.attempt for r in folder.all_records()] == [1, 2]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"experiment": 3}', "\x00\x01"])
def test_a_plan_that_cannot_be_read_is_bad_input_in_one_sentence(tmp_path: Path, content: str) -> None:
    folder = RunFolder.create(tmp_path, PLAN, MACHINE)
    (folder.path / "plan.json").write_text(content)
    with pytest.raises(BadInput) as caught:
        RunFolder.open(folder.path)
    assert "plan.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_record_of_another_version_is_bad_input(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, PLAN, MACHINE)
    (folder.path / "records.jsonl").write_text('{"colour": "blue"}\n')
    with pytest.raises(BadInput, match=r"records\.jsonl holds a line"):
        folder.records()


def test_an_output_folder_that_is_a_file_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises((BadInput, MachineCannot), match="runs"):
        RunFolder.create(tmp_path / "runs", PLAN, MACHINE)


def test_what_is_written_fits_the_shipped_schemas(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, PLAN, MACHINE)
    block = Block(name="b", why="because", trials=(TRIAL,))
    folder.decide(block)
    folder.keep(record())
    written = {
        "plan": json.loads((folder.path / "plan.json").read_text()),
        "machine": json.loads((folder.path / "machine.json").read_text()),
        "decision": json.loads((folder.path / "blocks.jsonl").read_text()),
        "record": json.loads((folder.path / "records.jsonl").read_text()),
    }
    for name, content in written.items():
        schema = json.loads((schemas.FOLDER / f"{name}.schema.json").read_text())
        jsonschema.validate(content, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**content, "no such key": 1}, schema)


def test_the_shipped_schemas_are_those_of_the_models() -> None:
    shipped = {path.name: path.read_text() for path in schemas.FOLDER.glob("*.json")}
    assert shipped == schemas.generate(), "run `make schemas`"


def test_a_recording_is_sealed_as_far_as_it_had_come_and_read_no_further(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, PLAN, MACHINE)
    folder.decide(Block(name="b", why="because", trials=(TRIAL,)))
    (folder.path / "monitor").mkdir()
    path = folder.path / "monitor" / "a.jsonl"
    path.write_bytes(b"one\ntwo\nthr")
    first = folder.keep(record(sensors="monitor/a.jsonl"))
    path.write_bytes(b"one\ntwo\nthree\nfour\n")
    second = folder.keep(record(sensors="monitor/a.jsonl", take=2))
    assert (first.sensors_bytes, second.sensors_bytes) == (8, 19)
    path.write_bytes(b"one\ntwo\nthree\nfour\nfive\n")
    assert len(RunFolder.open(folder.path).records()) == 1
    for damaged in (b"one\ntwo\nthrEe\nfour\nfive\n", b"one\ntwO\nthree\nfour\n", b"one\ntwo\nthree\n", b""):
        path.write_bytes(damaged)
        with pytest.raises(DamagedFile, match=r"a\.jsonl is damaged"):
            RunFolder.open(folder.path).records()
    path.unlink()
    with pytest.raises(DamagedFile, match=r"a\.jsonl does not exist"):
        RunFolder.open(folder.path).records()


def test_a_plan_that_starts_elsewhere_is_sealed_again_and_its_records_still_fit(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, PLAN, MACHINE)
    folder.decide(Block(name="b", why="because", trials=(TRIAL,)))
    folder.keep(record())
    folder.start_in("/elsewhere")
    opened = RunFolder.open(folder.path)
    assert (opened.plan.cwd, len(opened.records())) == ("/elsewhere", 1)
