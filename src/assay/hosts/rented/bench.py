"""The bench on which a provider of rented machines is tried: what its author brings, and the tools for the checks."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from assay.core.errors import AssayError
from assay.hosts.base import Ended, Order
from assay.hosts.errand import carry_out
from assay.hosts.rented import keys, names
from assay.hosts.rented.book import Book
from assay.hosts.rented.host import RentedHost
from assay.hosts.rented.provider import Wish

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from datetime import datetime

    from assay.hosts.base import Progress, Watcher
    from assay.hosts.remote.line import Line
    from assay.hosts.rented.clock import Clock
    from assay.hosts.rented.pace import Pace
    from assay.hosts.rented.provider import Provider

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

ORDER = "0123456789abcdef"
WORK_S = 60.0


class KitFailed(AssertionError):
    """A provider does not do what it must."""


class Bench(Protocol):
    """What a provider's author brings."""

    gpu: str
    """A kind of GPU that the stand-in has."""

    @property
    def provider(self) -> Provider:
        """The provider, its credentials set, wired to the stand-in."""
        ...

    @property
    def clock(self) -> Clock:
        """What provider and stand-in go by."""
        ...

    @property
    def pace(self) -> Pace:
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


class AskingWork:
    """Work that asks a machine over its line, and takes its time between."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def run(self, line: Line, order: Order, watcher: Watcher) -> Ended:
        """Ask, wait, ask again."""
        line.do("true")
        self.bench.clock.sleep(WORK_S)
        line.do("true")
        return Ended(exit_code=0)

    def collect(self, line: Line, order: Order) -> tuple[Path, ...]:
        """Return a folder that nobody looks into."""
        line.do("true")
        return (Path(order.output_dir),)

    def arm(self, line: Line, deadline_at: datetime) -> None:
        """Ask."""
        line.do("true")


class Nobody:
    """Hears nothing."""

    def progress(self, progress: Progress) -> None:
        """Do nothing."""

    def out(self, data: bytes) -> None:
        """Do nothing."""

    def err(self, data: bytes) -> None:
        """Do nothing."""


def expect(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - an assertion
    """Fail with a sentence unless something holds."""
    if not holds:
        raise KitFailed(otherwise)


def host_on(bench: Bench) -> RentedHost:
    """Return the host over the bench."""
    return RentedHost(bench.provider, clock=bench.clock, pace=bench.pace, work=AskingWork(bench))


def order_for(bench: Bench) -> Order:
    """Return an order that no other on this bench has."""
    order_id = f"{ORDER[:-2]}{bench.made():02d}"
    return Order(
        id=order_id,
        words=("run",),
        cwd="/",
        folder="/f",
        output_dir="/o",
        python="python3",
        gpu=bench.gpu,
        limit_s=7200.0,
    )


def errand(bench: Bench) -> None:
    """Carry out an order; it must end well."""
    ended, folders = carry_out(host_on(bench), order_for(bench), Nobody())
    expect(ended.exit_code == 0 and len(folders) == 1, f"the errand ended with {ended}")


def fails(bench: Bench, kind: type[AssayError]) -> None:
    """Carry out an order; it must end with this error."""
    try:
        carry_out(host_on(bench), order_for(bench), Nobody())
    except kind:
        return
    raise KitFailed(f"the errand did not fail with {kind.__name__}")


def wish_for(bench: Bench, seconds: float = 3600.0) -> Wish:
    """Return a wish, with what it needs prepared."""
    deadline_at = bench.clock.now() + timedelta(seconds=seconds)
    request = Wish(
        name=names.machine_name(ORDER, 1, deadline_at),
        offer=next(offer for offer in bench.provider.offers() if offer.gpu == bench.gpu),
        image=bench.provider.default_image,
        deadline_at=deadline_at,
        public_key=keys.make(ORDER) if getattr(bench.provider, "keyed", False) else None,
    )
    prepare = getattr(bench.provider, "prepare", None)
    if callable(prepare):
        prepare(request)
    return request


def launch_raises(bench: Bench, fault: Fault, kind: type[AssayError]) -> AssayError:
    """Launch with a fault; it must raise this error, which is returned."""
    request = wish_for(bench)
    bench.next(fault)
    try:
        bench.provider.launch(request)
    except kind as error:
        return error
    except AssayError as error:
        raise KitFailed(f"{fault!r} is a {type(error).__name__}, not {kind.__name__}: {error}") from error
    raise KitFailed(f"{fault!r} raised nothing")


def listed(bench: Bench) -> set[str]:
    """Return the numbers in the list, once there are any."""
    numbers: set[str] = set()

    def listed() -> bool:
        numbers.update(machine.number for machine in bench.provider.ours())
        return bool(numbers)

    wait(bench, listed, "the list does not show it")
    return numbers


def gone(bench: Bench, number: str) -> bool:
    """Return whether the provider shows a machine no more."""
    machine = bench.provider.look(number)
    return machine is None or machine.stage == "gone"


def wait(bench: Bench, holds: Callable[[], bool], otherwise: str) -> None:
    """Wait until something holds, by the bench's clock."""
    until = bench.clock.now() + timedelta(seconds=bench.pace.gone_within_s)
    while not holds():
        expect(bench.clock.now() < until, otherwise)
        bench.clock.sleep(bench.pace.look_s)


def tidy(bench: Bench) -> None:
    """Put away what a wish needed."""
    tidy = getattr(bench.provider, "tidy", None)
    if callable(tidy):
        tidy(ORDER)
    keys.remove(ORDER)


def finish(bench: Bench) -> None:
    """End whatever runs."""
    for number in bench.running():
        bench.provider.end(number)
    wait(bench, lambda: not bench.running(), "it is still running after its end was asked for")
    tidy(bench)


def nothing_left(bench: Bench) -> None:
    """Fail unless all machines are gone, and the journal knows it."""
    expect(not bench.running(), f"{sorted(bench.running())} are left")
    expect(all(rental.released_at is not None for rental in Book().rentals()), "the journal shows an order as open")
