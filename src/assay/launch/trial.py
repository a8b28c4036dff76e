"""Measure one trial: start fresh workers for each restart, time them by schedule, and end them.

Before and after a trial, interference by other processes is checked; the trial's duration is split over its
restarts.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot
from assay.core.results import GpuSnapshot, Note
from assay.core.values import Adaptive, Continuous, Paired, Staged
from assay.launch import schedules
from assay.launch.local import find_free_port
from assay.launch.placement import TrialPlacement, apply_overlap_limits, shortfall_notes
from assay.launch.schedules import trace_workers
from assay.launch.settings import GpuSettings, SettingRefused
from assay.launch.settling import combine_settled, metered_devices
from assay.launch.workers import (
    LaunchSpec,
    TrialOutcome,
    WorkerFailure,
    WorkerGroup,
    WorkerId,
    WorkerReply,
    WorkersFailed,
    all_refused,
    join_series,
)
from assay.machine import nvidia
from assay.machine.interference import assess_disturbance, observe_disturbance, take_snapshot
from assay.worker import protocol as say

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.core.results import Disturbance, SettlingResult
    from assay.core.values import InterferencePolicy, Trial
    from assay.launch.workers import WorkerStarter
    from assay.machine.interference import ProcessSnapshot
    from assay.machine.model import Machine
    from assay.machine.vendor import Vendor


MIN_MEASURED_SHARE = 0.25


@dataclass(frozen=True)
class RestartShares:
    """The number of restarts of a trial's workers, and the measuring time of each in s."""

    restarts: int
    share_s: float


def split_duration(duration_s: float, restarts: int, setup_s: float) -> RestartShares:
    """Return the restarts that fit a duration when each costs its set-up, and the time left to measure in each.

    No more than half of the duration goes to set-up, unless a single start already takes more; even then a
    quarter of the duration is measured.
    """
    fitting = max(1, min(restarts, int(duration_s / (2 * setup_s)) if setup_s > 0 else restarts))
    part_s = duration_s / fitting
    return RestartShares(fitting, max(part_s - setup_s, MIN_MEASURED_SHARE * part_s))


OBSERVE_S = 0.5
MAX_WAIT_S = 120.0


@dataclass
class InterferenceWatch:
    """Checks for interference before and after a trial, while nothing is timed."""

    policy: InterferencePolicy
    cpus: int
    gpus: tuple[str, ...]
    vendor: Vendor | None
    helpers: frozenset[int] = frozenset()
    _before: ProcessSnapshot | None = None

    @classmethod
    def over(cls, machine: Machine, trial: Trial, helpers: frozenset[int] = frozenset()) -> InterferenceWatch:
        """Return a watch for the machine and the GPUs that a trial uses; ``helpers`` are Assay's own processes."""
        used = {device.partition("/")[0] for device in trial.used}
        gpus = tuple(gpu.uuid for gpu in machine.gpus if f"cuda:{gpu.index}" in used)
        return cls(trial.on_interference, len(machine.cpus), gpus, nvidia if gpus else None, helpers)

    def refusal(self) -> str | None:
        """Check for interference before the trial, if the policy asks for it; return why not to measure, or null."""
        if self.policy == "warn":
            return None
        deadline = time.monotonic() + (MAX_WAIT_S if self.policy == "wait" else 0.0)
        while True:
            activity = observe_disturbance(
                OBSERVE_S, cpus=self.cpus, gpus=self.gpus, vendor=self.vendor, helpers=self.helpers
            )
            if not activity.complaints:
                return None
            if time.monotonic() >= deadline:
                waited = f" and stayed so for {MAX_WAIT_S:.0f} s" if self.policy == "wait" else ""
                return (
                    f"it is not quiet here{waited}: {'; '.join(complaint.message for complaint in activity.complaints)}"
                )

    def begin(self) -> tuple[GpuSnapshot, ...]:
        """Take the first process snapshot; return the state of the GPUs in use."""
        self._before = take_snapshot(vendor=self.vendor)
        return self._moments()

    def end(self) -> tuple[Disturbance, tuple[GpuSnapshot, ...]]:
        """Take the second process snapshot; return the interference since the first, and the GPUs' state."""
        if self._before is None:
            raise RuntimeError("a watch ends only after it has begun")
        moments = self._moments()
        after = take_snapshot(vendor=self.vendor)
        return assess_disturbance(self._before, after, cpus=self.cpus, gpus=self.gpus, helpers=self.helpers), moments

    def _moments(self) -> tuple[GpuSnapshot, ...]:
        shown = self.vendor.list_gpus().gpus if self.vendor is not None else ()
        return tuple(
            GpuSnapshot(
                uuid=gpu.uuid,
                sm_mhz=gpu.state.sm_mhz,
                memory_mhz=gpu.state.memory_mhz,
                temperature_c=gpu.state.temperature_c,
                power_w=gpu.state.power_w,
                throttle=gpu.state.throttle,
            )
            for gpu in shown
            if gpu.uuid in self.gpus and gpu.state is not None
        )


