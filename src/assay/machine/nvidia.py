"""NVIDIA GPUs through NVML; the only module that loads it. No driver and no GPU are normal results.

No NVML error leaves this module: they compare and hash in their own ways, so they are converted here. Settings are
changed under a lease, which is recorded first and names the function here that undoes it, and with a live guardian.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from assay.core import leases
from assay.core.errors import BadInput, MachineCannot
from assay.core.guardian import Guardian
from assay.core.processes import boot_id
from assay.core.results import GpuSnapshot
from assay.machine.model import Gpu, GpuInventory, GpuProcess, UnreachableGpu
from assay.machine.nvml import (
    NvmlReader,
    NvmlSensor,
    decode_text,
    list_processes,
    read_gpu,
    read_hint,
    read_links,
    read_throttle,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from assay.core.leases import Lease


POWER_LIMIT_LEASE, CLOCK_LEASE = "power limit", "locked clock"
"""Kinds of leases."""
_REQUIRED_RIGHTS = "administrator rights (root, and in a container CAP_SYS_ADMIN as well)"


class _SettingRefused(MachineCannot):
    """The driver changed nothing: this process lacks permission, or the GPU does not support it."""


class _FieldNotOffered(MachineCannot):
    """The GPU does not support the requested field."""


@contextlib.contextmanager
def _session() -> Iterator[ModuleType]:
    """Yield NVML, initialized, for the length of a ``with`` block."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise MachineCannot(f"NVML does not answer: {error}") from None
    try:
        yield pynvml
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def list_gpus() -> GpuInventory:
    """Return the GPUs that NVML lists, in NVML's order, and those that are lost."""
    try:
        with _session() as nvml:
            return _read_inventory(nvml)
    except MachineCannot as error:
        return GpuInventory(note=str(error))


def _read_inventory(nvml: ModuleType) -> GpuInventory:
    try:
        driver = decode_text(nvml.nvmlSystemGetDriverVersion())
        count = int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError as error:
        return GpuInventory(note=f"NVML stopped answering: {error}")
    readers = [NvmlReader(nvml, index) for index in range(count)]
    answers = [(reader, read_gpu(reader)) for reader in readers]
    answering = [(reader, answer) for reader, answer in answers if isinstance(answer, Gpu)]
    lost = tuple(answer for _, answer in answers if isinstance(answer, UnreachableGpu))
    return GpuInventory(
        gpus=tuple(gpu for _, gpu in answering),
        lost=lost,
        links=read_links(answering),
        hints={gpu.uuid: read_hint(reader) for reader, gpu in answering},
        driver=driver,
        cuda_driver=_cuda_driver(nvml),
        note=None if answering else _explain_no_gpu(lost),
    )


def _explain_no_gpu(lost: tuple[UnreachableGpu, ...]) -> str:
    if not lost:
        return "the driver lists no GPU"
    return f"NVML stopped answering: {'; '.join(f'GPU {gpu.index}: {gpu.reason}' for gpu in lost)}"


def _cuda_driver(nvml: ModuleType) -> str | None:
    """Return "13.0" from NVML's 13000."""
    try:
        version = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
    except nvml.NVMLError:
        return None
    return f"{version // 1000}.{version % 1000 // 10}"


def smoke_test(uuid: str) -> None:
    """Check that a GPU, or an instance of one, answers: its name, its memory and its utilization.

    Raises:
        MachineCannot: It does not, and why.
    """
    with _session() as nvml:
        handle = _handle(nvml, uuid)
        for function in ("nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates"):
            with contextlib.suppress(_FieldNotOffered):
                _query(nvml, uuid, "such field", function, handle)


def processes() -> tuple[GpuProcess, ...]:
    """Return the processes on the GPUs, unnamed; none where NVML does not answer."""
    try:
        with _session() as nvml:
            readers = [NvmlReader(nvml, index) for index in range(_count(nvml))]
            return tuple(process for reader in readers for process in _processes_on(reader))
    except MachineCannot:
        return ()


def _count(nvml: ModuleType) -> int:
    try:
        return int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError:
        return 0


def _processes_on(reader: NvmlReader) -> tuple[GpuProcess, ...]:
    return list_processes(reader, decode_text(reader.ask("nvmlDeviceGetUUID")) or "lost") or ()


@contextlib.contextmanager
def open_sensors(uuids: Sequence[str]) -> Iterator[tuple[NvmlSensor, ...]]:
    """Open the sensors of GPUs, in the order requested, for the length of a ``with`` block.

    Raises:
        MachineCannot: NVML does not answer, or lists no such GPU.
    """
    with open_readers(uuids) as opened:
        yield tuple(NvmlSensor(reader, uuid) for reader, uuid in zip(opened, uuids, strict=True))


