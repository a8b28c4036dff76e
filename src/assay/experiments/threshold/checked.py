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
    checks = [facts.parity for facts in seen.checked if facts.parity is not None]
    if any(check.passed is False for check in checks):
        return "failed"
    return "passed" if checks and all(check.passed for check in checks) else "skipped"


def parity_of(judged: Judged) -> Checked:
    """Return what the checks of a threshold say: passed only if every point that was measured passed."""
    states = {parity_at(point.seen) for point in judged.points if point.seen.measured}
    if any(parity_at(point.seen) == "failed" for point in judged.points):
        return "failed"
    return "passed" if states == {"passed"} else "skipped"


def objections(judged: Judged) -> Iterable[tuple[Point, Parity | None]]:
    """Give the points that did not pass, each with the check that says why; null where there was none."""
    for point, judged_point in zip(judged.threshold.points, judged.points, strict=True):
        if parity_at(judged_point.seen) == "passed" or not (judged_point.seen.measured or judged_point.seen.checked):
            continue
        failed = [
            facts.parity for facts in judged_point.seen.checked if facts.parity is not None and not facts.parity.passed
        ]
        yield point, failed[0] if failed else None
