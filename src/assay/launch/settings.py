"""What a trial sets on the GPUs of its timed roles (power limit, locked clock): under leases, and always undone.

refused ◄── every change is checked ── made, one by one ──► the trial ──► undone, the last one first
                                        (one refused: undone, and the trial is refused)
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.core import leases
from assay.core.errors import BadInput, MachineCannot
from assay.core.guardian import GuardianLost
from assay.core.leases import LeaseNotReleased
from assay.core.processes import defer_stop
from assay.core.results import Note
from assay.core.values import POWER_LIMIT_W, SM_MHZ
from assay.machine import nvidia
from assay.machine.cuda_devices import gpu_targets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.leases import Lease
    from assay.core.values import Scalar, Trial
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
                readers = (
                    open_sessions.enter_context(nvidia.open_readers([setting.uuid for setting in settings]))
                    if settings
                    else ()
                )
                for change in settings:
                    _apply_setting(change, applied)
            except GuardianLost as error:
                self._undo(applied, error, notes)
                raise
            except (BadInput, MachineCannot) as error:
                self._undo(applied, error, notes)
                raise SettingRefused(str(error).rstrip(".")) from None
            except BaseException as error:
                self._undo(applied, error, notes)
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
    watts, mhz = (
        _positive_number(name, requested[name]) if name in requested else None for name in (POWER_LIMIT_W, SM_MHZ)
    )
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


def _positive_number(name: str, value: Scalar) -> float:
    if isinstance(value, bool | str) or value is None or not value > 0:
        raise BadInput(f"{name} is a positive number, not {value!r}")
    return float(value)


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
