"""The run loop: ask the experiment for the next block, measure it, store the records, ask again.

    step(records) ──► Block ──► launch each trial ──► store its record ─┐
         ▲                                                              │
         └──────────────────────────────────────────────────────────────┘
    step(records) ──► Done ──► report(records) ──► findings, page, files

Resuming runs the same loop: a block whose records exist is not measured again, and an incomplete block is measured
again as a whole. The same records give the same step, so the sequence of steps is the same.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from assay.core.format import unit_of
from assay.core.guardian import Guardian
from assay.core.processes import raise_if_stop_requested, stop_on_signals
from assay.core.results import STAND_IN, Note, Record, Window
from assay.core.values import Block, Done
from assay.experiments.base import RunResult, conclude, options_of
from assay.launch.monitoring import TrialMonitor, TrialObservations, stages_without_energy, token_costs
from assay.monitor.statistics import missing_power_notes
from assay.stats.intervals import slowest_rank, summarize_samples
from assay.timing.continuous import START_US

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.results import LostGpu, Summary
    from assay.core.values import Trial
    from assay.experiments.base import Experiment
    from assay.launch.trial import Launcher
    from assay.launch.workers import RawSeries, TrialOutcome
    from assay.machine.model import Machine
    from assay.store.records import Records
    from assay.store.run_folder import RunFolder

NOT_SUMMARISED = frozenset(
    {START_US, "input_tokens", "output_tokens", "answer_tokens", "requests", "errors", "silence_us", "client_cpu_s"}
    | {f"{which}_requests" for which in ("short", "long", "uncounted")}
)
"""Start times of calls and counts are stored, but not summarized as measured quantities."""

FLOOR_US = 20.0
"""Reading the clock around a single call adds up to 0.3 µs: over one percent of anything shorter."""


class RunProgress(Protocol):
    """Receives the progress of a run."""

    def block(self, block: Block, *, again: bool) -> None:
        """A block begins; ``again`` if it was measured before."""

    def trial(self, trial: Trial) -> None:
        """A trial begins."""

    def record(self, record: Record) -> None:
        """A trial has ended and is stored."""


def run(
    experiment: Experiment[Any], folder: RunFolder, machine: Machine, launcher: Launcher, progress: RunProgress
) -> RunResult:
    """Run the loop to its end, then analyse and store the findings."""
    options = options_of(experiment, folder)
    monitor = TrialMonitor(machine, folder.path, folder.plan.monitor_interval_s) if folder.plan.monitor else None
    with folder.held(), stop_on_signals(), Guardian(), monitor or nullcontext():
        loop = RunLoop(folder, launcher, progress, monitor)
        loop.to_the_end(lambda records: experiment.step(machine, options, records))
    with suppress(OSError):  # there is none where no worker ran here, and it is not empty where one is still ending
        (folder.path / "scratch").rmdir()
    return conclude(experiment, folder)


@dataclass(frozen=True)
class RunLoop:
    """One pass of the loop over one run folder."""

    folder: RunFolder
    launcher: Launcher
    progress: RunProgress
    monitoring: TrialMonitor | None = None

    def to_the_end(self, step: Callable[[Records], Block | Done]) -> None:
        """Measure the blocks that the steps ask for until they are done; finished blocks are taken from the folder."""
        records: list[Record] = []
        block_names: set[str] = set()
        while isinstance(block := step(self.folder.of(records)), Block):
            if block.name in block_names:
                raise RuntimeError(f"the experiment asks for block {block.name!r} again, with it measured")
            block_names.add(block.name)
            finished = self.folder.finished(block)
            records += finished if finished is not None else self._measure(block)

    def _measure(self, block: Block) -> list[Record]:
        attempt = self.folder.decide(block)
        self.progress.block(block, again=attempt > 1)
        records: list[Record] = []
        for trial in block.trials:
            if records and trial.cooldown_s > 0:
                time.sleep(trial.cooldown_s)
            for take in range(1, trial.retakes + 2):
                raise_if_stop_requested()
                self.progress.trial(trial)
                record = self._take(trial, attempt, take)
                self.progress.record(record)
                if not record.disturbed:
                    break
            records.append(record)
        return records

    def _take(self, trial: Trial, attempt: int, take: int) -> Record:
        """Measure a trial once, monitored if the run is, and store the record."""
        if self.monitoring is not None:
            self.monitoring.begin(trial)
        outcome = self.launcher.measure(trial, attempt)
        unwatched = TrialObservations(stages=stages_without_energy(trial, outcome.series))
        observed = self.monitoring.end(trial, outcome) if self.monitoring is not None else unwatched
        series = self.folder.keep_samples(trial.id, attempt, outcome.series, take=take)
        self.folder.keep_files(outcome.traces)
        record = _record(trial, outcome, observed, self.launcher.machine)
        record = record.model_copy(update={"attempt": attempt, "take": take, "series": series})
        return self.folder.keep(record)


def _record(trial: Trial, outcome: TrialOutcome, observed: TrialObservations, machine: Machine) -> Record:
    """Return a trial's outcome as a record of its first take, with its samples not yet in files."""
    complaints = observed.during.complaints if observed.during is not None else ()
    on_a_fake = machine.has_fake_driver and "cuda" in " ".join(trial.watched)
    outside_interference = outcome.disturbance.complaints if outcome.disturbance is not None else ()
    return Record(
        trial=trial.id,
        block=trial.block,
        attempt=1,
        window=Window(
            host=machine.host,
            boot_id=machine.boot_id,
            start_ns=outcome.start_ns,
            end_ns=outcome.end_ns,
            started_at=outcome.started_at,
        ),
        estimates=(*summaries(trial, outcome.series), *token_costs(observed.stages, outcome.series))
        if outcome.status == "ok"
        else (),
        tunings=tuple(outcome.tunings),
        evidence=tuple(outcome.evidence),
        disturbance=outcome.disturbance,
        gpus_before=outcome.gpus_before,
        gpus_after=outcome.gpus_after,
        settled=outcome.settled,
        **{name: value for name, value in vars(observed).items() if name != "note"},
        disturbed=(*outside_interference, *complaints),
        status=outcome.status,
        reason=outcome.reason,
        invalid_request=outcome.invalid_request,
        notes=(
            *outcome.notes,
            *floor_notes(outcome.series),
            *(complaint.note for complaint in complaints),
            *missing_power_notes(observed.during),
            *(_lost_gpu_note(lost) for lost in observed.lost_gpus),
            *([observed.note] if observed.note else []),
        ),
        stderr_tail=outcome.stderr_tail,
        origin="fake" if STAND_IN in os.environ or on_a_fake else "real",
    )


