"""Random faults over a whole errand, drawn by a seed: what is planned, what came of it, what was left."""

from __future__ import annotations

import json
import random
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from assay.core import leases
from assay.core.errors import AssayError, StopRequested
from assay.core.files import home_folder
from assay.hosts import registry
from assay.hosts.rented.cleanup import reap_machines
from assay.hosts.rented.context import RentalTimeouts
from assay.hosts.rented.journal import RentalJournal
from assay.hosts.run_job import run_job
from tests.hosts.standins.cloud import Fate, VirtualClock
from tests.hosts.standins.wired import PATHS, PretendWork, Quiet, host_of, order_for, service_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.hosts.base import Job
    from assay.hosts.rented.host import RentedHost
    from assay.hosts.rented.journal import JournalEntry
    from tests.hosts.standins.answering import Service
    from tests.hosts.standins.cloud import Fault

Ending = Literal["by itself", "signal", "kill -9"]

LATE_S = 85.0
"""What turns up later than this is taken for never made, at first."""

HOPELESS = ("credentials", "payment", "no capacity", "wrong GPU", "broken results", "price")
REAPS = 3
PACE = RentalTimeouts(look_s=15.0)
"""Fewer looks than usual: a thousand schedules have many."""

HOST: RentedHost
"""What the registry finds under the provider's name, as another process would make it anew."""


@dataclass(frozen=True)
class Schedule:
    """What goes wrong, and when."""

    provider: str
    seed: int
    launches: tuple[Fault, ...]
    """Of the first requests for a machine, one by one."""

    flaky: float
    """The share of all other requests that fails."""

    fates: tuple[Fate, ...]
    """Of the first machines; the others are well."""

    hopeless: str | None
    ends: Ending
    at: int
    """At which of its steps (requests, waits, lines of the journal) the client is ended."""

    @property
    def bad_machines(self) -> int:
        """How many machines can be of no use."""
        return sum(1 for fate in self.fates if fate.up_s is None or fate.taken_s is not None or fate.listed_s > LATE_S)

    @property
    def could_finish(self) -> bool:
        """Whether nothing stands in the way of a result."""
        return self.hopeless is None and self.ends == "by itself"


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    finished: bool
    said: str
    """How the errand ended, in its own words."""

    machines: int
    twice: int
    """Machines beyond one for each name: launches that were made twice."""

    left_at_end: int
    left_after_reap: int
    keys_left: int
    steps: int
    requests: int


def draw(provider: str, seed: int) -> Schedule:
    """Return a schedule; the same seed gives the same one."""
    rng = random.Random(f"{provider} {seed}")
    faults: tuple[Fault, ...] = ("drop_before", "drop_after", "trouble_before", "trouble_after", "garbage", "too_many")
    hopeless = rng.choice(HOPELESS) if rng.random() < 0.2 else None
    endings: tuple[Ending, ...] = ("by itself", "signal", "kill -9")
    ends = rng.choices(endings, (0.5, 0.25, 0.25))[0]
    fates = [_fate(rng) for _ in range(rng.choice((0, 1, 2, 2)))]
    if hopeless == "wrong GPU":
        fates = [Fate(wrong_gpu=True)] * 9
    if hopeless == "price":
        fates = [Fate(dearer=40.0)] * 9
    return Schedule(
        provider,
        seed,
        launches=tuple(rng.choice(faults) for _ in range(rng.choice((0, 0, 1, 1, 2)))),
        flaky=rng.choice((0.0, 0.05, 0.15, 0.3)),
        fates=tuple(fates),
        hopeless=hopeless,
        ends=ends,
        at=rng.randint(1, 120),
    )


def _fate(rng: random.Random) -> Fate:
    fate = Fate(
        listed_s=rng.choice((0.0, 0.0, 3.0, rng.uniform(0, 80))),
        up_s=rng.uniform(10, 400),
        gone_s=rng.uniform(0, 120),
        deaf=rng.choice((0, 0, 0, 1, 3)),
        twins=rng.choice((0, 0, 0, 0, 1)),
    )
    what = rng.random()
    if what < 0.15:
        return replace(fate, up_s=None)
    if what < 0.4:
        return replace(fate, taken_s=rng.uniform(0, 300))
    if what < 0.5:
        return replace(fate, listed_s=rng.uniform(100, 1500))
    return fate


class Killed(BaseException):
    """The client is dead: whatever it tries next fails too."""


