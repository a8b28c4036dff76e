"""The host ssh: any machine that you can log in to without being asked anything, ``--on ssh:HOST``.

Nothing is rented. What is lent is a place on a machine of yours: the order's folder and its processes there, which are
seen gone when it is released. A lease names them before anything is sent.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING

from assay.core import leases
from assay.core.errors import BadInput, MachineCannot
from assay.core.units import format_span
from assay.hosts.base import Loan, Offer, Order
from assay.hosts.remote import work
from assay.hosts.remote.line import LineLost
from assay.hosts.remote.ssh_line import SshLine
from assay.hosts.traces import ORDER, run_of

if TYPE_CHECKING:
    from pydantic import JsonValue

    from assay.core.leases import Lease
    from assay.hosts.base import Ended, Watcher

KIND = "ssh"
UNDO = "assay.hosts.ssh:undo"


class SshHost:
    """Machines that the system's ssh reaches, with the user's own configuration and keys."""

    name = "ssh"
    options = frozenset({"gpu_type", "remote_python", "ship", "time"})

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}

    def available(self) -> str | None:
        """Return why nothing can be logged in to from here; null when ssh is here."""
        return None if shutil.which("ssh") else "the command ssh is not installed"

    def offers(self) -> tuple[Offer, ...]:
        """Return nothing: which machines there are is in the user's head and configuration."""
        return ()

    def script(self, order: Order) -> str:
        """Return what would be done; no machine is asked."""
        line_to(order.place)
        files = [f"  {file.there}  ({_size(Path(file.here))})" for file in order.files]
        limit = f" for {format_span(order.limit_s)} at most" if order.limit_s else ""
        gpu = f", if its GPU is a {order.gpu}" if order.gpu else ""
        return "\n".join(
            [
                f"On {order.place}, with {order.python}{gpu}{limit}:",
                f"  assay {join(order.words)}",
                "These files would go along:" if files else "No file would go along.",
                *files,
                f"The run would be brought to {order.output_dir}.",
                "",
            ]
        )

    def create(self, order: Order) -> Loan:
        """Make sure that the machine answers, and write down what has to be undone there."""
        connection = line_to(order.place)
        connection.open()
        args: dict[str, JsonValue] = {"place": order.place, "order": order.as_json()}
        self._leases[order.name] = leases.take(
            KIND, f"order {order.name} on {order.place}", UNDO, args, lease_id=order.id
        )
        return Loan(host=self.name, name=order.name, number=str(order.place), state="up", gpu=order.gpu)

    def run(self, loan: Loan, order: Order, watcher: Watcher) -> Ended:
        """Have it run there."""
        return work.run(line_to(order.place), order, watcher)

    def collect(self, loan: Loan, order: Order) -> tuple[Path, ...]:
        """Bring the run folder here."""
        return work.collect(line_to(order.place), order)

    def release(self, loan: Loan) -> None:
        """End what still runs there and remove what is left of it; the connection is let go."""
        lease = self._leases.pop(loan.name, None)
        try:
            if lease is not None:
                leases.release(lease)
        finally:
            connection = _lines.pop(loan.number, None)
            if connection is not None:
                connection.close()

    def list_ours(self) -> tuple[Loan, ...]:
        """Return what leases of this user say is on machines elsewhere."""
        job_leases = [lease for lease in leases.all_of(KIND) if isinstance(lease.args.get("order"), dict)]
        orders = [(lease, Order.model_validate(lease.args["order"])) for lease in job_leases]
        return tuple(
            Loan(host=self.name, name=job.name, number=str(job.place), since=lease.created_at) for lease, job in orders
        )


_lines: dict[str, SshLine] = {}


def line_to(place: str | None) -> SshLine:
    """Return the line to a machine, as it stands behind ``--on ssh:``: HOST, USER@HOST, HOST:PORT.

    Raises:
        BadInput: That names no machine.
    """
    if not place:
        raise BadInput("--on ssh needs a machine: write --on ssh:HOST, as you would log in to it with ssh.")
    if place not in _lines:
        match = re.fullmatch(r"([^:]+):(\d+)", place)
        name, port = (match[1], int(match[2])) if match else (place, None)
        if port is not None and not 0 < port < 2**16:
            raise BadInput(f"--on ssh:{place}: a port is a number from 1 to 65535.")
        _lines[place] = SshLine(name, port=port, where=place)
    return _lines[place]


def undo(place: str, order: dict[str, JsonValue]) -> None:
    """End an order there, bring what it has measured unless that was done, and remove the rest; safe to do twice.

    Raises:
        MachineCannot: The machine does not answer, or something of the order is still there.
    """
    connection, whole = line_to(place), Order.model_validate(order)
    work.end(connection, whole)
    if run_of(Path(whole.folder)) is None:
        try:
            work.collect(connection, whole)
        except LineLost:
            raise
        except MachineCannot:  # what came is kept in the order's folder, and is no reason to leave anything there
            pass
    work.clean(connection, whole)
    if run_of(Path(whole.folder)) is None:
        _forget_unless_kept(Path(whole.folder))


def _forget_unless_kept(folder: Path) -> None:
    """Remove the folder of an order that left nothing: no run, and nothing that came back in its place."""
    if {path.name for path in folder.glob("*")} <= {ORDER}:
        shutil.rmtree(folder, ignore_errors=True)


def _size(path: Path) -> str:
    if path.is_dir():
        return "a folder"
    size = path.stat().st_size
    return f"{size} bytes" if size < 10_000 else f"{size / 1e3:.0f} kB" if size < 1e7 else f"{size / 1e6:.0f} MB"


HOST = SshHost()