@contextlib.contextmanager
def open_readers(uuids: Sequence[str]) -> Iterator[tuple[NvmlReader, ...]]:
    """Open NVML readers of GPUs, in the order requested, for the length of a ``with`` block.

    Raises:
        MachineCannot: NVML does not answer, or lists no such GPU.
    """
    with _session() as nvml:
        listed = [NvmlReader(nvml, index) for index in range(_count(nvml))]
        by_uuid = {decode_text(reader.ask("nvmlDeviceGetUUID")): reader for reader in listed}
        missing = [uuid for uuid in uuids if uuid not in by_uuid]
        if missing:
            raise MachineCannot(f"NVML lists no GPU {', '.join(missing)}.")
        yield tuple(by_uuid[uuid] for uuid in uuids)


def set_power_limit(uuid: str, watts: float) -> Lease:
    """Limit a GPU's power in W; releasing the lease restores the previous limit.

    Raises:
        BadInput: Out of the range that the GPU supports.
        MachineCannot: The GPU supports none, it is gone, this process lacks permission, or there is no guardian.
    """
    with _session() as nvml:
        handle = _handle(nvml, uuid)
        low_mw, high_mw = _query(nvml, uuid, "power limits", "nvmlDeviceGetPowerManagementLimitConstraints", handle)
        if not low_mw <= watts * 1e3 <= high_mw:
            raise BadInput(
                f"A power limit of {watts:g} W is out of range: "
                f"GPU {uuid} takes {low_mw / 1e3:g} to {high_mw / 1e3:g} W."
            )
        Guardian.require()
        with leases.lease_lock():
            _require_unheld(POWER_LIMIT_LEASE, uuid)
            before_w = _power_limit_mw(nvml, uuid, handle) / 1e3
            lease = leases.take_lease(
                POWER_LIMIT_LEASE,
                f"power limit of GPU {uuid}, {watts:g} W instead of {before_w:g} W",
                "assay.machine.nvidia:restore_power_limit",
                {"uuid": uuid, "watts": before_w, "boot": boot_id()},
            )
        return _apply_under_lease(lease, lambda: _write_power_limit(nvml, handle, uuid, watts))


def restore_power_limit(uuid: str, watts: float, boot: str | None = None) -> None:
    """Restore a GPU's power limit, in W, unless it is so already or the machine has restarted since.

    A restart resets the limits of all GPUs.
    """
    if boot not in {None, boot_id()}:
        return
    with _session() as nvml:
        handle = _handle(nvml, uuid)
        if _power_limit_mw(nvml, uuid, handle) != round(watts * 1e3):
            _write_power_limit(nvml, handle, uuid, watts)


def _power_limit_mw(nvml: ModuleType, uuid: str, handle: Any) -> int:
    return int(_query(nvml, uuid, "power limits", "nvmlDeviceGetPowerManagementLimit", handle))


def _write_power_limit(nvml: ModuleType, handle: Any, uuid: str, watts: float) -> None:
    """Set the limit and read it back: it only counts as set if it is seen to hold."""
    _apply_setting(nvml, uuid, "the power limit", "nvmlDeviceSetPowerManagementLimit", handle, round(watts * 1e3))
    held_w = _power_limit_mw(nvml, uuid, handle) / 1e3
    if abs(held_w - watts) > 1:
        raise MachineCannot(f"GPU {uuid} took a power limit of {watts:g} W without an error, but holds {held_w:g} W.")


def lock_sm_clocks(uuid: str, low_mhz: int, high_mhz: int) -> Lease:
    """Keep a GPU's SM clock within bounds in MHz; releasing the lease unlocks it.

    NVML does not report whether the clock was locked before; an earlier lock by others is lost afterwards.

    Raises:
        BadInput: Out of the range that the GPU supports.
        MachineCannot: The GPU supports none, it is gone, this process lacks permission, or there is no guardian.
    """
    with _session() as nvml:
        handle = _handle(nvml, uuid)
        lowest, highest = _clock_range(nvml, uuid, handle)
        if not lowest <= low_mhz <= high_mhz <= highest:
            raise BadInput(
                f"SM clocks from {low_mhz} to {high_mhz} MHz make no range of GPU {uuid}: "
                f"it takes a lower and an upper bound from {lowest} to {highest} MHz."
            )
        lease = _clock_lease(uuid, f"SM clock of GPU {uuid}, locked to {low_mhz} to {high_mhz} MHz")
        function = "nvmlDeviceSetGpuLockedClocks"
        return _apply_under_lease(
            lease, lambda: _apply_setting(nvml, uuid, "the SM clock", function, handle, low_mhz, high_mhz)
        )


def claim_sm_clocks(uuid: str) -> Lease:
    """Keep others from locking a GPU's SM clock until the lease is released; an existing lock is removed.

    Raises:
        MachineCannot: It is locked by a running run, or this process may not change it.
    """
    lease = _clock_lease(uuid, f"SM clock of GPU {uuid}, kept for one run")
    return _apply_under_lease(lease, lambda: unlock_sm_clocks(uuid))


