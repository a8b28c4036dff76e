"""What providers asked for their GPUs on a day: for where no price of this moment is told.

``prices.json`` is a dated snapshot. A price from it always carries its month; nothing is rented on it without the
provider having been asked what it costs now, where the provider tells.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import Field, TypeAdapter

from assay.core.values import Value
from assay.hosts.base import Offer

FILE = Path(__file__).with_name("prices.json")


class Listed(Value):
    """The prices of one provider."""

    priced_on: str = Field(pattern=r"^\d{4}-\d{2}(-\d{2})?$", description="The month, or the day.")
    ready_s: float = Field(gt=0, description="From asking to a machine that answers: assumed, not measured.")
    ends_itself: bool = Field(description="Whether the provider itself keeps a deadline.")
    note: str
    usd_per_hour: dict[str, float] = Field(description="Of a machine with one GPU, by its kind.")


@cache
def snapshot() -> dict[str, Listed]:
    """Return the snapshot by provider."""
    return TypeAdapter(dict[str, Listed]).validate_json(FILE.read_bytes())


def listed(host: str) -> tuple[Offer, ...]:
    """Return what a provider had when its prices were written down; nothing where they were not."""
    at_host = snapshot().get(host)
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


def usd_per_hour(host: str, kind: str) -> tuple[float, str] | None:
    """Return the price of one GPU of a kind and its month; null where it was not written down."""
    at_host = snapshot().get(host)
    if at_host is None or kind not in at_host.usd_per_hour:
        return None
    return at_host.usd_per_hour[kind], at_host.priced_on


def offered() -> dict[str, tuple[str, ...]]:
    """Return by provider the kinds of GPU that it had."""
    return {host: tuple(at_host.usd_per_hour) for host, at_host in snapshot().items()}
