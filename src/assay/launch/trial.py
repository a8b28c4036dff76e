"""Measure one trial: place its workers, start fresh ones for each restart, time them by schedule, and end them.

The isolation level is predicted from the placement, and lowered afterwards where the evidence shows that workers
overlapped. Before and after a trial, interference by other processes is checked; the trial's duration is split over
its restarts.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from assay.core.errors import MachineCannot
from assay.core.results import GpuSnapshot, Note
from assay.core.values import Adaptive, Continuous, Paired, Staged
from assay.isolation.binding import HeldIsolation
from assay.isolation.placement import RunningWorker, allot_cores, overlap_limits
from assay.launch import schedules
from assay.launch.conditions import GpuSettings, SettingRefused, combine_settled
from assay.launch.local import find_free_port
from assay.launch.schedules import trace_workers
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
from assay.machine.devices import gpu_targets, kind_of, metered_gpus
from assay.machine.interference import assess_disturbance, observe_disturbance, take_snapshot
from assay.worker import protocol as say

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from assay.core.results import Disturbance, Evidence, IsolationLimit, SettlingResult
    from assay.core.values import InterferencePolicy, Isolation, Role, Trial
    from assay.isolation.placement import Allotment, Placement
    from assay.launch.workers import WorkerStarter
    from assay.machine.interference import ProcessSnapshot
    from assay.machine.model import Machine, Vendor

PlacementsByLevel = dict["Isolation", "Placement"]


class TrialPlacement:
    """The placements of one trial: here, and on the machines of remote ranks.

    Args:
        trial: The trial whose workers are placed.
        machine: The machine of this process, and of every role with a single rank.
        elsewhere: The machine of each rank on another node; ranks of one node share the very same value.
    """

    def __init__(self, trial: Trial, machine: Machine, elsewhere: Mapping[int, Machine]) -> None:
        max_ranks = max(role.ranks for role in trial.roles)
        self._trial = trial
        self._here = machine
        self._elsewhere = {rank: other for rank, other in elsewhere.items() if rank < max_ranks}
        self._machines = {id(node): node for node in (machine, *self._elsewhere.values())}
        self._refuse_missing_gpus()
        self._placements = {key: compute_placements(node, trial) for key, node in self._machines.items()}

    def machine_of(self, role: Role, rank: int) -> Machine:
        """Return the machine of a rank."""
        return self._elsewhere.get(rank, self._here) if role.ranks > 1 else self._here

    def allotment(self, role: Role, rank: int) -> Allotment:
        """Return what a rank may use of its own machine."""
        machine = self.machine_of(role, rank)
        allotment = self._placements[id(machine)][role.isolation].of(role.device_of(rank), role.worker)
        if allotment.gpu_uuid is None or role.used == role.devices:
            return allotment
        metered_uuids = [gpu_targets(machine)[device].uuid for device in role.metered]
        return allotment.model_copy(update={"gpu_uuid": ",".join([allotment.gpu_uuid, *metered_uuids])})

    @property
    def kept_cpus(self) -> set[int]:
        """The local CPUs that no worker got."""
        return {cpu for placement in self._placements[id(self._here)].values() for cpu in placement.kept_cpus}

    def notes(self) -> list[Note]:
        """Return the compromises of the placement, each once."""
        placement_notes = [
            note for levels in self._placements.values() for placement in levels.values() for note in placement.notes
        ]
        return list(dict.fromkeys([*placement_notes, *self._shared_cpus()]))

    def _refuse_missing_gpus(self) -> None:
        targets_by_device = {key: gpu_targets(machine) for key, machine in self._machines.items()}
        for role in self._trial.roles:
            missing = [device for device in role.metered if device not in targets_by_device[id(self._here)]]
            if missing:
                raise MachineCannot(f"{missing[0]} is to be metered, but there is no such GPU here.")
            for rank in self._elsewhere if role.ranks > 1 else ():
                device = role.device_of(rank)
                if kind_of(device) == "cuda" and device not in targets_by_device[id(self._elsewhere[rank])]:
                    raise MachineCannot(f"Rank {rank} would work on {device}, but its node has no such GPU.")

    def _shared_cpus(self) -> Iterator[Note]:
        """Note when there are more ranks than CPUs, and when several nodes are one machine.

        A rank that is alone on its node is then not alone on its machine.
        """
        for role in self._trial.roles:
            for key, ranks in Counter(id(self.machine_of(role, rank)) for rank in range(role.ranks)).items():
                cpus = len(self._machines[key].cpus)
                if ranks > cpus:
                    message = f"{ranks} ranks of {role.name} share {cpus} CPUs"
                    yield Note.warning("ranks_share_cpus", message, ranks=ranks, cpus=cpus)

        if len({machine.boot_id for machine in self._machines.values()}) < len(self._machines):
            yield Note.warning("nodes_share_machine", "several nodes are one machine: their ranks share its cores")


def compute_placements(machine: Machine, trial: Trial) -> PlacementsByLevel:
    """Return the placement of workers on cores, by each isolation level that the trial's roles ask for."""
    workers = trial.workers
    levels = dict.fromkeys(role.isolation for role in trial.roles)
    return {
        level: allot_cores(machine, tuple(workers), level, cpu_groups=trial.cpu_groups, workers=workers)
        for level in levels
    }


