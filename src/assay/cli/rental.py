"""``--on auto``, or a host whose machines cost money: plan what to rent, show the offers, rent and run the verb there.

flags ──▶ plan_rental ──▶ one kind of GPU: the best offer, or the next one where nobody has it free
          │               └ several: a fan-out, one machine each
          └ --dry-run: the offers, with prices and reasons
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import click

from assay.cli import show
from assay.core.errors import BadInput, MachineCannot
from assay.core.format import format_duration
from assay.core.page import Column, Page, Section, Table, Text
from assay.core.values import SCHEMA_VERSION
from assay.hosts import offers as auto
from assay.hosts import registry
from assay.hosts.base import Host
from assay.hosts.fan_out import record_offer, share_budget
from assay.hosts.gpu_types import parse_gpu_type, reason_unsupported, satisfies, types_in
from assay.hosts.offers import SET_UP_S, OfferChoice, RentalRequest, choose_offer, format_usd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import JsonValue

    from assay.cli.host_flags import DurationEstimate, HostFlags
    from assay.core.page import Cell, Tone
    from assay.hosts.base import Job, Offer, Rental
    from assay.hosts.offers import HostOffers, OfferCandidate

Carry = Callable[[Host, Mapping[str, object]], int]
"""Sends the verb to a host with these changes of its job; returns the exit code."""


def rent_and_dispatch(flags: HostFlags, *, on: str, partition: str | None, carry: Carry) -> int:
    """Return the exit code of a verb whose machine, or machines, have to be rented first."""
    names = auto.renting_hosts() if on == registry.AUTO else (on,)
    auto.refuse_place(on, partition)
    plan = plan_rental(flags, names, datetime.now(UTC), partition)
    _refuse_unsupported_flags(flags, tuple(plan.host_offers.values()), on)
    auto.refuse_unknown_place(plan.host_offers.get(on), partition)
    if flags.dry_run:
        return _show_plan(plan, as_json=flags.as_json)
    if len(plan.kinds) > 1:
        from assay.cli.fan_out import fan_out

        return fan_out(flags, plan)
    return _rent_one(plan, plan.kinds[0], carry)


def _refuse_unsupported_flags(flags: HostFlags, looks: Sequence[HostOffers], on: str) -> None:
    """Refuse a flag that no host in question understands."""
    from assay.cli.host_flags import given_host_flags

    supported = {"gpu_type", "remote_python"}.union(*(look.host.options for look in looks if look.host is not None))
    unsupported = [row.title for row in given_host_flags(flags) if row.name not in supported]
    if unsupported and any(look.host is not None for look in looks):
        raise BadInput(f"{unsupported[0]} is not supported with --on {on}; remove it.")


@dataclass(frozen=True)
class GpuRequest:
    """One requested kind of GPU.

    Attributes:
        name: A type or a family; null: any.
        choice: Every offer, and the chosen one.
        refusal: Why such a GPU cannot run the workloads, as a clause; null: it can.
        no_offer_reason: Why no offer is chosen, as a clause; null: one is.
    """

    name: str | None
    choice: OfferChoice
    refusal: str | None
    no_offer_reason: str | None


@dataclass(frozen=True)
class RentalPlan:
    """All requested kinds of GPU, with the chosen offers.

    Attributes:
        verb: The words of the verb, such as ``threshold run``.
        kinds: What is chosen for each kind of GPU.
        expected: How long the run itself takes.
        host_offers: What each host answered, by its name.
        max_cost_usd: Limit of the total cost; null: none.
        left_usd: What is left of the month's budget; null: there is none.
        budget_problem: Why the budget does not cover all machines, as a clause; null: it does.
    """

    verb: str
    kinds: tuple[GpuRequest, ...]
    expected: DurationEstimate
    host_offers: Mapping[str, HostOffers]
    max_cost_usd: float | None
    left_usd: float | None
    budget_problem: str | None = None

    @property
    def unavailable_reasons(self) -> dict[str, str]:
        """Why a host is unavailable, by its name."""
        return {
            name: host_offers.unavailable_reason
            for name, host_offers in self.host_offers.items()
            if host_offers.unavailable_reason is not None
        }


def parse_gpu_types(text: str | None, offered: Mapping[str, Sequence[str]]) -> list[tuple[str | None, int]]:
    """Return the kinds of GPU in ``--gpu-type``, and how many of each on a machine: ``L4,A100:2``.

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
        kind = parse_gpu_type(name, offered), int(count or 1)
        if kind in requests:
            raise BadInput(f"--gpu-type names {word} twice.")
        requests.append(kind)
    return requests


