"""What can be rented, at which price, and which offer to take: the one with the lowest total cost.

All rental hosts are queried in parallel; a dated price list fills in where no live price is known. The total cost
counts from the request to the end of the run, and every rejected offer has a reason.
"""

from __future__ import annotations

import math
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, TypeAdapter

from assay.core.errors import BadInput, MachineCannot
from assay.core.format import format_duration
from assay.core.values import Value
from assay.hosts import registry
from assay.hosts.base import Offer
from assay.hosts.gpu_types import reason_unsupported, satisfies, types_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.hosts.base import Host
    from assay.hosts.rented.journal import RentalRecord


PRICES_FILE = Path(__file__).with_name("prices.json")


class ProviderPrices(Value):
    """The prices of one provider."""

    priced_on: str = Field(pattern=r"^\d{4}-\d{2}(-\d{2})?$", description="The month or the day.")
    ready_s: float = Field(gt=0, description="From the request until the machine answers: assumed, not measured.")
    ends_itself: bool = Field(description="Whether the provider itself enforces a deadline.")
    note: str
    usd_per_hour: dict[str, float] = Field(description="Price of a machine with one GPU, by GPU type.")


@cache
def load_price_list() -> dict[str, ProviderPrices]:
    """Return the dated price list, by provider."""
    return TypeAdapter(dict[str, ProviderPrices]).validate_json(PRICES_FILE.read_bytes())


def provider_prices(host: str) -> tuple[Offer, ...]:
    """Return a provider's offers from the price list; none where it is not in it."""
    prices = load_price_list().get(host)
    if prices is None:
        return ()
    common = prices.model_dump(include={"priced_on", "ready_s", "ends_itself"})
    return tuple(
        Offer(host=host, name=kind, gpu=kind, gpus=kind, gpu_count=1, usd_per_hour=usd, **common)
        for kind, usd in prices.usd_per_hour.items()
    )


def listed_gpu_types() -> dict[str, tuple[str, ...]]:
    """Return each provider's GPU types from the price list."""
    return {host: tuple(at_host.usd_per_hour) for host, at_host in load_price_list().items()}


COST_OPTION = "max_cost"
"""The option that marks a host whose machines cost money."""

MAX_PAST_RENTALS = 5
"""The ready time of a host is the median of this many of its last rentals."""


@dataclass(frozen=True)
class HostOffers:
    """What one host answered.

    Attributes:
        name: Name of the host.
        host: Null where it could not be loaded.
        offers: Its live offers, or those of the price list.
        unavailable_reason: Why it cannot be used from here, as a clause; null: it can.
    """

    name: str
    host: Host | None
    offers: tuple[Offer, ...]
    unavailable_reason: str | None = None


def host_costs_money(host: Host) -> bool:
    """Return whether a host's machines cost money."""
    return COST_OPTION in host.options


def query_hosts(names: Sequence[str], rentals: Sequence[RentalRecord] = ()) -> tuple[HostOffers, ...]:
    """Query hosts in parallel; ready times come from past rentals where there are any."""
    with ThreadPoolExecutor(max_workers=max(1, len(names))) as pool:
        results = pool.map(_query_host, names)
        return tuple(
            replace(result, offers=tuple(with_measured_ready_time(offer, rentals) for offer in result.offers))
            for result in results
        )


def renting_hosts() -> tuple[str, ...]:
    """Return the rental hosts, with those that cannot be loaded, so that the reason is reported."""
    hosts = {name: _load_host(name) for name in sorted(registry.known_hosts())}
    return tuple(name for name, host in hosts.items() if isinstance(host, str) or host_costs_money(host))


def refuse_place(name: str, host_place: str | None) -> None:
    """Refuse a place that a host has but that cannot be used, with the reason.

    Raises:
        BadInput: The place is in the host's ``refuses``.
    """
    if host_place is None or name not in registry.known_hosts():
        return
    refuses = getattr(_load_host(name), "refuses", {})
    if host_place in refuses:
        raise BadInput(f"--on {name}:{host_place} is refused: {refuses[host_place]}.")


def refuse_unknown_place(host_offers: HostOffers | None, host_place: str | None) -> None:
    """Refuse a place that none of a host's offers has, if the host answered.

    Raises:
        BadInput: The place is unknown; the message names the known ones.
    """
    if host_place is None or host_offers is None or host_offers.unavailable_reason or not host_offers.offers:
        return
    if any(host_place in {offer.name, offer.region} for offer in host_offers.offers):
        return
    name = host_offers.name
    regions = sorted({offer.region for offer in host_offers.offers if offer.region})
    if not regions:
        raise BadInput(f"--on {name}:{host_place}: {name} has no regions to choose; write --on {name}.")
    raise BadInput(f"--on {name}:{host_place}: {name} has nothing there; it has machines in {', '.join(regions)}.")


def _load_host(name: str) -> Host | str:
    """Return a host, or why it cannot be loaded."""
    try:
        return registry.load_host(name)
    except MachineCannot as error:
        return _clause(error)