@dataclass(frozen=True)
class Launcher:
    """Measures trials on a machine, with workers from a starter; some ranks may be on other nodes."""

    machine: Machine
    starter: WorkerStarter
    elsewhere: Mapping[int, Machine] = field(default_factory=dict)
    settings: GpuSettings = field(default_factory=GpuSettings)
    helpers: frozenset[int] = frozenset()
    """Local processes that belong to this run but were started by others: the other ranks of a torchrun."""

    def measure(self, trial: Trial, attempt: int = 1) -> TrialOutcome:
        """Return the outcome of a trial; failures of workers are part of it, never raised.

        Raises:
            LeaseNotReleased: A GPU setting of the trial could not be undone, although it was measured.
        """
        now = time.perf_counter_ns()
        outcome = TrialOutcome(now, now, datetime.now(UTC).isoformat(timespec="milliseconds"))
        placing = TrialPlacement(trial, self.machine, self.elsewhere)
        outcome.notes.extend(placing.notes())
        watch = InterferenceWatch.over(self.machine, trial, self.helpers)
        refusal = watch.refusal()
        if refusal is not None:
            outcome.status, outcome.reason = "refused", refusal
            return outcome
        try:
            outcome.gpus_before = watch.begin()
            held = self.settings.held(trial, self.machine, outcome.notes, elsewhere=bool(self.elsewhere))
            with held, pin_parent(placing.kept_cpus):
                self._restarts(trial, attempt, placing, outcome)
                self._check_gpus(trial)
            outcome.disturbance, outcome.gpus_after = watch.end()
            outcome.notes.extend(complaint.note for complaint in outcome.disturbance.complaints)
        except SettingRefused as refused:
            outcome.status, outcome.reason = "refused", str(refused)
        except WorkersFailed as error:
            first = error.failures[0]
            outcome.status = "refused" if all_refused(error.failures) else "failed"
            outcome.reason = f"{first.worker}: {first.reason}"
            outcome.invalid_request = isinstance(trial.mode, Staged) and first.code == "bad_input"
            outcome.stderr_tail = error.tail
        outcome.end_ns = time.perf_counter_ns()
        outcome.series = join_series(outcome.series)
        return outcome

    def _check_gpus(self, trial: Trial) -> None:
        """Check that GPUs with continuous or staged calls still work: readings of a lost one are useless."""
        gpus = metered_devices(trial.roles, self.machine) if isinstance(trial.mode, Continuous | Staged) else {}
        for uuid, device in gpus.items():
            try:
                nvidia.smoke_test(uuid)
            except MachineCannot as error:
                raise WorkersFailed(
                    (WorkerFailure(device, f"it was lost meanwhile: {str(error).rstrip('.')}"),), None
                ) from None

    def _restarts(self, trial: Trial, attempt: int, placing: TrialPlacement, outcome: TrialOutcome) -> None:
        shares: RestartShares | None = None
        settled: list[SettlingResult] = []
        restart = 0
        while shares is None or restart < shares.restarts:
            with WorkerGroup(trial, restart) as group:
                self._start_workers(group, attempt, placing)
                setup_s = max(group.setup_s.values())
                if shares is None and counts_setup(trial) and setup_s > trial.mode.duration_s / 2:
                    message = (
                        f"starting takes {setup_s:.1f} s, most of the {trial.mode.duration_s:g} s requested; "
                        "a longer --duration measures more"
                    )
                    outcome.notes.append(Note.warning("mostly_setup", message, setup_s=setup_s))
                shares = shares or restart_shares(trial, setup_s=setup_s)
                try:
                    schedules.run_schedule(group, shares.share_s, self.machine)
                    trace_workers(group)
                    group.finish()
                finally:
                    outcome.series.extend(group.series)
                    outcome.tunings.extend(group.tunings)
                    evidence = apply_overlap_limits(trial, placing, group.evidence)
                    outcome.evidence.extend(evidence)
                    new_notes = [note for note in shortfall_notes(evidence) if note not in outcome.notes]
                    outcome.notes.extend(new_notes)
                    settled.extend(group.settled)
                    outcome.settled = combine_settled(settled)
                    outcome.notes.extend(group.notes)
                    outcome.traces.update(group.named_traces)
            restart += 1
        if restart < trial.restarts:
            message = f"{restart} of {trial.restarts} restarts fit into {trial.mode.duration_s:g} s with their set-up"
            outcome.notes.append(Note.warning("restarts_cut", message, restarts=restart, requested=trial.restarts))

    def _start_workers(self, group: WorkerGroup, attempt: int, placing: TrialPlacement) -> None:
        """Start every worker of a group, prepare them all concurrently, and wait until each is ready."""
        for role in group.trial.roles:
            port = find_free_port() if role.ranks > 1 else 0
            for rank in range(role.ranks):
                worker_id = WorkerId(role, rank, group.restart)
                allotment = placing.allotment(role, rank)
                group.handles[worker_id.key] = handle = self.starter(
                    LaunchSpec(group.trial.id, attempt, worker_id, allotment, port if role.ranks > 1 else None)
                )
                group.threads[worker_id.key] = allotment.threads
                handle.send(
                    say.Prepare(
                        role=role,
                        rank=rank,
                        restart=group.restart,
                        allotment=allotment,
                        all_cpus=placing.machine_of(role, rank).cpus,
                        mode=group.trial.mode,
                        seed=group.trial.seed,
                    )
                )
        handles = list(group.handles.values())
        replies = group.collect(handles, say.WorkerReady, within_s=group.trial.mode.timeout_s, doing="being prepared")
        for key, reply in replies.items():
            if isinstance(reply, WorkerReply) and isinstance(reply.message, say.WorkerReady):
                group.facts[key] = reply.message
                group.setup_s[key] = (reply.at_ns - group.handles[key].born_ns) / 1e9


@contextmanager
def pin_parent(cpus: set[int]) -> Iterator[None]:
    """Pin this process to the CPUs that no worker got, if there are any."""
    before = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def counts_setup(trial: Trial) -> bool:
    """Return whether starting its workers is part of a trial's duration."""
    return isinstance(trial.mode, Adaptive | Paired)


def restart_shares(trial: Trial, *, setup_s: float) -> RestartShares:
    """Return the restarts and shares of a trial, given its set-up time.

    Counted and continuous calls, and stages, use the whole duration: starting is not included.
    """
    if not counts_setup(trial):
        return RestartShares(trial.restarts, trial.mode.duration_s / trial.restarts)
    return split_duration(trial.mode.duration_s, trial.restarts, setup_s)
