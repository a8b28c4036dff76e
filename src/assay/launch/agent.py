"""Every rank but 0 of a torchrun: start workers as the hub says, and relay their lines to it."""

from __future__ import annotations

import contextlib
import selectors
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot
from assay.core.guardian import Guardian
from assay.core.processes import current
from assay.launch.crew import Errand
from assay.launch.handle import Seat
from assay.launch.local import LocalWorker
from assay.launch.ranks import rank_environment
from assay.launch.wires import Bye, Ended, Hello, Start, Stop, Wire
from assay.worker.rendezvous import look_up

if TYPE_CHECKING:
    from assay.machine.model import Machine
    from assay.worker.rendezvous import Torchrun

HUB_GONE_EXIT_CODE = 4
FATE_WITHIN_S = 0.5


def serve(place: Torchrun, machine: Machine) -> int:
    """Serve the hub until it says bye or is gone; return the exit code for this process."""
    address, port, token = look_up(place).split()
    channel = Wire(_connect(address, int(port)))
    own_machine = machine if place.node > 0 and place.local_rank == 0 else None
    channel.send(Hello(token=token, rank=place.rank, process=current(), node=place.node, machine=own_machine))
    with Guardian(), tempfile.TemporaryDirectory(prefix="assay-agent-") as folder:
        agent = _Agent(place, (address, int(port)), token, channel, Path(folder))
        try:
            return agent.loop()
        finally:
            agent.stop_all()


def _connect(address: str, port: int) -> socket.socket:
    try:
        return socket.create_connection((address, port), timeout=60)
    except OSError as error:
        raise MachineCannot(f"Rank 0 at {address}:{port} cannot be reached: {error.strerror or error}.") from None


class _Agent:
    """The workers of one agent, and the loop that relays for them."""

    def __init__(self, place: Torchrun, hub: tuple[str, int], token: str, wire: Wire, folder: Path) -> None:
        self._place = place
        self._hub = hub
        self._token = token
        self._wire = wire
        self._folder = folder
        self._workers: dict[int, LocalWorker] = {}
        self._lines: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        wire.socket.settimeout(None)
        self._selector.register(wire.socket, selectors.EVENT_READ, None)

    def loop(self) -> int:
        """Do what the hub says, asleep in between."""
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._relay(key.data)
                    continue
                message = self._wire.receive()
                if message is None:
                    return HUB_GONE_EXIT_CODE
                if isinstance(message, Bye):
                    return message.exit_code
                if isinstance(message, Start):
                    self._start(message)
                elif isinstance(message, Stop):
                    self._wire.send(self._stop(message.worker))

    def _start(self, order: Start) -> None:
        worker_id = Seat(order.role, order.rank, order.restart)
        spec = Errand(order.trial, order.attempt, worker_id, order.allotment, order.port)
        ranks = rank_environment(
            order.rank,
            order.role.ranks,
            address=self._hub[0],
            port=order.port,
            local_rank=self._place.local_rank,
            local_ranks=self._place.local_ranks(order.role.ranks),
        )
        worker = LocalWorker(spec, run_folder=self._folder, cwd=Path.cwd(), ranks=ranks)
        connection = _connect(*self._hub)
        connection.settimeout(None)
        Wire(connection).send(Hello(token=self._token, rank=order.rank, worker=order.worker, process=current()))
        self._workers[order.worker], self._lines[order.worker] = worker, connection
        self._selector.register(worker.fileno(), selectors.EVENT_READ, (worker.socket, connection))
        self._selector.register(connection, selectors.EVENT_READ, (connection, worker.socket))

    def _relay(self, pair: tuple[socket.socket, socket.socket]) -> None:
        """Pass on what has come; when one side is gone, the other hears of it."""
        source, target = pair
        try:
            data = source.recv(2**20)
            if data:
                target.sendall(data)
                return
        except (ConnectionResetError, BrokenPipeError):
            pass
        self._selector.unregister(source)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _stop(self, number: int) -> Ended:
        worker, connection = self._workers.pop(number), self._lines.pop(number)
        for sock in (worker.socket, connection):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(sock)
        connection.close()
        exit_status = worker.fate(FATE_WITHIN_S)
        worker.stop()
        return Ended(worker=number, fate=exit_status, tail=worker.tail())

    def stop_all(self) -> None:
        """End every worker that is left."""
        for number in list(self._workers):
            self._stop(number)
