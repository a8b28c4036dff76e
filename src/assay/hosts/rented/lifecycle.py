"""A rented machine from its request to its end: ordered offers, one launch, up, terminated, confirmed gone.

An answer that never came is looked up by name before anything is requested again:

    wait for the rate limit ─▶ journal "requested" ─▶ launch ─▶ answered: journal "created"
                                                       └ no answer ─▶ list by name, while one may still appear
                                                                        ├ listed: it is ours
                                                                        └ not listed: request again
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, BudgetEnded, MachineCannot, suggest_nearest
from assay.hosts.base import JobProgress
from assay.hosts.gpu_types import parse_gpu_type, satisfies
from assay.hosts.remote.connection import RemoteConnectionLost
from assay.hosts.rented.provider import NoAnswer, NoCapacity, RentedMachine, remove_keys

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from assay.hosts.base import Job, JobWatcher, Offer
    from assay.hosts.remote.connection import RemoteConnection
    from assay.hosts.rented.context import RentalContext
    from assay.hosts.rented.journal import RentalRecord
    from assay.hosts.rented.provider import InstanceRequest


MAX_PRICE_INCREASE = 1.1
"""Without --max-cost, an offer is rejected if its price is more than this multiple of the price it was chosen at."""

ANSWERS_WITHIN_S = 30.0

REQUEST_TIMEOUT_S = 1200.0
"""By this time a request for a machine has ended, however often the provider's rate limit delayed it."""


class MachineReclaimed(MachineCannot):
    """A machine was reclaimed or never came up; another one may work."""


def order_offers(provider: str, offers: Iterable[Offer], job: Job) -> tuple[Offer, ...]:
    """Return the offers suitable for a job, the chosen one first, then the cheapest.

    Raises:
        BadInput: No GPU type is requested, or the type or the place is unknown.
        NoCapacity: The provider has no such machine now.
        MachineCannot: The chosen offer has become more expensive.
    """
    all_offers, chosen = tuple(offers), job.offer
    _check_request(provider, all_offers, job)
    gpu_type = job.gpu or (chosen.gpu if chosen else None)
    suitable = [
        offer
        for offer in all_offers
        if (gpu_type is None or (offer.gpu is not None and satisfies(gpu_type, offer.gpu)))
        and offer.gpu_count in {None, job.gpu_count}
        and job.host_place in {None, offer.name, offer.region}
        and (chosen is None or chosen.gpu in {None, offer.gpu})
    ]
    if not suitable:
        available = ", ".join(dict.fromkeys(_with_count(offer) for offer in all_offers)) or "nothing"
        count = f"{job.gpu_count} × " if job.gpu_count > 1 else ""
        where = f" in {job.host_place}" if job.host_place else ""
        raise NoCapacity(f"{provider} has no {count}{gpu_type or 'such machine'}{where} free now; it has {available}.")
    affordable = suitable
    if chosen is not None and chosen.usd_per_hour is not None and job.max_cost_usd is None:
        limit = chosen.usd_per_hour * MAX_PRICE_INCREASE
        affordable = [offer for offer in suitable if _price(offer) <= limit]
        if not affordable:
            offer = suitable[0]
            now = "unknown" if offer.usd_per_hour is None else f"${offer.usd_per_hour:.2f} an hour"
            raise MachineCannot(
                f"{provider}'s {offer.gpu or offer.name} was chosen for ${chosen.usd_per_hour:.2f} an hour, and now "
                f"its price is {now}; choose again, or set the most it may cost with --max-cost."
            )
    chosen_key = None if chosen is None else (chosen.name, chosen.region)
    return tuple(sorted(affordable, key=lambda o: ((o.name, o.region) != chosen_key, _price(o), o.name)))


def _check_request(provider: str, offers: tuple[Offer, ...], job: Job) -> None:
    if job.gpu is None and job.offer is None:
        prices: dict[str, float | None] = {}
        for offer in sorted(offers, key=_price):
            prices.setdefault(_with_count(offer), offer.usd_per_hour)
        texts = [kind if price is None else f"{kind} (${price:.2f} an hour)" for kind, price in prices.items()]
        raise BadInput(f"--gpu-type says which GPU to rent; {provider} has {', '.join(texts) or 'none free now'}.")
    if job.gpu is not None:
        parse_gpu_type(job.gpu, {provider: [offer.gpu for offer in offers if offer.gpu is not None]})
    place_names = [place_name for offer in offers for place_name in (offer.name, offer.region) if place_name]
    if job.host_place is not None and job.host_place not in place_names:
        raise BadInput(f"{provider} has no place {job.host_place!r} now.{suggest_nearest(job.host_place, place_names)}")


def _with_count(offer: Offer) -> str:
    count = f"{offer.gpu_count} × " if offer.gpu_count and offer.gpu_count > 1 else ""
    return f"{count}{offer.gpu or offer.name}"


