"""Memory: how much is used, on which node pages were got, and how long somebody waited for what."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.machine.files import text_of

if TYPE_CHECKING:
    from pathlib import Path

_ENTRY = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
_PRESSURE = re.compile(r"^(some|full) .*total=(\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Memory:
    """The machine's memory in MiB. Null: the kernel does not say."""

    total_mib: float | None
    used_mib: float | None
    swap_used_mib: float | None


def read_memory(root: Path) -> Memory:
    """Return what ``/proc/meminfo`` says; used is what is not available to new programs."""
    mib = {name: int(kib) / 1024 for name, kib in _ENTRY.findall(text_of(root / "proc/meminfo") or "")}
    return Memory(
        total_mib=mib.get("MemTotal"),
        used_mib=_difference(mib.get("MemTotal"), mib.get("MemAvailable")),
        swap_used_mib=_difference(mib.get("SwapTotal"), mib.get("SwapFree")),
    )


def _difference(whole: float | None, rest: float | None) -> float | None:
    return None if whole is None or rest is None else round(whole - rest, 3)


class Nodes:
    """Where pages were got, by memory node."""

    def __init__(self, root: Path) -> None:
        folders = (root / "sys/devices/system/node").glob("node[0-9]*")
        self._paths = {int(folder.name[len("node") :]): folder / "numastat" for folder in sorted(folders)}

    def read(self) -> dict[str, dict[int, int]]:
        """Return pages so far: numa_hit, numa_miss and numa_foreign, by node."""
        counts: dict[str, dict[int, int]] = {"numa_hit": {}, "numa_miss": {}, "numa_foreign": {}}
        for node, path in self._paths.items():
            for name, _, pages in (line.partition(" ") for line in (text_of(path) or "").splitlines()):
                if name in counts:
                    counts[name][node] = int(pages)
        return counts


def read_pressure_s(root: Path) -> dict[str, float]:
    """Return for how long so far some or all threads waited: ``cpu``, ``memory``, ``memory_full`` and so on, in s."""
    waited: dict[str, float] = {}
    for name in ("cpu", "memory", "io"):
        for who, total_us in _PRESSURE.findall(text_of(root / f"proc/pressure/{name}") or ""):
            waited[name if who == "some" else f"{name}_full"] = int(total_us) / 1e6
    return waited
