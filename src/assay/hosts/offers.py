"""What can be rented, and at which price.

All hosts that rent are queried in parallel, with a dated price list where no current price is known.
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

    priced_on: str = Field(pattern=r"^\d{4}-\d{2}(-\d{2})?$", description="The month, or the day.")
    ready_s: float = Field(gt=0, description="From asking to a machine that answers: assumed, not measured.")
    ends_itself: bool = Field(description="Whether the provider itself keeps a deadline.")
    note: str
    usd_per_hour: dict[str, float] = Field(description="Of a machine with one GPU, by its kind.")


@cache
def load_price_list() -> dict[str, ProviderPrices]:
    """Return the snapshot by provider."""
    return TypeAdapter(dict[str, ProviderPrices]).validate_json(PRICES_FILE.read_bytes())


def provider_prices(host: str) -> tuple[Offer, ...]:
    """Return what a provider had when its prices were written down; nothing where they were not."""
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
    """Return the price of one GPU of a kind and its month; null where it was not written down."""
    at_host = load_price_list().get(host)
    if at_host is None or kind not in at_host.usd_per_hour:
        return None
    return at_host.usd_per_hour[kind], at_host.priced_on


def listed_gpu_types() -> dict[str, tuple[str, ...]]:
    """Return by provider the kinds of GPU that it had."""
    return {host: tuple(at_host.usd_per_hour) for host, at_host in load_price_list().items()}


COST_OPTION = "max_cost"
"""The option that a host understands whose machines cost money."""

MAX_PAST_RENTALS = 5
"""So many rentals of a host tell how long its machines take to answer."""


@dataclass(frozen=True)
class HostOffers:
    """What one host answered.

    Attributes:
        name: Of the host.
        host: Null where it could not even be loaded.
        offers: What it has, or had on the day of the snapshot.
        unavailable_reason: Why nothing can be had from it from here, as a clause; null: it can be asked.
    """

    name: str
    host: Host | None
    offers: tuple[Offer, ...]
    unavailable_reason: str | None = None


def host_costs_money(host: Host) -> bool:
    """Return whether a host's machines cost money."""
    return COST_OPTION in host.options


def query_hosts(names: Sequence[str], rentals: Sequence[RentalRecord] = ()) -> tuple[HostOffers, ...]:
    """Return what hosts answer, all asked at once; what was rented before tells how long machines take to answer."""
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
    """Return the hosts that rent; one that cannot be loaded is among them, so that it is told why."""
    hosts = {name: _load_host(name) for name in sorted(registry.known_hosts())}
    return tuple(name for name, host in hosts.items() if isinstance(host, str) or host_costs_money(host))


def refuse_place(name: str, host_place: str | None) -> None:
    """Refuse a place at a host that it has but that is of no use to us, with the reason.

    Raises:
        BadInput: The host's ``refuses`` names it.
    """
    refuses = (
        getattr(_load_host(name), "refuses", {}) if host_place is not None and name in registry.known_hosts() else {}
    )
    if host_place in refuses:
        raise BadInput(f"--on {name}:{host_place} is refused: {refuses[host_place]}.")


def refuse_unknown_place(look: HostOffers | None, host_place: str | None) -> None:
    """Refuse a place that no offer of a host that answered has.

    Raises:
        BadInput: With the places that there are.
    """
    if host_place is None or look is None or look.unavailable_reason is not None or not look.offers:
        return
    if any(host_place in {offer.name, offer.region} for offer in look.offers):
        return
    regions = sorted({offer.region for offer in look.offers if offer.region})
    if not regions:
        raise BadInput(f"--on {look.name}:{host_place}: {look.name} has no regions to choose; write --on {look.name}.")
    raise BadInput(
        f"--on {look.name}:{host_place}: {look.name} has nothing there; it has machines in {', '.join(regions)}."
    )


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
    """Return an offer with the time that this host's machines really took to answer, where some were rented."""
    took = [
        (machine.up_at - machine.made_at).total_seconds()
        for rental in rentals
        if rental.provider == offer.host
        for machine in rental.machines
        if machine.up_at is not None
    ]
    return offer.model_copy(update={"ready_s": statistics.median(took[-MAX_PAST_RENTALS:])}) if took else offer


def offered_gpu_types(looks: Iterable[HostOffers]) -> dict[str, tuple[str, ...]]:
    """Return by host the kinds of GPU that it has, or had on the day of the snapshot."""
    live = {host_offers.name: tuple(dict.fromkeys(o.gpu for o in host_offers.offers if o.gpu)) for host_offers in looks}
    return {**listed_gpu_types(), **{name: kinds for name, kinds in live.items() if kinds}}