def _lost_gpu_note(lost: LostGpu) -> Note:
    """Report when a metered GPU stopped answering."""
    when = f"{lost.after_s:.1f} s after the trial began" if lost.after_s else "before the trial began"
    message = f"GPU {lost.gpu} was lost {when}: {lost.reason}"
    return Note.warning("gpu_lost", message, gpu=lost.gpu, after_s=lost.after_s)


def floor_notes(raw: list[RawSeries]) -> list[Note]:
    """Return a warning if single calls were timed that are so short that reading the clock distorts them."""
    timed = [s for s in raw if s.quantity == "call_us" and s.calls_per_sample == 1 and s.data]
    if any(float(np.median(np.frombuffer(s.data))) < FLOOR_US for s in timed):
        message = (
            f"single calls shorter than {FLOOR_US:g} µs were timed, which includes the cost of reading the clock; "
            "without --benchmark-runs they are timed in groups"
        )
        return [Note.warning("clock_overhead", message, floor_us=FLOOR_US)]
    return []


def summaries(trial: Trial, raw: list[RawSeries]) -> tuple[Summary, ...]:
    """Return summaries of the samples, one per role, subject and quantity; of several ranks, the slowest counts.

    Start times of calls, and what loads did, are stored and not summarized.
    """
    grouped: dict[tuple[str, int, str], dict[int, list[RawSeries]]] = defaultdict(lambda: defaultdict(list))
    timed = {role.name for role in trial.roles if role.duty == "timed"}
    for part in raw:
        if part.quantity in NOT_SUMMARISED or part.role not in timed or not part.data:
            continue
        grouped[part.role, part.subject, part.quantity][part.restart].append(part)
    commands = {role.name: role.subjects[0].command is not None for role in trial.roles}
    return tuple(
        summarize_samples(
            role,
            subject,
            quantity,
            unit_of(quantity),
            [slowest_rank([np.frombuffer(part.data) for part in parts]) for parts in restarts.values()],
            scope_of_one="run" if commands[role] else "process",
        )
        for (role, subject, quantity), restarts in grouped.items()
    )
