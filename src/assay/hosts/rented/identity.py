"""The identity of a rented machine: a name that says whose it is and until when, and an ssh key pair for one rental.

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
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot
from assay.core.files import home_folder, translate_os_errors
from assay.hosts.base import NAME_PREFIX

if TYPE_CHECKING:
    from pathlib import Path

    from assay.hosts.remote.connection import SshConnection
    from assay.hosts.rented.provider import RentedMachine


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
    if match is None:
        return None
    try:
        return datetime.strptime(match[1], _STAMP).replace(tzinfo=UTC)
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
            raise MachineCannot(
                "A key for the rented machine is made with ssh-keygen, which is not installed."
            ) from None
        if result.returncode:
            why = " ".join((result.stderr or result.stdout).split())
            raise MachineCannot(f"A key for the rented machine could not be made: {why}.")
    return key.with_suffix(".pub").read_text(encoding="utf-8").strip()


def remove_keys(job_id: str) -> None:
    """Remove a job's keys, if there are any."""
    shutil.rmtree(key_folder(job_id), ignore_errors=True)


def connect(machine: RentedMachine, where: str) -> SshConnection | None:
    """Return a connection to a machine with the key it was rented with; null where the key or address is missing."""
    from assay.hosts.remote.connection import SshConnection

    job = job_of_machine(machine.name)
    if machine.address is None or job is None or not (key_folder(job) / "key").exists():
        return None
    return SshConnection(
        f"{machine.user}@{machine.address}",
        port=machine.port,
        identity=key_folder(job) / "key",
        known_hosts=key_folder(job) / "known_hosts",
        where=where,
    )