def plan_rental(flags: HostFlags, names: Sequence[str], now: datetime, partition: str | None = None) -> RentalPlan:
    """Return what to rent for a command line from some hosts; only prices are requested."""
    from assay.hosts.rented import budget
    from assay.hosts.rented.journal import RentalJournal

    rentals, monthly = RentalJournal().rentals(), budget.monthly_usd()
    left_usd = None if monthly is None else monthly - budget.spent_usd(rentals, now)
    host_offers = {look.name: look for look in auto.query_hosts(names, rentals)}
    requested = parse_gpu_types(flags.gpu_type, auto.offered_gpu_types(host_offers.values()))
    expected = flags.estimate_duration()
    plan = RentalPlan(flags.line.verb, (), expected, host_offers, flags.max_cost, left_usd)
    need = RentalRequest(
        host_place=partition,
        run_s=expected.run_s,
        subjects=() if flags.measures_cpu_only() else flags.named_workloads(),
        limit_s=flags.time,
        max_cost_usd=plan.max_cost_usd,
        left_usd=left_usd,
    )
    needs = [need.model_copy(update={"gpu": kind, "gpu_count": count}) for kind, count in requested]
    return _share_budget(replace(plan, kinds=tuple(_choose_offer(plan, request) for request in needs)))


def _choose_offer(plan: RentalPlan, need: RentalRequest) -> GpuRequest:
    offers = [offer for host_offers in plan.host_offers.values() for offer in host_offers.offers]
    choice = choose_offer(need, offers, plan.unavailable_reasons)
    refused = None if need.gpu is None else reason_unsupported(need.gpu, need.subjects)
    no_offer = "; ".join(f"{name}: {_reason_against_host(name, plan, choice)}" for name in plan.host_offers)
    return GpuRequest(need.gpu, choice, refused, None if choice.best else refused or no_offer or "no host here rents")


def _reason_against_host(name: str, plan: RentalPlan, choice: OfferChoice) -> str:
    need = choice.need
    of_host = [candidate for candidate in choice.candidates if candidate.offer.host == name]
    of_kind = [
        candidate
        for candidate in of_host
        if need.gpu is None or set(types_in(need.gpu)) & set(types_in(candidate.offer.gpu or ""))
    ]
    if name in plan.unavailable_reasons and (of_kind or not of_host):
        return plan.unavailable_reasons[name]
    if not of_kind:
        return f"it has no {need.gpu}" if need.gpu else "it has nothing"
    with_count = [candidate for candidate in of_kind if candidate.offer.gpu_count in {None, need.gpu_count}]
    return (with_count or of_kind)[0].rejection_reason or "it would do"


def _share_budget(plan: RentalPlan) -> RentalPlan:
    """Share the budget among several machines, or record that it is not enough for all."""
    limits = [limit for limit in (plan.max_cost_usd, plan.left_usd) if limit is not None]
    rentable = [kind for kind in plan.kinds if kind.choice.best]
    if not limits or len(rentable) < 2:
        return plan
    costs = [kind.choice.best.cost_usd or 0.0 for kind in rentable if kind.choice.best]
    shares = share_budget(min(limits), costs)
    if shares is None:
        over = (
            f"together they would cost about {format_usd(sum(costs))}, and "
            f"{format_usd(max(0.0, min(limits)))} may be spent"
        )
        return replace(plan, budget_problem=over)
    needs = (
        kind.choice.need.model_copy(update={"max_cost_usd": share})
        for kind, share in zip(rentable, shares, strict=True)
    )
    again = {id(kind): _choose_offer(plan, need) for kind, need in zip(rentable, needs, strict=True)}
    return replace(plan, kinds=tuple(again.get(id(kind), kind) for kind in plan.kinds))