def predict_isolation(trial: Trial, placing: TrialPlacement) -> dict[tuple[str, int], HeldIsolation]:
    """Return the isolation that can hold for each placed worker, by its role and rank."""
    worker_ids = [WorkerId(role, rank, 0) for role in trial.roles for rank in range(role.ranks)]
    workers = []
    for worker_id in worker_ids:
        cpus = placing.allotment(worker_id.role, worker_id.rank).cpus
        cpus = placing.machine_of(worker_id.role, worker_id.rank).cpus if cpus is None else cpus
        workers.append(_occupant(worker_id, placing, worker_id.role.isolation, cpus))
    limits = _find_limits(trial, placing, worker_ids, workers)
    return {
        worker_id.key: HeldIsolation(worker_id.role.isolation).limited(*worker_limits)
        for worker_id, worker_limits in zip(worker_ids, limits, strict=True)
    }


def apply_overlap_limits(trial: Trial, placing: TrialPlacement, evidence: Sequence[Evidence]) -> list[Evidence]:
    """Return the evidence of one restart, with the isolation level lowered where workers overlapped."""
    roles = {role.name: role for role in trial.roles}
    worker_ids = [WorkerId(roles[entry.role], entry.rank, entry.restart) for entry in evidence]
    workers = [
        _occupant(worker_id, placing, entry.isolation_held, entry.allowed_cores)
        for worker_id, entry in zip(worker_ids, evidence, strict=True)
    ]
    lowered = []
    for entry, worker_limits in zip(evidence, _find_limits(trial, placing, worker_ids, workers), strict=True):
        held = HeldIsolation(entry.isolation_held, entry.isolation_limits).limited(*worker_limits)
        lowered.append(entry.model_copy(update={"isolation_held": held.level, "isolation_limits": held.limits}))
    return lowered


def shortfall_notes(evidence: Sequence[Evidence]) -> list[Note]:
    """Return descriptions of the isolation that did not hold, each once."""
    return list(
        dict.fromkeys(
            Note.warning(
                limit.code,
                f"isolation {entry.isolation_asked} did not hold, only {entry.isolation_held}: {limit.message}",
                requested=entry.isolation_asked,
                held=entry.isolation_held,
            )
            for entry in evidence
            for limit in entry.isolation_limits
        )
    )


def roles_overlap(trial: Trial, one: Role, other: Role) -> bool:
    """Return whether workers of two roles run concurrently: loads always, timed ones depending on the schedule."""
    return one.name == other.name or trial.schedule == "together" or "load" in {one.duty, other.duty}


def _find_limits(
    trial: Trial, placing: TrialPlacement, worker_ids: Sequence[WorkerId], workers: Sequence[RunningWorker]
) -> list[tuple[IsolationLimit, ...]]:
    machines = [placing.machine_of(worker_id.role, worker_id.rank) for worker_id in worker_ids]
    return overlap_limits(
        workers,
        {machine.boot_id: machine for machine in machines},
        lambda one, other: roles_overlap(trial, worker_ids[one].role, worker_ids[other].role),
    )


def _occupant(worker_id: WorkerId, placing: TrialPlacement, level: Isolation, cpus: tuple[int, ...]) -> RunningWorker:
    machine = placing.machine_of(worker_id.role, worker_id.rank)
    further_devices = [device for device in worker_id.role.used if device not in worker_id.role.devices]
    targets_by_device = gpu_targets(machine)
    gpus = {
        targets_by_device[device].uuid: device
        for device in (worker_id.role.device_of(worker_id.rank), *further_devices)
        if device in targets_by_device
    }
    return RunningWorker(worker_id.name, level, cpus, gpus, machine.boot_id)


MIN_MEASURED_SHARE = 0.25


class RestartShares(NamedTuple):
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
            complaints = observe_disturbance(
                OBSERVE_S, cpus=self.cpus, gpus=self.gpus, vendor=self.vendor, helpers=self.helpers
            ).complaints
            if not complaints:
                return None
            if time.monotonic() >= deadline:
                waited = f" and stayed so for {MAX_WAIT_S:.0f} s" if self.policy == "wait" else ""
                return f"it is not quiet here{waited}: {'; '.join(complaint.message for complaint in complaints)}"

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
        gpus = metered_gpus(self.machine, trial.watched) if isinstance(trial.mode, Continuous | Staged) else {}
        for index, uuid in gpus.items():
            try:
                nvidia.smoke_test(uuid)
            except MachineCannot as error:
                raise WorkersFailed(
                    (WorkerFailure(f"cuda:{index}", f"it was lost meanwhile: {str(error).rstrip('.')}"),), None
                ) from None

    def _restarts(self, trial: Trial, attempt: int, placing: TrialPlacement, outcome: TrialOutcome) -> None:
        shares: RestartShares | None = None
        settled: list[SettlingResult] = []
        restart = 0
        while shares is None or restart < shares.restarts:
            with WorkerGroup(trial, restart) as group:
                self._start_workers(group, attempt, placing)
                setup_s = max(group.setup_s.values())
                # Counted and continuous calls, and stages, use the whole duration: starting is not included.
                includes_setup = isinstance(trial.mode, Adaptive | Paired)
                if shares is None and includes_setup and setup_s > trial.mode.duration_s / 2:
                    message = (
                        f"starting takes {setup_s:.1f} s, most of the {trial.mode.duration_s:g} s requested; "
                        "a longer --duration measures more"
                    )
                    outcome.notes.append(Note.warning("mostly_setup", message, setup_s=setup_s))
                if shares is None:
                    shares = split_duration(trial.mode.duration_s, trial.restarts, setup_s if includes_setup else 0.0)
                try:
                    schedules.run_schedule(group, shares.share_s, self.machine)
                    trace_workers(group)
                    group.finish()
                finally:
                    outcome.series.extend(group.series)
                    outcome.tunings.extend(group.tunings)
                    evidence = apply_overlap_limits(trial, placing, group.evidence)
                    outcome.evidence.extend(evidence)
                    outcome.notes.extend([note for note in shortfall_notes(evidence) if note not in outcome.notes])
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