def _price(offer: Offer) -> float:
    return float("inf") if offer.usd_per_hour is None else offer.usd_per_hour


def request_machine(context: RentalContext, job_id: str, request: InstanceRequest) -> RentedMachine:
    """Return a machine created for a request; any other machine created for it is in the journal by name.

    Raises:
        NoCapacity: None is free; nothing was created.
        MachineCannot: Refused, or no answer: in that case something may have been created.
    """
    context.query(lambda: context.provider.prepare(request))
    why = ""
    for _ in range(context.timeouts.launches):
        context.provider.wait_for_launch()
        context.note("requested", job_id, name=request.name, usd_per_hour=request.offer.usd_per_hour)
        try:
            machine = context.provider.launch(request)
        except NoAnswer as error:
            why = str(error).rstrip(".")
            context.note("no answer", job_id, name=request.name, why=why)
            existing = _find_by_name(context, job_id, request.name)
            if existing is not None:
                return existing
        except (MachineCannot, BadInput) as error:
            context.note("refused", job_id, name=request.name, why=str(error))
            raise
        else:
            context.note("created", job_id, machine)
            return machine
    raise MachineCannot(
        f"{context.provider.name} was asked for a machine {context.timeouts.launches} times, without success: {why}."
    )


def _find_by_name(context: RentalContext, job_id: str, name: str) -> RentedMachine | None:
    """Return the machine of this name once the list shows it; null when it did not appear in time."""
    until = context.clock.now() + timedelta(seconds=context.timeouts.appears_within_s)
    recorded = _recorded_numbers(context.journal.rental(job_id))
    while True:
        polled_at = context.clock.now()
        listed = context.list_machines(job_id).values()
        matches = [machine for machine in listed if machine.name == name and machine.number not in recorded]
        for machine in matches:
            context.note("created", job_id, machine)
        if matches:
            return matches[0]
        if polled_at >= until:
            return None
        context.clock.sleep(context.timeouts.look_s)


def _recorded_numbers(rental: RentalRecord | None) -> set[str]:
    return {machine.number for machine in rental.machines} if rental else set()


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
    up_within_s = context.timeouts.up_within_s
    stuck_at = context.clock.now() + timedelta(seconds=up_within_s)
    last_state, ever_seen = "", False
    label = f"{context.provider.name} machine {number}"
    while True:
        machine = _find_and_end_others(context, job_id, number)
        now = context.clock.now()
        ever_seen = ever_seen or machine is not None
        if machine is None and ever_seen:
            raise MachineReclaimed(f"{label} is gone")
        if machine is not None and machine.stage in {"lost", "ending", "gone"}:
            raise MachineReclaimed(f"{context.provider.name} has reclaimed machine {number} ({machine.state})")
        connection = _connect_if_ready(context, machine) if machine is not None and machine.stage == "up" else None
        if machine is not None and connection is not None:
            return machine, connection
        if now >= until:
            raise BudgetEnded(f"The deadline has passed while {label} was starting")
        if now >= stuck_at:
            raise MachineReclaimed(f"{label} did not come up in {up_within_s / 60:.0f} min")
        state = f"{label}: {machine.state if machine else 'not listed yet'}"
        if state != last_state:
            last_state = state
            watcher.progress(JobProgress(state="waits", what=state))
        context.clock.sleep(context.timeouts.look_s)


def _find_and_end_others(context: RentalContext, job_id: str, number: str) -> RentedMachine | None:
    """Return the machine; terminate others of the job, which its release confirms gone."""
    listed = context.list_machines(job_id)
    others = listed.keys() - {number}
    recorded = _recorded_numbers(context.journal.rental(job_id)) if others else set()
    for other in others:
        if other not in recorded:
            context.note("created", job_id, listed[other])
        if listed[other].stage != "ending":
            with suppress(MachineCannot):  # requested again at the next poll, and at the release
                context.provider.terminate(other)
    return listed.get(number) or context.find_machine(number)


def _connect_if_ready(context: RentalContext, machine: RentedMachine) -> RemoteConnection | None:
    """Return a connection to a machine once it answers; null while it does not."""
    try:
        connection = context.provider.connect(machine)
        if connection is not None and connection.do("true", within_s=ANSWERS_WITHIN_S).code == 0:
            return connection
    except (RemoteConnectionLost, NoAnswer):
        pass
    return None


def terminate_all(context: RentalContext, job_id: str) -> None:
    """Terminate all machines of a job and return once they are confirmed gone; idempotent, from any process.

    Raises:
        MachineCannot: Something is still there, or the provider does not answer.
    """
    Termination(context, job_id, context.journal.rental(job_id)).until_gone()
    release_job(context, job_id)


def release_job(context: RentalContext, job_id: str) -> None:
    """Remove the keys and the rest of a job whose machines are gone, and record that it is released."""
    context.query(lambda: context.provider.clean_up(job_id))
    remove_keys(job_id)
    context.note("released", job_id)
    record_billed(context, job_id)


