"""Whether the fast path gave what its reference gives, wherever it was measured. Skipped is not passed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.core.results import Parity
    from assay.experiments.threshold.cells import Judged
    from assay.experiments.threshold.measured import Seen
    from assay.experiments.threshold.options import Point

Checked = Literal["passed", "failed", "skipped"]


def parity_at(seen: Seen) -> Checked:
    """Return what the checks of one point say together."""
    found = [facts.parity for facts in seen.checked if facts.parity is not None]
    if any(each.passed is False for each in found):
        return "failed"
    return "passed" if found and all(each.passed for each in found) else "skipped"


def parity_of(judged: Judged) -> Checked:
    """Return what the checks of a threshold say: passed only if every point that was measured passed."""
    found = {parity_at(point.seen) for point in judged.points if point.seen.measured}
    if any(parity_at(point.seen) == "failed" for point in judged.points):
        return "failed"
    return "passed" if found == {"passed"} else "skipped"


def objections(judged: Judged) -> Iterable[tuple[Point, Parity | None]]:
    """Give the points that did not pass, each with the check that says why; null where there was none."""
    for point, each in zip(judged.threshold.points, judged.points, strict=True):
        if parity_at(each.seen) == "passed" or not (each.seen.measured or each.seen.checked):
            continue
        found = [facts.parity for facts in each.seen.checked if facts.parity is not None and not facts.parity.passed]
        yield point, found[0] if found else None
