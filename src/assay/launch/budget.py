"""How a trial's time is shared out over restarts: pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_SHARE = 0.25


@dataclass(frozen=True)
class Shares:
    """How often a trial's workers start afresh, and for how long each time is measured, in seconds."""

    restarts: int
    share_s: float


def share_out(duration_s: float, restarts: int, setup_s: float) -> Shares:
    """Return the restarts that fit a duration when each costs its set-up, and the time left to measure in each.

    No more than half of the duration goes to set-up, unless a single start already takes more; even then a
    quarter of the duration is measured.
    """
    fitting = max(1, min(restarts, int(duration_s / (2 * setup_s)) if setup_s > 0 else restarts))
    part_s = duration_s / fitting
    return Shares(fitting, max(part_s - setup_s, LEAST_SHARE * part_s))