def _query_host(name: str) -> HostOffers:
    host = _load_host(name)
    if isinstance(host, str):
        return HostOffers(name, None, provider_prices(name), host)
    missing = host.available()
    if missing is not None:
        return HostOffers(name, host, provider_prices(name), missing)
    try:
        return HostOffers(name, host, host.offers())
    except MachineCannot as error:
        return HostOffers(name, host, provider_prices(name), _clause(error))


def _clause(error: MachineCannot) -> str:
    return " ".join(str(error).split()).rstrip(".")


def with_measured_ready_time(offer: Offer, rentals: Iterable[RentalRecord]) -> Offer:
    """Return an offer with the measured median ready time of this host, where it was rented from before."""
    took = [
        (machine.up_at - machine.made_at).total_seconds()
        for rental in rentals
        if rental.provider == offer.host
        for machine in rental.machines
        if machine.up_at is not None
    ]
    return offer.model_copy(update={"ready_s": statistics.median(took[-MAX_PAST_RENTALS:])}) if took else offer


def offered_gpu_types(answers: Iterable[HostOffers]) -> dict[str, tuple[str, ...]]:
    """Return each host's GPU types, live or from the price list."""
    live = {answer.name: tuple(dict.fromkeys(o.gpu for o in answer.offers if o.gpu)) for answer in answers}
    return {**listed_gpu_types(), **{name: kinds for name, kinds in live.items() if kinds}}


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
    """Return one offer evaluated against a request; ``shut`` is why its host cannot be used.

    The budget shortens the time limit, as the machine's deadline also caps its cost.
    """
    expected_s = (READY_S if offer.ready_s is None else offer.ready_s) + SET_UP_S + need.run_s
    price, limit_s = offer.usd_per_hour, None
    if price is not None:
        limit_s = need.limit_s or time_limit_s(expected_s)
        for budget_usd in (need.max_cost_usd, need.left_usd):
            if budget_usd is not None and price > 0:
                limit_s = min(limit_s, max(0.0, budget_usd) * 3600 / price)
        if offer.longest_s is not None:
            limit_s = min(limit_s, offer.longest_s)
    return OfferCandidate(
        offer=offer,
        expected_s=expected_s,
        limit_s=limit_s,
        cost_usd=None if price is None else price * expected_s / 3600,
        most_usd=None if price is None or limit_s is None else price * limit_s / 3600,
        rejection_reason=(
            _reason_wrong_gpu(need, offer)
            or shut
            or _reason_unavailable(offer, expected_s)
            or _reason_too_expensive(need, offer, expected_s)
        ),
    )


def time_limit_s(expected_s: float) -> float:
    """Return the time limit of a machine from its expected time, in seconds."""
    return SLACK * expected_s + SLACK_S


def _reason_wrong_gpu(need: RentalRequest, offer: Offer) -> str | None:
    if offer.gpu is None:
        return "its GPU type is not known"
    if need.gpu is not None and not satisfies(need.gpu, offer.gpu):
        if set(types_in(need.gpu)) & set(types_in(offer.gpu)):
            return f"its {offer.gpu} may be another than the {need.gpu} that is requested"
        return f"it is no {need.gpu}"
    if offer.gpu_count is not None and offer.gpu_count != need.gpu_count:
        return f"it has {offer.gpu_count} GPU{'' if offer.gpu_count == 1 else 's'}, not {need.gpu_count}"
    if need.host_place not in {None, offer.name, offer.region}:
        where = "" if offer.region is None else f"in {offer.region}, "
        return f"it is {where}not {need.host_place}"
    return reason_unsupported(offer.gpu, need.subjects)


def _reason_unavailable(offer: Offer, expected_s: float) -> str | None:
    if offer.free_nodes == 0:
        return "none is free now"
    if offer.longest_s is not None and offer.longest_s < expected_s:
        longest, expected = format_duration(offer.longest_s), format_duration(expected_s)
        return f"one can be rented for {longest} at most, and {expected} are expected"
    return None


def _reason_too_expensive(need: RentalRequest, offer: Offer, expected_s: float) -> str | None:
    if offer.usd_per_hour is None:
        return "its price is not known"
    if need.limit_s is not None and need.limit_s < expected_s:
        limit, expected = format_duration(need.limit_s), format_duration(expected_s)
        return f"--time {limit} is less than the {expected} that are expected"
    cost = offer.usd_per_hour * expected_s / 3600
    would_cost = f"it would cost about {format_usd(cost)}"
    if need.max_cost_usd is not None and cost > need.max_cost_usd:
        return f"{would_cost}, more than the {format_usd(need.max_cost_usd)} of --max-cost"
    if need.left_usd is not None and cost > need.left_usd:
        return f"{would_cost}, and of this month's budget {format_usd(max(0.0, need.left_usd))} are left"
    return None


def _sort_key(candidate: OfferCandidate) -> tuple[bool, float, float, str, str, str]:
    offer, is_rejected = candidate.offer, candidate.rejection_reason is not None
    cost = math.inf if candidate.cost_usd is None else candidate.cost_usd
    return (is_rejected, cost, candidate.expected_s, offer.host, offer.name, offer.region or "")


def format_usd(amount: float) -> str:
    """Format an amount of money so that a small one is not rounded to zero."""
    return f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:.2g}" if amount < 0.01 else f"${amount:.3f}"
