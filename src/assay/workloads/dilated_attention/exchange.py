"""Keys, values and their gradients sent between ranks, point to point, while the ranks compute.

A message is (2, batch, kept position, key head, dim): of keys and values, only what the branch keeps of a shard. What
the next step needs is in flight before the current one is computed, so that at most three messages of keys are held.
All ranks post in the same order, which keeps point-to-point calls from deadlocking. A message goes over the group,
through host memory where gloo needs that, or is not sent at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from assay.workloads.dilated_attention.attention import packed_part_view, part_view
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assay.workloads.dilated_attention.schedule import BranchPart, RingStep
    from assay.workloads.torch_device import Tensor


@dataclass(frozen=True)
class NoTransfers:
    """A group that sends nothing: data that would arrive is random, drawn once and kept."""

    _messages: dict[Any, Tensor] = field(default_factory=dict)

    def arrived(self, shape: tuple[int, ...], dtype: Any, device: Any) -> Tensor:
        """Return random data in place of a received message."""
        key = shape, dtype, str(device)
        if key not in self._messages:
            torch = import_torch()
            self._messages[key] = torch.randn(shape, dtype=torch.float32, device=device).to(dtype)
        return self._messages[key]


@dataclass(frozen=True)
class HostLanding:
    """A message received in host memory, and copied to its destination by ``wait``."""

    work: Any
    host: Tensor
    target: Tensor

    def wait(self) -> None:
        """Wait for the message, and copy it to its destination."""
        self.work.wait()
        self.target.copy_(self.host)


def needs_host_copy(group: Any, tensor: Tensor) -> bool:
    """Return whether a tensor can only be sent from host memory: gloo supports nothing else point to point."""
    return bool(tensor.is_cuda) and import_torch().distributed.get_backend(group) == "gloo"


def begin_transfers(
    group: Any, send: Tensor | None, send_to: int | None, receive: Tensor | None, receive_from: int | None
) -> list[Any]:
    """Start sending and receiving, where there are peers; return the works to wait for."""
    dist = import_torch().distributed
    operations, host = [], None
    if send_to is not None and send is not None:
        staged = send.to("cpu", copy=True) if needs_host_copy(group, send) else send
        operations.append(dist.P2POp(dist.isend, staged, group=group, group_peer=send_to))
    if receive_from is not None and receive is not None:
        host = receive.new_empty(receive.shape, device="cpu") if needs_host_copy(group, receive) else None
        landing = receive if host is None else host
        operations.append(dist.P2POp(dist.irecv, landing, group=group, group_peer=receive_from))
    works = list(dist.batch_isend_irecv(operations)) if operations else []
    if host is not None:
        works[-1] = HostLanding(works[-1], host, receive)
    return works


@dataclass
class Traffic:
    """The actual traffic over the group, counted as transfers are posted: bytes, and messages received."""

    keys_received: int = 0
    gradients_received: int = 0
    sent: int = 0
    messages: int = 0

    @property
    def received(self) -> int:
        """All bytes received."""
        return self.keys_received + self.gradients_received


@dataclass(frozen=True)
class RingExchange:
    """A rank's group and the steps of its ring.

    The group may be ``NoTransfers``: then the same steps run and nothing is sent.
    """

    group: Any
    steps: tuple[RingStep, ...]
    parts: tuple[BranchPart, ...]
    traffic: Traffic = field(default_factory=Traffic)

    def parts_of(self, step: RingStep) -> Sequence[BranchPart]:
        """Return the parts that a step works on."""
        return [part for part in self.parts if part.branch == step.branch]

    def post(
        self, send: Tensor | None, send_to: int | None, receive: Tensor | None, receive_from: int | None
    ) -> list[Any]:
        """Start sending and receiving, where there are peers; return the works to wait for."""
        if self.sends_nothing:
            return []
        if send_to is not None and send is not None:
            self.traffic.sent += send.nbytes
        return begin_transfers(self.group, send, send_to, receive, receive_from)

    def receive_buffer(self, step: RingStep, like: Tensor, dtype: Any) -> Tensor:
        """Return the buffer for a step's message; ``like`` is keys, or their gradients, of a whole shard."""
        shape = self.shape(step, like)
        if isinstance(self.group, NoTransfers):
            return self.group.arrived(shape, dtype, like.device)
        self.traffic.messages += 1
        return like.new_empty(shape, dtype=dtype)

    def shape(self, step: RingStep, like: Tensor) -> tuple[int, ...]:
        """Return the shape of a step's messages."""
        batch, length, heads, _, dim = like.shape
        return 2, batch, length // self.parts_of(step)[0].rate, heads, dim

    @property
    def sends_nothing(self) -> bool:
        """Whether nothing is sent."""
        return isinstance(self.group, NoTransfers)


