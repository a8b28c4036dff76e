"""Trials inside a torchrun: rank 0 (the hub) runs the loop, the other ranks (agents) start workers for it.

An agent relays the messages between its worker and the hub:

torchrun ┬─ rank 0: hub, the loop ── worker rank 0
         ├─ rank 1: agent ────────── worker rank 1     agent ⇄ hub: one control channel, one JSON object per line
         └─ rank 2: agent ────────── worker rank 2     worker ⇄ hub: its own connection, relayed by the agent
"""

from __future__ import annotations

import contextlib
import json
import secrets
import selectors
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, TypeAdapter

from assay.core.errors import EndedEarly, MachineCannot
from assay.core.guardian import Guardian
from assay.core.processes import ProcessIdentity, boot_id, current_process, is_visible
from assay.core.results import Missing
from assay.core.values import Value
from assay.launch.local import LocalWorker, rank_environment
from assay.launch.workers import LaunchSpec
from assay.machine.model import Machine
from assay.worker import protocol as say
from assay.worker.rendezvous import find_hub, open_store, own_address, publish_hub

if TYPE_CHECKING:
    from assay.launch.workers import WorkerHandle, WorkerId
    from assay.worker.rendezvous import Torchrun


class Hello(Value):
    """The first message of an agent, or of a worker's connection."""

    kind: Literal["hello"] = "hello"
    token: str
    rank: int
    worker: int | None = Field(default=None, description="Null: the agent's own line.")
    process: ProcessIdentity = Field(description="Of the agent.")
    node: int = 0
    machine: Machine | None = Field(default=None, description="Of another node than the hub's, from its first rank.")


class StartWorker(Value):
    """Start a worker and connect it to the hub."""

    kind: Literal["start"] = "start"
    worker: int
    spec: LaunchSpec


class StopWorker(Value):
    """End a worker and its descendants; the reply has its exit status and the end of its output."""

    kind: Literal["stop"] = "stop"
    worker: int


class WorkerEnded(Value):
    """How a worker ended."""

    kind: Literal["ended"] = "ended"
    worker: int
    exit_status: Missing
    tail: str | None


class EndRun(Value):
    """The run is over; exit with this code."""

    kind: Literal["bye"] = "bye"
    exit_code: int


HubMessage = Annotated[Hello | StartWorker | StopWorker | WorkerEnded | EndRun, Field(discriminator="kind")]
_ADAPTER: TypeAdapter[HubMessage] = TypeAdapter(HubMessage)