def _show_plan(plan: RentalPlan, *, as_json: bool) -> int:
    """Show what would be rented; refuse like the command itself if that is nothing."""
    show.print_result(rental_plan_data(plan), rental_page(plan), as_json=as_json)
    require_offers(plan)
    lacking = any(kind.choice.best is None and kind.refusal is None for kind in plan.kinds)
    return MachineCannot.exit_code if lacking else 0


def require_offers(plan: RentalPlan) -> None:
    """Refuse a plan of which nothing can be rented.

    Raises:
        MachineCannot: No machine is available, or the budget does not cover all of them.
    """
    if plan.budget_problem is not None:
        raise MachineCannot(f"Nothing is rented: {plan.budget_problem}.")
    if not any(kind.choice.best for kind in plan.kinds):
        raise MachineCannot(no_machine_error(plan))


def no_machine_error(plan: RentalPlan) -> str:
    """Return that no machine can be rented, and why; if no host is available, once for all kinds of GPU."""
    reasons = [
        f"{plan.verb} on a {kind.name} is refused: {kind.refusal}. Nothing is rented."
        for kind in plan.kinds
        if kind.refusal is not None
    ]
    open_ones = [kind for kind in plan.kinds if kind.refusal is None]
    if len(open_ones) > 1 and len(plan.unavailable_reasons) == len(plan.host_offers):
        host_reasons = "; ".join(f"{name}: {reason}" for name, reason in plan.unavailable_reasons.items())
        what = " or ".join(kind.name or "GPU" for kind in open_ones)
        return " ".join([*reasons, as_sentence(f"No {what} can be rented from here: {host_reasons}")])
    request_reasons = (
        as_sentence(f"No {request.name or 'GPU'} can be rented from here: {request.no_offer_reason}")
        for request in open_ones
    )
    return " ".join([*reasons, *request_reasons])


def _rent_one(plan: RentalPlan, kind: GpuRequest, carry: Carry) -> int:
    """Rent one machine; if the best offer has no capacity after all, try the next one."""
    from assay.hosts.rented.provider import NoCapacity

    require_offers(plan)
    tried: list[str] = []
    for candidate in kind.choice.fitting:
        host = plan.host_offers[candidate.offer.host].host
        if host is None:
            continue
        click.echo(announce_rental(candidate), err=True)
        record_offer(candidate)
        lender = FallbackHost(host)
        try:
            return carry(cast("Host", lender), job_changes(candidate, kind))
        except NoCapacity as error:
            if lender.has_rented:
                raise
            tried.append(str(error).rstrip("."))
            click.echo(f"{tried[-1]}.", err=True)
    raise MachineCannot(f"Nobody has one free: {'; '.join(tried)}.")


