"""What can be rented from here, at which price: every host that rents is asked, and one that cannot be says why."""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, MachineCannot
from assay.hosts import prices, registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.hosts.base import Host, Offer
    from assay.hosts.rented.book import Rental

RENTS = "max_cost"
"""The option that a host understands whose machines cost money."""

REMEMBERED = 5
"""So many rentals of a host tell how long its machines take to answer."""


@dataclass(frozen=True)
class Look:
    """What one host answered.

    Attributes:
        name: Of the host.
        host: Null where it could not even be loaded.
        offers: What it has, or had on the day of the snapshot.
        shut: Why nothing can be had from it from here, as a clause; null: it can be asked.
    """

    name: str
    host: Host | None
    offers: tuple[Offer, ...]
    shut: str | None = None


def rents(host: Host) -> bool:
    """Return whether a host's machines cost money."""
    return RENTS in host.options


def look(names: Sequence[str], rentals: Sequence[Rental] = ()) -> tuple[Look, ...]:
    """Return what hosts answer, all asked at once; what was rented before tells how long machines take to answer."""
    with ThreadPoolExecutor(max_workers=max(1, len(names))) as pool:
        results = list(pool.map(_looked_at, names))
    return tuple(
        Look(
            host_offers.name,
            host_offers.host,
            tuple(as_it_was(offer, rentals) for offer in host_offers.offers),
            host_offers.shut,
        )
        for host_offers in results
    )


def renting() -> tuple[str, ...]:
    """Return the hosts that rent; one that cannot be loaded is among them, so that it is told why."""
    hosts = {name: _loaded(name) for name in sorted(registry.known())}
    return tuple(name for name, host in hosts.items() if isinstance(host, str) or rents(host))


def refuse(name: str, place: str | None) -> None:
    """Refuse a place at a host that it has but that is of no use to us, with the reason.

    Raises:
        BadInput: The host's ``refuses`` names it.
    """
    refuses = getattr(_loaded(name), "refuses", {}) if place is not None and name in registry.known() else {}
    if place in refuses:
        raise BadInput(f"--on {name}:{place} is refused: {refuses[place]}.")


def refuse_unknown(look: Look | None, place: str | None) -> None:
    """Refuse a place that no offer of a host that answered has.

    Raises:
        BadInput: With the places that there are.
    """
    if place is None or look is None or look.shut is not None or not look.offers:
        return
    if any(place in {offer.name, offer.region} for offer in look.offers):
        return
    regions = sorted({offer.region for offer in look.offers if offer.region})
    if not regions:
        raise BadInput(f"--on {look.name}:{place}: {look.name} has no regions to choose; write --on {look.name}.")
    raise BadInput(f"--on {look.name}:{place}: {look.name} has nothing there; it has machines in {', '.join(regions)}.")


def _loaded(name: str) -> Host | str:
    """Return a host, or why it cannot be loaded."""
    try:
        return registry.load(name)
    except MachineCannot as error:
        return _clause(error)


def _looked_at(name: str) -> Look:
    host = _loaded(name)
    if isinstance(host, str):
        return Look(name, None, prices.listed(name), host)
    missing = host.available()
    if missing is not None:
        return Look(name, host, prices.listed(name), missing)
    try:
        return Look(name, host, host.offers())
    except MachineCannot as error:
        return Look(name, host, prices.listed(name), _clause(error))


def _clause(error: MachineCannot) -> str:
    return " ".join(str(error).split()).rstrip(".")


def as_it_was(offer: Offer, rentals: Iterable[Rental]) -> Offer:
    """Return an offer with the time that this host's machines really took to answer, where some were rented."""
    took = [
        (machine.up_at - machine.made_at).total_seconds()
        for rental in rentals
        if rental.provider == offer.host
        for machine in rental.machines
        if machine.up_at is not None
    ]
    return offer.model_copy(update={"ready_s": statistics.median(took[-REMEMBERED:])}) if took else offer


def offered(looks: Iterable[Look]) -> dict[str, tuple[str, ...]]:
    """Return by host the kinds of GPU that it has, or had on the day of the snapshot."""
    live = {host_offers.name: tuple(dict.fromkeys(o.gpu for o in host_offers.offers if o.gpu)) for host_offers in looks}
    return {**prices.offered(), **{name: kinds for name, kinds in live.items() if kinds}}
