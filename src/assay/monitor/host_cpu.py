"""What the CPUs do: time by logical CPU, time the hypervisor took, clocks, context switches, load."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.machine.files import number_of, text_of

if TYPE_CHECKING:
    from pathlib import Path

_ALL = -1
_MHZ = re.compile(r"^processor\s*:\s*(\d+)$|^cpu MHz\s*:\s*([0-9.]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Ticks:
    """CPU time so far, in the kernel's ticks."""

    busy: int
    idle: int
    steal: int

    @property
    def whole(self) -> int:
        """All of it."""
        return self.busy + self.idle + self.steal


@dataclass(frozen=True)
class CpuLook:
    """One look at the CPUs; all CPUs together are under -1."""

    ticks: dict[int, Ticks] = field(default_factory=dict)
    context_switches: int | None = None
    running: int | None = None


def look_at_cpus(root: Path) -> CpuLook:
    """Return what ``/proc/stat`` says."""
    ticks: dict[int, Ticks] = {}
    single: dict[str, int] = {}
    for line in (text_of(root / "proc/stat") or "").splitlines():
        name, *words = line.split()
        if name.startswith("cpu"):
            ticks[int(name[3:] or _ALL)] = _ticks(words)
        elif name in {"ctxt", "procs_running"}:
            single[name] = int(words[0])
    return CpuLook(ticks, single.get("ctxt"), single.get("procs_running"))


def _ticks(words: list[str]) -> Ticks:
    """Read user, nice, system, idle, iowait, irq, softirq and steal; guests are counted in user already."""
    user, nice, system, idle, iowait, irq, softirq, steal = (*map(int, words[:8]), *([0] * (8 - len(words[:8]))))
    return Ticks(busy=user + nice + system + irq + softirq, idle=idle + iowait, steal=steal)


@dataclass(frozen=True)
class CpuUse:
    """Shares of CPU time between two looks, in percent; null: too short a time for the kernel's ticks."""

    cpu_percent: float | None = None
    steal_percent: float | None = None
    core_percent: dict[int, float] = field(default_factory=dict)


def use_between(before: CpuLook, after: CpuLook) -> CpuUse:
    """Return what the CPUs did between two looks; one that was switched on or off meanwhile is left out."""
    shares = {
        cpu: shares
        for cpu, now in after.ticks.items()
        if cpu in before.ticks and (shares := _shares(before.ticks[cpu], now)) is not None
    }
    busy, steal = shares.pop(_ALL, (None, None))
    return CpuUse(busy, steal, {cpu: share[0] for cpu, share in shares.items()})


def _shares(before: Ticks, after: Ticks) -> tuple[float, float] | None:
    """Return busy and stolen percent; the kernel's idle time may go back by a tick, which counts as none."""
    whole = after.whole - before.whole
    if whole <= 0:
        return None
    busy, steal = (max(0, now - was) for now, was in ((after.busy, before.busy), (after.steal, before.steal)))
    return round(min(100.0, 100 * busy / whole), 2), round(min(100.0, 100 * steal / whole), 2)


class Clocks:
    """The clock of each logical CPU, from wherever this kernel shows it."""

    def __init__(self, root: Path, cpus: tuple[int, ...]) -> None:
        self._info = root / "proc/cpuinfo"
        folder = root / "sys/devices/system/cpu"
        paths = {cpu: folder / f"cpu{cpu}/cpufreq/scaling_cur_freq" for cpu in cpus}
        self._paths = {cpu: path for cpu, path in paths.items() if number_of(path) is not None}

    def read_mhz(self) -> dict[int, float]:
        """Return the clocks in MHz; nothing where the kernel does not show them."""
        if self._paths:
            kilohertz = {cpu: number_of(path) for cpu, path in self._paths.items()}
            return {cpu: khz / 1e3 for cpu, khz in kilohertz.items() if khz is not None}
        clocks_mhz: dict[int, float] = {}
        cpu: int | None = None
        for number, mhz in _MHZ.findall(text_of(self._info) or ""):
            if number:
                cpu = int(number)
            elif cpu is not None:
                clocks_mhz[cpu] = float(mhz)
        return clocks_mhz


def load_1m(root: Path) -> float | None:
    """Return the load average of the last minute."""
    words = (text_of(root / "proc/loadavg") or "").split()
    return float(words[0]) if words else None