class FallbackHost:
    """A host that records whether it has rented a machine: then the job is not started again elsewhere."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.has_rented = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._host, name)

    def create(self, job: Job) -> Rental:
        """Rent what a job needs."""
        rental = self._host.create(job)
        self.has_rented = True
        return rental


def announce_rental(candidate: OfferCandidate) -> str:
    """Return what is being rented, its price, and the maximum cost."""
    offer = candidate.offer
    return (
        f"Renting {offer.host} {offer.name} at {format_hourly(offer)} an hour ({price_date_text(offer)}): about "
        f"{format_usd(candidate.cost_usd or 0.0)}; ended after {format_duration(candidate.limit_s or 0.0)} "
        "at the latest, "
        f"{format_usd(candidate.most_usd or 0.0)} at most."
    )


def job_changes(candidate: OfferCandidate, kind: GpuRequest) -> dict[str, object]:
    """Return the fields of a job that depend on the chosen machine."""
    need = kind.choice.need
    return {
        "gpu": _exact_gpu_type(candidate.offer, kind),
        "gpu_count": need.gpu_count,
        "offer": candidate.offer,
        "limit_s": candidate.limit_s,
        "max_cost_usd": need.max_cost_usd,
    }


def _exact_gpu_type(offer: Offer, kind: GpuRequest) -> str | None:
    """Return the GPU type that the machine must have: the requested one, or the offered one if it is more specific."""
    if kind.name is None or offer.gpu is None:
        return offer.gpu or kind.name
    return offer.gpu if satisfies(kind.name, offer.gpu) and len(types_in(offer.gpu)) == 1 else kind.name


def host_rents(name: str) -> bool:
    """Return whether a host, by its name, rents machines for money."""
    return name == registry.AUTO or auto.host_costs_money(registry.load_host(name))


OFFER_COLUMNS = (
    "host",
    "machine",
    "GPU",
    "$ an hour",
    "priced",
    "answers after",
    "done after",
    "about",
    "at most",
    "verdict",
)


def rental_page(plan: RentalPlan) -> Page:
    """Return the page of a dry run."""
    sections = [
        Section(title=request_label(request), elements=_request_elements(plan, request)) for request in plan.kinds
    ]
    return Page(
        title=f"assay {plan.verb}: what would be rented",
        lead=" ".join(offer_headline(request) for request in plan.kinds),
        lead_tone="good" if any(request.choice.best for request in plan.kinds) else "bad",
        sections=(
            *sections,
            Section(title="What to know", elements=tuple(Text(text=text) for text in price_notes(plan))),
        ),
    )


def request_label(kind: GpuRequest) -> str:
    """Return the request as a label: "L4", "2 × A100", "any GPU"."""
    name = kind.name or "any GPU"
    return name if kind.choice.need.gpu_count == 1 else f"{kind.choice.need.gpu_count} × {name}"


def offer_headline(kind: GpuRequest) -> str:
    """Return which offer is chosen for one kind of GPU, or that there is none."""
    best = kind.choice.best
    if best is None:
        return (
            f"{request_label(kind)}: refused."
            if kind.refusal is not None
            else f"{request_label(kind)}: none can be rented from here."
        )
    offer = best.offer
    return (
        f"{request_label(kind)}: {offer.host} {offer.name}, {format_usd(best.cost_usd or 0.0)} for about "
        f"{format_duration(best.expected_s)} at {format_hourly(offer)} an hour ({price_date_text(offer)})."
    )


def price_date_text(offer: Offer) -> str:
    """Return the date of a price."""
    return "now" if offer.priced_on is None else f"listed {offer.priced_on}"


def format_hourly(offer: Offer) -> str | None:
    """Return a price per hour as text; null: not known."""
    return None if offer.usd_per_hour is None else f"${offer.usd_per_hour:.2f}"


def _request_elements(plan: RentalPlan, kind: GpuRequest) -> tuple[Table | Text, ...]:
    if kind.refusal is not None:
        return (Text(text=f"refused: {kind.refusal}. Nothing is rented for it.", tone="bad"),)
    candidates = [candidate for candidate in kind.choice.candidates if matches_request(kind, candidate.offer)]
    if not candidates:
        return (Text(text=as_sentence(f"Nobody who can be asked offers it: {kind.no_offer_reason}"), tone="bad"),)
    tones: list[Tone] = [
        "good" if candidate == kind.choice.best else "plain" if candidate.rejection_reason is None else "unsure"
        for candidate in candidates
    ]
    return (
        Table(
            title="Offers, the cheapest for the whole of it first",
            columns=tuple(
                Column(title=title, numeric=title not in {"host", "machine", "GPU", "verdict"})
                for title in OFFER_COLUMNS
            ),
            rows=tuple(_offer_row(plan, kind, candidate) for candidate in candidates),
            tones=tuple(tones),
        ),
    )


def matches_request(kind: GpuRequest, offer: Offer) -> bool:
    """Return whether an offer matches the request, whatever its price and availability."""
    need = kind.choice.need
    same = need.gpu is None or (offer.gpu is not None and bool(set(types_in(need.gpu)) & set(types_in(offer.gpu))))
    return same and offer.gpu_count in {None, need.gpu_count}


def _offer_row(plan: RentalPlan, kind: GpuRequest, candidate: OfferCandidate) -> tuple[Cell, ...]:
    offer = candidate.offer
    return (
        offer.host,
        offer.name if offer.region is None else f"{offer.name} ({offer.region})",
        offer.gpu if (offer.gpu_count or 1) == 1 else f"{offer.gpu_count} × {offer.gpu}",
        format_hourly(offer),
        offer.priced_on or "now",
        None if offer.ready_s is None else format_duration(offer.ready_s),
        format_duration(candidate.expected_s),
        None if candidate.cost_usd is None else format_usd(candidate.cost_usd),
        None
        if candidate.most_usd is None or candidate.most_usd < (candidate.cost_usd or 0.0)
        else format_usd(candidate.most_usd),
        _offer_verdict(plan, kind, candidate),
    )


def _offer_verdict(plan: RentalPlan, kind: GpuRequest, candidate: OfferCandidate) -> str:
    if candidate == kind.choice.best:
        return "taken"
    if candidate.rejection_reason is not None and candidate.rejection_reason == plan.unavailable_reasons.get(
        candidate.offer.host
    ):
        return "cannot be asked from here: see below"
    return candidate.rejection_reason or "would do"


def price_notes(plan: RentalPlan) -> list[str]:
    """Return how the numbers were derived."""
    run_s = plan.expected.run_s
    lines = [
        (
            f"The run itself takes about {format_duration(run_s)} ({plan.expected.source}), setting the machine up "
            f"{format_duration(SET_UP_S)}; after how long it answers is as seen here before, as the host "
            "says, or assumed."
        ),
        (
            "“At most” is the price until the machine's deadline, at which it is ended whatever happens; there is none "
            "where the money or the time is less than what is expected, and nothing is rented."
        ),
    ]
    if any(candidate.offer.priced_on for kind in plan.kinds for candidate in kind.choice.candidates):
        lines.append(
            "A price with a month is from the snapshot in this package and may have changed; “now” was just asked for."
        )
    if plan.max_cost_usd is not None:
        lines.append(f"--max-cost: {format_usd(plan.max_cost_usd)} for all of it.")
    if plan.left_usd is not None:
        lines.append(f"Of this month's budget {format_usd(max(0.0, plan.left_usd))} are left.")
    return [*lines, *(as_sentence(f"{name}: {why}") for name, why in plan.unavailable_reasons.items())]


def as_sentence(text: str) -> str:
    """Return a clause with its full stop, where it has no mark of its own."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def rental_plan_data(plan: RentalPlan) -> dict[str, JsonValue]:
    """Return the plan as JSON."""
    return {
        "schema": SCHEMA_VERSION,
        "dry_run": True,
        "verb": plan.verb,
        "expected_run_s": plan.expected.run_s,
        "expected_run_source": plan.expected.source,
        "max_cost_usd": plan.max_cost_usd,
        "month_left_usd": plan.left_usd,
        "kinds": [
            {
                "name": request.name,
                "gpu_count": request.choice.need.gpu_count,
                "refusal": request.refusal,
                "no_offer_reason": request.no_offer_reason,
                "chosen": None if request.choice.best is None else request.choice.best.as_json(),
                "candidates": [c.as_json() for c in request.choice.candidates if matches_request(request, c.offer)],
            }
            for request in plan.kinds
        ],
        "expected_usd": _total_cost([request.choice.best.cost_usd for request in plan.kinds if request.choice.best]),
        "most_usd": _total_cost([request.choice.best.most_usd for request in plan.kinds if request.choice.best]),
        "unavailable_reasons": dict(plan.unavailable_reasons),
    }


def _total_cost(amounts: Sequence[float | None]) -> float | None:
    amounts_known = [amount for amount in amounts if amount is not None]
    return sum(amounts_known) if amounts_known else None
