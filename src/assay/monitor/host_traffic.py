"""Bytes that disks and the network moved, counted by the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.machine.files import is_there, text_of

if TYPE_CHECKING:
    from pathlib import Path

_SECTOR_BYTES = 512
"""The kernel's unit, whatever the disk's own."""


def read_disks(root: Path) -> tuple[int, int] | None:
    """Return bytes read and written so far by whole disks; null where the kernel shows none.

    Partitions, loops and mapped volumes are left out: what they move is counted with the disk below.
    """
    moved = [
        (int(words[5]), int(words[9]))
        for words in map(str.split, (text_of(root / "proc/diskstats") or "").splitlines())
        if len(words) > 9 and is_there(root / "sys/block" / words[2] / "device")
    ]
    return _summed(moved, _SECTOR_BYTES)


def read_network(root: Path) -> tuple[int, int] | None:
    """Return bytes received and sent so far, the loopback left out; null where the kernel shows no interface.

    Where interfaces with hardware are to be seen, only they count: bridges and tunnels run over them.
    """
    moved: dict[str, tuple[int, int]] = {}
    for line in (text_of(root / "proc/net/dev") or "").splitlines():
        name, colon, counts = line.partition(":")
        words = counts.split()
        if colon and name.strip() != "lo" and len(words) > 8:
            moved[name.strip()] = int(words[0]), int(words[8])
    solid = [bytes_ for name, bytes_ in moved.items() if is_there(root / "sys/class/net" / name / "device")]
    return _summed(solid or list(moved.values()), 1)


def _summed(moved: list[tuple[int, int]], unit: int) -> tuple[int, int] | None:
    return (sum(one for one, _ in moved) * unit, sum(other for _, other in moved) * unit) if moved else None
