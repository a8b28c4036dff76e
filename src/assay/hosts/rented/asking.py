"""Ask for a machine, once: an answer that never came is looked for by name before anything is asked for again.

turn waited for ─▶ asked is written ─▶ launch ─▶ answered: made is written
                                         └ no answer ─▶ list by name, for as long as one may take to turn up
                                                          ├ there: it is ours
                                                          └ not there: ask again
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, MachineCannot
from assay.hosts.rented.provider import Unanswered

if TYPE_CHECKING:
    from assay.hosts.rented.desk import Desk
    from assay.hosts.rented.provider import Machine, Wish


def ask_for(desk: Desk, order: str, wish: Wish) -> Machine:
    """Return a machine that was made for a wish; what else was made for it meanwhile is in the journal by name.

    Raises:
        NoCapacity: There is none; nothing was made.
        MachineCannot: Refused, or silent: in that case something may have been made.
    """
    prepare = getattr(desk.provider, "prepare", None)
    if callable(prepare):
        desk.heard(lambda: prepare(wish))
    why = ""
    turn = getattr(desk.provider, "turn", None)
    for _ in range(desk.pace.launches):
        if callable(turn):
            turn()
        desk.note("asked", order, name=wish.name, usd_per_hour=wish.offer.usd_per_hour)
        try:
            machine = desk.provider.launch(wish)
        except Unanswered as error:
            why = str(error).rstrip(".")
            desk.note("silent", order, name=wish.name, why=why)
            existing = _turned_up(desk, order, wish)
            if existing is not None:
                return existing
        except (MachineCannot, BadInput) as error:
            desk.note("refused", order, name=wish.name, why=str(error))
            raise
        else:
            desk.note_machine("made", order, machine)
            return machine
    raise MachineCannot(f"{desk.provider.name} was asked {desk.pace.launches} times for a machine: {why}.")


def _turned_up(desk: Desk, order: str, wish: Wish) -> Machine | None:
    """Return the machine of this name once the list shows it; null when it had time enough to turn up."""
    until = desk.clock.now() + timedelta(seconds=desk.pace.appears_within_s)
    rental = desk.book.rental(order)
    recorded = {machine.number for machine in rental.machines} if rental else set()
    while True:
        looked_at = desk.clock.now()
        listed = desk.heard(lambda: desk.mine(order))
        matches = [machine for machine in listed if machine.name == wish.name and machine.number not in recorded]
        for machine in matches:
            desk.note_machine("made", order, machine)
        if matches:
            return matches[0]
        if looked_at >= until:
            return None
        desk.clock.sleep(desk.pace.look_s)
