"""``--on auto``, or a host whose machines cost money: the offers, the choice, the money; then one machine, or several.

`on_host` comes here where something is to be rented, and only then.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import click

from assay.core.errors import BadInput, MachineCannot
from assay.hosts import auto, registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.cli.renting_plan import Kind, Wanted
    from assay.hosts.auto import Look
    from assay.hosts.base import Host, Loan, Offer, Order
    from assay.hosts.choosing import Candidate

    Carry = Callable[[Host, Mapping[str, object]], int]
    """Sends the verb to a host with these changes of its order; returns the exit code."""


def sent(
    ctx: click.Context,
    given: Mapping[str, Any],
    *,
    on: str,
    place: str | None,
    carry: Carry,
    said: Sequence[click.Parameter],
) -> int:
    """Return the exit code of a verb whose machine, or machines, had to be rented first.

    ``said`` are the options about machines elsewhere that stood on the command line.
    """
    from assay.cli.renting_plan import wanted

    names = auto.renting() if on == registry.AUTO else (on,)
    auto.refuse(on, place)
    verb = " ".join(ctx.command_path.split()[1:])
    plan = wanted(verb, given, names, datetime.now(UTC), place)
    _understood(said, tuple(plan.looks.values()), on)
    auto.refuse_unknown(plan.looks.get(on), place)
    if given.get("dry_run"):
        return _shown(plan, as_json=bool(given.get("as_json")))
    if len(plan.kinds) > 1:
        from assay.cli.fanning import fan_out

        return fan_out(ctx, given, plan)
    return _one(plan, plan.kinds[0], carry)


def _understood(said: Sequence[click.Parameter], looks: Sequence[Look], on: str) -> None:
    """Refuse an option that no host in question understands."""
    supported = {"gpu_type", "remote_python"}.union(*(look.host.options for look in looks if look.host is not None))
    strange = [parameter.opts[0] for parameter in said if parameter.name not in supported]
    if strange and any(look.host is not None for look in looks):
        raise BadInput(f"{strange[0]} means nothing to --on {on}.")


def _shown(found: Wanted, *, as_json: bool) -> int:
    """Show what would be rented; where that is nothing, say so as the command itself would."""
    from assay.cli import renting_page, show
    from assay.reports.terminal import print_page

    if as_json:
        click.echo(json.dumps(renting_page.as_data(found), indent=2, ensure_ascii=False))
    else:
        print_page(renting_page.page(found), show.console(stderr=False))
    refuse_nothing(found)
    lacking = any(kind.choice.best is None and kind.refused is None for kind in found.kinds)
    return MachineCannot.exit_code if lacking else 0


def refuse_nothing(found: Wanted) -> None:
    """Say so where nothing at all can be rented.

    Raises:
        MachineCannot: Of no kind of GPU can a machine be had, or not all can be paid.
    """
    if found.over is not None:
        raise MachineCannot(f"Nothing is rented: {found.over}.")
    if not any(kind.choice.best for kind in found.kinds):
        raise MachineCannot(nothing(found))


def nothing(found: Wanted) -> str:
    """Say that no machine can be had, and why; where no host can be asked at all, once for all kinds of GPU."""
    from assay.cli.renting_page import sentence

    reasons = [
        f"{found.verb} on a {kind.asked} is refused: {kind.refused}. Nothing is rented."
        for kind in found.kinds
        if kind.refused is not None
    ]
    open_ones = [kind for kind in found.kinds if kind.refused is None]
    if len(open_ones) > 1 and len(found.shut) == len(found.looks):
        host_reasons = "; ".join(f"{name}: {reason}" for name, reason in found.shut.items())
        what = " or ".join(kind.asked or "GPU" for kind in open_ones)
        return " ".join([*reasons, sentence(f"No {what} can be rented from here: {host_reasons}")])
    request_reasons = (
        sentence(f"No {request.asked or 'GPU'} can be rented from here: {request.why_none}") for request in open_ones
    )
    return " ".join([*reasons, *request_reasons])


def _one(found: Wanted, kind: Kind, carry: Carry) -> int:
    """Rent one machine, of the next offer where nobody has the best one free after all."""
    from assay.hosts.fan_out import note
    from assay.hosts.rented.provider import NoCapacity

    refuse_nothing(found)
    tried: list[str] = []
    for candidate in kind.choice.fitting:
        host = found.looks[candidate.offer.host].host
        if host is None:
            continue
        click.echo(told(candidate), err=True)
        note(candidate)
        lender = Lender(host)
        try:
            return carry(cast("Host", lender), changes(candidate, kind))
        except NoCapacity as error:
            if lender.lent:
                raise
            tried.append(str(error).rstrip("."))
            click.echo(f"{tried[-1]}.", err=True)
    raise MachineCannot(f"Nobody has one free: {'; '.join(tried)}.")


class Lender:
    """A host that remembers whether it has lent anything: what was paid for once is not begun anew elsewhere."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.lent = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._host, name)

    def create(self, order: Order) -> Loan:
        """Have what an order needs."""
        rental = self._host.create(order)
        self.lent = True
        return rental


def told(candidate: Candidate) -> str:
    """Say what is being rented, at which price, and what it may come to."""
    from assay.cli.renting_page import hourly, priced
    from assay.core.units import format_span
    from assay.hosts.choosing import usd

    offer = candidate.offer
    return (
        f"Renting {offer.host} {offer.name} at {hourly(offer)} an hour ({priced(offer)}): about "
        f"{usd(candidate.cost_usd or 0.0)}; ended after {format_span(candidate.limit_s or 0.0)} at the latest, "
        f"{usd(candidate.most_usd or 0.0)} at most."
    )


def changes(candidate: Candidate, kind: Kind) -> dict[str, object]:
    """Return what an order says of the machine that was chosen for it."""
    need = kind.choice.need
    return {
        "gpu": _exact(candidate.offer, kind),
        "gpu_count": need.gpu_count,
        "offer": candidate.offer,
        "limit_s": candidate.limit_s,
        "max_cost_usd": need.max_cost_usd,
    }


def _exact(offer: Offer, kind: Kind) -> str | None:
    """Return the kind of GPU that is to answer: what was asked for, or what is offered where that says more."""
    from assay.hosts.gpu_types import types_of, will_do

    if kind.asked is None or offer.gpu is None:
        return offer.gpu or kind.asked
    return offer.gpu if will_do(kind.asked, offer.gpu) and len(types_of(offer.gpu)) == 1 else kind.asked


def rents(name: str) -> bool:
    """Return whether a host, by its name, lends machines for money.

    Raises:
        MachineCannot: It cannot be loaded here.
    """
    return name == registry.AUTO or auto.rents(registry.load(name))
