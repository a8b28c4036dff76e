"""Providers wired to their stand-ins, machines whose line leads nowhere, and work that only takes its time."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.errors import MachineCannot
from assay.hosts.base import Job, JobEnd
from assay.hosts.providers.lambda_cloud import LambdaProvider
from assay.hosts.providers.runpod import RunPodProvider
from assay.hosts.remote.connection import RemoteConnection, RemoteConnectionLost
from assay.hosts.remote.remote_job import RemoteWork
from assay.hosts.rented.context import RentalTimeouts
from assay.hosts.rented.host import RentedHost
from tests.hosts.standins import lambda_cloud, runpod
from tests.hosts.standins.answering import in_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from assay.hosts.base import JobProgress, JobWatcher
    from assay.hosts.rented.journal import RentalJournal
    from assay.hosts.rented.provider import Provider, RentedMachine
    from tests.hosts.standins.answering import Service
    from tests.hosts.standins.cloud import Cloud, VirtualClock

GPU = {"runpod": "L4", "lambda": "A10"}
PATHS = {"runpod": "/pods", "lambda": "/instance-operations/launch"}
"""Where each is asked for a machine."""

KEYS = {"runpod": "RUNPOD_API_KEY", "lambda": "LAMBDA_API_KEY"}


@dataclass
class PretendLine(RemoteConnection):
    """A line to a machine that does nothing, and breaks when the machine is gone."""

    cloud: Cloud
    number: str
    where: str = "a machine that is none"

    def check(self) -> None:
        if self.cloud.stage(self.cloud.boxes[self.number]) != "up":
            raise RemoteConnectionLost(f"{self.where} does not answer")

    def _run(self, script: str, *options: Any) -> int:
        self.check()
        return 0


@dataclass
class PretendWork(RemoteWork):
    """Work that takes its time and leaves a folder."""

    cloud: Cloud
    clock: VirtualClock
    work_s: float = 300.0
    broken: bool = False
    """What comes back fails its schema."""

    armed: dict[str, datetime] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)

    def run(self, line: RemoteConnection, order: Job, watcher: JobWatcher) -> JobEnd:
        assert isinstance(line, PretendLine)
        self.begun.append(line.number)
        if self.cloud.boxes[line.number].fate.wrong_gpu:
            raise MachineCannot(f"{line.where} has a T4, and {order.gpu} was asked for.")
        left = self.work_s
        while left > 0:
            self.clock.sleep(min(20.0, left))
            left -= 20.0
            line.check()
        return JobEnd(exit_code=0)

    def collect(self, line: RemoteConnection, order: Job) -> tuple[Path, ...]:
        assert isinstance(line, PretendLine)
        line.check()
        if self.broken:
            raise MachineCannot("What came back is not a run: plan.json is missing.")
        return (Path(order.output_dir) / "run",)

    def arm(self, line: RemoteConnection, deadline_at: datetime) -> None:
        assert isinstance(line, PretendLine)
        self.armed[line.number] = deadline_at
        line.do("")


class Quiet:
    """Hears everything, and keeps what was said."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def progress(self, progress: JobProgress) -> None:
        self.told.append(progress.what)

    def out(self, data: bytes) -> None: ...

    def err(self, data: bytes) -> None: ...


def service_of(name: str, clock: VirtualClock) -> Service:
    """Return a provider's stand-in."""
    if name == "runpod":
        return runpod.RunPodService(runpod.cloud(clock))
    return lambda_cloud.LambdaService(lambda_cloud.cloud(clock))


def provider_of(
    name: str, service: Service, clock: VirtualClock, hook: Callable[[str], None] = lambda when: None
) -> Provider:
    """Return the real provider, reaching its stand-in in this process."""

    class WiredRunPod(RunPodProvider):
        def connect(self, machine: RentedMachine) -> Any:
            return PretendLine(service.cloud, machine.number) if machine.address else None

    class WiredLambda(LambdaProvider):
        def connect(self, machine: RentedMachine) -> Any:
            return PretendLine(service.cloud, machine.number) if machine.address else None

    kind = WiredRunPod if name == "runpod" else WiredLambda
    return kind(clock, in_process(service, hook))


def host_of(
    name: str,
    service: Service,
    clock: VirtualClock,
    *,
    hook: Callable[[str], None] = lambda when: None,
    work: PretendWork | None = None,
    pace: RentalTimeouts | None = None,
    book: RentalJournal | None = None,
) -> RentedHost:
    """Return the host over the stand-in, in virtual time."""
    pretended = work or PretendWork(service.cloud, clock)
    return RentedHost(
        provider_of(name, service, clock, hook),
        clock=clock,
        timeouts=pace or RentalTimeouts(),
        journal=book,
        work=pretended,
    )


def order_for(name: str, **told: Any) -> Job:
    """Return an order for a machine of this provider."""
    given: dict[str, Any] = {
        "id": "0123456789abcdef",
        "words": ("run", "softmax"),
        "cwd": "/",
        "folder": "/nowhere/orders",
        "output_dir": "/nowhere",
        "python": "python3",
        "gpu": GPU[name],
    }
    return Job(**{**given, **told})
