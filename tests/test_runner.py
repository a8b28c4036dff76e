"""The loop and its resumption: a bisection as a toy experiment, and a launcher that computes instead of measuring."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import MachineCannot, StopRequested
from assay.core.files import read_json
from assay.core.guardian import Guardian
from assay.core.page import Page
from assay.core.results import Disturbance, Finding, Findings, Interference, Missing, SubjectFacts
from assay.core.values import Adaptive, Block, Done, Role, Subject, Trial, Value
from assay.experiments.base import Report, RunResult
from assay.launch.workers import RawSeries, TrialOutcome
from assay.machine.detect import detect
from assay.runner import run
from assay.store.records import Records
from assay.store.run_folder import RunFolder, RunPlan
from tests.experiments.energy.metered_world import World, config, gpus, options
from tests.experiments.remembered import Remembered

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.results import Record
    from assay.machine.model import Machine

MACHINE = detect()
THRESHOLD = 613


class BisectOptions(Value):
    """Where to look for the size from which on a call takes longer than 1000 µs."""

    low: int = 0
    high: int = 1024


class Bisection:
    """Measures the middle of what is left until one size remains."""

    name = "bisection"
    options_type = BisectOptions

    def step(self, machine: Machine, options: BisectOptions, records: Records) -> Block | Done:
        low, high = self.bounds(options, records)
        if high - low <= 1:
            return Done(why=f"it is {high}")
        middle = (low + high) // 2
        role = Role(name="cpu:0", subjects=(subject(middle),), devices=("cpu:0",))
        control = Role(name="control", subjects=(subject(0),), devices=("cpu:0",))
        trials = tuple(
            Trial(block=f"size-{middle}", roles=(each,), mode=Adaptive(duration_s=1)) for each in (role, control)
        )
        return Block(name=f"size-{middle}", why=f"between {low} and {high}", trials=trials)

    def bounds(self, options: BisectOptions, records: Records) -> tuple[int, int]:
        low, high = options.low, options.high
        for record in records:
            size = int(record.block.removeprefix("size-"))
            if record.status != "ok" or record.series[0].role == "control":
                continue
            slow = float(np.median(records.samples(record.series[0]))) > 1000
            low, high = (low, min(high, size)) if slow else (max(low, size), high)
        return low, high

    def report(self, machine: Machine, options: BisectOptions, records: Records) -> Report:
        _, high = self.bounds(options, records)
        claim = f"slow from {high} on"
        findings = Findings(headline=claim, findings=(Finding(claim=claim, estimate=None, verdict="yes", records=()),))
        return Report(findings, Page(title="bisection", lead=claim))


def subject(size: int) -> Subject:
    return Subject(workload="computed", impl="python", params={"size": size})


@dataclass
class ComputedLauncher:
    """Takes 2000 µs from the threshold on and 500 µs below; stops the run, or fails, when told to."""

    machine: Machine = MACHINE
    stop_after: int | None = None
    fail_on: set[int] = field(default_factory=set)
    measured: list[str] = field(default_factory=list)

    def measure(self, trial: Trial, attempt: int = 1) -> TrialOutcome:
        if self.stop_after is not None and len(self.measured) >= self.stop_after:
            raise StopRequested("Stopped by SIGINT")
        self.measured.append(trial.id)
        now = time.perf_counter_ns()
        role = trial.roles[0]
        if len(self.measured) in self.fail_on:
            return TrialOutcome(now, now, "2026-01-01T00:00:00+00:00", status="failed", reason="it fell over")
        size = role.subjects[0].params["size"]
        assert isinstance(size, int)
        data = np.full(5, 2000.0 if size >= THRESHOLD else 500.0).tobytes()
        series = RawSeries(role.name, 0, 0, 0, "call_us", 1, now, now + 1, data)
        return TrialOutcome(now, now, "2026-01-01T00:00:00+00:00", series=[series])


class Silent:
    """Nobody watches."""

    def block(self, block: Block, *, again: bool) -> None: ...
    def trial(self, trial: Trial) -> None: ...
    def record(self, record: Record) -> None: ...


def new_folder(parent: Path) -> RunFolder:
    plan = RunPlan(experiment="bisection", options={}, seed=0, versions={}, cwd=str(parent), created_at="now")
    return RunFolder.create(parent / "runs", plan, MACHINE)


def walk(folder: RunFolder, launcher: ComputedLauncher) -> str:
    result = run(Bisection(), folder, MACHINE, launcher, Silent())  # type: ignore[arg-type]
    return result.findings.headline


def decided(folder: RunFolder) -> list[str]:
    """Return the trials of each decision that counts, in order: what the steps really asked for."""
    latest = {d.block.name: d for d in folder.decisions()}
    return [trial.id for d in latest.values() for trial in d.block.trials]


def test_the_loop_asks_measures_and_finds(tmp_path: Path) -> None:
    folder, launcher = new_folder(tmp_path), ComputedLauncher()
    assert walk(folder, launcher) == f"slow from {THRESHOLD} on"
    assert len(launcher.measured) == 20


@pytest.mark.full
@given(stops=st.lists(st.integers(min_value=0, max_value=9), min_size=1, max_size=6))
@settings(max_examples=8, deadline=None)
def test_a_resumed_run_takes_the_same_steps_as_an_undisturbed_one(
    tmp_path_factory: pytest.TempPathFactory, stops: list[int]
) -> None:
    with Guardian():  # that all walks share
        undisturbed = new_folder(tmp_path_factory.mktemp("undisturbed"))
        answer = walk(undisturbed, ComputedLauncher())
        disturbed = new_folder(tmp_path_factory.mktemp("disturbed"))
        for stop_after in stops:
            launcher = ComputedLauncher(stop_after=stop_after)
            finished = finished_trials(disturbed)
            with contextlib.suppress(StopRequested):
                walk(disturbed, launcher)
            assert not finished & set(launcher.measured), "a finished block was measured again"
        assert walk(disturbed, ComputedLauncher()) == answer
    assert decided(disturbed) == decided(undisturbed)
    assert [r.trial for r in disturbed.records()] == [r.trial for r in undisturbed.records()]


def finished_trials(folder: RunFolder) -> set[str]:
    blocks = {d.block.name: d.block for d in reversed(list(folder.decisions()))}
    whole = {name for name, block in blocks.items() if folder.finished(block) is not None}
    return {record.trial for record in folder.records() if record.block in whole}


def test_an_incomplete_block_is_measured_again_as_a_whole_and_what_it_replaces_is_kept(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    with pytest.raises(StopRequested):
        walk(folder, ComputedLauncher(stop_after=3))
    assert len(folder.records()) == 3
    walk(folder, ComputedLauncher())
    again = [r for r in folder.all_records() if r.block == folder.decisions()[1].block.name]
    assert [r.attempt for r in again] == [1, 2, 2]
    assert len(folder.records()) == 20
    assert len(folder.all_records()) == 21


def test_a_block_with_a_failure_is_measured_again_on_resume(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    with pytest.raises(StopRequested):
        walk(folder, ComputedLauncher(fail_on={2}, stop_after=2))
    launcher = ComputedLauncher()
    assert walk(folder, launcher) == f"slow from {THRESHOLD} on"
    assert len(launcher.measured) == 20


FFMPEG = Interference(kind="processes", source="ffmpeg", amount=2.0, unit="cores", message="others used 2.00 cores")


class Restless(ComputedLauncher):
    """Somebody else is busy during the first takes."""

    def measure(self, trial: Trial, attempt: int = 1) -> TrialOutcome:
        outcome = super().measure(trial, attempt)
        busy = self.measured.count(trial.id) < 3
        outcome.disturbance = Disturbance(
            observed_s=1.0,
            steal_share=None,
            outside_cores=None,
            unseen_cores=None,
            complaints=(FFMPEG,) if busy else (),
        )
        return outcome


class Patient(Bisection):
    """Has disturbed trials measured again."""

    retakes = 5

    def step(self, machine: Machine, options: BisectOptions, records: Records) -> Block | Done:
        found = super().step(machine, options, records)
        if isinstance(found, Done):
            return found
        trials = tuple(trial.model_copy(update={"retakes": self.retakes}) for trial in found.trials)
        return found.model_copy(update={"trials": trials})


@pytest.mark.full
@pytest.mark.parametrize(("retakes", "takes", "still_disturbed"), [(5, 3, False), (1, 2, True), (0, 1, True)])
def test_a_disturbed_trial_is_measured_again_as_often_as_asked_and_the_last_take_counts(
    tmp_path: Path, retakes: int, takes: int, still_disturbed: bool
) -> None:
    experiment, folder = Patient(), new_folder(tmp_path)
    experiment.retakes = retakes
    result = run(experiment, folder, MACHINE, Restless(), Silent())  # type: ignore[arg-type]
    assert result.findings.headline == f"slow from {THRESHOLD} on"
    assert {record.take for record in result.records} == {takes}
    assert {bool(record.disturbed) for record in result.records} == {still_disturbed}
    quality = result.findings.quality
    assert quality is not None
    assert quality.disturbed == (len(result.records) if still_disturbed else 0)
    assert quality.retaken == (len(result.records) if takes > 1 else 0)
    first = f"{len(result.records)} of {len(result.records)} trials disturbed: ffmpeg (2.0 cores)"
    (line,) = result.page.quality
    assert line.text.startswith(first if still_disturbed else "No interference detected in ")
    assert Findings.model_validate(read_json(folder.path / "findings.json")) == result.findings
    assert len(folder.all_records()) == takes * len(result.records)
    assert len({s.file for record in folder.all_records() for s in record.series}) == takes * len(result.records)


def test_two_processes_cannot_measure_into_one_folder(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    with folder.held(), pytest.raises(MachineCannot, match="being measured by another process"):
        walk(RunFolder.open(folder.path), ComputedLauncher())


def test_an_experiment_that_turns_in_a_circle_is_a_defect_and_does_not_hang(tmp_path: Path) -> None:
    class Circle(Bisection):
        def step(self, machine: Machine, options: BisectOptions, records: Records) -> Block | Done:
            return super().step(machine, options, Records([], tmp_path))

    with pytest.raises(RuntimeError, match="asks for block 'size-512' again"):
        run(Circle(), new_folder(tmp_path), MACHINE, ComputedLauncher(), Silent())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("senseless", "record", "code"),
    [
        ((False, False), {}, 0),
        ((True, False), {}, 4),
        ((True, True), {}, 2),
        ((), {"status": "failed", "reason": "no such setting", "invalid_request": True}, 2),
        ((), {"status": "failed", "reason": "it crashed"}, 4),
    ],
)
def test_what_cannot_be_on_any_machine_is_bad_input_wherever_it_was_found(
    senseless: tuple[bool, ...], record: dict[str, Any], code: int
) -> None:
    there = gpus(1)
    (measured, *_) = World(there).measured(options(there, config()))
    told = [
        SubjectFacts(subject=n + 1, skipped=Missing(code="bad_input", detail="no") if each else None)
        for n, each in enumerate(senseless)
    ]
    evidence = measured.evidence[0].model_copy(update={"subjects": (SubjectFacts(subject=0), *told)})
    kept = measured.model_copy(update={"status": "ok", "evidence": (evidence,), **record})
    assert RunResult(Findings(headline="h"), Page(title="t", lead="l"), Remembered([kept], {})).exit_code == code
