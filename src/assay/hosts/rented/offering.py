"""Which of a provider's offers an order takes, and whether it may cost what it costs now; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.errors import BadInput, MachineCannot
from assay.hosts.gpu_types import asked_for, will_do
from assay.hosts.rented.provider import NoCapacity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.hosts.base import Offer, Order

DEARER = 1.1
"""Without --max-cost, what has become dearer than this many times the price it was chosen for is not taken."""


def candidates(provider: str, offers: Iterable[Offer], order: Order) -> tuple[Offer, ...]:
    """Return what an order could take, the chosen offer first, then the cheapest.

    Raises:
        BadInput: No GPU is asked for, or one that nobody has ever heard of, or a place that is none.
        NoCapacity: The provider has none of it now.
        MachineCannot: What was chosen has become dearer.
    """
    all_offers = tuple(offers)
    _check_what_is_asked(provider, all_offers, order)
    kind = order.gpu or (order.offer.gpu if order.offer else None)
    fitting = [
        offer
        for offer in all_offers
        if (kind is None or (offer.gpu is not None and will_do(kind, offer.gpu)))
        and offer.gpu_count in {None, order.gpu_count}
        and order.place in {None, offer.name, offer.region}
    ]
    if order.offer is not None:
        fitting = [offer for offer in fitting if order.offer.gpu in {None, offer.gpu}]
    if not fitting:
        has = ", ".join(dict.fromkeys(_with_count(offer) for offer in all_offers)) or "nothing"
        count = f"{order.gpu_count} × " if order.gpu_count > 1 else ""
        where = f" in {order.place}" if order.place else ""
        raise NoCapacity(f"{provider} has no {count}{kind or 'such machine'}{where} free now; it has {has}.")
    affordable = [offer for offer in fitting if not _dearer(offer, order)]
    if not affordable:
        raise MachineCannot(_has_become_dearer(provider, fitting[0], order))
    return tuple(sorted(affordable, key=lambda offer: (not _same(offer, order.offer), _price(offer), offer.name)))


def _check_what_is_asked(provider: str, found: tuple[Offer, ...], order: Order) -> None:
    if order.gpu is None and order.offer is None:
        raise BadInput(f"--gpu-type says which GPU to rent; {provider} has {_shown(found)}.")
    if order.gpu is not None:
        asked_for(order.gpu, {provider: [offer.gpu for offer in found if offer.gpu is not None]})
    place_names = [place_name for offer in found for place_name in (offer.name, offer.region) if place_name]
    if order.place is not None and order.place not in place_names:
        from assay.core.errors import nearest

        raise BadInput(f"{provider} has no place {order.place!r} now.{nearest(order.place, place_names)}")


def _shown(found: tuple[Offer, ...]) -> str:
    prices: dict[str, float | None] = {}
    for offer in sorted(found, key=_price):
        prices.setdefault(_with_count(offer), offer.usd_per_hour)
    texts = [kind if price is None else f"{kind} (${price:.2f} an hour)" for kind, price in prices.items()]
    return ", ".join(texts) or "none free now"


def _with_count(offer: Offer) -> str:
    count = f"{offer.gpu_count} × " if offer.gpu_count and offer.gpu_count > 1 else ""
    return f"{count}{offer.gpu or offer.name}"


def _same(offer: Offer, chosen: Offer | None) -> bool:
    return chosen is not None and (offer.name, offer.region) == (chosen.name, chosen.region)


def _price(offer: Offer) -> float:
    return float("inf") if offer.usd_per_hour is None else offer.usd_per_hour


def _dearer(offer: Offer, order: Order) -> bool:
    chosen = order.offer.usd_per_hour if order.offer else None
    return order.max_cost_usd is None and chosen is not None and _price(offer) > chosen * DEARER


def _has_become_dearer(provider: str, offer: Offer, order: Order) -> str:
    was = order.offer.usd_per_hour if order.offer else None
    now = "not told" if offer.usd_per_hour is None else f"${offer.usd_per_hour:.2f} an hour"
    return (
        f"{provider}'s {offer.gpu or offer.name} was chosen for ${was or 0:.2f} an hour, and now its price is {now}; "
        "choose again, or say with --max-cost what it may cost."
    )
