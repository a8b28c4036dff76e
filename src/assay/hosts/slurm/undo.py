"""How a job is undone: cancelled by its name, and seen gone."""

from __future__ import annotations

import time

from assay.core.errors import MachineCannot
from assay.hosts.slurm.commands import ask
from assay.hosts.slurm.watch import look

GONE_WITHIN_S = 90.0
"""A job is asked to end, given half a minute by default, and killed."""

APPEARS_WITHIN_S = 2.0
"""A job that was sent just before we died may still be on its way into the queue."""

ASK_AGAIN_S = 10.0
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


def cancel(name: str, conf: str | None) -> None:
    """Cancel the job of a name and wait until it is gone; safe to do twice, and when it never came to be.

    Raises:
        MachineCannot: It is still there, or Slurm does not answer.
    """
    begun = time.monotonic()
    asked_at: float | None = None
    pause_s, ever_seen = _PAUSE_S, False
    while True:
        entries = look(name, conf)
        left = [entry for entry in entries if not entry.over]
        ever_seen = ever_seen or bool(entries)
        lasted_s = time.monotonic() - begun
        if not left and (ever_seen or lasted_s >= APPEARS_WITHIN_S):
            return
        if lasted_s > GONE_WITHIN_S:
            states = ", ".join(f"{entry.number} ({entry.state})" for entry in left)
            raise MachineCannot(f"Slurm's job {states} is still there after {GONE_WITHIN_S:.0f} s.")
        if left and (asked_at is None or lasted_s - asked_at > ASK_AGAIN_S):
            asked_at = lasted_s
            ask("scancel", *dict.fromkeys(entry.number.partition("_")[0] for entry in left), conf=conf)  # arrays whole
        time.sleep(pause_s)
        pause_s = min(_LONGEST_PAUSE_S, pause_s * 1.5)
