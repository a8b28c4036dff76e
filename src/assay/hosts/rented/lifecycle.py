"""A rented machine from its request to its end: ordered offers, one launch, up, terminated, confirmed gone.

An answer that never came is looked up by name before anything is requested again:

    wait for the rate limit ─▶ journal "asked" ─▶ launch ─▶ answered: journal "made"
                                                    └ no answer ─▶ list by name, for as long as one may take to appear
                                                                     ├ listed: it is ours
                                                                     └ not listed: request again
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, BudgetEnded, MachineCannot
from assay.hosts.base import JobProgress
from assay.hosts.gpu_types import parse_gpu_type, satisfies
from assay.hosts.remote.connection import RemoteConnectionLost
from assay.hosts.rented import provider as identity
from assay.hosts.rented.provider import NoAnswer, NoCapacity, RentedMachine

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


ASKED_WITHIN_S = 1200.0
"""By this time a request for a machine has ended, however often the provider's rate limit delayed it."""


def terminate_all(context: RentalContext, job_id: str) -> None:
    """Terminate all machines of a job and return once they are confirmed gone; idempotent, from any process.

    Raises:
        MachineCannot: Something is still there, or the provider does not answer.
    """
    _Termination(context, job_id, context.journal.rental(job_id)).until_gone()
    release_job(context, job_id)


def release_job(context: RentalContext, job_id: str) -> None:
    """Remove the keys and the rest of a job whose machines are gone, and record that it is released."""
    tidy = getattr(context.provider, "tidy", None)
    if callable(tidy):
        context.heard(lambda: tidy(job_id))
    identity.remove_keys(job_id)
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


def _made_before(rental: RentalRecord | None, now: datetime) -> datetime:
    """Return the latest time at which a request of this rental can have created a machine.

    If the outcome of the last request is not recorded, because its process was stopped or killed meanwhile, that is
    now, or the latest time at which a request ends.
    """
    if rental is None or rental.asked_at is None:
        return now
    if rental.heard_at is not None and rental.heard_at >= rental.asked_at:
        return min(now, rental.heard_at)
    return min(now, rental.asked_at + timedelta(seconds=ASKED_WITHIN_S))


@dataclass
class _Termination:
    context: RentalContext
    job_id: str
    rental: RentalRecord | None
    numbers: set[str] = field(default_factory=set)
    """Ids of all machines that the job ever had."""

    open: set[str] = field(default_factory=set)
    """Those that are not confirmed gone yet."""

    seen_gone: set[str] = field(default_factory=set)
    """Those that the provider has listed before: once it no longer lists them, they are gone."""

    requested: dict[str, datetime] = field(default_factory=dict)
    complaint: str = ""

    def until_gone(self) -> None:
        context, rental = self.context, self.rental
        started_at = context.clock.now()
        machines = rental.machines if rental else ()
        self.numbers = {machine.number for machine in machines}
        self.open = {machine.number for machine in machines if machine.ended_at is None}
        self.seen_gone = {machine.number for machine in machines if machine.up_at is not None}
        settled_at = _made_before(rental, started_at) + timedelta(seconds=context.timeouts.appears_within_s)
        give_up_at = max(started_at, settled_at) + timedelta(seconds=context.timeouts.gone_within_s)
        announced = False
        while True:
            present = self._look()
            now = context.clock.now()
            settled = now >= settled_at
            self._note_gone(present, settled=settled)
            if not self.open and (settled or not self._unanswered()):
                if announced:
                    context.say(f"{context.provider.name}: {self._late_machines_text()}.")
                return
            if now >= give_up_at:
                raise MachineCannot(self._still_there_text(present))
            if not announced and not self.open and rental is not None:
                announced = True
                left_s = (settled_at - now).total_seconds() + context.timeouts.look_s
                context.say(
                    f"{context.provider.name} was asked for a machine, and its answer was not heard: it is looked for, "
                    f"for {left_s:.0f} s at most."
                )
            self._ask(now)
            context.clock.sleep(context.timeouts.look_s)

    def _unanswered(self) -> bool:
        """Return whether a request may have created a machine that was never listed."""
        return self.rental is None or self.rental.request_count - self.rental.refused > len(self.numbers)

    def _late_machines_text(self) -> str:
        """Return what came of a request that was never answered."""
        before = {machine.number for machine in self.rental.machines} if self.rental else set()
        late = sorted(self.numbers - before)
        return f"machine {', '.join(late)} turned up and is gone" if late else "no machine turned up"

    def _look(self) -> dict[str, RentedMachine]:
        context = self.context
        present = {machine.number: machine for machine in context.heard(lambda: context.list_machines(self.job_id))}
        for number in present.keys() - self.numbers:
            context.note_machine("made", self.job_id, present[number])
        self.numbers |= present.keys()
        self.open |= present.keys()
        for number in sorted(self.open - present.keys()):
            machine = context.heard(lambda number=number: context.look(number))  # type: ignore[misc]
            if machine is not None:
                present[number] = machine
        self.seen_gone |= present.keys()
        return present

    def _note_gone(self, present: dict[str, RentedMachine], *, settled: bool) -> None:
        for number in sorted(self.open - present.keys()):
            if number in self.seen_gone or settled:
                self.open.discard(number)
                self.context.note("ended", self.job_id, number=number)

    def _ask(self, now: datetime) -> None:
        for number in sorted(self.open):
            last = self.requested.get(number)
            if last is None or (now - last).total_seconds() >= self.context.timeouts.ask_again_s:
                self.requested[number] = now
                try:
                    self.context.provider.end(number)
                except NoAnswer:
                    pass
                except MachineCannot as error:
                    self.complaint = f"; {str(error).rstrip('.')}"

    def _still_there_text(self, present: dict[str, RentedMachine]) -> str:
        machines = ", ".join(
            f"{number} ({present[number].status_text or present[number].stage})" for number in sorted(present)
        )
        return f"{self.context.provider.name} still has {machines or 'machines that it does not show'}{self.complaint}"
