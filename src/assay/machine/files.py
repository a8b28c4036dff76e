"""Small files of sysfs and procfs: what is not there or cannot be read is null, never an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def is_there(path: Path) -> bool:
    """Return whether a path is to be seen; behind a closed door it is not."""
    try:
        return path.exists()
    except OSError:
        return False


def text_of(path: Path) -> str | None:
    """Return a file's content without blanks around it; null where there is none to be had."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):
        return None


def number_of(path: Path) -> int | None:
    """Return the whole number in a file; null where there is none."""
    text = text_of(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return (0, 1, 2, 8) from the kernel's "0-2,8"; nothing from an empty list."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def cpu_list_of(path: Path) -> tuple[int, ...] | None:
    """Return the CPUs listed in a file; null where there is no such list."""
    text = text_of(path)
    try:
        return None if text is None else parse_cpu_list(text)
    except ValueError:
        return None