class KeyArrivals:
    """Iterates over the steps with their received keys and values; the first transfers start at once."""

    def __init__(self, exchange: RingExchange, k: Tensor, v: Tensor) -> None:
        self._exchange, self._k, self._v = exchange, k, v
        self._held: Tensor | None = None
        self._onward: Tensor | None = None  # kept alive while it is being sent
        self._incoming: Tensor | None = None
        self._works: list[Any] = []
        self._post(0)

    def __iter__(self) -> Iterator[tuple[RingStep, Tensor | None]]:
        for number, step in enumerate(self._exchange.steps):
            wait_for_transfers(self._works)
            self._held = self._incoming
            self._post(number + 1)
            yield step, self._held

    def _post(self, number: int) -> None:
        """Start the transfers of a step: pass on the held keys, or in a branch's first step the rank's own."""
        self._works, self._incoming, exchange = [], None, self._exchange
        if number == len(exchange.steps):
            return
        step = exchange.steps[number]
        self._onward = self._own(step) if step.number == 1 else self._held
        if step.receive_from is not None:
            self._incoming = exchange.receive_buffer(step, self._k, self._k.dtype)
            if not exchange.sends_nothing:
                exchange.traffic.keys_received += self._incoming.nbytes
        self._works = exchange.post(self._onward, step.send_to, self._incoming, step.receive_from)

    def _own(self, step: RingStep) -> Tensor | None:
        """Return the rank's own keys and values of a branch, packed; null where they are not sent."""
        if step.send_to is None or self._exchange.sends_nothing:
            return None
        packed: Tensor = self._k.new_empty(self._exchange.shape(step, self._k))
        for part in self._exchange.parts_of(step):
            for slot, x in zip(packed, (self._k, self._v), strict=True):
                packed_part_view(slot, part).copy_(part_view(x, part))
        return packed


class GradientReturns:
    """Sends gradients of keys and values to their owners; received ones are added one step later."""

    def __init__(self, exchange: RingExchange, dk: Tensor, dv: Tensor, dtype: Any) -> None:
        self._exchange, self._totals, self._dtype = exchange, (dk, dv), dtype
        self._step: RingStep | None = None
        self._sending: Tensor | None = None
        self._received: Tensor | None = None
        self._works: list[Any] = []

    def swap(self, step: RingStep, gradients: Tensor | None) -> None:
        """Send the owner its gradients, and start receiving those of this rank."""
        self.finish()
        self._step, self._sending = step, gradients
        if step.helper is not None:
            self._received = self._exchange.receive_buffer(step, self._totals[0], self._dtype)
            if not self._exchange.sends_nothing:
                self._exchange.traffic.gradients_received += self._received.nbytes
        self._works = self._exchange.post(gradients, step.owner, self._received, step.helper)

    def finish(self) -> None:
        """Wait for the last transfers, and add them to the sums."""
        wait_for_transfers(self._works)
        if self._step is not None and self._received is not None:
            self.accumulate(self._step, self._received)
        self._step, self._sending, self._received, self._works = None, None, None, []

    def accumulate(self, step: RingStep, received: Tensor) -> None:
        """Add received gradients to the sums."""
        for part in self._exchange.parts_of(step):
            for total, slot in zip(self._totals, received, strict=True):
                part_view(total, part).add_(packed_part_view(slot, part))


def wait_for_transfers(works: list[Any]) -> None:
    """Wait for transfers; on a GPU it is the stream that waits."""
    for work in works:
        work.wait()
