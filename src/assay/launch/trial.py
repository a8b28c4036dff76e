"""Measure one trial: its workers started afresh for each restart, timed by schedule, and gone afterwards."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot
from assay.launch import schedules
from assay.launch.apart import held_beside_others, shortfall_notes
from assay.launch.budget import Shares, share_out
from assay.launch.cause import all_refused
from assay.launch.crew import Crew, Errand, Trouble
from assay.launch.handle import Answer, Failure, Seat
from assay.launch.outcome import Outcome
from assay.launch.placing import Placing
from assay.launch.ranks import free_port
from assay.launch.samples import joined
from assay.launch.settings import SettingRefused, Settings
from assay.launch.settling import combined, gpus_of
from assay.launch.tracing import trace
from assay.launch.watch import Watch
from assay.machine import nvidia
from assay.worker import protocol as say

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.core.plan import Trial
    from assay.core.results import Settled
    from assay.launch.crew import Starter
    from assay.machine.model import Machine


@dataclass(frozen=True)
class Launcher:
    """Measures trials on a machine, with workers that a starter starts; some ranks may live elsewhere."""

    machine: Machine
    starter: Starter
    elsewhere: Mapping[int, Machine] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    helpers: frozenset[int] = frozenset()
    """Processes here that work for this one but were started by somebody else: the other ranks of a torchrun."""

    def measure(self, trial: Trial, attempt: int = 1) -> Outcome:
        """Return what came of a trial; failures of workers are part of it, never raised.

        Raises:
            LeaseNotReleased: What the trial set on a GPU could not be undone, though it was measured.
        """
        now = time.perf_counter_ns()
        outcome = Outcome(now, now, datetime.now(UTC).isoformat(timespec="milliseconds"))
        placing = Placing(trial, self.machine, self.elsewhere)
        outcome.notes.extend(placing.notes())
        watch = Watch.over(self.machine, trial, self.helpers)
        refusal = watch.refusal()
        if refusal is not None:
            outcome.status, outcome.reason = "refused", refusal
            return outcome
        try:
            outcome.gpus_before = watch.begin()
            held = self.settings.held(trial, self.machine, outcome.notes, elsewhere=bool(self.elsewhere))
            with held, parent_on(placing.kept_cpus):
                self._restarts(trial, attempt, placing, outcome)
                self._make_sure_of_gpus(trial)
            outcome.disturbance, outcome.gpus_after = watch.end()
            outcome.notes.extend(f"meanwhile {complaint.message}" for complaint in outcome.disturbance.complaints)
        except SettingRefused as refused:
            outcome.status, outcome.reason = "refused", str(refused)
        except Trouble as error:
            first = error.failures[0]
            outcome.status = "refused" if all_refused(error.failures) else "failed"
            outcome.reason = f"{first.who}: {first.reason}"
            outcome.senseless = trial.in_stages and first.senseless
            outcome.stderr_tail = error.tail
        outcome.end_ns = time.perf_counter_ns()
        outcome.series = joined(outcome.series)
        return outcome

    def _make_sure_of_gpus(self, trial: Trial) -> None:
        """Find out whether the GPUs of calls without a pause are still there: what a lost one read is no use."""
        gpus = gpus_of(trial.roles, self.machine) if trial.method.continuous or trial.in_stages else {}
        for uuid, device in gpus.items():
            try:
                nvidia.touch(uuid)
            except MachineCannot as error:
                raise Trouble((Failure(device, f"it was lost meanwhile: {str(error).rstrip('.')}"),), None) from None

    def _restarts(self, trial: Trial, attempt: int, placing: Placing, outcome: Outcome) -> None:
        shares: Shares | None = None
        settled: list[Settled] = []
        restart = 0
        while shares is None or restart < shares.restarts:
            with Crew(trial, restart) as group:
                self._bring_up(group, attempt, placing)
                setup_s = max(group.setup_s.values())
                if shares is None and counts_setup(trial) and setup_s > trial.method.duration_s / 2:
                    outcome.notes.append(
                        f"starting takes {setup_s:.1f} s, most of the {trial.method.duration_s:g} s asked for; "
                        "a longer --duration measures more"
                    )
                shares = shares or shares_of(trial, setup_s=setup_s)
                try:
                    schedules.run(group, shares.share_s, self.machine)
                    trace(group)
                    group.finish()
                finally:
                    outcome.series.extend(group.series)
                    outcome.tunings.extend(group.tunings)
                    evidence = held_beside_others(trial, placing, group.evidence)
                    outcome.evidence.extend(evidence)
                    new_notes = [note for note in shortfall_notes(evidence) if note not in outcome.notes]
                    outcome.notes.extend(new_notes)
                    settled.extend(group.settled)
                    outcome.settled = combined(settled)
                    outcome.notes.extend(group.notes)
                    outcome.traces.update(group.named_traces)
            restart += 1
        if restart < trial.restarts:
            outcome.notes.append(
                f"{restart} of {trial.restarts} restarts fit into {trial.method.duration_s:g} s beside their set-up"
            )

    def _bring_up(self, crew: Crew, attempt: int, placing: Placing) -> None:
        """Start every worker of a crew, prepare them all at once, and wait until each is ready."""
        for role in crew.trial.roles:
            port = free_port() if role.ranks > 1 else 0
            for rank in range(role.ranks):
                worker_id = Seat(role, rank, crew.restart)
                allotment = placing.allotment(role, rank)
                crew.handles[worker_id.key] = handle = self.starter(
                    Errand(crew.trial.id, attempt, worker_id, allotment, port if role.ranks > 1 else None)
                )
                crew.threads[worker_id.key] = allotment.threads
                handle.send(
                    say.Prepare(
                        role=role,
                        rank=rank,
                        restart=crew.restart,
                        allotment=allotment,
                        all_cpus=placing.machine_of(role, rank).cpus,
                        cache=crew.trial.method.cache,
                        timeout_s=crew.trial.method.timeout_s,
                        counted=role.ranks > 1 or crew.trial.method.benchmark_runs is not None,
                        continuous=crew.trial.method.continuous,
                        seed=crew.trial.seed,
                    )
                )
        everyone = list(crew.handles.values())
        answers = crew.hear(everyone, say.Ready, within_s=crew.trial.method.timeout_s, doing="being prepared")
        for key, answer in answers.items():
            if isinstance(answer, Answer) and isinstance(answer.message, say.Ready):
                crew.facts[key] = answer.message
                crew.setup_s[key] = (answer.at_ns - crew.handles[key].born_ns) / 1e9


@contextmanager
def parent_on(kept: set[int]) -> Iterator[None]:
    """Keep this process on the cores that no worker got, where there are some."""
    before = os.sched_getaffinity(0)
    if kept:
        os.sched_setaffinity(0, kept)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def counts_setup(trial: Trial) -> bool:
    """Return whether starting its workers is part of a trial's duration."""
    return not trial.method.continuous and not trial.in_stages


def shares_of(trial: Trial, *, setup_s: float) -> Shares:
    """Return the restarts and shares of a trial once it is known what starting its workers costs.

    Counted and continuous calls, and stages, have the whole of the duration: starting comes on top.
    """
    if trial.method.benchmark_runs is not None or trial.method.continuous or trial.in_stages:
        return Shares(trial.restarts, trial.method.duration_s / trial.restarts)
    return share_out(trial.method.duration_s, trial.restarts, setup_s)
