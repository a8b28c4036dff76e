"""What our machines are called at a provider: the name says whose they are, and until when.

    assay-until-20261115t093000z-1-4f2a90c1d2e3b4a5
                │                │ └ the order
                │                └ which start of it: a machine that was taken away is followed by another
                └ the deadline by the clock of whoever asked for it, in UTC

Anybody with the account's key can tell from a list alone what is ours and over its deadline: no journal is needed, and
no time that the provider tells.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from assay.hosts.base import NAME_PREFIX

_STAMP = "%Y%m%dt%H%M%Sz"
_NAME = re.compile(rf"{NAME_PREFIX}until-(\d{{8}}t\d{{6}}z)-(\d{{1,3}})-([0-9a-z]{{8,32}})")


def machine_name(order_id: str, start: int, deadline_at: datetime) -> str:
    """Return the name of the machine for one start of an order, the first being 1; part of a second counts as one."""
    until = (deadline_at.astimezone(UTC) + timedelta(microseconds=999_999)).strftime(_STAMP)
    return f"{NAME_PREFIX}until-{until}-{start}-{order_id}"


def order_of(name: str) -> str | None:
    """Return the order that a machine was made for; null: the name is none of ours."""
    match = _NAME.fullmatch(name)
    return match[3] if match and deadline_of(name) else None


def deadline_of(name: str) -> datetime | None:
    """Return the deadline in a machine's name; null: the name is none of ours."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    try:
        return datetime.strptime(match[1], _STAMP).replace(tzinfo=UTC)
    except ValueError:
        return None
