"""What the command line wants rented: kinds of GPU, what each is for, the money there is, and what is chosen.

Everything here is decided before anything is asked for; a dry run shows it and ends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from assay.cli import expecting
from assay.core.errors import BadInput
from assay.hosts import auto
from assay.hosts.choosing import Choice, Need, choose, usd
from assay.hosts.fan_out import shared
from assay.hosts.gpu_types import asked_for, cannot, types_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from assay.cli.expecting import Expected
    from assay.hosts.auto import Look
    from assay.hosts.rented.book import Rental


@dataclass(frozen=True)
class Kind:
    """One kind of GPU that is wanted.

    Attributes:
        asked: A type or a family; null: any.
        choice: Every offer, and which is taken.
        refused: Why the work cannot be done on such a GPU at all, as a clause.
        why_none: Why nothing is taken, as a clause; null: something is.
    """

    asked: str | None
    choice: Choice
    refused: str | None
    why_none: str | None


@dataclass(frozen=True)
class Wanted:
    """All that is wanted, decided.

    Attributes:
        verb: The words of the verb, such as ``threshold run``.
        kinds: What is chosen for each kind of GPU.
        expected: How long the run itself takes.
        looks: What each host answered, by its name.
        max_cost_usd: What all of it may cost; null: no such limit.
        left_usd: Of the month's budget; null: there is none.
        over: Why not all of it together can be paid, as a clause; null: it can.
    """

    verb: str
    kinds: tuple[Kind, ...]
    expected: Expected
    looks: Mapping[str, Look]
    max_cost_usd: float | None
    left_usd: float | None
    over: str | None = None

    @property
    def shut(self) -> dict[str, str]:
        """By name, why nothing can be had from a host from here."""
        return {name: host_offers.shut for name, host_offers in self.looks.items() if host_offers.shut is not None}


def kinds_in(text: str | None, offered: Mapping[str, Sequence[str]]) -> list[tuple[str | None, int]]:
    """Return the kinds of GPU in what stood behind ``--gpu-type``, and how many of each on a machine: ``L4,A100:2``.

    Raises:
        BadInput: One is not known, or comes twice.
    """
    if text is None:
        return [(None, 1)]
    requests: list[tuple[str | None, int]] = []
    for word in re.split(r"[,\s]+", text.strip()):
        name, colon, count = word.partition(":")
        if not name:
            raise BadInput(f"--gpu-type {text!r} lacks a name; write L4, or L4,A100 for several kinds of GPU.")
        if colon and not re.fullmatch(r"[1-9]\d?", count):
            raise BadInput(f"--gpu-type {word}: how many GPUs stands behind the colon, as in {name}:2.")
        kind = asked_for(name, offered), int(count or 1)
        if kind in requests:
            raise BadInput(f"--gpu-type names {word} twice.")
        requests.append(kind)
    return requests


def wanted(
    verb: str, given: Mapping[str, Any], names: Sequence[str], now: datetime, place: str | None = None
) -> Wanted:
    """Return what a command line wants rented from some hosts, all decided; nothing is asked for but prices."""
    rentals, left_usd = _month(now)
    looks = {host_offers.name: host_offers for host_offers in auto.look(names, rentals)}
    requested = kinds_in(given.get("gpu_type"), auto.offered(looks.values()))
    time = expecting.expected(verb, given)
    plan = Wanted(verb, (), time, looks, given.get("max_cost"), left_usd)
    need = Need(
        place=place,
        run_s=time.run_s,
        subjects=expecting.subjects(verb, given),
        limit_s=given.get("time"),
        max_cost_usd=plan.max_cost_usd,
        left_usd=left_usd,
    )
    needs = [need.model_copy(update={"gpu": kind, "gpu_count": count}) for kind, count in requested]
    return _paid(replace(plan, kinds=tuple(_decided(plan, request) for request in needs)))


def _month(now: datetime) -> tuple[tuple[Rental, ...], float | None]:
    """Return what was rented before, and what is left of the month's budget."""
    from assay.hosts.rented import budget
    from assay.hosts.rented.book import Book

    rentals = Book().rentals()
    monthly = budget.monthly_usd()
    return rentals, None if monthly is None else monthly - budget.spent_usd(rentals, now)


def _decided(wanted: Wanted, need: Need) -> Kind:
    offers = [offer for host_offers in wanted.looks.values() for offer in host_offers.offers]
    choice = choose(need, offers, wanted.shut)
    refused = None if need.gpu is None else cannot(need.gpu, need.subjects)
    return Kind(need.gpu, choice, refused, None if choice.best else refused or _why_none(wanted, choice))


def _why_none(wanted: Wanted, choice: Choice) -> str:
    """Say for each host why nothing is taken from it."""
    return "; ".join(f"{name}: {_why_not_from(name, wanted, choice)}" for name in wanted.looks) or "no host here rents"


def _why_not_from(name: str, wanted: Wanted, choice: Choice) -> str:
    need = choice.need
    of_host = [candidate for candidate in choice.candidates if candidate.offer.host == name]
    of_kind = [
        candidate
        for candidate in of_host
        if need.gpu is None or set(types_of(need.gpu)) & set(types_of(candidate.offer.gpu or ""))
    ]
    if name in wanted.shut and (of_kind or not of_host):
        return wanted.shut[name]
    if not of_kind:
        return f"it has no {need.gpu}" if need.gpu else "it has nothing"
    with_count = [candidate for candidate in of_kind if candidate.offer.gpu_count in {None, need.gpu_count}]
    return (with_count or of_kind)[0].why_not or "it would do"


def _paid(found: Wanted) -> Wanted:
    """Share out the money among several machines, or say that it is not enough for all."""
    limits = [limit for limit in (found.max_cost_usd, found.left_usd) if limit is not None]
    rentable = [kind for kind in found.kinds if kind.choice.best]
    if not limits or len(rentable) < 2:
        return found
    costs = [kind.choice.best.cost_usd or 0.0 for kind in rentable if kind.choice.best]
    shares = shared(min(limits), costs)
    if shares is None:
        over = f"together they would cost about {usd(sum(costs))}, and {usd(max(0.0, min(limits)))} may be spent"
        return replace(found, over=over)
    needs = (
        kind.choice.need.model_copy(update={"max_cost_usd": share})
        for kind, share in zip(rentable, shares, strict=True)
    )
    again = {id(kind): _decided(found, need) for kind, need in zip(rentable, needs, strict=True)}
    return replace(found, kinds=tuple(again.get(id(kind), kind) for kind in found.kinds))
