"""What can be rented, and at which price.

All rental hosts are queried in parallel; a dated price list fills in where no live price is known.
"""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, TypeAdapter

from assay.core.errors import BadInput, MachineCannot
from assay.core.values import Value
from assay.hosts import registry
from assay.hosts.base import Offer

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
    at_host = load_price_list().get(host)
    if at_host is None:
        return ()
    return tuple(
        Offer(
            host=host,
            name=kind,
            gpu=kind,
            gpus=kind,
            gpu_count=1,
            usd_per_hour=usd,
            priced_on=at_host.priced_on,
            ready_s=at_host.ready_s,
            ends_itself=at_host.ends_itself,
        )
        for kind, usd in at_host.usd_per_hour.items()
    )


def listed_usd_per_hour(host: str, kind: str) -> tuple[float, str] | None:
    """Return the listed price of one GPU of a type, and its date; null where it is not listed."""
    at_host = load_price_list().get(host)
    if at_host is None or kind not in at_host.usd_per_hour:
        return None
    return at_host.usd_per_hour[kind], at_host.priced_on


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
        results = list(pool.map(_query_host, names))
    return tuple(
        HostOffers(
            host_offers.name,
            host_offers.host,
            tuple(with_measured_ready_time(offer, rentals) for offer in host_offers.offers),
            host_offers.unavailable_reason,
        )
        for host_offers in results
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
    refuses = (
        getattr(_load_host(name), "refuses", {}) if host_place is not None and name in registry.known_hosts() else {}
    )
    if host_place in refuses:
        raise BadInput(f"--on {name}:{host_place} is refused: {refuses[host_place]}.")


def refuse_unknown_place(host_offers: HostOffers | None, host_place: str | None) -> None:
    """Refuse a place that none of a host's offers has, if the host answered.

    Raises:
        BadInput: The place is unknown; the message names the known ones.
    """
    if host_place is None or host_offers is None or host_offers.unavailable_reason is not None:
        return
    if not host_offers.offers:
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
