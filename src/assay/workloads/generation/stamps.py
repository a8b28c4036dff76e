"""When tokens were on the host, and what a call says of them."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.workloads.torch_device import Tensor

Extras = dict[str, float | list[float]]


class Stamps:
    """What ``generate`` hands its tokens to, each a tensor in the host's memory: it notes when they came.

    ``generate`` waits for each token on the host anyway, to see whether an answer has ended, so that to be handed them
    costs one more small copy a step, and they come when they are there. The prompt comes first.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self.at_ns: list[int] = []

    def put(self, value: Tensor) -> None:
        """Note the time."""
        self.at_ns.append(self._clock())

    def end(self) -> None:
        """Do nothing: the last token came by itself."""


def of_prefill(begin_ns: int, first_ns: int, input_tokens: int) -> Extras:
    """Return what a call says that read prompts and made their first tokens."""
    return {"first_token_us": [(first_ns - begin_ns) / 1e3], "input_tokens": float(input_tokens)}


def of_decode(at_ns: Sequence[int], batch: int) -> Extras:
    """Return what a call says that made tokens at these times, the first of which is when it set to work."""
    return {"gap_us": gaps_us(at_ns), "output_tokens": float(batch * (len(at_ns) - 1))}


def of_whole(begin_ns: int, at_ns: Sequence[int], batch: int, input_tokens: int) -> Extras:
    """Return what a call says that answered prompts with tokens at these times."""
    return {
        **of_prefill(begin_ns, at_ns[0], input_tokens),
        "gap_us": gaps_us(at_ns),
        "output_tokens": float(batch * len(at_ns)),
        "requests": float(batch),
    }


def gaps_us(at_ns: Sequence[int]) -> list[float]:
    """Return the microseconds from each time to the next."""
    return [(after - before) / 1e3 for before, after in pairwise(at_ns)]
