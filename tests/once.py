"""One trial through the real loop: measured by real workers, watched, kept and read back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Page
from assay.core.results import Findings
from assay.core.values import Block, Done, Trial, Value
from assay.experiments.base import Experiment, Report
from assay.launch.local import LocalStarter
from assay.launch.trial import Launcher
from assay.machine.detect import detect
from assay.runner import run
from assay.store.run_folder import RunFolder, RunPlan

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.results import Record
    from assay.machine.model import Machine
    from assay.store.records import Records


class Once:
    """One trial, measured once."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial

    def step(self, machine: Machine, options: Value, records: Records) -> Block | Done:
        return Done(why="measured") if list(records) else Block(name="b", why="asked", trials=(self.trial,))

    def report(self, machine: Machine, options: Value, records: Records) -> Report:
        return Report(Findings(headline="measured"), Page(title="once", lead="measured"))


class Silent:
    """Nobody watches."""

    def block(self, block: Block, *, again: bool) -> None: ...
    def trial(self, trial: Trial) -> None: ...
    def record(self, record: Record) -> None: ...


def measured(trial: Trial, folder: Path) -> tuple[Record, Records]:
    machine = detect()
    plan = RunPlan(experiment="once", options={}, seed=0, versions={}, cwd=str(folder), created_at="now", monitor=True)
    kept = RunFolder.create(folder / "runs", plan, machine)
    once = Once(trial)
    result = run(
        Experiment("once", Value, once.step, once.report),
        kept,
        machine,
        Launcher(machine, LocalStarter(kept.path, folder)),
        Silent(),
    )
    (record,) = result.records
    return record, result.records
