"""What a provider of rented machines must implement, and how a machine is known: its name and its ssh keys.

    assay-until-20261115t093000z-1-4f2a90c1d2e3b4a5
                │                │ └ the job
                │                └ which start of it: a machine that was preempted is followed by another
                └ the deadline by the clock of whoever requested it, in UTC

Anyone with the account's key can tell from a list alone which machines are ours and past their deadline, without the
journal and without the provider's times.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import AwareDatetime, Field

from assay.core.errors import MachineCannot
from assay.core.files import home_folder, translate_os_errors
from assay.core.values import Value
from assay.hosts.base import NAME_PREFIX, Offer

if TYPE_CHECKING:
    from pathlib import Path

    from assay.hosts.remote.connection import RemoteConnection, SshConnection

Stage = Literal["starting", "up", "ending", "gone", "lost"]
"""``lost``: preempted, unhealthy or in error: unusable, but still there until confirmed gone."""


class NoAnswer(MachineCannot):
    """No answer, or a server error: the request may have taken effect nevertheless."""


class NoCapacity(MachineCannot):
    """No such machine is free now; another type or place may have one."""


class InstanceRequest(Value):
    """A machine to create."""

    name: str = Field(description="Unique; the machine is looked up by it.")
    offer: Offer
    image: str
    deadline_at: AwareDatetime
    public_key: str | None = Field(
        default=None, description="Key that may log in; null where the connection needs none."
    )
    environment: dict[str, str] = Field(
        default_factory=dict, description="The machine's environment variables; never a secret."
    )


class RentedMachine(Value):
    """A machine of ours, in the state last reported by the provider."""

    name: str
    number: str = Field(description="The provider's id.")
    stage: Stage
    status_text: str = Field(default="", description="The provider's own name of the state.")
    address: str | None = None
    port: int = 22
    user: str = "root"
    usd_per_hour: float | None = None
    since: AwareDatetime | None = None

    @property
    def job_id(self) -> str | None:
        """The job that it was created for; null: its name is not ours."""
        return job_of_machine(self.name)

    @property
    def state(self) -> str:
        """Its state as the provider writes it, else its stage."""
        return self.status_text or self.stage


class Provider(ABC):
    """One account at one provider. Every method is one query or one request; none waits or retries."""

    name: str
    default_image: str
    keyed = False
    """Whether a key pair is created for each rental, as `InstanceRequest.public_key`."""

    images = True
    """False: its machines have one fixed image, and ``--image`` is refused."""

    refuses: ClassVar[dict[str, str]] = {}
    """Places (``--on HOST:PLACE``) that are refused, each with the reason as a clause."""

    @abstractmethod
    def missing(self) -> str | None:
        """Return which credential or package is missing and how to get it, as a clause; null when none is."""

    def account(self) -> str | None:
        """Return an identifier of the account, never a credential, so that cleanup does not query the wrong one."""
        return None

    @abstractmethod
    def offers(self) -> tuple[Offer, ...]:
        """Return what is available now, at live prices."""

    def prepare(self, request: InstanceRequest) -> None:  # noqa: B027 - most providers need nothing
        """Create what must exist before a machine is requested; idempotent."""

    def wait_for_launch(self) -> None:  # noqa: B027 - most providers have no such limit
        """Wait until the rate limit allows a launch; if it is interrupted, nothing was requested."""

    @abstractmethod
    def launch(self, request: InstanceRequest) -> RentedMachine:
        """Request a machine, once.

        Raises:
            NoCapacity: It is not available now.
            NoAnswer: It may have been created nevertheless.
            MachineCannot: Refused: credentials, payment, quota, an invalid request.
        """

    @abstractmethod
    def list_ours(self) -> tuple[RentedMachine, ...]:
        """Return every machine that has a name of ours and is not gone."""

    @abstractmethod
    def find(self, number: str) -> RentedMachine | None:
        """Return a machine's current state; null when the provider does not know it, or it is gone for good."""

    @abstractmethod
    def terminate(self, number: str) -> None:
        """Request a machine's termination, once; `find` and `list_ours` show whether it ended."""

    @abstractmethod
    def connect(self, machine: RentedMachine) -> RemoteConnection | None:
        """Return a connection to a machine that is up; null when it cannot be reached yet."""

    def billed_usd(self, machine: RentedMachine) -> float | None:
        """Return the cost billed by the provider, in USD; null when it is not available (yet)."""
        return None

    def clean_up(self, job_id: str) -> None:  # noqa: B027 - most providers need nothing
        """Remove what `prepare` created, once all machines of a job are gone; idempotent."""


_STAMP = "%Y%m%dt%H%M%Sz"
_NAME = re.compile(rf"{NAME_PREFIX}until-(\d{{8}}t\d{{6}}z)-(\d{{1,3}})-([0-9a-z]{{8,32}})")


def machine_name(job_id: str, start: int, deadline_at: datetime) -> str:
    """Return the machine name for one start of a job, counted from 1; the deadline is rounded up to a second."""
    until = (deadline_at.astimezone(UTC) + timedelta(microseconds=999_999)).strftime(_STAMP)
    return f"{NAME_PREFIX}until-{until}-{start}-{job_id}"


def job_of_machine(name: str) -> str | None:
    """Return the id of the job that a machine was created for; null: the name is not ours."""
    match = _NAME.fullmatch(name)
    return match[3] if match and deadline_of_machine(name) else None


def deadline_of_machine(name: str) -> datetime | None:
    """Return the deadline in a machine's name; null: the name is not ours."""
    match = _NAME.fullmatch(name)
    try:
        return datetime.strptime(match[1], _STAMP).replace(tzinfo=UTC) if match else None
    except ValueError:
        return None


def key_folder(job_id: str) -> Path:
    """Return the folder of a job's keys, which exists as long as its rental."""
    return home_folder() / "rentals" / job_id


def make_keys(job_id: str) -> str:
    """Create a job's key pair; return the public key.

    Raises:
        MachineCannot: ssh-keygen is not installed, or fails.
    """
    folder = key_folder(job_id)
    with translate_os_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = folder / "key"
    if not key.with_suffix(".pub").exists():
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"assay-{job_id}", "-f", str(key)]
        try:
            result = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        except FileNotFoundError:
            raise MachineCannot("ssh-keygen, which creates the rented machine's key, is not installed.") from None
        if result.returncode:
            why = " ".join((result.stderr or result.stdout).split())
            raise MachineCannot(f"A key for the rented machine could not be created: {why}.")
    return key.with_suffix(".pub").read_text(encoding="utf-8").strip()


def remove_keys(job_id: str) -> None:
    """Remove a job's keys, if there are any."""
    shutil.rmtree(key_folder(job_id), ignore_errors=True)


def connect_by_ssh(machine: RentedMachine, where: str) -> SshConnection | None:
    """Return a connection to a machine with the key it was rented with; null where the key or address is missing."""
    from assay.hosts.remote.connection import SshConnection

    if machine.address is None or machine.job_id is None or not (key_folder(machine.job_id) / "key").exists():
        return None
    folder = key_folder(machine.job_id)
    return SshConnection(
        f"{machine.user}@{machine.address}",
        port=machine.port,
        identity=folder / "key",
        known_hosts=folder / "known_hosts",
        where=where,
    )
