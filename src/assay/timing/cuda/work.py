"""What a batch on a GPU consists of: a call, how often, and in which state of the caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from assay.timing.instrument import Call

Cache = Literal["cold", "warm"]
"""What the caches hold when a call begins.

``cold``: the L2 was overwritten, twice over, so that it holds dirty lines of no use to the call.
``warm``: the same call ran just before.
"""


@dataclass(frozen=True)
class Work:
    """A batch of calls.

    Attributes:
        setup: Called before each call, untimed.
        limit_s: How long to wait for the GPU before a batch is given up.
        operations: Kernels, copies and fills one after another in a call; null where that is not known.
        waits: A call waits for the GPU, so that it cannot be held back behind a gate.
    """

    call: Call
    state: Cache
    calls: int
    setup: Call | None = None
    limit_s: float = 60.0
    operations: int | None = None
    waits: bool = False

    def prepare(self) -> None:
        """Do what must be done before a call."""
        if self.setup is not None:
            self.setup()
