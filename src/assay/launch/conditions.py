"""The GPU conditions of a trial: settings under leases, always undone, and the run under load until clocks are steady.

refused ◄── every change is checked ── made, one by one ──► the trial ──► undone, the last one first
                                        (one refused: undone, and the trial is refused)

A sensor of whole degrees shows a slow drift only as an occasional step: a window without one, or in which it jumps
back and forth, is steady. A clock under a power cap varies; its mean over half a window is compared with that over
the other half.
"""

from __future__ import annotations

import math
import select
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from assay.core import leases
from assay.core.errors import BadInput, MachineCannot
from assay.core.guardian import GuardianLost
from assay.core.leases import LeaseNotReleased
from assay.core.processes import defer_stop
from assay.core.results import Note, SettlingResult
from assay.core.values import POWER_LIMIT_W, SM_MHZ
from assay.launch.workers import WorkerFailure, WorkersFailed, collect_replies
from assay.machine import nvidia
from assay.machine.devices import gpu_targets, metered_gpus
from assay.machine.nvidia import GpuSnapshotReader
from assay.worker import protocol as say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from assay.core.leases import Lease
    from assay.core.results import GpuSnapshot
    from assay.core.values import Role, Trial
    from assay.launch.workers import WorkerGroup, WorkerHandle
    from assay.machine.model import Machine
    from assay.machine.nvml import NvmlReader

SETTING_NAMES = {POWER_LIMIT_W: "a power limit", SM_MHZ: "a locked SM clock"}


class SettingRefused(Exception):
    """A trial's settings cannot be applied; why, in one sentence. Nothing is left changed."""


@dataclass(frozen=True)
class GpuSetting:
    """The settings of one GPU. Null: unchanged."""

    device: str
    uuid: str
    watts: float | None
    mhz: int | None


@dataclass
class GpuSettings:
    """Applies the settings of trials, and tracks those that could not be undone."""

    unrestored: list[Lease] = field(default_factory=list)

    @contextmanager
    def held(self, trial: Trial, machine: Machine, notes: list[Note], *, elsewhere: bool = False) -> Iterator[None]:
        """Apply a trial's GPU settings for the duration of a ``with`` block.

        An error of the block is passed on; settings that could not be undone are then added to it as notes.

        Args:
            trial: The trial with the settings.
            machine: The machine of its GPUs.
            notes: Receives what was set, and what did not hold.
            elsewhere: Some ranks of the trial are on other nodes.

        Raises:
            SettingRefused: A setting is invalid or not permitted; or an earlier one could not be undone.
            LeaseNotReleased: A setting could not be undone; its lease is kept.
            GuardianLost: No guardian would undo a setting after a kill; none was applied.
        """
        self._undo_earlier()
        applied: list[Lease] = []
        with ExitStack() as open_sessions:
            try:
                settings = requested_settings(trial, machine, elsewhere=elsewhere)
                uuids = [setting.uuid for setting in settings]
                readers = open_sessions.enter_context(nvidia.open_readers(uuids)) if settings else ()
                for change in settings:
                    _apply_setting(change, applied)
            except BaseException as error:
                self._undo(applied, error, notes)
                if isinstance(error, BadInput | MachineCannot) and not isinstance(error, GuardianLost):
                    raise SettingRefused(str(error).rstrip(".")) from None
                raise
            pairs = list(zip(settings, readers, strict=True))
            notes.extend(note for change, reader in pairs for note in _read_back_notes(change, reader))
            try:
                yield
                notes.extend(note for change, reader in pairs for note in _changed_limits(change, reader))
            except BaseException as error:
                self._undo(applied, error, notes)
                raise
            self._undo(applied, None, notes)

    def _undo(self, applied: list[Lease], error: BaseException | None, notes: list[Note]) -> None:
        """Undo settings in reverse order, all of them even if one fails."""
        failures: list[LeaseNotReleased] = []
        with defer_stop():
            for lease in reversed(applied):
                try:
                    leases.release_lease(lease)
                except LeaseNotReleased as failure:
                    failures.append(failure)
                    self.unrestored.append(lease)
        notes.extend(Note.warning("setting_not_restored", str(failure)) for failure in failures)
        if failures and error is None:
            raise failures[0]
        for unreleased in failures:
            if error is not None:
                error.add_note(str(unreleased))

    def _undo_earlier(self) -> None:
        """Retry undoing an earlier trial's settings, so that nothing is measured under them."""
        while self.unrestored:
            try:
                leases.release_lease(self.unrestored[-1])
            except LeaseNotReleased as failure:
                raise SettingRefused(f"what an earlier trial set is still there: {failure}".rstrip(".")) from None
            self.unrestored.pop()


