"""Wait until a machine is up and can be talked to; one that is taken away meanwhile, or never comes up, is told."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from assay.core.errors import BudgetEnded, MachineCannot
from assay.hosts.base import Progress
from assay.hosts.remote.line import LineLost
from assay.hosts.rented.provider import Unanswered

if TYPE_CHECKING:
    from datetime import datetime

    from assay.hosts.base import Watcher
    from assay.hosts.remote.line import Line
    from assay.hosts.rented.desk import Desk
    from assay.hosts.rented.provider import Machine

ANSWERS_WITHIN_S = 30.0


class Taken(MachineCannot):
    """A machine was taken away, or never came up: another may do better."""


def when_up(desk: Desk, order: str, number: str, until: datetime, watcher: Watcher) -> tuple[Machine, Line]:
    """Return a machine that is up, and a line over which it has answered.

    A second machine of the order, of a launch that was made twice, is ended as soon as it is seen.

    Raises:
        Taken: It is gone or broken, or has not come up in the time a machine may take.
        BudgetEnded: ``until``, the order's deadline, has passed.
        Unanswered: The provider was silent for too long.
    """
    stuck_at = desk.clock.now() + timedelta(seconds=desk.pace.up_within_s)
    last_state, ever_seen = "", False
    while True:
        machine = _found(desk, order, number)
        now = desk.clock.now()
        ever_seen = ever_seen or machine is not None
        if machine is None and ever_seen:
            raise Taken(f"{desk.provider.name} machine {number} is gone")
        if machine is not None and machine.stage in {"lost", "ending", "gone"}:
            raise Taken(f"{desk.provider.name} has taken machine {number} away ({machine.said or machine.stage})")
        connection = _answering(desk, machine) if machine is not None and machine.stage == "up" else None
        if machine is not None and connection is not None:
            return machine, connection
        if now >= until:
            raise BudgetEnded(f"The deadline has passed while {desk.provider.name} machine {number} was starting")
        if now >= stuck_at:
            raise Taken(
                f"{desk.provider.name} machine {number} did not come up in {desk.pace.up_within_s / 60:.0f} min"
            )
        state = (
            f"{desk.provider.name} machine {number}: {(machine.said or machine.stage) if machine else 'not listed yet'}"
        )
        if state != last_state:
            last_state = state
            watcher.progress(Progress(state="waits", what=state))
        desk.clock.sleep(desk.pace.look_s)


def _found(desk: Desk, order: str, number: str) -> Machine | None:
    """Return the machine; others of the order are asked to end, and seen gone when the order is released."""
    listed = {machine.number: machine for machine in desk.heard(lambda: desk.mine(order))}
    rental = desk.book.rental(order) if listed.keys() - {number} else None
    recorded = {machine.number for machine in rental.machines} if rental else set()
    for other in listed.keys() - {number}:
        if other not in recorded:
            desk.note_machine("made", order, listed[other])
        if listed[other].stage != "ending":
            try:
                desk.provider.end(other)
            except MachineCannot:
                continue  # asked again at the next look, and at the release
    return listed.get(number) or desk.heard(lambda: desk.look(number))


def _answering(desk: Desk, machine: Machine) -> Line | None:
    """Return a line to a machine over which it answers; null when it does not yet."""
    try:
        connection = desk.provider.line(machine)
        if connection is not None and connection.do("true", within_s=ANSWERS_WITHIN_S).code == 0:
            return connection
    except (LineLost, Unanswered):
        pass
    return None