def record_billed(context: RentalContext, job_id: str) -> None:
    """Record the billed cost of a job's machines, as far as the provider reports it by now."""
    rental = context.journal.rental(job_id)
    for rented in rental.machines if rental else ():
        if rented.billed_usd is None:
            machine = RentedMachine(name=rented.name or "", number=rented.number, stage="gone", since=rented.made_at)
            with suppress(MachineCannot):
                usd = context.provider.billed_usd(machine)
                if usd is not None:
                    context.note("billed", job_id, number=rented.number, usd=usd)


def _latest_creation_at(rental: RentalRecord | None, now: datetime) -> datetime:
    """Return the latest time at which a request of this rental can have created a machine.

    If the outcome of the last request is not recorded, because its process was stopped or killed meanwhile, that is
    now, or the latest time at which a request ends.
    """
    if rental is None or rental.requested_at is None:
        return now
    if rental.settled_at is not None and rental.settled_at >= rental.requested_at:
        return min(now, rental.settled_at)
    return min(now, rental.requested_at + timedelta(seconds=REQUEST_TIMEOUT_S))


@dataclass
class Termination:
    """Terminates one job's machines: those that the journal records, and those listed with the job's name."""

    context: RentalContext
    job_id: str
    rental: RentalRecord | None
    numbers: set[str] = field(default_factory=set)
    """Ids of all machines that the job ever had."""

    open: set[str] = field(default_factory=set)
    """Those that are not confirmed gone yet."""

    ever_listed: set[str] = field(default_factory=set)
    """Those that the provider has listed before: once it no longer lists them, they are gone."""

    requested: dict[str, datetime] = field(default_factory=dict)
    complaint: str = ""

    def until_gone(self) -> None:
        """Request termination again and again until every machine is confirmed gone."""
        context, rental = self.context, self.rental
        started_at = context.clock.now()
        machines = rental.machines if rental else ()
        self.numbers = _recorded_numbers(rental)
        self.open = {machine.number for machine in machines if machine.ended_at is None}
        self.ever_listed = {machine.number for machine in machines if machine.up_at is not None}
        settled_at = _latest_creation_at(rental, started_at) + timedelta(seconds=context.timeouts.appears_within_s)
        give_up_at = max(started_at, settled_at) + timedelta(seconds=context.timeouts.gone_within_s)
        announced = False
        while True:
            present = self.look()
            now = context.clock.now()
            settled = now >= settled_at
            for number in sorted(self.open - present.keys()):
                if number in self.ever_listed or settled:
                    self.open.discard(number)
                    context.note("ended", self.job_id, number=number)
            if not self.open and (settled or not self.has_unanswered()):
                if announced:
                    late = ", ".join(sorted(self.numbers - _recorded_numbers(rental)))
                    outcome = f"machine {late} appeared and is gone" if late else "no machine appeared"
                    context.say(f"{context.provider.name}: {outcome}.")
                return
            if now >= give_up_at:
                shown = ", ".join(f"{number} ({machine.state})" for number, machine in sorted(present.items()))
                what = shown or "machines that it does not show"
                raise MachineCannot(f"{context.provider.name} still has {what}{self.complaint}")
            if not announced and not self.open and rental is not None:
                announced = True
                left_s = (settled_at - now).total_seconds() + context.timeouts.look_s
                context.say(
                    f"{context.provider.name} did not answer a request for a machine: checking whether one appears, "
                    f"for {left_s:.0f} s at most."
                )
            self.request(now)
            context.clock.sleep(context.timeouts.look_s)

    def has_unanswered(self) -> bool:
        """Return whether a request may have created a machine that was never listed."""
        return self.rental is None or self.rental.request_count - self.rental.refused > len(self.numbers)

    def look(self) -> dict[str, RentedMachine]:
        """Return the job's machines that are still there, by id; newly listed ones are recorded."""
        present = self.context.list_machines(self.job_id)
        for number in present.keys() - self.numbers:
            self.context.note("created", self.job_id, present[number])
        self.numbers |= present.keys()
        self.open |= present.keys()
        for number in sorted(self.open - present.keys()):
            machine = self.context.find_machine(number)
            if machine is not None:
                present[number] = machine
        self.ever_listed |= present.keys()
        return present

    def request(self, now: datetime) -> None:
        """Request the termination of every open machine, unless that was done just now."""
        for number in sorted(self.open):
            last = self.requested.get(number)
            if last is None or (now - last).total_seconds() >= self.context.timeouts.ask_again_s:
                self.requested[number] = now
                try:
                    self.context.provider.terminate(number)
                except NoAnswer:
                    pass
                except MachineCannot as error:
                    self.complaint = f"; {str(error).rstrip('.')}"