def requested_settings(trial: Trial, machine: Machine, *, elsewhere: bool = False) -> tuple[GpuSetting, ...]:
    """Return the GPU settings of a trial, one for each GPU of its timed roles; its other settings are ignored.

    Raises:
        BadInput: A value is not a positive number, or a device has no such setting.
        MachineCannot: The GPU is not on this machine, or the trial uses only a part of it.
    """
    requested = {name: trial.settings[name] for name in SETTING_NAMES if trial.settings.get(name) is not None}
    if not requested:
        return ()
    for name, value in requested.items():
        if isinstance(value, bool | str) or value is None or not value > 0:
            raise BadInput(f"{name} is a positive number, not {value!r}")
    watts, mhz = (None if (value := requested.get(name)) is None else float(value) for name in (POWER_LIMIT_W, SM_MHZ))
    timed = [role for role in trial.roles if role.duty == "timed"]
    what = " and ".join(SETTING_NAMES[name] for name in requested)
    if elsewhere and any(role.ranks > 1 for role in timed):
        raise MachineCannot(f"GPUs of other nodes cannot be given {what} from here")
    targets_by_device = gpu_targets(machine)
    devices = dict.fromkeys(device for role in timed for device in role.devices)
    for device in devices:
        if not device.startswith("cuda"):
            raise BadInput(f"{device} is no GPU and cannot be given {what}")
        if "/" in device:
            raise MachineCannot(f"{device} is a part of a GPU, and {what} would hold for the whole of it")
        if device not in targets_by_device:
            raise MachineCannot(f"{device} is not here, and cannot be given {what}")
    return tuple(
        GpuSetting(device, targets_by_device[device].uuid, watts, None if mhz is None else round(mhz))
        for device in devices
    )


def _apply_setting(change: GpuSetting, applied: list[Lease]) -> None:
    if change.watts is not None:
        applied.append(nvidia.set_power_limit(change.uuid, change.watts))
    if change.mhz is not None:
        applied.append(nvidia.lock_sm_clocks(change.uuid, change.mhz, change.mhz))


def _read_back_notes(change: GpuSetting, reader: NvmlReader) -> Iterator[Note]:
    """Report what was set, and the value that the GPU reports."""
    if change.watts is not None:
        limit_w = reader.watts("nvmlDeviceGetPowerManagementLimit")
        shown = "unknown" if limit_w is None else f"{limit_w:g}"
        message = f"{change.device}: power limit set to {change.watts:g} W; read back: {shown} W"
        yield Note.remark("power_limit_set", message, set_w=change.watts, read_w=limit_w)
    if change.mhz is not None:
        now = reader.number("nvmlDeviceGetClockInfo", reader.nvml.NVML_CLOCK_SM)
        message = f"{change.device}: SM clock locked to {change.mhz} MHz; read back: {now} MHz"
        yield Note.remark("sm_clock_locked", message, set_mhz=change.mhz, read_mhz=now)


def _changed_limits(change: GpuSetting, reader: NvmlReader) -> Iterator[Note]:
    """Report a limit that did not hold to the end of the trial."""
    limit_w = reader.watts("nvmlDeviceGetPowerManagementLimit")
    if change.watts is not None and limit_w is not None and abs(limit_w - change.watts) > 1:
        message = f"{change.device}: the power limit was {limit_w:g} W at the end: something else changed it"
        yield Note.warning("power_limit_changed", message, set_w=change.watts, read_w=limit_w)


WINDOW_S = 20.0
"""Length of the window in s; at the start as much as there is."""
MIN_WATCH_S = 3.0
MIN_POINTS = 5
MAX_DRIFT_C = 1.0
"""Per minute."""
RESOLUTION_C = 1.0
MAX_CLOCK_CHANGE = 0.01

Point = tuple[float, float]
"""Time in seconds, and reading."""


class TemperatureDrift(NamedTuple):
    """The drift of a temperature in °C per minute, and its standard error; one rounding step can add to the error."""

    slope_c: float
    error_c: float


