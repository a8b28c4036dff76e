"""What to rent for a command line: the kinds of GPU, the expected duration, the budget, and the chosen offers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

from assay.core.errors import BadInput
from assay.core.format import format_duration
from assay.core.values import Value
from assay.hosts import offers as auto
from assay.hosts.fan_out import share_budget
from assay.hosts.gpu_types import parse_gpu_type, reason_unsupported, types_in
from assay.hosts.offers import OfferChoice, RentalRequest, choose_offer, format_usd

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from assay.hosts.offers import HostOffers
    from assay.hosts.rented.journal import RentalRecord


DEFAULT_DURATION_S = 600.0
"""Where nothing on the command line says how long it takes."""


class DurationEstimate(Value):
    """How long a run takes once its machine is set up, and whence that is known."""

    run_s: float = Field(gt=0)
    source: str


def estimate_duration(verb: str, flags: Mapping[str, Any]) -> DurationEstimate:
    """Return how long a verb takes with these options; ``verb`` is its words, such as ``threshold run``."""
    if flags.get("budget"):
        return DurationEstimate(run_s=flags["budget"], source="--budget")
    quick = " with --quick" if flags.get("quick") else ""
    if verb == "threshold run":
        from assay.cli.threshold_run import BUDGET_S, QUICK_SHARE

        share = QUICK_SHARE if quick else 1.0
        return DurationEstimate(
            run_s=share * BUDGET_S["cpu" if measures_cpu_only(flags) else "cuda"], source=f"its budget{quick}"
        )
    if verb == "contention run":
        from assay.experiments.budget import BUDGET_S as WHOLE_S
        from assay.experiments.budget import QUICK_BUDGET_S

        return DurationEstimate(run_s=QUICK_BUDGET_S if quick else WHOLE_S, source=f"its budget{quick}")
    if verb == "run":
        return _estimate_trials(flags, quick)
    return DurationEstimate(
        run_s=DEFAULT_DURATION_S, source=f"assumed: {format_duration(DEFAULT_DURATION_S)}; --budget says it"
    )


def _estimate_trials(flags: Mapping[str, Any], quick: str) -> DurationEstimate:
    """Return the time of ``assay run``: workloads, each so long, and so often."""
    from assay.cli.run import DURATION_S, QUICK_DURATION_S
    from assay.experiments.run.plan import START_UP_S

    count = max(1, len(flags["workloads"]) + len(flags["benchmarks"])) * flags["repeat"]
    restarts = flags["restarts"] or (2 if quick else 5)
    each_s = (flags["duration"] or (QUICK_DURATION_S if quick else DURATION_S)) + restarts * START_UP_S["torch"]
    return DurationEstimate(
        run_s=count * each_s, source=f"{count} trial{'' if count == 1 else 's'} of {format_duration(each_s)}{quick}"
    )


def measures_cpu_only(flags: Mapping[str, Any]) -> bool:
    """Return whether a verb measures CPUs: a rented machine's, say."""
    devices = flags.get("devices") or ()
    return bool(devices) and all(str(name).startswith("cpu") for name in devices)


def workloads_named(verb: str, flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the workloads that a verb measures on a GPU, as far as the command line names them."""
    if measures_cpu_only(flags):
        return ()
    if verb == "threshold run":
        from assay.experiments.threshold.spec import DEFAULT_SPEC_FILE, load_thresholds

        thresholds = load_thresholds(flags["thresholds"] or DEFAULT_SPEC_FILE)
        return tuple(name for threshold in thresholds for name in (threshold.reference, threshold.fast))
    named = (flags.get(name) or () for name in ("workloads", "benchmarks", "workload"))
    return tuple(str(word) for words in named for word in ((words,) if isinstance(words, str) else words))


@dataclass(frozen=True)
class GpuRequest:
    """One kind of GPU that is wanted.

    Attributes:
        name: A type or a family; null: any.
        choice: Every offer, and which is taken.
        refusal: Why the work cannot be done on such a GPU at all, as a clause.
        no_offer_reason: Why nothing is taken, as a clause; null: something is.
    """

    name: str | None
    choice: OfferChoice
    refusal: str | None
    no_offer_reason: str | None


@dataclass(frozen=True)
class RentalPlan:
    """All that is wanted, decided.

    Attributes:
        verb: The words of the verb, such as ``threshold run``.
        kinds: What is chosen for each kind of GPU.
        expected: How long the run itself takes.
        host_offers: What each host answered, by its name.
        max_cost_usd: What all of it may cost; null: no such limit.
        left_usd: Of the month's budget; null: there is none.
        budget_problem: Why not all of it together can be paid, as a clause; null: it can.
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
        """By name, why nothing can be had from a host from here."""
        return {
            name: host_offers.unavailable_reason
            for name, host_offers in self.host_offers.items()
            if host_offers.unavailable_reason is not None
        }


def parse_gpu_types(text: str | None, offered: Mapping[str, Sequence[str]]) -> list[tuple[str | None, int]]:
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
        kind = parse_gpu_type(name, offered), int(count or 1)
        if kind in requests:
            raise BadInput(f"--gpu-type names {word} twice.")
        requests.append(kind)
    return requests


def plan_rental(
    verb: str, flags: Mapping[str, Any], names: Sequence[str], now: datetime, partition: str | None = None
) -> RentalPlan:
    """Return what a command line wants rented from some hosts, all decided; nothing is asked for but prices."""
    rentals, left_usd = _month_budget(now)
    looks = {host_offers.name: host_offers for host_offers in auto.query_hosts(names, rentals)}
    requested = parse_gpu_types(flags.get("gpu_type"), auto.offered_gpu_types(looks.values()))
    time = estimate_duration(verb, flags)
    plan = RentalPlan(verb, (), time, looks, flags.get("max_cost"), left_usd)
    need = RentalRequest(
        host_place=partition,
        run_s=time.run_s,
        subjects=workloads_named(verb, flags),
        limit_s=flags.get("time"),
        max_cost_usd=plan.max_cost_usd,
        left_usd=left_usd,
    )
    needs = [need.model_copy(update={"gpu": kind, "gpu_count": count}) for kind, count in requested]
    return _share_budget(replace(plan, kinds=tuple(_choose_offer(plan, request) for request in needs)))


def _month_budget(now: datetime) -> tuple[tuple[RentalRecord, ...], float | None]:
    """Return what was rented before, and what is left of the month's budget."""
    from assay.hosts.rented import budget
    from assay.hosts.rented.journal import RentalJournal

    rentals = RentalJournal().rentals()
    monthly = budget.monthly_usd()
    return rentals, None if monthly is None else monthly - budget.spent_usd(rentals, now)


def _choose_offer(plan: RentalPlan, need: RentalRequest) -> GpuRequest:
    offers = [offer for host_offers in plan.host_offers.values() for offer in host_offers.offers]
    choice = choose_offer(need, offers, plan.unavailable_reasons)
    refused = None if need.gpu is None else reason_unsupported(need.gpu, need.subjects)
    return GpuRequest(
        need.gpu, choice, refused, None if choice.best else refused or _reasons_for_no_offer(plan, choice)
    )


def _reasons_for_no_offer(plan: RentalPlan, choice: OfferChoice) -> str:
    """Say for each host why nothing is taken from it."""
    return (
        "; ".join(f"{name}: {_reason_against_host(name, plan, choice)}" for name in plan.host_offers)
        or "no host here rents"
    )


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
    """Share out the money among several machines, or say that it is not enough for all."""
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