class HubChannel:
    """A connection with one JSON message per line."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._buffer = b""

    def send(self, message: HubMessage) -> None:
        """Send a message."""
        self.socket.sendall(_ADAPTER.dump_json(message) + b"\n")

    def receive(self) -> HubMessage | None:
        """Wait for the next message; null if the other side is gone."""
        while b"\n" not in self._buffer:
            try:
                data = self.socket.recv(2**16)
            except (ConnectionResetError, TimeoutError):
                return None
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return _ADAPTER.validate_python(json.loads(line))


RENDEZVOUS_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0


class Hub:
    """Starts workers where their rank runs: rank 0 here, the others through their agents."""

    def __init__(self, torchrun: Torchrun, *, run_folder: Path, cwd: Path) -> None:
        self._torchrun = torchrun
        self._run_folder = run_folder
        self._cwd = cwd
        self._token = secrets.token_hex(16)
        self._agents: dict[int, HubChannel] = {}
        self._address = torchrun.address
        self._count = 0
        self.machines: dict[int, Machine] = {}  # of the ranks on other nodes
        self.helpers: frozenset[int] = frozenset()  # PIDs of the agents visible on this machine
        self.exit_code = 4

    def __enter__(self) -> Self:
        """Listen on every address, publish that of this machine, and wait until all ranks have connected."""
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self._listener = socket.create_server(("", 0), family=family, dualstack_ipv6=dual)
        self._listener.settimeout(RENDEZVOUS_TIMEOUT_S)
        port = self._listener.getsockname()[1]
        try:
            self._meet(port)
        except BaseException:
            self._end()
            raise
        return self

    def _meet(self, port: int) -> None:
        self._store = open_store(self._torchrun, RENDEZVOUS_TIMEOUT_S)
        self._address = own_address(self._torchrun, RENDEZVOUS_TIMEOUT_S)
        publish_hub(self._store, f"{self._address} {port} {self._token}")
        nodes: dict[int, int] = {}
        machines: dict[int, Machine] = {}
        while len(self._agents) < self._torchrun.world_size - 1:
            channel, hello = self._accept(f"{len(self._agents) + 1} of {self._torchrun.world_size} ranks came")
            self._agents[hello.rank] = channel
            nodes[hello.rank] = hello.node
            if hello.process.boot_id == boot_id() and is_visible(hello.process):
                self.helpers |= {hello.process.pid}
            if hello.machine is not None:
                machines[hello.node] = hello.machine
        self.machines = {rank: machines[node] for rank, node in nodes.items() if node in machines}

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        for channel in self._agents.values():
            with contextlib.suppress(OSError):
                channel.send(EndRun(exit_code=self.exit_code))
            channel.socket.close()
        self._listener.close()

    def __call__(self, spec: LaunchSpec) -> WorkerHandle:
        """Return a worker that waits to be prepared, wherever its rank runs."""
        worker_id = spec.worker_id
        if spec.port is None or worker_id.rank == 0:
            count, address = worker_id.role.ranks, self._address
            local_ranks = self._torchrun.local_ranks(count)
            ranks = {} if spec.port is None else rank_environment(
                0, count, address=address, port=spec.port, local_ranks=local_ranks
            )  # fmt: skip
            return LocalWorker(spec, run_folder=self._run_folder, cwd=self._cwd, ranks=ranks)
        if worker_id.rank not in self._agents:
            raise MachineCannot(
                f"Rank {worker_id.rank} is asked for, but torchrun started {self._torchrun.world_size}."
            )
        self._count += 1
        agent = self._agents[worker_id.rank]
        try:
            agent.send(StartWorker(worker=self._count, spec=spec))
        except OSError:
            raise EndedEarly(f"The process of rank {worker_id.rank} in this torchrun has ended") from None
        channel, hello = self._accept(f"rank {worker_id.rank} did not start its worker")
        return RemoteWorker(
            worker_id, agent, channel.socket, self._count, same_clock=hello.process.boot_id == boot_id()
        )

    def _accept(self, otherwise: str) -> tuple[HubChannel, Hello]:
        """Wait for a connection with the right token; others are closed."""
        while True:
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                raise MachineCannot(f"Within {RENDEZVOUS_TIMEOUT_S:.0f} s: {otherwise}.") from None
            sock.settimeout(RENDEZVOUS_TIMEOUT_S)
            channel = HubChannel(sock)
            with contextlib.suppress(ValueError):
                hello = channel.receive()
                if isinstance(hello, Hello) and secrets.compare_digest(hello.token, self._token):
                    sock.settimeout(None)
                    return channel, hello
            sock.close()


class RemoteWorker(say.ParentConnection):
    """A worker of an agent, reached over its own connection."""

    def __init__(
        self, worker_id: WorkerId, agent: HubChannel, connection: socket.socket, number: int, *, same_clock: bool
    ) -> None:
        super().__init__(connection)
        self.worker_id = worker_id
        self.born_ns = time.perf_counter_ns()
        self.log: str | None = None
        self.same_clock = same_clock
        self._agent = agent
        self._number = number
        self._ended: WorkerEnded | None = None

    def exit_status(self) -> Missing:
        """Return how it ended, as reported by its agent."""
        return self._end().exit_status

    def stop(self) -> None:
        """Let the agent end the worker and its descendants; safe to call twice."""
        self._end()

    def tail(self) -> str | None:
        """Return the end of its output."""
        return self._end().tail

    def _end(self) -> WorkerEnded:
        if self._ended is None:
            self.socket.close()
            self._agent.socket.settimeout(STOP_TIMEOUT_S)
            reply: HubMessage | None = None
            with contextlib.suppress(OSError):
                self._agent.send(StopWorker(worker=self._number))
                reply = self._agent.receive()
            gone = Missing(code="error", detail=f"the agent of rank {self.worker_id.rank} is gone")
            lost = WorkerEnded(worker=self._number, exit_status=gone, tail=None)
            self._ended = reply if isinstance(reply, WorkerEnded) else lost
        return self._ended


HUB_GONE_EXIT_CODE = 4
EXIT_WAIT_S = 0.5


def serve_hub(torchrun: Torchrun, machine: Machine) -> int:
    """Serve the hub until it ends the run or is gone; return the exit code for this process."""
    address, port, token = find_hub(torchrun).split()
    channel = HubChannel(_connect(address, int(port)))
    own_machine = machine if torchrun.node > 0 and torchrun.local_rank == 0 else None
    channel.send(
        Hello(token=token, rank=torchrun.rank, process=current_process(), node=torchrun.node, machine=own_machine)
    )
    with Guardian(), tempfile.TemporaryDirectory(prefix="assay-agent-") as folder:
        agent = _Agent(torchrun, (address, int(port)), token, channel, Path(folder))
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

    def __init__(self, torchrun: Torchrun, hub: tuple[str, int], token: str, channel: HubChannel, folder: Path) -> None:
        self._torchrun = torchrun
        self._hub_address = hub
        self._token = token
        self._channel = channel
        self._folder = folder
        self._workers: dict[int, LocalWorker] = {}
        self._connections: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        channel.socket.settimeout(None)
        self._selector.register(channel.socket, selectors.EVENT_READ, None)

    def loop(self) -> int:
        """Execute the hub's messages, asleep in between."""
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._relay(key.data)
                    continue
                message = self._channel.receive()
                if message is None:
                    return HUB_GONE_EXIT_CODE
                if isinstance(message, EndRun):
                    return message.exit_code
                if isinstance(message, StartWorker):
                    self._start(message)
                elif isinstance(message, StopWorker):
                    self._channel.send(self._stop(message.worker))

    def _start(self, request: StartWorker) -> None:
        rank, count = request.spec.worker_id.rank, request.spec.worker_id.role.ranks
        ranks = rank_environment(
            rank,
            count,
            address=self._hub_address[0],
            port=request.spec.port or 0,
            local_rank=self._torchrun.local_rank,
            local_ranks=self._torchrun.local_ranks(count),
        )
        worker = LocalWorker(request.spec, run_folder=self._folder, cwd=Path.cwd(), ranks=ranks)
        connection = _connect(*self._hub_address)
        connection.settimeout(None)
        HubChannel(connection).send(
            Hello(token=self._token, rank=rank, worker=request.worker, process=current_process())
        )
        self._workers[request.worker], self._connections[request.worker] = worker, connection
        self._selector.register(worker.fileno(), selectors.EVENT_READ, (worker.socket, connection))
        self._selector.register(connection, selectors.EVENT_READ, (connection, worker.socket))

    def _relay(self, pair: tuple[socket.socket, socket.socket]) -> None:
        """Relay received data; when one side closes, close the other."""
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

    def _stop(self, number: int) -> WorkerEnded:
        worker, connection = self._workers.pop(number), self._connections.pop(number)
        for sock in (worker.socket, connection):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(sock)
        connection.close()
        exit_status = worker.exit_status(EXIT_WAIT_S)
        worker.stop()
        return WorkerEnded(worker=number, exit_status=exit_status, tail=worker.tail())

    def stop_all(self) -> None:
        """End all remaining workers."""
        for number in list(self._workers):
            self._stop(number)