@dataclass
class GpuTrace:
    """Readings of one GPU; null readings are left out."""

    temperature: list[Point] = field(default_factory=list)
    clock: list[Point] = field(default_factory=list)

    def add(self, t_s: float, snapshot: GpuSnapshot) -> None:
        """Add a reading."""
        if snapshot.temperature_c is not None:
            self.temperature.append((t_s, float(snapshot.temperature_c)))
        if snapshot.sm_mhz is not None:
            self.clock.append((t_s, float(snapshot.sm_mhz)))

    def unsteady(self) -> str | None:
        """Return what is not steady yet; null if all readable quantities are."""
        if not self.temperature and not self.clock:
            return "neither temperature nor clock can be read"
        problems = [temperature_problem(self.temperature), clock_problem(self.clock)]
        return "; ".join(problem for problem in problems if problem is not None) or None


def recent_points(points: Sequence[Point]) -> list[Point]:
    """Return the points in the window."""
    return [point for point in points if point[0] >= points[-1][0] - WINDOW_S]


def temperature_problem(points: Sequence[Point]) -> str | None:
    """Return why a temperature is not steady; null if it is, or none was read."""
    if not points:
        return None
    drift = fit_drift(points)
    if drift is None:
        return "it was not watched for long enough"
    recent_c = [value for _, value in recent_points(points)]
    if max(recent_c) - min(recent_c) < RESOLUTION_C:
        return None
    if abs(drift.slope_c) <= MAX_DRIFT_C and drift.error_c <= MAX_DRIFT_C:
        return None
    return f"its temperature moves by {drift.slope_c:+.1f} ± {drift.error_c:.1f} °C a minute"


def fit_drift(points: Sequence[Point]) -> TemperatureDrift | None:
    """Return the drift of a temperature, from a line fitted to its last points; null if there are too few.

    The error includes rounding to whole degrees, also if all points are equal.
    """
    recent = recent_points(points) if points else []
    if len(recent) < MIN_POINTS or recent[-1][0] - recent[0][0] < MIN_WATCH_S:
        return None
    mean_t = math.fsum(t for t, _ in recent) / len(recent)
    mean_c = math.fsum(c for _, c in recent) / len(recent)
    spread = math.fsum((t - mean_t) ** 2 for t, _ in recent)
    slope = math.fsum((t - mean_t) * (c - mean_c) for t, c in recent) / spread
    residual_variance = math.fsum((c - mean_c - slope * (t - mean_t)) ** 2 for t, c in recent) / (len(recent) - 2)
    return TemperatureDrift(60 * slope, 60 * math.sqrt(max(residual_variance, RESOLUTION_C**2 / 12) / spread))


