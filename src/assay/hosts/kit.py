"""Conformance tests for providers of rented machines, to run against a fake of the provider."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from assay.core.errors import AssayError, MachineCannot, StopRequested
from assay.hosts.base import Job, JobEnd
from assay.hosts.remote.remote_job import RemoteWork
from assay.hosts.rented.cleanup import reap_machines
from assay.hosts.rented.host import RentedHost
from assay.hosts.rented.journal import RentalJournal
from assay.hosts.rented.provider import InstanceRequest, NoAnswer, NoCapacity, machine_name, make_keys, remove_keys
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
"""A fault of the next request for a machine, or of the machine that it creates.

- ``cut before``, ``cut after``: no answer comes, and nothing, or a machine, was created.
- ``trouble``: a machine was created, and the answer is a server error.
- ``no capacity``, ``refused``: nothing was created: no machine is free, or the request is not permitted.
- ``late``: no answer comes, a machine was created, and lists show it after a minute.
- ``twice``: two machines are created.
- ``deaf``: the first termination request is lost.
- ``taken``, ``stuck``: the machine is preempted shortly after it came up, or never comes up.
"""

JOB_ID = "0123456789abcdef"
WORK_S = 60.0


class KitFailed(AssertionError):
    """A provider fails a conformance check."""


class ProviderBench(Protocol):
    """What a provider's author implements."""

    gpu: str
    """A GPU type that the fake offers."""

    @property
    def provider(self) -> Provider:
        """The provider, with credentials set, connected to the fake."""

    @property
    def clock(self) -> RentalClock:
        """The clock of both provider and fake."""

    @property
    def pace(self) -> RentalTimeouts:
        """The timeouts to use with the fake."""

    def next(self, fault: Fault) -> None:
        """Inject this fault into the next request for a machine only."""

    def running(self) -> Collection[str]:
        """Return the ids of all machines that cost money now, listed by the account or not."""

    def made(self) -> int:
        """Return how many machines were ever created."""

    def stranger(self) -> str:
        """Create a machine whose name is not ours, such as ``assay-dev``; return its id."""

    def without_credentials(self) -> Provider:
        """Return the provider without credentials."""


class FakeRemoteWork(RemoteWork):
    """Work that runs a command over a machine's connection, waits, and runs it again."""

    def __init__(self, bench: ProviderBench) -> None:
        self.bench = bench

    def run(self, connection: RemoteConnection, job: Job, watcher: JobWatcher) -> JobEnd:
        """Run a command, wait, and run it again."""
        connection.do("true")
        self.bench.clock.sleep(WORK_S)
        connection.do("true")
        return JobEnd(exit_code=0)

    def collect(self, connection: RemoteConnection, job: Job) -> tuple[Path, ...]:
        """Return a folder that nothing reads."""
        connection.do("true")
        return (Path(job.output_dir),)

    def arm(self, connection: RemoteConnection, deadline_at: datetime) -> None:
        """Run a command."""
        connection.do("true")


class SilentWatcher:
    """Ignores progress and output."""

    def progress(self, progress: JobProgress) -> None:
        """Do nothing."""

    def out(self, data: bytes) -> None:
        """Do nothing."""

    err = out


