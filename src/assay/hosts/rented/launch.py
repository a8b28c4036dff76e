"""Launch a rented machine: order the offers, request a machine exactly once, and wait until it is up.

An answer that never came is looked up by name before anything is requested again:

    wait for the rate limit ─▶ journal "asked" ─▶ launch ─▶ answered: journal "made"
                                                    └ no answer ─▶ list by name, for as long as one may take to appear
                                                                     ├ listed: it is ours
                                                                     └ not listed: request again
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, BudgetEnded, MachineCannot
from assay.hosts.base import JobProgress
from assay.hosts.gpu_types import parse_gpu_type, satisfies
from assay.hosts.remote.connection import RemoteConnectionLost
from assay.hosts.rented.provider import NoAnswer, NoCapacity

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from assay.hosts.base import Job, JobWatcher, Offer
    from assay.hosts.remote.connection import RemoteConnection
    from assay.hosts.rented.context import RentalContext
    from assay.hosts.rented.provider import InstanceRequest, RentedMachine


MAX_PRICE_INCREASE = 1.1
"""Without --max-cost, an offer is rejected if its price is more than this multiple of the price it was chosen at."""


def ordered_offers(provider: str, offers: Iterable[Offer], job: Job) -> tuple[Offer, ...]:
    """Return the offers suitable for a job, the chosen one first, then the cheapest.

    Raises:
        BadInput: No GPU type is requested, or the type or the place is unknown.
        NoCapacity: The provider has no such machine now.
        MachineCannot: The chosen offer has become more expensive.
    """
    all_offers = tuple(offers)
    _check_request(provider, all_offers, job)
    gpu_type = job.gpu or (job.offer.gpu if job.offer else None)
    suitable = [
        offer
        for offer in all_offers
        if (gpu_type is None or (offer.gpu is not None and satisfies(gpu_type, offer.gpu)))
        and offer.gpu_count in {None, job.gpu_count}
        and job.host_place in {None, offer.name, offer.region}
    ]
    if job.offer is not None:
        suitable = [offer for offer in suitable if job.offer.gpu in {None, offer.gpu}]
    if not suitable:
        available = ", ".join(dict.fromkeys(_with_count(offer) for offer in all_offers)) or "nothing"
        count = f"{job.gpu_count} × " if job.gpu_count > 1 else ""
        where = f" in {job.host_place}" if job.host_place else ""
        raise NoCapacity(f"{provider} has no {count}{gpu_type or 'such machine'}{where} free now; it has {available}.")
    affordable = [offer for offer in suitable if not _is_more_expensive(offer, job)]
    if not affordable:
        raise MachineCannot(_price_increase_message(provider, suitable[0], job))
    return tuple(
        sorted(affordable, key=lambda offer: (not _is_same_offer(offer, job.offer), _price(offer), offer.name))
    )


def _check_request(provider: str, offers: tuple[Offer, ...], job: Job) -> None:
    if job.gpu is None and job.offer is None:
        raise BadInput(f"--gpu-type says which GPU to rent; {provider} has {_describe_offer(offers)}.")
    if job.gpu is not None:
        parse_gpu_type(job.gpu, {provider: [offer.gpu for offer in offers if offer.gpu is not None]})
    place_names = [place_name for offer in offers for place_name in (offer.name, offer.region) if place_name]
    if job.host_place is not None and job.host_place not in place_names:
        from assay.core.errors import suggest_nearest

        raise BadInput(f"{provider} has no place {job.host_place!r} now.{suggest_nearest(job.host_place, place_names)}")


def _describe_offer(offers: tuple[Offer, ...]) -> str:
    prices: dict[str, float | None] = {}
    for offer in sorted(offers, key=_price):
        prices.setdefault(_with_count(offer), offer.usd_per_hour)
    texts = [kind if price is None else f"{kind} (${price:.2f} an hour)" for kind, price in prices.items()]
    return ", ".join(texts) or "none free now"


def _with_count(offer: Offer) -> str:
    count = f"{offer.gpu_count} × " if offer.gpu_count and offer.gpu_count > 1 else ""
    return f"{count}{offer.gpu or offer.name}"


def _is_same_offer(offer: Offer, chosen: Offer | None) -> bool:
    return chosen is not None and (offer.name, offer.region) == (chosen.name, chosen.region)


def _price(offer: Offer) -> float:
    return float("inf") if offer.usd_per_hour is None else offer.usd_per_hour


def _is_more_expensive(offer: Offer, job: Job) -> bool:
    chosen = job.offer.usd_per_hour if job.offer else None
    return job.max_cost_usd is None and chosen is not None and _price(offer) > chosen * MAX_PRICE_INCREASE


def _price_increase_message(provider: str, offer: Offer, job: Job) -> str:
    was = job.offer.usd_per_hour if job.offer else None
    now = "not told" if offer.usd_per_hour is None else f"${offer.usd_per_hour:.2f} an hour"
    return (
        f"{provider}'s {offer.gpu or offer.name} was chosen for ${was or 0:.2f} an hour, and now its price is {now}; "
        "choose again, or say with --max-cost what it may cost."
    )


def request_machine(context: RentalContext, job_id: str, request: InstanceRequest) -> RentedMachine:
    """Return a machine created for a request; any other machine created for it is in the journal by name.

    Raises:
        NoCapacity: None is free; nothing was created.
        MachineCannot: Refused, or no answer: in that case something may have been created.
    """
    prepare = getattr(context.provider, "prepare", None)
    if callable(prepare):
        context.heard(lambda: prepare(request))
    why = ""
    turn = getattr(context.provider, "turn", None)
    for _ in range(context.timeouts.launches):
        if callable(turn):
            turn()
        context.note("asked", job_id, name=request.name, usd_per_hour=request.offer.usd_per_hour)
        try:
            machine = context.provider.launch(request)
        except NoAnswer as error:
            why = str(error).rstrip(".")
            context.note("silent", job_id, name=request.name, why=why)
            existing = _find_by_name(context, job_id, request)
            if existing is not None:
                return existing
        except (MachineCannot, BadInput) as error:
            context.note("refused", job_id, name=request.name, why=str(error))
            raise
        else:
            context.note_machine("made", job_id, machine)
            return machine
    raise MachineCannot(f"{context.provider.name} was asked {context.timeouts.launches} times for a machine: {why}.")


def _find_by_name(context: RentalContext, job_id: str, request: InstanceRequest) -> RentedMachine | None:
    """Return the machine of this name once the list shows it; null when it did not appear in time."""
    until = context.clock.now() + timedelta(seconds=context.timeouts.appears_within_s)
    rental = context.journal.rental(job_id)
    recorded = {machine.number for machine in rental.machines} if rental else set()
    while True:
        polled_at = context.clock.now()
        listed = context.heard(lambda: context.list_machines(job_id))
        matches = [machine for machine in listed if machine.name == request.name and machine.number not in recorded]
        for machine in matches:
            context.note_machine("made", job_id, machine)
        if matches:
            return matches[0]
        if polled_at >= until:
            return None
        context.clock.sleep(context.timeouts.look_s)


ANSWERS_WITHIN_S = 30.0


class MachineReclaimed(MachineCannot):
    """A machine was reclaimed or never came up; another one may work."""


def wait_until_up(
    context: RentalContext, job_id: str, number: str, until: datetime, watcher: JobWatcher
) -> tuple[RentedMachine, RemoteConnection]:
    """Return a machine that is up, and a connection over which it has answered.

    A second machine of the job, from a duplicated launch, is terminated as soon as it is listed.

    Raises:
        MachineReclaimed: It is gone or broken, or did not come up in time.
        BudgetEnded: ``until``, the job's deadline, has passed.
        NoAnswer: The provider did not answer for too long.
    """
    stuck_at = context.clock.now() + timedelta(seconds=context.timeouts.up_within_s)
    last_state, ever_seen = "", False
    while True:
        machine = _find_machine(context, job_id, number)
        now = context.clock.now()
        ever_seen = ever_seen or machine is not None
        if machine is None and ever_seen:
            raise MachineReclaimed(f"{context.provider.name} machine {number} is gone")
        if machine is not None and machine.stage in {"lost", "ending", "gone"}:
            raise MachineReclaimed(
                f"{context.provider.name} has taken machine {number} away ({machine.status_text or machine.stage})"
            )
        connection = _connect_if_ready(context, machine) if machine is not None and machine.stage == "up" else None
        if machine is not None and connection is not None:
            return machine, connection
        if now >= until:
            raise BudgetEnded(f"The deadline has passed while {context.provider.name} machine {number} was starting")
        if now >= stuck_at:
            raise MachineReclaimed(
                f"{context.provider.name} machine {number} did not come up in "
                f"{context.timeouts.up_within_s / 60:.0f} min"
            )
        state = (
            f"{context.provider.name} machine {number}: "
            f"{(machine.status_text or machine.stage) if machine else 'not listed yet'}"
        )
        if state != last_state:
            last_state = state
            watcher.progress(JobProgress(state="waits", what=state))
        context.clock.sleep(context.timeouts.look_s)


def _find_machine(context: RentalContext, job_id: str, number: str) -> RentedMachine | None:
    """Return the machine; terminate others of the job, which its release confirms gone."""
    listed = {machine.number: machine for machine in context.heard(lambda: context.list_machines(job_id))}
    rental = context.journal.rental(job_id) if listed.keys() - {number} else None
    recorded = {machine.number for machine in rental.machines} if rental else set()
    for other in listed.keys() - {number}:
        if other not in recorded:
            context.note_machine("made", job_id, listed[other])
        if listed[other].stage != "ending":
            try:
                context.provider.end(other)
            except MachineCannot:
                continue  # requested again at the next poll, and at the release
    return listed.get(number) or context.heard(lambda: context.look(number))


def _connect_if_ready(context: RentalContext, machine: RentedMachine) -> RemoteConnection | None:
    """Return a connection to a machine once it answers; null while it does not."""
    try:
        connection = context.provider.line(machine)
        if connection is not None and connection.do("true", within_s=ANSWERS_WITHIN_S).code == 0:
            return connection
    except (RemoteConnectionLost, NoAnswer):
        pass
    return None
