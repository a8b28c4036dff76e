"""Keys, values and their gradients on their way between ranks, point to point, while the ranks compute.

A message is (2, batch, kept position, key head, dim): of keys and values, only what the branch keeps of a shard. What
the next step needs is under way before the current one is computed, so that at most three messages of keys are held.
All ranks post in the same order, which is what keeps point-to-point calls from waiting for each other for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from assay.workloads.dilated_attention.merge import packed_view, view
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assay.workloads.dilated_attention.plan import Part
    from assay.workloads.dilated_attention.steps import Step
    from assay.workloads.torch_device import Tensor


@dataclass
class Traffic:
    """Bytes that really went over the group, counted as transfers are posted."""

    keys_received: int = 0
    gradients_received: int = 0
    sent: int = 0


@dataclass(frozen=True)
class Exchange:
    """A rank's way to the others of its ring, and the steps it takes with them."""

    group: Any
    steps: tuple[Step, ...]
    parts: tuple[Part, ...]
    traffic: Traffic = field(default_factory=Traffic)

    def parts_of(self, step: Step) -> Sequence[Part]:
        """Return the parts that a step works on."""
        return [part for part in self.parts if part.branch == step.branch]

    def post(
        self, send: Tensor | None, send_to: int | None, receive: Tensor | None, receive_from: int | None
    ) -> list[Any]:
        """Begin to send and to receive, where there is someone to; return what to wait for."""
        dist = import_torch().distributed
        wanted = []
        if send_to is not None and send is not None:
            wanted.append(dist.P2POp(dist.isend, send, group=self.group, group_peer=send_to))
            self.traffic.sent += send.nbytes
        if receive_from is not None:
            wanted.append(dist.P2POp(dist.irecv, receive, group=self.group, group_peer=receive_from))
        return list(dist.batch_isend_irecv(wanted)) if wanted else []


class Arrivals:
    """The steps with the keys and values that arrive for them; the first are under way as soon as this is made."""

    def __init__(self, exchange: Exchange, k: Tensor, v: Tensor) -> None:
        self._exchange, self._k, self._v = exchange, k, v
        self._held: Tensor | None = None
        self._onward: Tensor | None = None
        self._incoming: Tensor | None = None
        self._works: list[Any] = []
        self._post(0)

    def __iter__(self) -> Iterator[tuple[Step, Tensor | None]]:
        for number, step in enumerate(self._exchange.steps):
            wait(self._works)
            self._held = self._incoming
            self._post(number + 1)
            yield step, self._held

    def _post(self, number: int) -> None:
        """Begin the transfers of a step: what is held is passed on, in a branch's first step what is the rank's own."""
        self._works, self._incoming = [], None
        if number == len(self._exchange.steps):
            return
        step, traffic = self._exchange.steps[number], self._exchange.traffic
        self._onward = self._own(step) if step.number == 1 else self._held
        if step.receive_from is not None:
            self._incoming = import_torch().empty(self._shape(step), dtype=self._k.dtype, device=self._k.device)
            traffic.keys_received += self._incoming.nbytes
        self._works = self._exchange.post(self._onward, step.send_to, self._incoming, step.receive_from)

    def _own(self, step: Step) -> Tensor | None:
        if step.send_to is None:
            return None
        packed = import_torch().empty(self._shape(step), dtype=self._k.dtype, device=self._k.device)
        for part in self._exchange.parts_of(step):
            for slot, x in zip(packed, (self._k, self._v), strict=True):
                packed_view(slot, part).copy_(view(x, part))
        return packed

    def _shape(self, step: Step) -> tuple[int, ...]:
        batch, length, heads, _, dim = self._k.shape
        return 2, batch, length // self._exchange.parts_of(step)[0].rate, heads, dim


class Returns:
    """Gradients of keys and values on their way to those who own them; what comes is added one step later."""

    def __init__(self, exchange: Exchange, of_k: Tensor, of_v: Tensor, dtype: Any) -> None:
        self._exchange, self._sums, self._dtype = exchange, (of_k, of_v), dtype
        self._step: Step | None = None
        self._found: Tensor | None = None
        self._received: Tensor | None = None
        self._works: list[Any] = []

    def swap(self, step: Step, found: Tensor | None) -> None:
        """Send the owner what was found for it, and begin to receive what was found for this rank."""
        self.finish()
        self._step, self._found = step, found
        if step.helper is not None:
            self._received = self._empty(step)
            self._exchange.traffic.gradients_received += self._received.nbytes
        self._works = self._exchange.post(found, step.owner, self._received, step.helper)

    def finish(self) -> None:
        """Wait for what is under way, and add it to the sums."""
        wait(self._works)
        if self._step is not None and self._received is not None:
            for part in self._exchange.parts_of(self._step):
                for total, slot in zip(self._sums, self._received, strict=True):
                    view(total, part).add_(packed_view(slot, part))
        self._step, self._found, self._received, self._works = None, None, None, []

    def _empty(self, step: Step) -> Tensor:
        of_k = self._sums[0]
        batch, length, heads, _, dim = of_k.shape
        shape = 2, batch, length // self._exchange.parts_of(step)[0].rate, heads, dim
        return import_torch().empty(shape, dtype=self._dtype, device=of_k.device)


def wait(works: list[Any]) -> None:
    """Wait for transfers; on a GPU it is the stream that waits."""
    for work in works:
        work.wait()