def clock_problem(points: Sequence[Point]) -> str | None:
    """Return why a clock is not steady; null if it is, or none was read."""
    if not points:
        return None
    recent = recent_points(points)
    if len(recent) < MIN_POINTS or recent[-1][0] - recent[0][0] < MIN_WATCH_S:
        return "it was not watched for long enough"
    halves = recent[: len(recent) // 2], recent[len(recent) // 2 :]
    before, after = (math.fsum(mhz for _, mhz in half) / len(half) for half in halves)
    allowed = max(MAX_CLOCK_CHANGE * before, 2 * math.hypot(*(_mean_error(half) for half in halves)))
    if abs(after - before) <= allowed:
        return None
    return f"its SM clock went from {before:.0f} to {after:.0f} MHz"


def _mean_error(points: Sequence[Point]) -> float:
    """Return the standard error of a mean, from the differences of neighbours: a slow change is not noise."""
    differences = [(later[1] - earlier[1]) ** 2 for earlier, later in pairwise(points)]
    if not differences:
        return 0.0
    return math.sqrt(math.fsum(differences) / len(differences) / 2 / len(points))


if TYPE_CHECKING:
    Look = Callable[[], GpuSnapshot | None]

POLL_INTERVAL_S = 0.5
NO_GPU_WAIT_S = 1.0
RANKS_NOTE = Note.remark(
    "ranks_not_settled", "did not wait for steady clocks: several ranks finish together and cannot be held under load"
)
NO_GPU_NOTE = "no GPU: run for a moment, and nothing was looked at"


def settle(group: WorkerGroup, roles: Sequence[Role], machine: Machine) -> None:
    """Hold roles as a load until their GPUs, and those of the trial's loads, are steady; if the trial asks for it.

    Raises:
        WorkersFailed: A worker, a load or a GPU was lost meanwhile.
    """
    most_s = group.trial.settle_s
    if most_s is None:
        return
    if any(role.ranks > 1 for role in roles):
        group.notes.append(RANKS_NOTE)
        return
    handles, loads = group.workers_of(roles), group.workers_of(group.loads)
    limit_s = group.trial.mode.timeout_s
    group.send(handles, say.Hold())
    group.fail_on(collect_replies(handles, say.Holding, within_s=limit_s, doing="warming up", loads=loads))
    watched = metered_gpus(machine, (device for role in (*roles, *group.loads) for device in role.watched))
    gpus = {uuid: f"cuda:{index}" for index, uuid in watched.items()}
    group.settled.append(_watch_workers([*handles, *loads], gpus, most_s))
    group.send(handles, say.Release())
    group.fail_on(collect_replies(handles, say.Released, within_s=limit_s, doing="warming up", loads=loads))


def _watch_workers(handles: list[WorkerHandle], gpus: dict[str, str], most_s: float) -> SettlingResult:
    if not gpus:
        wait_s = min(most_s, NO_GPU_WAIT_S)
        _message_within(handles, wait_s)
        return SettlingResult(waited_s=wait_s, steady=False, note=NO_GPU_NOTE)
    with ExitStack() as stack:
        readers: dict[str, Look] = {}
        for uuid, device in gpus.items():
            try:
                readers[uuid] = stack.enter_context(closing(GpuSnapshotReader(uuid)))
            except MachineCannot as error:
                raise WorkersFailed((WorkerFailure(device, str(error).rstrip(".")),), None) from None
        return watch_until_steady(readers, gpus, most_s, pause=lambda wait_s: _message_within(handles, wait_s))


def watch_until_steady(
    readers: Mapping[str, Look],
    gpus: Mapping[str, str],
    most_s: float,
    *,
    pause: Callable[[float], bool],
    clock: Callable[[], float] = time.monotonic,
) -> SettlingResult:
    """Read GPUs until all are steady or the time allowed is up.

    Args:
        readers: Reads each GPU, by UUID; null: it is lost.
        gpus: The device name of each, by UUID.
        most_s: The time allowed.
        pause: Waits that long; returns whether there is a message, which ends the waiting.
        clock: In seconds.

    Raises:
        WorkersFailed: A GPU was lost.
    """
    begin_s = clock()
    traces = {uuid: GpuTrace() for uuid in readers}
    while True:
        waited_s = clock() - begin_s
        for uuid, read in readers.items():
            snapshot = read()
            if snapshot is None:
                reason = f"the GPU does not answer any more: it was lost while it was warmed up (GPU {uuid})"
                raise WorkersFailed((WorkerFailure(gpus[uuid], reason),), None)
            traces[uuid].add(waited_s, snapshot)
        problems = {uuid: trace.unsteady() for uuid, trace in traces.items()}
        steady = waited_s >= min(MIN_WATCH_S, most_s) and not any(problems.values())
        if steady or waited_s >= most_s or pause(min(POLL_INTERVAL_S, max(0.0, most_s - waited_s))):
            break
    drifts = {uuid: fit_drift(trace.temperature) for uuid, trace in traces.items()}
    return SettlingResult(
        waited_s=waited_s,
        steady=steady,
        temperature_c={uuid: trace.temperature[-1][1] for uuid, trace in traces.items() if trace.temperature},
        drift_c={uuid: drift.slope_c for uuid, drift in drifts.items() if drift is not None},
        note=None
        if steady
        else "; ".join(f"{gpus[uuid]}: {problem}" for uuid, problem in problems.items() if problem is not None),
    )


def _message_within(handles: list[WorkerHandle], wait_s: float) -> bool:
    """Wait, asleep; return whether a worker sent a message, which a held worker does only when it fails."""
    return bool(select.select(handles, [], [], wait_s)[0])


def combine_settled(settled: Sequence[SettlingResult]) -> SettlingResult | None:
    """Return the settling over all restarts and roles, with the last reading of each GPU; null if there was none."""
    if not settled:
        return None
    notes = dict.fromkeys(entry.note for entry in settled if entry.note is not None)
    return SettlingResult(
        waited_s=sum(entry.waited_s for entry in settled),
        steady=all(entry.steady for entry in settled),
        temperature_c={uuid: value for entry in settled for uuid, value in entry.temperature_c.items()},
        drift_c={uuid: value for entry in settled for uuid, value in entry.drift_c.items()},
        note="; ".join(notes) or None,
    )
