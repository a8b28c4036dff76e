"""Which offer to take: the least money for the whole of it, from asking to the run's end; every other with its reason.

    ready_s              SET_UP_S           run_s
    |--- boots ---|--- environment ---|--- measures ---|      cost = price × all of it

Pure: offers in, a choice out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field

from assay.core.units import format_span
from assay.core.values import Value
from assay.hosts.base import Offer
from assay.hosts.gpu_types import cannot, types_of, will_do

if TYPE_CHECKING:
    from collections.abc import Iterable

SET_UP_S = 60.0
"""Assumed: an environment on a fresh machine, this package in it, files sent."""

READY_S = 180.0
"""Assumed where an offer does not say how long its machine takes to answer."""

SLACK = 2.0
"""A machine is given so many times what it is expected to take: networks and disks differ."""

SLACK_S = 600.0
"""And so much more: a machine that boots slowly still gets its work done."""


class Need(Value):
    """What a machine is wanted for."""

    gpu: str | None = Field(default=None, description="A type or a family as Assay writes it; null: any.")
    gpu_count: int = Field(default=1, ge=1)
    place: str | None = Field(default=None, description="A region, or a machine's name at its host; null: any.")
    run_s: float = Field(gt=0, description="Expected, once the machine is set up.")
    subjects: tuple[str, ...] = Field(default=(), description="Workloads, for what cannot work on which GPU.")
    limit_s: float | None = Field(
        default=None, gt=0, description="Ended after this long; null: as expected, and slack."
    )
    max_cost_usd: float | None = Field(default=None, gt=0, description="For this run; null: no such limit.")
    left_usd: float | None = Field(default=None, description="Of the month's budget; null: there is none.")


class Candidate(Value):
    """An offer held against a need."""

    offer: Offer
    expected_s: float = Field(description="From asking to the run's end.")
    limit_s: float | None = Field(description="When the machine is ended at the latest; null: its price is not known.")
    cost_usd: float | None = Field(description="Expected; null: its price is not known.")
    most_usd: float | None = Field(description="If it runs up to its limit; null: its price is not known.")
    why_not: str | None = Field(default=None, description="As a clause; null: it would do.")


class Choice(Value):
    """Every offer as a candidate, the best first and those that will not do last."""

    need: Need
    candidates: tuple[Candidate, ...]

    @property
    def fitting(self) -> tuple[Candidate, ...]:
        """Those that would do, the best first."""
        return tuple(candidate for candidate in self.candidates if candidate.why_not is None)

    @property
    def best(self) -> Candidate | None:
        """What is taken; null where nothing would do."""
        return next(iter(self.fitting), None)


def choose(need: Need, offers: Iterable[Offer], shut: dict[str, str] | None = None) -> Choice:
    """Return what to rent, and why not the others.

    ``shut`` are hosts from which nothing can be had from here, with the reason.
    """
    candidates = [candidate(need, offer, (shut or {}).get(offer.host)) for offer in offers]
    return Choice(need=need, candidates=tuple(sorted(candidates, key=_rank)))


def candidate(need: Need, offer: Offer, shut: str | None = None) -> Candidate:
    """Return one offer held against a need."""
    expected_s = (READY_S if offer.ready_s is None else offer.ready_s) + SET_UP_S + need.run_s
    money = _money(need, offer, expected_s)
    why_not = _not_the_kind(need, offer) or shut or _not_there(offer, expected_s) or _too_dear(need, offer, expected_s)
    return Candidate(
        offer=offer,
        expected_s=expected_s,
        limit_s=money.limit_s,
        cost_usd=money.cost_usd,
        most_usd=money.most_usd,
        why_not=why_not,
    )


def limit_for(expected_s: float) -> float:
    """Return how long a machine is given that is expected to take so long."""
    return SLACK * expected_s + SLACK_S


class _Money(NamedTuple):
    cost_usd: float | None
    limit_s: float | None
    most_usd: float | None


def _money(need: Need, offer: Offer, expected_s: float) -> _Money:
    """Return what is expected to be paid, when the machine is to end, and what is paid then.

    The machine carries a deadline, so that money has an end too: what may be spent shortens it.
    """
    price = offer.usd_per_hour
    if price is None:
        return _Money(None, None, None)
    limit_s = need.limit_s or limit_for(expected_s)
    for purse in (need.max_cost_usd, need.left_usd):
        if purse is not None and price > 0:
            limit_s = min(limit_s, max(0.0, purse) * 3600 / price)
    if offer.longest_s is not None:
        limit_s = min(limit_s, offer.longest_s)
    return _Money(price * expected_s / 3600, limit_s, price * limit_s / 3600)


def _not_the_kind(need: Need, offer: Offer) -> str | None:
    if offer.gpu is None:
        return "it has no GPU whose kind is told"
    if need.gpu is not None and not will_do(need.gpu, offer.gpu):
        if set(types_of(need.gpu)) & set(types_of(offer.gpu)):
            return f"its {offer.gpu} may be another than the {need.gpu} that is asked for"
        return f"it is no {need.gpu}"
    if offer.gpu_count is not None and offer.gpu_count != need.gpu_count:
        return f"it has {offer.gpu_count} GPU{'' if offer.gpu_count == 1 else 's'}, not {need.gpu_count}"
    if need.place not in {None, offer.name, offer.region}:
        return f"it is not {need.place}" if offer.region is None else f"it is in {offer.region}, not {need.place}"
    return cannot(offer.gpu, need.subjects)


def _not_there(offer: Offer, expected_s: float) -> str | None:
    if offer.free_nodes == 0:
        return "none is free now"
    if offer.longest_s is not None and offer.longest_s < expected_s:
        return f"one is lent for {format_span(offer.longest_s)} at most, and {format_span(expected_s)} are expected"
    return None


def _too_dear(need: Need, offer: Offer, expected_s: float) -> str | None:
    if offer.usd_per_hour is None:
        return "its price is not known"
    if need.limit_s is not None and need.limit_s < expected_s:
        return f"--time {format_span(need.limit_s)} is less than the {format_span(expected_s)} that are expected"
    cost = offer.usd_per_hour * expected_s / 3600
    if need.max_cost_usd is not None and cost > need.max_cost_usd:
        return f"it would cost about {usd(cost)}, more than the {usd(need.max_cost_usd)} of --max-cost"
    if need.left_usd is not None and cost > need.left_usd:
        return f"it would cost about {usd(cost)}, and of this month's budget {usd(max(0.0, need.left_usd))} are left"
    return None


def _rank(each: Candidate) -> tuple[bool, float, float, str, str, str]:
    cost = math.inf if each.cost_usd is None else each.cost_usd
    return each.why_not is not None, cost, each.expected_s, each.offer.host, each.offer.name, each.offer.region or ""


def usd(amount: float) -> str:
    """Write an amount of money so that a small one is still seen."""
    return f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:.2g}" if amount < 0.01 else f"${amount:.3f}"