@dataclass
class End:
    """Ends the client at one of its steps."""

    schedule: Schedule
    steps: int = 0
    dead: bool = False

    def step(self, when: str = "") -> None:
        self.steps += 1
        if self.dead:
            raise Killed
        if self.steps == self.schedule.at and self.schedule.ends == "signal":
            raise StopRequested("Stopped by SIGINT")
        if self.steps == self.schedule.at and self.schedule.ends == "kill -9":
            self.dead = True
            raise Killed


class MortalBook(RentalJournal):
    """A journal that a dead client does not write."""

    end: End

    def write(self, entry: JournalEntry) -> None:
        self.end.step()
        super().write(entry)


def play(schedule: Schedule) -> Outcome:
    """Send one order through a schedule, then reap as another process would; say what came of it."""
    name = schedule.provider
    clock = VirtualClock()
    service = service_of(name, clock)
    cloud = service.cloud
    cloud.fates = deque(schedule.fates)
    cloud.faults = _faults(schedule)
    _make_hopeless(schedule, cloud.refuses)
    end = End(schedule)
    clock.on_sleep = end.step
    book = MortalBook()
    book.end = end
    work = PretendWork(cloud, clock, broken=schedule.hopeless == "broken results")
    order = order_for(name, max_cost_usd=9.0, limit_s=2.0 * 3600)
    finished, said = _errand(host_of(name, service, clock, hook=end.step, work=work, book=book, pace=PACE), order)
    left_at_end = len(cloud.running())
    clock.on_sleep = lambda: None
    _let_owners_die()
    _reap_now(name, service, clock)
    clock.sleep(3600)
    for nth in range(REAPS):
        if nth == REAPS - 1:
            cloud.faults = lambda method, path: None
        cloud.refuses.clear()
        _reap_now(name, service, clock)
    names = Counter(box.name for box in cloud.boxes.values())
    folders = list((home_folder() / "rentals").glob("*"))
    return Outcome(
        finished,
        said,
        machines=len(cloud.boxes),
        twice=sum(count - 1 for count in names.values()),
        left_at_end=left_at_end,
        left_after_reap=len(cloud.running()),
        keys_left=len(cloud.ssh_keys) + len(folders),
        steps=end.steps,
        requests=len(cloud.requests),
    )


def _errand(host: RentedHost, order: Job) -> tuple[bool, str]:
    try:
        ended, folders = run_job(host, order, Quiet())
    except (AssayError, StopRequested) as error:
        return False, f"{type(error).__name__}: {error}"
    except Killed:
        return False, "killed"
    return ended.exit_code == 0 and len(folders) == 1, "done"


def _faults(schedule: Schedule) -> Callable[[str, str], Fault | None]:
    rng = random.Random(f"faults {schedule.provider} {schedule.seed}")
    launches = deque(schedule.launches)
    common: tuple[Fault, ...] = ("drop_before", "drop_after", "trouble_before", "trouble_after", "garbage", "too_many")

    def fault(method: str, path: str) -> Fault | None:
        if (method, path) == ("POST", PATHS[schedule.provider]):
            return launches.popleft() if launches else None
        return rng.choice(common) if rng.random() < schedule.flaky else None

    return fault


def _make_hopeless(schedule: Schedule, refuses: dict[str, tuple[int, str]]) -> None:
    launch = f"POST {PATHS[schedule.provider]}"
    if schedule.hopeless == "credentials":
        refuses[""] = (401, "the key is not valid")
    if schedule.hopeless == "payment":
        refuses[launch] = (402, "no payment method")
    if schedule.hopeless == "no capacity":
        refuses[launch] = (400, "no instances available")


def _let_owners_die() -> None:
    """Make the leases of this process those of one that has ended."""
    for path in (home_folder() / "leases").glob("*.json"):
        lease = json.loads(path.read_text())
        lease["owner"]["start_ticks"] = 1
        path.write_text(json.dumps(lease))


def _reap_now(name: str, service: Service, clock: VirtualClock) -> None:
    host = host_of(name, service, clock, pace=PACE)
    globals()["HOST"] = host
    before = registry.BUILT_IN[name]
    registry.BUILT_IN[name] = f"{__name__}:HOST"
    try:
        leases.reap_leases()
        reap_machines([host], RentalJournal(), clock.now())
    finally:
        registry.BUILT_IN[name] = before
