"""Whatever happens to an order, what was lent for it goes back, once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.core.errors import MachineCannot, StopRequested
from assay.hosts.base import Job, JobEnd, Offer, Rental
from assay.hosts.run_job import run_job

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.hosts.base import JobProgress, JobWatcher

ORDER = Job(id="0123456789abcdef", words=("run",), cwd="/", folder="/f", output_dir="/o", python="python")


class Deaf:
    """Listens to nothing."""

    def progress(self, progress: JobProgress) -> None:
        """Say nothing."""

    def out(self, data: bytes) -> None:
        """Say nothing."""

    def err(self, data: bytes) -> None:
        """Say nothing."""


class Lender:
    """A host that keeps count, and does what it is told while it runs."""

    name = "lender"
    options: frozenset[str] = frozenset()

    def __init__(self, running: Callable[[], object] = lambda: None, *, releasing: Exception | None = None) -> None:
        self.did: list[str] = []
        self._running = running
        self._releasing = releasing

    def available(self) -> str | None:
        return None

    def offers(self) -> tuple[Offer, ...]:
        return ()

    def script(self, order: Job) -> str:
        return ""

    def create(self, order: Job) -> Rental:
        self.did.append("create")
        return Rental(host=self.name, name=order.name, number="7")

    def run(self, loan: Rental, order: Job, watcher: JobWatcher) -> JobEnd:
        self.did.append("run")
        self._running()
        return JobEnd(exit_code=1)

    def collect(self, loan: Rental, order: Job) -> tuple[Path, ...]:
        self.did.append("collect")
        return (Path("/o/run-1"),)

    def release(self, loan: Rental) -> None:
        self.did.append("release")
        if self._releasing is not None:
            raise self._releasing

    def list_ours(self) -> tuple[Rental, ...]:
        return ()


def raises(error: Exception) -> Callable[[], object]:
    def fail() -> object:
        raise error

    return fail


def test_an_order_is_carried_out_and_its_loan_released() -> None:
    host = Lender()
    ended, folders = run_job(host, ORDER, Deaf())
    assert (ended.exit_code, folders) == (1, (Path("/o/run-1"),))
    assert host.did == ["create", "run", "collect", "release"]


def test_a_failure_releases_and_is_what_is_told() -> None:
    host = Lender(raises(MachineCannot("no capacity.")))
    with pytest.raises(MachineCannot, match="no capacity"):
        run_job(host, ORDER, Deaf())
    assert host.did == ["create", "run", "release"]


def test_a_signal_releases_and_says_so() -> None:
    host = Lender(lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(StopRequested, match=r"Stopped by SIGTERM; assay-0123456789abcdef \(lender 7\) is gone"):
        run_job(host, ORDER, Deaf())
    assert host.did == ["create", "run", "release"]


def test_what_could_not_be_given_back_is_told_before_all_else() -> None:
    host = Lender(raises(MachineCannot("no capacity.")), releasing=MachineCannot("still there."))
    with pytest.raises(MachineCannot, match="still there") as caught:
        run_job(host, ORDER, Deaf())
    assert "no capacity" in str(caught.value.__cause__)
