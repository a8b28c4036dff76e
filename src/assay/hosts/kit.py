"""Conformance tests for providers of rented machines, which a provider's author runs against a fake of the provider."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from assay.core.errors import AssayError, MachineCannot, StopRequested
from assay.hosts.base import Job, JobEnd
from assay.hosts.rented import identity as keys
from assay.hosts.rented import identity as names
from assay.hosts.rented.cleanup import reap_machines
from assay.hosts.rented.host import RentedHost
from assay.hosts.rented.journal import RentalJournal
from assay.hosts.rented.provider import InstanceRequest, NoAnswer, NoCapacity
from assay.hosts.run_job import run_job

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from datetime import datetime

    from assay.hosts.base import JobProgress, JobWatcher
    from assay.hosts.remote.connection import RemoteConnection
    from assay.hosts.rented.context import RentalClock, RentalTimeouts
    from assay.hosts.rented.provider import Provider, RentedMachine


Fault = Literal[
    "cut before", "cut after", "trouble", "no capacity", "refused", "late", "twice", "deaf", "taken", "stuck"
]
"""Of the next request for a machine, or of the machine that it makes.

- ``cut before``, ``cut after``: no answer comes, and nothing or something was made.
- ``trouble``: something was made, and the answer says that the provider is in trouble.
- ``no capacity``, ``refused``: nothing was made, for want of machines or of the right to one.
- ``late``: no answer comes, something was made, and lists show it after a minute.
- ``twice``: two machines are made.
- ``deaf``: the first request for its end is forgotten.
- ``taken``, ``stuck``: it is taken away shortly after it came up, or never comes up.
"""

JOB_ID = "0123456789abcdef"
WORK_S = 60.0


class KitFailed(AssertionError):
    """A provider does not do what it must."""


class ProviderBench(Protocol):
    """What a provider's author brings."""

    gpu: str
    """A kind of GPU that the stand-in has."""

    @property
    def provider(self) -> Provider:
        """The provider, its credentials set, wired to the stand-in."""
        ...

    @property
    def clock(self) -> RentalClock:
        """What provider and stand-in go by."""
        ...

    @property
    def pace(self) -> RentalTimeouts:
        """How long things take there."""
        ...

    def next(self, fault: Fault) -> None:
        """Let this go wrong with the next machine that is asked for, and with no other."""
        ...

    def running(self) -> Collection[str]:
        """Return the numbers of all machines that cost money now, seen by the account or not."""
        ...

    def made(self) -> int:
        """Return how many machines were ever made."""
        ...

    def stranger(self) -> str:
        """Make a machine with a name that is none of ours, such as ``assay-dev``; return its number."""
        ...

    def without_credentials(self) -> Provider:
        """Return the provider as it is where no credential is set."""
        ...


class FakeRemoteWork:
    """Work that asks a machine over its line, and takes its time between."""

    def __init__(self, bench: ProviderBench) -> None:
        self.bench = bench

    def run(self, connection: RemoteConnection, job: Job, watcher: JobWatcher) -> JobEnd:
        """Ask, wait, ask again."""
        connection.do("true")
        self.bench.clock.sleep(WORK_S)
        connection.do("true")
        return JobEnd(exit_code=0)

    def collect(self, connection: RemoteConnection, job: Job) -> tuple[Path, ...]:
        """Return a folder that nobody looks into."""
        connection.do("true")
        return (Path(job.output_dir),)

    def arm(self, connection: RemoteConnection, deadline_at: datetime) -> None:
        """Ask."""
        connection.do("true")


class SilentWatcher:
    """Hears nothing."""

    def progress(self, progress: JobProgress) -> None:
        """Do nothing."""

    def out(self, data: bytes) -> None:
        """Do nothing."""

    def err(self, data: bytes) -> None:
        """Do nothing."""