def _clock_lease(uuid: str, what: str) -> Lease:
    Guardian.require()
    with leases.lease_lock():
        _require_unheld(CLOCK_LEASE, uuid)
        return leases.take_lease(
            CLOCK_LEASE, what, "assay.machine.nvidia:unlock_sm_clocks", {"uuid": uuid, "boot": boot_id()}
        )


def _require_unheld(kind: str, uuid: str) -> None:
    """Undo what a dead run left of a GPU's setting, and check that no living run holds it."""
    held = leases.release_orphans(kind, uuid=uuid)
    if held:
        raise MachineCannot(
            f"The {kind} of GPU {uuid} is held by another run, process {held[0].owner.pid}; "
            "two at once would measure and restore each other's settings."
        )


def sm_clock_range(uuid: str) -> tuple[float, float]:
    """Return the lowest and highest SM clock that a GPU can be locked to, in MHz; the lowest is 0 where not listed.

    Raises:
        MachineCannot: The GPU supports none, or does not answer.
    """
    with _session() as nvml:
        lowest, highest = _clock_range(nvml, uuid, _handle(nvml, uuid))
        return float(lowest), float(highest)


def unlock_sm_clocks(uuid: str, boot: str | None = None) -> None:
    """Let a GPU choose its SM clock again, unless the machine has restarted since it was locked."""
    if boot not in {None, boot_id()}:
        return
    with _session() as nvml:
        _apply_setting(nvml, uuid, "the SM clock", "nvmlDeviceResetGpuLockedClocks", _handle(nvml, uuid))


def _clock_range(nvml: ModuleType, uuid: str, handle: Any) -> tuple[int, int]:
    """Return the lowest and highest SM clock in MHz; the lowest is 0 where NVML does not list them."""
    highest = int(_query(nvml, uuid, "SM clocks to lock", "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM))
    try:
        memory_mhz = max(nvml.nvmlDeviceGetSupportedMemoryClocks(handle))
        return min(nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory_mhz)), highest
    except (nvml.NVMLError, ValueError):
        return 0, highest


def _apply_under_lease(lease: Lease, apply: Callable[[], None]) -> Lease:
    """Make a change under a lease and return the lease; a refused change needs no undo, any other failure may."""
    try:
        apply()
    except _SettingRefused:
        leases.discard_lease(lease)
        raise
    except BaseException as error:
        try:
            leases.release_lease(lease)
        except leases.LeaseNotReleased as failure:
            error.add_note(str(failure))
        raise
    return lease


def _handle(nvml: ModuleType, uuid: str) -> Any:
    return _query(nvml, uuid, "a handle", "nvmlDeviceGetHandleByUUID", uuid)


def _query(nvml: ModuleType, uuid: str, what: str, function: str, *arguments: object) -> Any:
    """Return NVML's answer about a GPU, or raise an error that explains why there is none."""
    try:
        return getattr(nvml, function)(*arguments)
    except nvml.NVMLError_NotSupported:
        raise _FieldNotOffered(f"GPU {uuid} offers no {what}.") from None
    except nvml.NVMLError as error:
        raise MachineCannot(f"GPU {uuid} does not answer: {error}.") from None


def _apply_setting(nvml: ModuleType, uuid: str, what: str, function: str, *arguments: object) -> None:
    try:
        getattr(nvml, function)(*arguments)
    except nvml.NVMLError_NoPermission:
        raise _SettingRefused(
            f"Setting {what} of GPU {uuid} needs {_REQUIRED_RIGHTS}, which this process does not have."
        ) from None
    except nvml.NVMLError_NotSupported:
        raise _SettingRefused(f"GPU {uuid} does not let {what} be set.") from None
    except nvml.NVMLError as error:
        raise MachineCannot(f"The driver did not set {what} of GPU {uuid}: {error}.") from None


class GpuSnapshotReader:
    """Reads a GPU whenever it is called; close it to release NVML."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._open = contextlib.ExitStack()
        (self._reader,) = self._open.enter_context(open_readers([uuid]))

    def __call__(self) -> GpuSnapshot | None:
        """Return a snapshot of the GPU; null when it does not answer any more."""
        reader = self._reader
        snapshot = GpuSnapshot(
            uuid=self._uuid,
            sm_mhz=reader.number("nvmlDeviceGetClockInfo", reader.nvml.NVML_CLOCK_SM),
            memory_mhz=reader.number("nvmlDeviceGetClockInfo", reader.nvml.NVML_CLOCK_MEM),
            temperature_c=reader.number("nvmlDeviceGetTemperature", reader.nvml.NVML_TEMPERATURE_GPU),
            power_w=reader.watts("nvmlDeviceGetPowerUsage"),
            throttle=read_throttle(reader),
        )
        return snapshot if reader.lost is None else None

    def close(self) -> None:
        """Release NVML."""
        self._open.close()
