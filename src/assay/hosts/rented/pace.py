"""How long things may take before something else is done: at a provider minutes, in a test nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """Seconds, unless a name says otherwise."""

    look_s: float = 5.0
    """Between two looks at a machine, or at a list."""

    appears_within_s: float = 90.0
    """A machine whose creation was never answered may turn up in a list this long after it was asked for."""

    up_within_s: float = 900.0
    """From asking for a machine to one that answers; one that takes longer is stuck."""

    gone_within_s: float = 600.0
    """From asking for a machine's end to seeing it gone."""

    ask_again_s: float = 20.0
    """An end that was asked for and is not seen is asked for again."""

    silent_at_most_s: float = 300.0
    """A provider that answers nothing for so long is given up."""

    offers_within_s: float = 15.0
    """Who only chooses, or wants to be shown something, does not wait longer for a list."""

    launches: int = 3
    """How often a machine is asked for before an order is given up, where the answers never came."""

    starts: int = 3
    """How many machines an order may have one after the other, where they are taken away or never come up."""

    picked_up: int = 3
    """How often a lost line to a machine that is still there is taken up again."""

    limit_s: float = 3600.0
    """What an order gets that names no limit."""