def expect(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - an assertion
    """Fail with a sentence unless something holds."""
    if not holds:
        raise KitFailed(otherwise)


def host_on(bench: ProviderBench) -> RentedHost:
    """Return the host over the bench."""
    return RentedHost(bench.provider, clock=bench.clock, timeouts=bench.pace, work=FakeRemoteWork(bench))


def order_for(bench: ProviderBench) -> Job:
    """Return an order that no other on this bench has."""
    order_id = f"{JOB_ID[:-2]}{bench.made():02d}"
    return Job(
        id=order_id,
        words=("run",),
        cwd="/",
        folder="/f",
        output_dir="/o",
        python="python3",
        gpu=bench.gpu,
        limit_s=7200.0,
    )


def complete_job(bench: ProviderBench) -> None:
    """Carry out an order; it must end well."""
    ended, folders = run_job(host_on(bench), order_for(bench), SilentWatcher())
    expect(ended.exit_code == 0 and len(folders) == 1, f"the errand ended with {ended}")


def job_fails(bench: ProviderBench, kind: type[AssayError]) -> None:
    """Carry out an order; it must end with this error."""
    try:
        run_job(host_on(bench), order_for(bench), SilentWatcher())
    except kind:
        return
    raise KitFailed(f"the errand did not fail with {kind.__name__}")


def request_for(bench: ProviderBench, seconds: float = 3600.0) -> InstanceRequest:
    """Return a wish, with what it needs prepared."""
    deadline_at = bench.clock.now() + timedelta(seconds=seconds)
    request = InstanceRequest(
        name=names.machine_name(JOB_ID, 1, deadline_at),
        offer=next(offer for offer in bench.provider.offers() if offer.gpu == bench.gpu),
        image=bench.provider.default_image,
        deadline_at=deadline_at,
        public_key=keys.make_keys(JOB_ID) if getattr(bench.provider, "keyed", False) else None,
    )
    prepare = getattr(bench.provider, "prepare", None)
    if callable(prepare):
        prepare(request)
    return request


def launch_raises(bench: ProviderBench, fault: Fault, kind: type[AssayError]) -> AssayError:
    """Launch with a fault; it must raise this error, which is returned."""
    request = request_for(bench)
    bench.next(fault)
    try:
        bench.provider.launch(request)
    except kind as error:
        return error
    except AssayError as error:
        raise KitFailed(f"{fault!r} is a {type(error).__name__}, not {kind.__name__}: {error}") from error
    raise KitFailed(f"{fault!r} raised nothing")


def listed_numbers(bench: ProviderBench) -> set[str]:
    """Return the numbers in the list, once there are any."""
    numbers: set[str] = set()

    def listed() -> bool:
        numbers.update(machine.number for machine in bench.provider.ours())
        return bool(numbers)

    wait_until(bench, listed, "the list does not show it")
    return numbers


def is_gone(bench: ProviderBench, number: str) -> bool:
    """Return whether the provider shows a machine no more."""
    machine = bench.provider.look(number)
    return machine is None or machine.stage == "gone"


def wait_until(bench: ProviderBench, holds: Callable[[], bool], otherwise: str) -> None:
    """Wait until something holds, by the bench's clock."""
    until = bench.clock.now() + timedelta(seconds=bench.pace.gone_within_s)
    while not holds():
        expect(bench.clock.now() < until, otherwise)
        bench.clock.sleep(bench.pace.look_s)


def tidy(bench: ProviderBench) -> None:
    """Put away what a wish needed."""
    tidy = getattr(bench.provider, "tidy", None)
    if callable(tidy):
        tidy(JOB_ID)
    keys.remove_keys(JOB_ID)


def end_running(bench: ProviderBench) -> None:
    """End whatever runs."""
    for number in bench.running():
        bench.provider.end(number)
    wait_until(bench, lambda: not bench.running(), "it is still running after its end was asked for")
    tidy(bench)


def expect_nothing_left(bench: ProviderBench) -> None:
    """Fail unless all machines are gone, and the journal knows it."""
    expect(not bench.running(), f"{sorted(bench.running())} are left")
    expect(
        all(rental.released_at is not None for rental in RentalJournal().rentals()),
        "the journal shows an order as open",
    )


def name_of(check: Callable[[ProviderBench], None]) -> str:
    """Return a check's name, for people."""
    return check.__name__


def it_says_which_credential_is_missing(bench: ProviderBench) -> None:
    """Without credentials `missing` says in a clause what to set; with them nothing."""
    expect(bool(bench.without_credentials().missing()), "missing() is null though no credential is set")
    expect(bench.provider.missing() is None, f"missing() says {bench.provider.missing()!r} though all is there")


def its_offers_can_be_chosen_from(bench: ProviderBench) -> None:
    """Every offer says which GPU, how many, and for how much; the bench's kind is among them."""
    offers = bench.provider.offers()
    expect(bool(offers), "there is no offer")
    for offer in offers:
        expect(offer.host == bench.provider.name, f"an offer is of host {offer.host!r}")
        expect(offer.gpu is not None and offer.gpu_count is not None, f"offer {offer.name} does not say its GPUs")
        expect(offer.usd_per_hour is not None and offer.usd_per_hour > 0, f"offer {offer.name} has no price")
    expect(any(offer.gpu == bench.gpu for offer in offers), f"nobody offers {bench.gpu}")


def a_machine_is_listed_by_its_name_and_seen_gone(bench: ProviderBench) -> None:
    """Launched, found in the list, looked at, ended twice, gone for `look` and for the list."""
    request = request_for(bench)
    machine = bench.provider.launch(request)
    expect(machine.name == request.name, f"a machine asked for as {request.name} is called {machine.name!r}")
    expect(machine.number in listed_numbers(bench), f"machine {machine.number} is not in the list")
    looked = bench.provider.look(machine.number)
    expect(looked is not None and looked.name == request.name, f"look({machine.number}) gives {looked}")
    bench.provider.end(machine.number)
    wait_until(bench, lambda: not bench.running(), "it is still running after its end was asked for")
    wait_until(bench, lambda: is_gone(bench, machine.number), "look() still shows a machine that is gone")
    expect(not bench.provider.ours(), "the list still shows a machine that is gone")
    bench.provider.end(machine.number)
    tidy(bench)


def what_is_not_there_is_null(bench: ProviderBench) -> None:
    """A number that nobody ever had is null to `look`, and no error to `end`."""
    machine = bench.provider.launch(request_for(bench))
    strange = machine.number[:-1] + ("0" if machine.number[-1] != "0" else "1")
    expect(bench.provider.look(strange) is None, "look() finds a machine that never was")
    bench.provider.end(strange)
    end_running(bench)


def a_job_leaves_nothing(bench: ProviderBench) -> None:
    """One machine is made, used and gone."""
    complete_job(bench)
    expect(bench.made() == 1, f"{bench.made()} machines were made for one order")
    expect_nothing_left(bench)


def a_cut_before_anything_was_made_is_unanswered(bench: ProviderBench) -> None:
    """`NoAnswer`, for nobody can know; the errand asks again and makes one."""
    launch_raises(bench, "cut before", NoAnswer)
    expect(not bench.running(), "something was made")
    bench.next("cut before")
    complete_job(bench)
    expect(bench.made() == 1, f"{bench.made()} machines were made for one order")
    expect_nothing_left(bench)


def an_answer_that_never_came_is_found_by_name(bench: ProviderBench) -> None:
    """The machine that was made all the same is taken; no second one is made."""
    for nth, fault in enumerate(("cut after", "trouble"), start=1):
        bench.next("cut after" if fault == "cut after" else "trouble")
        complete_job(bench)
        expect(bench.made() == nth, f"after {fault!r} there are {bench.made()} machines for {nth} orders")
        expect_nothing_left(bench)


def a_machine_that_turns_up_late_is_not_left(bench: ProviderBench) -> None:
    """Whether it is taken in the end or was replaced by another: when the order is released, all are gone."""
    bench.next("late")
    complete_job(bench)
    expect_nothing_left(bench)


def two_machines_for_one_request_both_go(bench: ProviderBench) -> None:
    """Whatever bears the order's name is ended."""
    bench.next("twice")
    complete_job(bench)
    expect_nothing_left(bench)


def no_capacity_is_told_from_a_refusal(bench: ProviderBench) -> None:
    """`NoCapacity` where another kind may be had; `MachineCannot` and nothing below it where we may not."""
    launch_raises(bench, "no capacity", NoCapacity)
    error = launch_raises(bench, "refused", MachineCannot)
    expect(not isinstance(error, NoCapacity | NoAnswer), f"a refusal is a {type(error).__name__}")
    expect(not bench.running(), "something was made")
    bench.next("refused")
    job_fails(bench, MachineCannot)
    expect_nothing_left(bench)


def an_end_that_was_not_heard_is_asked_for_again(bench: ProviderBench) -> None:
    """Released means seen gone."""
    bench.next("deaf")
    complete_job(bench)
    expect_nothing_left(bench)


def a_machine_that_is_taken_away_is_replaced(bench: ProviderBench) -> None:
    """The order begins anew on another machine; both are gone in the end."""
    for fault in ("taken", "stuck"):
        before = bench.made()
        bench.next("taken" if fault == "taken" else "stuck")
        complete_job(bench)
        expect(bench.made() == before + 2, f"after {fault!r} {bench.made() - before} machines were made, not 2")
        expect_nothing_left(bench)


def a_signal_while_it_is_asked_for_leaves_nothing(bench: ProviderBench) -> None:
    """A `StopRequested` that comes with the answer: the machine is found by its name, and ended."""
    host = host_on(bench)
    launch = bench.provider.launch

    def stopped(request: InstanceRequest) -> RentedMachine:
        launch(request)
        raise StopRequested("Stopped by SIGINT")

    bench.provider.launch = stopped  # type: ignore[method-assign]
    try:
        run_job(host, order_for(bench), SilentWatcher())
    except StopRequested:
        pass
    else:
        raise KitFailed("the signal was lost")
    finally:
        bench.provider.launch = launch  # type: ignore[method-assign]
    expect_nothing_left(bench)


def reap_ends_what_is_over_its_deadline_and_nothing_else(bench: ProviderBench) -> None:
    """By the deadline in the name; a stranger's machine is never touched, whatever it is called."""
    stranger = bench.stranger()
    bench.provider.launch(request_for(bench, seconds=3600.0))
    now = bench.clock.now()
    reap_machines([host_on(bench)], RentalJournal(), now)
    expect(len(bench.running()) == 2, "a machine that is not over its deadline was ended")
    reap_machines([host_on(bench)], RentalJournal(), now + timedelta(hours=2))
    expect(set(bench.running()) == {stranger}, f"after reap {sorted(bench.running())} run, not {stranger}")


CHECKS: tuple[Callable[[ProviderBench], None], ...] = (
    it_says_which_credential_is_missing,
    its_offers_can_be_chosen_from,
    a_machine_is_listed_by_its_name_and_seen_gone,
    what_is_not_there_is_null,
    a_job_leaves_nothing,
    a_cut_before_anything_was_made_is_unanswered,
    an_answer_that_never_came_is_found_by_name,
    a_machine_that_turns_up_late_is_not_left,
    two_machines_for_one_request_both_go,
    no_capacity_is_told_from_a_refusal,
    an_end_that_was_not_heard_is_asked_for_again,
    a_machine_that_is_taken_away_is_replaced,
    a_signal_while_it_is_asked_for_leaves_nothing,
    reap_ends_what_is_over_its_deadline_and_nothing_else,
)
"""Every check; each takes a fresh bench, and an ``ASSAY_HOME`` of its own."""
