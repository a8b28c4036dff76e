"""Rank 0 of a torchrun: it runs the loop, and its workers of other ranks live with the agents there.

torchrun ┬─ rank 0: hub, the loop ── worker rank 0
         ├─ rank 1: agent ────────── worker rank 1     agent ⇄ hub: one wire for orders,
         └─ rank 2: agent ────────── worker rank 2     worker ⇄ hub: its own line, relayed by the agent
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from typing import TYPE_CHECKING, Self

from assay.core.errors import EndedEarly, MachineCannot
from assay.core.processes import boot_id, can_see
from assay.launch.local import LocalWorker
from assay.launch.ranks import rank_environment
from assay.launch.wires import Bye, Ended, Hello, Start, Stop, Wire
from assay.worker import protocol as say
from assay.worker.rendezvous import open_store, own_address, publish

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from assay.launch.crew import Errand
    from assay.launch.handle import Handle, Seat
    from assay.machine.model import Machine
    from assay.worker.rendezvous import Torchrun

MEET_WITHIN_S = 60.0
STOP_WITHIN_S = 15.0


class Hub:
    """Starts workers where their rank lives: rank 0 here, the others with their agents."""

    def __init__(self, place: Torchrun, *, run_folder: Path, cwd: Path) -> None:
        self._place = place
        self._run_folder = run_folder
        self._cwd = cwd
        self._token = secrets.token_hex(16)
        self._agents: dict[int, Wire] = {}
        self._address = place.address
        self._count = 0
        self.machines: dict[int, Machine] = {}  # of the ranks on other nodes
        self.helpers: frozenset[int] = frozenset()  # the agents that are to be seen here, by their process numbers
        self.exit_code = 4

    def __enter__(self) -> Self:
        """Listen, tell the other ranks where, and wait until all are here."""
        self._listener = _listening()
        self._listener.settimeout(MEET_WITHIN_S)
        port = self._listener.getsockname()[1]
        try:
            self._meet(port)
        except BaseException:
            self._end()
            raise
        return self

    def _meet(self, port: int) -> None:
        self._store = open_store(self._place, MEET_WITHIN_S)
        self._address = own_address(self._place, MEET_WITHIN_S)
        publish(self._store, f"{self._address} {port} {self._token}")
        nodes: dict[int, int] = {}
        machines: dict[int, Machine] = {}
        while len(self._agents) < self._place.world_size - 1:
            channel, hello = self._accept(f"{len(self._agents) + 1} of {self._place.world_size} ranks came")
            self._agents[hello.rank] = channel
            nodes[hello.rank] = hello.node
            if hello.process.boot_id == boot_id() and can_see(hello.process):
                self.helpers |= {hello.process.pid}
            if hello.machine is not None:
                machines[hello.node] = hello.machine
        self.machines = {rank: machines[node] for rank, node in nodes.items() if node in machines}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for channel in self._agents.values():
            with contextlib.suppress(OSError):
                channel.send(Bye(exit_code=self.exit_code))
            channel.socket.close()
        self._listener.close()

    def __call__(self, errand: Errand) -> Handle:
        """Return a worker that waits to be prepared, wherever its rank lives."""
        worker_id = errand.seat
        if errand.port is None or worker_id.rank == 0:
            ranks = {}
            if errand.port is not None:
                ranks = rank_environment(
                    0,
                    worker_id.role.ranks,
                    address=self._address,
                    port=errand.port,
                    local_ranks=self._place.local_ranks(worker_id.role.ranks),
                )
            return LocalWorker(errand, run_folder=self._run_folder, cwd=self._cwd, ranks=ranks)
        if worker_id.rank not in self._agents:
            raise MachineCannot(f"Rank {worker_id.rank} is asked for, but torchrun started {self._place.world_size}.")
        return self._remote(errand, errand.port)

    def _remote(self, errand: Errand, port: int) -> RemoteWorker:
        worker_id = errand.seat
        self._count += 1
        agent = self._agents[worker_id.rank]
        order = Start(
            worker=self._count,
            trial=errand.trial,
            attempt=errand.attempt,
            role=worker_id.role,
            rank=worker_id.rank,
            restart=worker_id.restart,
            allotment=errand.allotment,
            port=port,
        )
        try:
            agent.send(order)
        except OSError:
            raise EndedEarly(f"The process of rank {worker_id.rank} in this torchrun has ended") from None
        channel, hello = self._accept(f"rank {worker_id.rank} did not start its worker")
        return RemoteWorker(
            worker_id, agent, channel.socket, self._count, same_clock=hello.process.boot_id == boot_id()
        )

    def _accept(self, otherwise: str) -> tuple[Wire, Hello]:
        """Wait for a connection that knows our token; others are turned away."""
        while True:
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                raise MachineCannot(f"Within {MEET_WITHIN_S:.0f} s: {otherwise}.") from None
            sock.settimeout(MEET_WITHIN_S)
            channel = Wire(sock)
            with contextlib.suppress(ValueError):
                hello = channel.receive()
                if isinstance(hello, Hello) and secrets.compare_digest(hello.token, self._token):
                    sock.settimeout(None)
                    return channel, hello
            sock.close()


def _listening() -> socket.socket:
    """Return a socket that listens on every address of this machine."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


class RemoteWorker:
    """A worker that lives with an agent, spoken to over its own line."""

    def __init__(self, seat: Seat, agent: Wire, line: socket.socket, number: int, *, same_clock: bool) -> None:
        self.seat = seat
        self.born_ns = time.perf_counter_ns()
        self.log: str | None = None
        self.same_clock = same_clock
        self._agent = agent
        self._line = line
        self._number = number
        self._decoder = say.Decoder()
        self._ended: Ended | None = None

    def fileno(self) -> int:
        """Return the socket to wait on."""
        return self._line.fileno()

    def send(self, message: say.Message) -> None:
        """Say something; a broken line is found out when the answer is waited for."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._line.sendall(say.encode(message))

    def read(self) -> say.Frame | None:
        """Return the next whole frame that has come, or null."""
        return say.read_frame(self._line, self._decoder)

    def fate(self) -> str:
        """Return in words how it ended, as its agent tells."""
        self.stop()
        return self._ended.fate if self._ended else f"the agent of rank {self.seat.rank} is gone"

    def stop(self) -> None:
        """Have the agent end the worker and all it started; safe to call twice."""
        if self._ended is not None:
            return
        self._line.close()
        self._agent.socket.settimeout(STOP_WITHIN_S)
        with contextlib.suppress(OSError):
            self._agent.send(Stop(worker=self._number))
            reply = self._agent.receive()
            self._ended = reply if isinstance(reply, Ended) else None
        if self._ended is None:
            self._ended = Ended(worker=self._number, fate=f"the agent of rank {self.seat.rank} is gone", tail=None)

    def tail(self) -> str | None:
        """Return the end of what it printed."""
        self.stop()
        return self._ended.tail if self._ended else None