def expect(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - an assertion
    """Raise with this message unless a condition holds."""
    if not holds:
        raise KitFailed(otherwise)


def host_on(bench: ProviderBench) -> RentedHost:
    """Return the rental host of a bench."""
    return RentedHost(bench.provider, clock=bench.clock, timeouts=bench.pace, work=FakeRemoteWork(bench))


def run_one(bench: ProviderBench) -> tuple[JobEnd, tuple[Path, ...]]:
    """Run a job with an id that is unique on this bench."""
    job = Job(
        id=f"{JOB_ID[:-2]}{bench.made():02d}",
        words=("run",),
        cwd="/",
        folder="/f",
        output_dir="/o",
        python="python3",
        gpu=bench.gpu,
        limit_s=7200.0,
    )
    return run_job(host_on(bench), job, SilentWatcher())


def complete_job(bench: ProviderBench, made: int | None = None) -> None:
    """Run a job that must succeed, leave nothing, and create so many machines; null: any number."""
    before = bench.made()
    ended, folders = run_one(bench)
    expect(ended.exit_code == 0 and len(folders) == 1, f"the job ended with {ended}")
    created = bench.made() - before
    expect(made in {None, created}, f"{created} machines were created for one job, not {made}")
    expect_nothing_left(bench)


def request_for(bench: ProviderBench, seconds: float = 3600.0) -> InstanceRequest:
    """Return an instance request, after calling the provider's `prepare`."""
    deadline_at = bench.clock.now() + timedelta(seconds=seconds)
    request = InstanceRequest(
        name=machine_name(JOB_ID, 1, deadline_at),
        offer=next(offer for offer in bench.provider.offers() if offer.gpu == bench.gpu),
        image=bench.provider.default_image,
        deadline_at=deadline_at,
        public_key=make_keys(JOB_ID) if bench.provider.keyed else None,
    )
    bench.provider.prepare(request)
    return request


def launch_raises(bench: ProviderBench, fault: Fault, kind: type[AssayError]) -> AssayError:
    """Launch with a fault, which must raise this error; return the error."""
    request = request_for(bench)
    bench.next(fault)
    try:
        bench.provider.launch(request)
    except kind as error:
        return error
    except AssayError as error:
        raise KitFailed(f"{fault!r} is a {type(error).__name__}, not {kind.__name__}: {error}") from error
    raise KitFailed(f"{fault!r} raised nothing")


def wait_until(bench: ProviderBench, holds: Callable[[], bool], otherwise: str) -> None:
    """Wait until a condition holds, by the bench's clock."""
    until = bench.clock.now() + timedelta(seconds=bench.pace.gone_within_s)
    while not holds():
        expect(bench.clock.now() < until, otherwise)
        bench.clock.sleep(bench.pace.look_s)


def end_running(bench: ProviderBench) -> None:
    """Terminate every running machine, and remove what the request's preparation created."""
    for number in bench.running():
        bench.provider.terminate(number)
    wait_until(bench, lambda: not bench.running(), "it is still running after its termination was requested")
    bench.provider.clean_up(JOB_ID)
    remove_keys(JOB_ID)


def expect_nothing_left(bench: ProviderBench) -> None:
    """Fail unless all machines are gone and the journal records it."""
    expect(not bench.running(), f"{sorted(bench.running())} are left")
    expect(
        all(rental.released_at is not None for rental in RentalJournal().rentals()),
        "the journal shows a job as open",
    )


def name_of(check: Callable[[ProviderBench], None]) -> str:
    """Return a check's name."""
    return check.__name__


def it_says_which_credential_is_missing(bench: ProviderBench) -> None:
    """Without credentials `missing` returns a clause on what to set; with them null."""
    expect(bool(bench.without_credentials().missing()), "missing() is null though no credential is set")
    expect(bench.provider.missing() is None, f"missing() says {bench.provider.missing()!r} though all is there")


def its_offers_can_be_chosen_from(bench: ProviderBench) -> None:
    """Every offer has a GPU type, a count and a price; the bench's type is among them."""
    offers = bench.provider.offers()
    expect(bool(offers), "there is no offer")
    for offer in offers:
        expect(offer.host == bench.provider.name, f"an offer is of host {offer.host!r}")
        expect(offer.gpu is not None and offer.gpu_count is not None, f"offer {offer.name} does not say its GPUs")
        expect(offer.usd_per_hour is not None and offer.usd_per_hour > 0, f"offer {offer.name} has no price")
    expect(any(offer.gpu == bench.gpu for offer in offers), f"nobody offers {bench.gpu}")


def a_machine_is_listed_by_its_name_and_seen_gone(bench: ProviderBench) -> None:
    """A machine is launched, listed, found, terminated twice, and gone for `find` and for the list."""
    request, provider = request_for(bench), bench.provider
    machine = provider.launch(request)
    expect(machine.name == request.name, f"a machine requested as {request.name} is called {machine.name!r}")
    wait_until(bench, lambda: bool(provider.list_ours()), "the list does not show it")
    numbers = {machine.number for machine in provider.list_ours()}
    expect(machine.number in numbers, f"machine {machine.number} is not in the list")
    polled = provider.find(machine.number)
    expect(polled is not None and polled.name == request.name, f"find({machine.number}) gives {polled}")
    end_running(bench)

    def is_gone() -> bool:
        polled = provider.find(machine.number)
        return polled is None or polled.stage == "gone"

    wait_until(bench, is_gone, "find() still shows a machine that is gone")
    expect(not provider.list_ours(), "the list still shows a machine that is gone")
    provider.terminate(machine.number)


def what_is_not_there_is_null(bench: ProviderBench) -> None:
    """An id that never existed is null to `find`, and no error to `terminate`."""
    machine = bench.provider.launch(request_for(bench))
    unknown = machine.number[:-1] + ("0" if machine.number[-1] != "0" else "1")
    expect(bench.provider.find(unknown) is None, "find() finds a machine that never was")
    bench.provider.terminate(unknown)
    end_running(bench)


def a_job_leaves_nothing(bench: ProviderBench) -> None:
    """One machine is created, used and terminated."""
    complete_job(bench, made=1)


def a_cut_before_anything_was_made_is_unanswered(bench: ProviderBench) -> None:
    """`launch` raises `NoAnswer`, as the outcome is unknown; the job requests again and gets one machine."""
    launch_raises(bench, "cut before", NoAnswer)
    expect(not bench.running(), "something was created")
    bench.next("cut before")
    complete_job(bench, made=1)


def an_answer_that_never_came_is_found_by_name(bench: ProviderBench) -> None:
    """The machine that was created nevertheless is used; no second one is created."""
    bench.next("cut after")
    complete_job(bench, made=1)
    bench.next("trouble")
    complete_job(bench, made=1)


def a_machine_that_turns_up_late_is_not_left(bench: ProviderBench) -> None:
    """Whether it is used or another replaced it: once the job is released, all are gone."""
    bench.next("late")
    complete_job(bench)


def two_machines_for_one_request_both_go(bench: ProviderBench) -> None:
    """Every machine with the job's name is terminated."""
    bench.next("twice")
    complete_job(bench)


def no_capacity_is_told_from_a_refusal(bench: ProviderBench) -> None:
    """`NoCapacity` where another type may be free; plain `MachineCannot`, no subclass, where it is not permitted."""
    launch_raises(bench, "no capacity", NoCapacity)
    error = launch_raises(bench, "refused", MachineCannot)
    expect(not isinstance(error, NoCapacity | NoAnswer), f"a refusal is a {type(error).__name__}")
    expect(not bench.running(), "something was created")
    bench.next("refused")
    try:
        run_one(bench)
    except MachineCannot:
        expect_nothing_left(bench)
    else:
        raise KitFailed("the job did not fail with MachineCannot")


def an_end_that_was_not_heard_is_asked_for_again(bench: ProviderBench) -> None:
    """Released means confirmed gone."""
    bench.next("deaf")
    complete_job(bench)


def a_machine_that_is_taken_away_is_replaced(bench: ProviderBench) -> None:
    """The job restarts on another machine; both are gone in the end."""
    bench.next("taken")
    complete_job(bench, made=2)
    bench.next("stuck")
    complete_job(bench, made=2)


def a_signal_while_it_is_asked_for_leaves_nothing(bench: ProviderBench) -> None:
    """After a `StopRequested` during the request, the machine is found by its name and terminated."""
    launch = bench.provider.launch

    def stopped(request: InstanceRequest) -> RentedMachine:
        launch(request)
        raise StopRequested("Stopped by SIGINT")

    bench.provider.launch = stopped  # type: ignore[method-assign]
    try:
        run_one(bench)
    except StopRequested:
        pass
    else:
        raise KitFailed("the signal was lost")
    finally:
        bench.provider.launch = launch  # type: ignore[method-assign]
    expect_nothing_left(bench)


def reap_ends_what_is_over_its_deadline_and_nothing_else(bench: ProviderBench) -> None:
    """Only the deadline in the name decides; a machine that is not ours is never touched, whatever its name."""
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
"""Every check; each takes a fresh bench and its own ``ASSAY_HOME``."""
