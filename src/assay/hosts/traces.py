"""What an order's ranks and nodes leave in its folder, so that whoever ordered it can tell how it went.

FOLDER/
  job.sh  job.log     what was asked for, and what the host's own tools said
  nodes/NAME          a node has begun; not empty once it is ready to join the others
  ranks/0.json …      a rank has begun; its exit code once it has ended
  ranks/0.out, 0.err  what it printed
  run                 the run folder that rank 0 measures into
  order.json          what was ordered, where the machine shares no files
  ended               nothing more will come
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from assay.core.durable import append_line, read_json, read_lines, replace_atomically
from assay.core.errors import BadInput
from assay.core.values import Value

FOLDER_VARIABLE = "ASSAY_ORDER_FOLDER"
ENDED = "ended"
ORDER = "order.json"
LOG = "job.log"
SCRIPT = "job.sh"
TAIL_BYTES = 4000


class Rank(Value):
    """One process of Assay over there; ``exit_code`` is null until it has ended by itself."""

    rank: int
    node: str
    exit_code: int | None = None


def make(folder: Path) -> None:
    """Make an order's folder."""
    for part in ("nodes", "ranks"):
        (folder / part).mkdir(parents=True, exist_ok=True)


def write_rank(folder: Path, rank: Rank) -> None:
    """Say that a rank has begun, or how it has ended."""
    replace_atomically(folder / "ranks" / f"{rank.rank}.json", rank.model_dump_json().encode())


def ranks(folder: Path) -> dict[int, Rank]:
    """Return the ranks that have begun; what is just being written counts at the next look."""
    by_rank: dict[int, Rank] = {}
    for path in (folder / "ranks").glob("*.json"):
        try:
            rank = Rank.model_validate(read_json(path))
        except (BadInput, ValidationError):
            continue
        by_rank[rank.rank] = rank
    return dict(sorted(by_rank.items()))


def nodes(folder: Path) -> dict[str, bool]:
    """Return the nodes that have begun, and whether each was ready to join the others."""
    return {path.name: path.stat().st_size > 0 for path in (folder / "nodes").glob("*")}


def note_run(path: Path) -> None:
    """Say which folder this process measures into, where it was ordered from elsewhere."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        append_line(Path(folder) / "run", str(path))


def run_of(folder: Path) -> Path | None:
    """Return the run folder that an order measures into; null when it has not come so far."""
    lines = read_lines(folder / "run")
    return Path(lines[0]) if lines else None


def tail(path: Path) -> str:
    """Return the end of a file as text; nothing when it is not there."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace").strip()
    except OSError:
        return ""


def last_line(path: Path) -> str:
    """Return the last line of a file that says anything."""
    lines = [line.strip() for line in tail(path).splitlines() if line.strip()]
    return lines[-1] if lines else ""
