"""Choose the offer with the lowest total cost, from request to the end of the run.

Every rejected offer has a reason.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field

from assay.core.format import format_duration
from assay.core.values import Value
from assay.hosts.base import Offer
from assay.hosts.gpu_types import reason_unsupported, satisfies, types_in

if TYPE_CHECKING:
    from collections.abc import Iterable

SET_UP_S = 60.0
"""Assumed time to create the environment on a fresh machine, with this package, and to upload files."""

READY_S = 180.0
"""Assumed where an offer does not state how long its machine takes to answer."""

SLACK = 2.0
"""The time limit is this multiple of the expected time: networks and disks differ."""

SLACK_S = 600.0
"""Added to that, so that a machine that boots slowly can still finish."""


class RentalRequest(Value):
    """Requirements for a rented machine."""

    gpu: str | None = Field(default=None, description="GPU type or family as Assay writes it; null: any.")
    gpu_count: int = Field(default=1, ge=1)
    host_place: str | None = Field(default=None, description="A region, or an offer's name at its host; null: any.")
    run_s: float = Field(gt=0, description="Expected run time, once the machine is set up.")
    subjects: tuple[str, ...] = Field(default=(), description="Workloads, to reject GPUs that cannot run them.")
    limit_s: float | None = Field(default=None, gt=0, description="Time limit; null: the expected time plus slack.")
    max_cost_usd: float | None = Field(default=None, gt=0, description="Budget of this run; null: no limit.")
    left_usd: float | None = Field(default=None, description="Left of the monthly budget; null: there is none.")


class OfferCandidate(Value):
    """An offer evaluated against a request."""

    offer: Offer
    expected_s: float = Field(description="From the request to the end of the run.")
    limit_s: float | None = Field(
        description="Longest time until the machine is terminated; null: its price is not known."
    )
    cost_usd: float | None = Field(description="Expected cost; null: its price is not known.")
    most_usd: float | None = Field(description="Cost if it runs up to its limit; null: its price is not known.")
    rejection_reason: str | None = Field(default=None, description="A clause; null: it is suitable.")


class OfferChoice(Value):
    """Every offer as a candidate, the best first and the rejected ones last."""

    need: RentalRequest
    candidates: tuple[OfferCandidate, ...]

    @property
    def fitting(self) -> tuple[OfferCandidate, ...]:
        """The suitable candidates, the best first."""
        return tuple(candidate for candidate in self.candidates if candidate.rejection_reason is None)

    @property
    def best(self) -> OfferCandidate | None:
        """The candidate to take; null where none is suitable."""
        return next(iter(self.fitting), None)


def choose_offer(need: RentalRequest, offers: Iterable[Offer], shut: dict[str, str] | None = None) -> OfferChoice:
    """Return what to rent, and why the other offers are rejected.

    ``shut`` maps hosts that cannot be used from here to the reason.
    """
    candidates = [evaluate_offer(need, offer, (shut or {}).get(offer.host)) for offer in offers]
    return OfferChoice(need=need, candidates=tuple(sorted(candidates, key=_sort_key)))


def evaluate_offer(need: RentalRequest, offer: Offer, shut: str | None = None) -> OfferCandidate:
    """Return one offer evaluated against a request."""
    expected_s = (READY_S if offer.ready_s is None else offer.ready_s) + SET_UP_S + need.run_s
    cost = _estimate_cost(need, offer, expected_s)
    rejection_reason = (
        _reason_wrong_gpu(need, offer)
        or shut
        or _reason_unavailable(offer, expected_s)
        or _reason_too_expensive(need, offer, expected_s)
    )
    return OfferCandidate(
        offer=offer,
        expected_s=expected_s,
        limit_s=cost.limit_s,
        cost_usd=cost.cost_usd,
        most_usd=cost.most_usd,
        rejection_reason=rejection_reason,
    )


def time_limit_s(expected_s: float) -> float:
    """Return the time limit of a machine from its expected time, in seconds."""
    return SLACK * expected_s + SLACK_S


class _Cost(NamedTuple):
    cost_usd: float | None
    limit_s: float | None
    most_usd: float | None


def _estimate_cost(need: RentalRequest, offer: Offer, expected_s: float) -> _Cost:
    """Return the expected cost, the time limit, and the cost if the machine runs up to it.

    The budget shortens the time limit, as the machine's deadline also caps its cost.
    """
    price = offer.usd_per_hour
    if price is None:
        return _Cost(None, None, None)
    limit_s = need.limit_s or time_limit_s(expected_s)
    for budget_usd in (need.max_cost_usd, need.left_usd):
        if budget_usd is not None and price > 0:
            limit_s = min(limit_s, max(0.0, budget_usd) * 3600 / price)
    if offer.longest_s is not None:
        limit_s = min(limit_s, offer.longest_s)
    return _Cost(price * expected_s / 3600, limit_s, price * limit_s / 3600)


def _reason_wrong_gpu(need: RentalRequest, offer: Offer) -> str | None:
    if offer.gpu is None:
        return "it has no GPU whose kind is told"
    if need.gpu is not None and not satisfies(need.gpu, offer.gpu):
        if set(types_in(need.gpu)) & set(types_in(offer.gpu)):
            return f"its {offer.gpu} may be another than the {need.gpu} that is asked for"
        return f"it is no {need.gpu}"
    if offer.gpu_count is not None and offer.gpu_count != need.gpu_count:
        return f"it has {offer.gpu_count} GPU{'' if offer.gpu_count == 1 else 's'}, not {need.gpu_count}"
    if need.host_place not in {None, offer.name, offer.region}:
        return (
            f"it is not {need.host_place}"
            if offer.region is None
            else f"it is in {offer.region}, not {need.host_place}"
        )
    return reason_unsupported(offer.gpu, need.subjects)


def _reason_unavailable(offer: Offer, expected_s: float) -> str | None:
    if offer.free_nodes == 0:
        return "none is free now"
    if offer.longest_s is not None and offer.longest_s < expected_s:
        return (
            f"one is lent for {format_duration(offer.longest_s)} at most, and "
            f"{format_duration(expected_s)} are expected"
        )
    return None


def _reason_too_expensive(need: RentalRequest, offer: Offer, expected_s: float) -> str | None:
    if offer.usd_per_hour is None:
        return "its price is not known"
    if need.limit_s is not None and need.limit_s < expected_s:
        return (
            f"--time {format_duration(need.limit_s)} is less than the {format_duration(expected_s)} that are expected"
        )
    cost = offer.usd_per_hour * expected_s / 3600
    if need.max_cost_usd is not None and cost > need.max_cost_usd:
        return f"it would cost about {format_usd(cost)}, more than the {format_usd(need.max_cost_usd)} of --max-cost"
    if need.left_usd is not None and cost > need.left_usd:
        return (
            f"it would cost about {format_usd(cost)}, and of this month's budget "
            f"{format_usd(max(0.0, need.left_usd))} are left"
        )
    return None


def _sort_key(candidate: OfferCandidate) -> tuple[bool, float, float, str, str, str]:
    cost = math.inf if candidate.cost_usd is None else candidate.cost_usd
    return (
        candidate.rejection_reason is not None,
        cost,
        candidate.expected_s,
        candidate.offer.host,
        candidate.offer.name,
        candidate.offer.region or "",
    )


def format_usd(amount: float) -> str:
    """Format an amount of money so that a small one is not rounded to zero."""
    return f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:.2g}" if amount < 0.01 else f"${amount:.3f}"
