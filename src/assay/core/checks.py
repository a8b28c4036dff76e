"""What ``assay doctor`` gathers from the rooms: claims about this machine, each with its fix where it does not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.results import Finding

if TYPE_CHECKING:
    from assay.core.results import Estimate, Verdict
    from assay.core.values import Scalar


def check(
    claim: str,
    verdict: Verdict,
    reason: str | None = None,
    *,
    fix: str | None = None,
    topic: str,
    estimate: Estimate | None = None,
    **facts: Scalar,
) -> Finding:
    """Return a claim about this machine that was looked into; ``fix`` says what to do where it does not hold."""
    details: dict[str, Scalar] = {"topic": topic, "fix": fix, **facts}
    return Finding(claim=claim, estimate=estimate, verdict=verdict, reason=reason, records=(), facts=details)
