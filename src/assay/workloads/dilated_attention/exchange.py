"""Keys, values and their gradients on their way between ranks, point to point, while the ranks compute.

A message is (2, batch, kept position, key head, dim): of keys and values, only what the branch keeps of a shard. What
the next step needs is under way before the current one is computed, so that at most three messages of keys are held.
All ranks post in the same order, which is what keeps point-to-point calls from waiting for each other for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from assay.workloads.dilated_attention import transport
from assay.workloads.dilated_attention.merge import packed_view, view
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assay.workloads.dilated_attention.plan import Part
    from assay.workloads.dilated_attention.steps import Step
    from assay.workloads.torch_device import Tensor


@dataclass
class Traffic:
    """What really went over the group, counted as transfers are posted: bytes, and how many messages came."""

    keys_received: int = 0
    gradients_received: int = 0
    sent: int = 0
    messages: int = 0

    @property
    def received(self) -> int:
        """All bytes that came."""
        return self.keys_received + self.gradients_received


@dataclass(frozen=True)
class Exchange:
    """A rank's way to the others of its ring, and the steps it takes with them.

    The group may be ``transport.Still``: then the same steps are taken and nothing is sent.
    """

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
        if self.still:
            return []
        if send_to is not None and send is not None:
            self.traffic.sent += send.nbytes
        return transport.begin(self.group, send, send_to, receive, receive_from)

    def place_for(self, step: Step, like: Tensor, dtype: Any) -> Tensor:
        """Return where a step's message is received; ``like`` is keys, or their gradients, of a whole shard."""
        shape = self.shape(step, like)
        if isinstance(self.group, transport.Still):
            return self.group.arrived(shape, dtype, like.device)
        self.traffic.messages += 1
        return import_torch().empty(shape, dtype=dtype, device=like.device)

    def shape(self, step: Step, like: Tensor) -> tuple[int, ...]:
        """Return the shape of a step's messages."""
        batch, length, heads, _, dim = like.shape
        return 2, batch, length // self.parts_of(step)[0].rate, heads, dim

    @property
    def still(self) -> bool:
        """Whether nothing is sent."""
        return isinstance(self.group, transport.Still)


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
        step = self._exchange.steps[number]
        self._onward = self._own(step) if step.number == 1 else self._held
        if step.receive_from is not None:
            self._incoming = self._exchange.place_for(step, self._k, self._k.dtype)
            if not self._exchange.still:
                self._exchange.traffic.keys_received += self._incoming.nbytes
        self._works = self._exchange.post(self._onward, step.send_to, self._incoming, step.receive_from)

    def _own(self, step: Step) -> Tensor | None:
        if step.send_to is None or self._exchange.still:
            return None
        shape = self._exchange.shape(step, self._k)
        packed = import_torch().empty(shape, dtype=self._k.dtype, device=self._k.device)
        for part in self._exchange.parts_of(step):
            for slot, x in zip(packed, (self._k, self._v), strict=True):
                packed_view(slot, part).copy_(view(x, part))
        return packed


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
            self._received = self._exchange.place_for(step, self._sums[0], self._dtype)
            if not self._exchange.still:
                self._exchange.traffic.gradients_received += self._received.nbytes
        self._works = self._exchange.post(found, step.owner, self._received, step.helper)

    def finish(self) -> None:
        """Wait for what is under way, and add it to the sums."""
        wait(self._works)
        if self._step is not None and self._received is not None:
            self.take_in(self._step, self._received)
        self._step, self._found, self._received, self._works = None, None, None, []

    def take_in(self, step: Step, received: Tensor) -> None:
        """Add what came to the sums."""
        for part in self._exchange.parts_of(step):
            for total, slot in zip(self._sums, received, strict=True):
                view(total, part).add_(packed_view(slot, part))


def wait(works: list[Any]) -> None:
    """Wait for transfers; on a GPU it is the stream that waits."""
    for work in works:
        work.wait()
