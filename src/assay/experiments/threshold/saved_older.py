"""What the older tool wrote: single speed-ups of both branches, which have no interval.

They decide only where they are far from the margin, a quarter above it or below it, and it is said that they are such.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput
from assay.core.plan import Subject
from assay.core.results import Parity, SubjectFacts
from assay.experiments.threshold.form import DeviceInfo
from assay.experiments.threshold.measured import Seen
from assay.experiments.threshold.options import Point, Threshold
from assay.experiments.threshold.spec import DEFAULT, load
from assay.workloads.nsa.sizes import effective_length

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from assay.core.values import Params
    from assay.experiments.threshold.checked import Checked
    from assay.experiments.threshold.spec import Wanted

Row = dict[str, Any]
BLOCK, STRIDE = 32, 16
"""Of the older tool's compressed branch, where a row does not say."""


def thresholds(content: Mapping[str, Any], file: Path) -> list[tuple[Threshold, tuple[Seen, ...]]]:
    """Return both branches as far as a file has rows of them."""
    rows = content.get("results")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadInput(f"{file} holds no results: it has no list of rows under the key results.")
    passed = content.get("parity_passed")
    parity: Checked = "passed" if passed is True else "failed" if passed is False else "skipped"
    result = []
    for spec in load(DEFAULT):
        mine = [row for row in rows if row.get("branch") == spec.size]
        if mine:
            result.append((_threshold(spec, mine, file), tuple(_seen(row, parity, file) for row in mine)))
    if not result:
        raise BadInput(f"{file}: no row is of the branch sliding or compressed.")
    return result


def device_of(content: Mapping[str, Any]) -> DeviceInfo:
    """Return where it was measured, as far as the file says."""
    info = content.get("device_info")
    values = info if isinstance(info, dict) else {}
    names = ("device_name", "torch_version", "cuda_version")
    return DeviceInfo(**{name: None if values.get(name) is None else str(values[name]) for name in names})


def _threshold(wanted: Wanted, rows: list[Row], file: Path) -> Threshold:
    reference, fast = subject_of(wanted.reference), subject_of(wanted.fast)
    params = [_params(row, wanted.size, file) for row in rows]
    return Threshold(
        name=wanted.name,
        key=wanted.key,
        never=wanted.never,
        margin=wanted.margin,
        axis=wanted.size,
        branch="sliding" if wanted.size == "sliding" else "compressed",
        points=tuple(Point(size=effective_length(p), params=p, reference=reference, fast=fast) for p in params),
    )


def subject_of(label: str) -> Subject:
    """Return a subject of which only the name is known."""
    name, at, impl = label.partition("@")
    return Subject(workload=name if at else label, impl=impl if at else "python")


def _params(row: Row, branch: str, file: Path) -> Params:
    sizes = {"sequence": row.get("sequence_length")}
    if branch == "sliding":
        sizes["window"] = row.get("window_size")
    else:
        sizes |= {"block": row.get("l") or BLOCK, "stride": row.get("d") or STRIDE}
    wrong = next((name for name, size in sizes.items() if not isinstance(size, int) or size < 1), None)
    if wrong is not None:
        raise BadInput(f"{file}: a row of the {branch} branch has the {wrong} {sizes[wrong]!r}, which is no size.")
    return dict(sizes)


def _seen(row: Row, parity: Checked, file: Path) -> Seen:
    speedup = row.get("speedup")
    if isinstance(speedup, bool) or not isinstance(speedup, int | float) or not math.isfinite(speedup) or speedup <= 0:
        raise BadInput(f"{file}: a row has the speedup {speedup!r}, which is no number above zero.")
    return Seen(single=math.log(speedup), checked=checked(parity, None))


def checked(parity: Checked, reason: str | None) -> tuple[SubjectFacts, ...]:
    """Return what a file says of a check, as if it had been seen."""
    if parity == "skipped" and reason is None:
        return ()
    passed = {"passed": True, "failed": False, "skipped": None}[parity]
    why = None if passed else reason or "its file says so"
    return (SubjectFacts(subject=1, parity=Parity(passed=passed, reason=why, measure="read from a file")),)
