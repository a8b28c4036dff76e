"""The processor's own energy counters (RAPL): in µJ, readable for root on most machines, and they wrap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.machine.files import number_of, text_of

if TYPE_CHECKING:
    from pathlib import Path


class Rapl:
    """Joules by domain since this was made: ``package-0``, ``package-0/dram``."""

    def __init__(self, root: Path) -> None:
        folders = {name: folder for folder in _folders(root) if (name := _name(folder)) is not None}
        self._counters = {name: _Counter(folder) for name, folder in folders.items()}

    def read_j(self) -> dict[str, float]:
        """Return the joules so far; a domain that cannot be read is left out."""
        joules = {name: counter.read_j() for name, counter in self._counters.items()}
        return {name: spent for name, spent in joules.items() if spent is not None}


class _Counter:
    """One counter that begins anew at its highest value; read more often than it wraps, nothing is lost."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "energy_uj"
        self._range_uj = number_of(folder / "max_energy_range_uj")
        self._last_uj = number_of(self._path)
        self._spent_uj = 0

    def read_j(self) -> float | None:
        now_uj = number_of(self._path)
        if now_uj is None or self._last_uj is None:
            return None
        step = now_uj - self._last_uj
        if step < 0:
            if self._range_uj is None:
                return None
            step += self._range_uj
        self._spent_uj += step
        self._last_uj = now_uj
        return self._spent_uj / 1e6


def _folders(root: Path) -> list[Path]:
    return sorted((root / "sys/class/powercap").glob("intel-rapl:*"))


def _name(folder: Path) -> str | None:
    """Return a domain's name with that of its package; cores and graphics, parts of a package, are left out."""
    own = text_of(folder / "name")
    parent = folder.name.rpartition(":")[0]
    if own is None or parent == "intel-rapl":
        return own
    package = text_of(folder.with_name(parent) / "name")
    return f"{package}/{own}" if own == "dram" else None
