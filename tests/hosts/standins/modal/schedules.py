"""Seeded schedules of what goes wrong at Modal while an order is carried out there, and what came of each."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from grpclib import Status

from assay.core import leases
from assay.core.errors import AssayError, MachineCannot
from assay.core.guardian import Guardian
from assay.hosts.base import Job, JobEnd
from assay.hosts.providers import modal as found
from assay.hosts.providers.modal import ModalProvider
from assay.hosts.remote.remote_job import RemoteWork
from assay.hosts.rented.cleanup import reap_machines
from assay.hosts.rented.context import RentalTimeouts
from assay.hosts.rented.host import RentedHost
from assay.hosts.rented.journal import RentalJournal
from tests.guardians import wait_until_guardians_have_cleaned_up
from tests.hosts.standins import schedules
from tests.hosts.standins.modal.sandboxes import PREEMPTED
from tests.hosts.standins.modal.server import Fault

if TYPE_CHECKING:
    from pathlib import Path

    from assay.hosts.base import JobProgress, JobWatcher
    from assay.hosts.remote.connection import RemoteConnection
    from tests.hosts.standins.modal.sandboxes import Sandbox
    from tests.hosts.standins.modal.server import ModalStandIn

PACE = RentalTimeouts(
    look_s=0.02,
    appears_within_s=0.2,
    up_within_s=5.0,
    gone_within_s=20.0,
    ask_again_s=0.1,
    silent_at_most_s=20.0,
)
"""The SDK waits by the real clock, so the host's own waiting is short here."""

CALLS = ("AppGetOrCreate", "SandboxListV2", "SandboxTagsGet", "SandboxWait", "SandboxTerminate", "SandboxGetTaskId")
ALL_TRIES = 4
"""So many faults in a row are more than the SDK tries."""


class Killed(BaseException):
    """The client is no more: nothing of it cleans up."""


@dataclass(frozen=True)
class Schedule:
    """What is going to go wrong."""

    seed: int
    taken_away: int
    """How many machines are taken away while they work."""
    killed: bool
    refused: bool


@dataclass(frozen=True)
class Outcome:
    """What came of a schedule."""

    schedule: Schedule
    finished: bool
    said: str
    left: int
    """Machines that are still there when all is over."""
    at_once: int
    """The most machines that were there at the same time."""


class _Work(RemoteWork):
    """What is done on a machine: a program that is fed and answers."""

    def __init__(self, modal: ModalStandIn, *, taken_away: int, killed: bool) -> None:
        self.modal, self.taken_away, self.killed = modal, taken_away, killed

    def run(self, line: RemoteConnection, order: Job, watcher: JobWatcher) -> JobEnd:
        if self.taken_away:
            self.taken_away -= 1
            for sandbox in self.modal.sandboxes.running():
                sandbox.end(PREEMPTED)
        said = line.do("cat; echo of $HOME >&2", feed=[order.id.encode()], within_s=10)
        if said.out != order.id.encode():
            raise AssertionError(f"the line lost something: {said}")
        if self.killed:
            raise Killed
        return JobEnd(exit_code=said.code)

    def collect(self, line: RemoteConnection, order: Job) -> tuple[Path, ...]:
        return ()

    def arm(self, line: RemoteConnection, deadline_at: datetime) -> None:
        raise AssertionError("Modal keeps the deadline itself")


class _Nobody:
    def progress(self, progress: JobProgress) -> None:
        pass

    def out(self, data: bytes) -> None:
        pass

    def err(self, data: bytes) -> None:
        pass


def planned(seed: int, modal: ModalStandIn) -> Schedule:
    """Set a stand-in up to go wrong as a seed has it."""
    dice = random.Random(seed)
    modal.keys_honoured = dice.random() < 0.5
    for call in dice.sample(CALLS, 3):
        modal.fail(call, *[_fault(dice)] * dice.choice([1, 1, 2, ALL_TRIES]))
    creates = [_fault(dice)] * dice.choice([0, 1, ALL_TRIES])
    modal.fail("SandboxCreate", *creates)
    modal.fail("TaskExecStdioRead", *[_fault(dice)] * dice.choice([0, 1, 3]))
    modal.fail("TaskExecStart", *[_fault(dice)] * dice.choice([0, 1]))
    refused = dice.random() < 0.15
    if refused:
        modal.fail("SandboxCreate", *[Fault(Status.RESOURCE_EXHAUSTED, "GPU quota exceeded")] * 3)
    deaf = dice.choice([0, 0, 1, 2])

    def made(sandbox: Sandbox) -> None:
        sandbox.deaf = deaf

    modal.on_create = made
    return Schedule(seed=seed, taken_away=dice.choice([0, 0, 1]), killed=dice.random() < 0.3, refused=refused)


def _fault(dice: random.Random) -> Fault:
    cut = dice.random() < 0.5
    status = dice.choice([Status.UNAVAILABLE, Status.INTERNAL, Status.UNKNOWN])
    return Fault(status, after=dice.random() < 0.5, cut=cut)


def carried_out(schedule: Schedule, modal: ModalStandIn, folder: Path) -> Outcome:
    """Carry an order out under a schedule, then reap as another process would."""
    order = Job(
        id=f"{schedule.seed:016x}",
        words=("run",),
        cwd=str(folder),
        folder=str(folder),
        output_dir=str(folder),
        python="python3",
        gpu="L4",
    )
    finished, said = False, ""
    host = _host(_Work(modal, taken_away=schedule.taken_away, killed=schedule.killed))
    try:
        with Guardian():
            loan = host.create(order)
            try:
                finished = host.run(loan, order, _Nobody()).exit_code == 0
            except AssayError:
                host.release(loan)
                raise
            host.release(loan)
    except Killed:
        said = "killed"
        wait_until_guardians_have_cleaned_up()
    except MachineCannot as error:
        said = str(error)
    _reap()
    return Outcome(schedule, finished, said, left=len(modal.sandboxes.running()), at_once=modal.at_once)


def _host(work: _Work | None) -> RentedHost:
    return RentedHost(ModalProvider(answer_within_s=10, launch_within_s=10), timeouts=PACE, work=work)


def _reap() -> None:
    """Do what ``assay reap`` does, after whoever held anything has died."""
    schedules._let_owners_die()
    before, found.HOST = found.HOST, _host(None)
    try:
        leases.reap_leases()
        reap_machines([found.HOST], RentalJournal(), datetime.now(UTC))
    finally:
        found.HOST = before
