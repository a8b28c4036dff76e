"""A key pair for one rental: made before the machine, known to nothing else, removed with it."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

from assay.core.durable import friendly_os_errors
from assay.core.errors import MachineCannot
from assay.core.home import home
from assay.hosts.rented import names

if TYPE_CHECKING:
    from pathlib import Path

    from assay.hosts.remote.ssh_line import SshLine
    from assay.hosts.rented.provider import Machine


def folder_of(order: str) -> Path:
    """Return where an order's keys are while it lasts."""
    return home() / "rentals" / order


def make(order: str) -> str:
    """Make an order's keys; return the public one.

    Raises:
        MachineCannot: ssh-keygen is not here, or fails.
    """
    folder = folder_of(order)
    with friendly_os_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = folder / "key"
    if not key.with_suffix(".pub").exists():
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"assay-{order}", "-f", str(key)]
        try:
            made = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        except FileNotFoundError:
            raise MachineCannot(
                "A key for the rented machine is made with ssh-keygen, which is not installed."
            ) from None
        if made.returncode:
            why = " ".join((made.stderr or made.stdout).split())
            raise MachineCannot(f"A key for the rented machine could not be made: {why}.")
    return key.with_suffix(".pub").read_text(encoding="utf-8").strip()


def remove(order: str) -> None:
    """Remove an order's keys; nothing happens where there are none."""
    shutil.rmtree(folder_of(order), ignore_errors=True)


def line_to(machine: Machine, where: str) -> SshLine | None:
    """Return a line to a machine by the key it was rented with; null where that or its address is not known."""
    from assay.hosts.remote.ssh_line import SshLine

    job = names.order_of(machine.name)
    if machine.address is None or job is None or not (folder_of(job) / "key").exists():
        return None
    return SshLine(
        f"{machine.user}@{machine.address}",
        port=machine.port,
        identity=folder_of(job) / "key",
        known_hosts=folder_of(job) / "known_hosts",
        where=where,
    )
