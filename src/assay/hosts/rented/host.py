"""A provider of rented machines as a host: one implementation of `Host` for every provider."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.core import leases
from assay.core.errors import BudgetEnded, MachineCannot, StopRequested
from assay.hosts.base import NAME_PREFIX, JobProgress, Rental
from assay.hosts.remote.connection import RemoteConnectionLost
from assay.hosts.rented import budget, lifecycle
from assay.hosts.rented.context import RentalClock, RentalContext, RentalTimeouts
from assay.hosts.rented.journal import RentalJournal
from assay.hosts.rented.lifecycle import MachineReclaimed
from assay.hosts.rented.provider import (
    InstanceRequest,
    NoCapacity,
    deadline_of_machine,
    job_of_machine,
    machine_name,
    make_keys,
)
from assay.hosts.run_job import release_after

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from assay.core.leases import Lease
    from assay.hosts.base import Job, JobEnd, JobWatcher, Offer
    from assay.hosts.remote.connection import RemoteConnection
    from assay.hosts.remote.remote_job import RemoteWork
    from assay.hosts.rented.provider import Provider, RentedMachine


@dataclass
class HeldMachine:
    """A job, its lease, and its current machine and offer; null: none yet."""

    job: Job
    lease: Lease
    deadline_at: datetime
    machine: RentedMachine | None = None
    offer: Offer | None = None
    starts: int = 0
    connections: list[RemoteConnection] = field(default_factory=list)
    folders: tuple[Path, ...] = ()


class RentedHost:
    """Machines of one provider, billed by the hour; a provider's module adds ``HOST = RentedHost(MyProvider())``."""

    options = frozenset({"gpu_type", "image", "max_cost", "ship", "time", "remote_python"})

    def __init__(
        self,
        provider: Provider,
        *,
        clock: RentalClock | None = None,
        timeouts: RentalTimeouts | None = None,
        journal: RentalJournal | None = None,
        work: RemoteWork | None = None,
    ) -> None:
        """Create the host of a provider; the other parameters are for tests."""
        self.provider = provider
        self.name = provider.name
        if not provider.images:
            self.options = self.options - {"image"}
        self.refuses = provider.refuses
        self.context = RentalContext(
            provider, clock or RentalClock(), timeouts or RentalTimeouts(), journal or RentalJournal()
        )
        self._work = work
        self._held: dict[str, HeldMachine] = {}

    def available(self) -> str | None:
        """Return which credential is missing, as a clause; null when none is."""
        return self.provider.missing()

    def offers(self) -> tuple[Offer, ...]:
        """Return what is available now, at live prices; the wait for a silent provider is short."""
        return self.context.query(self.provider.offers, within_s=self.context.timeouts.offers_within_s)

    def script(self, job: Job) -> str:
        """Return what would be rented, at which price and until when; nothing is rented."""
        offer = lifecycle.order_offers(self.name, self.offers(), job)[0]
        seconds = budget.job_limit_s(self.context, job, offer)
        price = "an unknown price"
        if offer.usd_per_hour is not None:
            most = budget.at_most_usd(offer.usd_per_hour, seconds)
            price = f"${offer.usd_per_hour:.2f} an hour, at most ${most:.2f}"
        over_budget = budget.reason_job_not_affordable(self.context, job, offer, seconds)
        return (
            f"# rent {offer.gpu or offer.name} from {self.name}{f' in {offer.region}' if offer.region else ''} "
            f"for {price} in {seconds / 60:.0f} min\n"
            f"# image {job.image or self.provider.default_image}\n"
            f"assay {' '.join(job.words)}\n# download the run, terminate the machine, confirm that it is gone\n"
            + (f"# not now: {over_budget}\n" if over_budget else "")
        )

    def create(self, job: Job) -> Rental:
        """Rent what the job needs; its lease and its intent are on disk before anything is requested."""
        offers = lifecycle.order_offers(self.name, self.context.query(self.provider.offers), job)
        held = HeldMachine(job, *budget.check_and_record_intent(self.context, job, offers[0]))
        try:
            self._request(held, offers)
        except BaseException as error:
            self._held.pop(job.name, None)
            release_after(error, lambda: self._end(job.id, held))
            raise
        machine, offer = self._current(held)
        return Rental(
            host=self.name,
            name=job.name,
            number=machine.number,
            state=machine.status_text,
            gpu=offer.gpu,
            usd_per_hour=machine.usd_per_hour if machine.usd_per_hour is not None else offer.usd_per_hour,
            since=self.context.clock.now(),
            deadline_at=held.deadline_at,
        )

    def run(self, rental: Rental, job: Job, watcher: JobWatcher) -> JobEnd:
        """Run the job there and download its run; restart on another machine if this one is reclaimed."""
        held = self._held[rental.name]
        while True:
            try:
                return self._run_once(held, watcher)
            except MachineReclaimed as reclaimed:
                watcher.progress(JobProgress(state="waits", what=f"{reclaimed}; starting over"))
                self._restart(held, reclaimed)

    def collect(self, rental: Rental, job: Job) -> tuple[Path, ...]:
        """Return the run folder, which `run` has downloaded already."""
        return self._held[rental.name].folders

    def release(self, rental: Rental) -> None:
        """Terminate every machine of the job and confirm that it is gone, even if a signal comes meanwhile."""
        job = job_of_machine(rental.name) or rental.name.removeprefix(NAME_PREFIX)
        self._end(job, self._held.pop(rental.name, None))

    def list_ours(self) -> tuple[Rental, ...]:
        """Return every machine there with a name of ours, whoever requested it."""
        rentals = {rental.job_id: rental for rental in self.context.journal.rentals()}
        own_rentals: list[Rental] = []
        for machine in self.context.query(self.provider.list_ours, within_s=self.context.timeouts.offers_within_s):
            if machine.job_id is None or machine.stage == "gone":
                continue
            rental = rentals.get(machine.job_id)
            price = machine.usd_per_hour if machine.usd_per_hour is not None else rental and rental.usd_per_hour
            own_rentals.append(
                Rental(
                    host=self.name,
                    name=machine.name,
                    number=machine.number,
                    state=machine.state,
                    gpu=rental.gpu if rental else None,
                    usd_per_hour=price,
                    since=rental.begun_at if rental else machine.since,
                    deadline_at=deadline_of_machine(machine.name),
                )
            )
        return tuple(own_rentals)

    def _request(self, held: HeldMachine, offers: tuple[Offer, ...]) -> None:
        """Request a machine, offer after offer until one is free, and record it as held."""
        job = held.job
        self._held[job.name] = held
        held.starts += 1
        key = make_keys(job.id) if self.provider.keyed else None
        for offer in offers:
            budget.check_budget(self.context, job, offer, held.deadline_at)
            request = InstanceRequest(
                name=machine_name(job.id, held.starts, held.deadline_at),
                offer=offer,
                image=job.image or self.provider.default_image,
                deadline_at=held.deadline_at,
                public_key=key,
            )
            try:
                held.machine, held.offer = lifecycle.request_machine(self.context, job.id, request), offer
            except NoCapacity:
                if offer is offers[-1]:
                    raise
            else:
                budget.check_budget(self.context, job, offer, held.deadline_at, held.machine.usd_per_hour)
                return

    @staticmethod
    def _current(held: HeldMachine) -> tuple[RentedMachine, Offer]:
        if held.machine is None or held.offer is None:
            raise AssertionError("requested and answered")
        return held.machine, held.offer

    def _run_once(self, held: HeldMachine, watcher: JobWatcher) -> JobEnd:
        """Run the job on its current machine.

        Raises:
            MachineReclaimed: The machine was reclaimed, or never came up.
        """
        job, (requested, offer) = held.job, self._current(held)
        for left in reversed(range(self.context.timeouts.picked_up + 1)):
            machine, connection = lifecycle.wait_until_up(
                self.context, job.id, requested.number, held.deadline_at, watcher
            )
            held.connections.append(connection)
            self.context.note("up", job.id, name=machine.name, number=machine.number)
            budget.check_budget(self.context, job, offer, held.deadline_at, machine.usd_per_hour)
            where = f"{self.name} machine {machine.number}"
            price = "" if offer.usd_per_hour is None else f", ${offer.usd_per_hour:.2f} an hour"
            up = f"{where} ({offer.gpu or machine.status_text}{price}) is up"
            watcher.progress(JobProgress(state="runs", what=up, nodes=(where,)))
            try:
                if not offer.ends_itself:
                    self._worker().arm(connection, held.deadline_at)
                ended = self._worker().run(connection, job, watcher)
                held.folders = self._worker().collect(connection, job)
            except RemoteConnectionLost:
                if not left:
                    raise
            else:
                return ended
        raise AssertionError("the last try returns or raises")

    def _restart(self, held: HeldMachine, reclaimed: MachineReclaimed) -> None:
        """Request another machine to restart a job from its beginning; its deadline and budget are unchanged."""
        if held.starts >= self.context.timeouts.starts:
            raise MachineCannot(f"{reclaimed}, and so were {held.starts - 1} before; giving up.") from reclaimed
        lifecycle.terminate_all(self.context, held.job.id)
        seconds = (held.deadline_at - self.context.clock.now()).total_seconds()
        if seconds < budget.LEAST_USEFUL_S:
            raise BudgetEnded(f"{reclaimed}, and before the deadline there is no time for another") from reclaimed
        offers = lifecycle.order_offers(self.name, self.context.query(self.provider.offers), held.job)
        budget.record_intent(self.context, held.job, offers[0], held.deadline_at)
        self._request(held, offers)

    def _end(self, job_id: str, held: HeldMachine | None) -> None:
        """Terminate a job's machines and discard its lease; a signal meanwhile takes effect once that is done."""
        try:
            self._end_now(job_id, held)
        except StopRequested:
            self._end_now(job_id, held)
            raise

    def _end_now(self, job_id: str, held: HeldMachine | None) -> None:
        """Terminate a job's machines, confirm them gone, discard the lease; a failure leaves it to `assay reap`."""
        rental = self.context.journal.rental(job_id)
        try:
            if rental is not None and rental.request_count == rental.refused:
                lifecycle.release_job(self.context, job_id)
            elif rental is None or rental.released_at is None:
                lifecycle.terminate_all(self.context, job_id)
        except MachineCannot as error:
            raise MachineCannot(f"{str(error).rstrip('.')}; `assay reap` tries again.") from error
        if held is None:
            return
        for connection in held.connections:
            close = getattr(connection, "close", None)
            if callable(close):
                close()
        leases.discard_lease(held.lease)

    def _worker(self) -> RemoteWork:
        if self._work is None:
            from assay.hosts.remote.remote_job import RemoteWork

            self._work = RemoteWork()
        return self._work
