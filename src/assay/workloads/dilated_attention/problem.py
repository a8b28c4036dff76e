"""The parameters of the workload, read and looked at before anything is started."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from assay.core.errors import BadInput
from assay.workloads import triton_common
from assay.workloads.dilated_attention.blocks import BACKENDS
from assay.workloads.dilated_attention.costs import Costs
from assay.workloads.dilated_attention.plan import OFFSETS, Heads, Ladder, check_sequence
from assay.workloads.dilated_attention.steps import Seat
from assay.workloads.parameters import flag, one_of, size
from assay.workloads.problems import ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.values import Params, Scalar

DTYPES = tuple(ITEM_BYTES)
PASSES = ("forward", "total")
"""``total``: forward and backward."""

ONLY = ("all", "compute", "communication")
"""``compute``: the same plan with nothing sent. ``communication``: the same transfers with nothing computed."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "dtype": DTYPES,
    "offset": OFFSETS,
    "backend": BACKENDS,
    "passes": PASSES,
    "only": ONLY,
}
"""The words that parameters may take."""


@dataclass(frozen=True)
class Problem:
    """One call: what it costs, over how many ranks, and how much of it is done.

    Attributes:
        costs: Shapes of the whole, and what follows from them.
        ring: Ranks to a ring.
        dtype: Of all tensors.
        backend: What computes blocks.
        passes: ``forward`` or ``total``.
        only: ``all``, ``compute`` or ``communication``.
    """

    costs: Costs
    ring: int
    dtype: str
    backend: str
    passes: str
    only: str

    @classmethod
    def of(cls, params: Params) -> Self:
        """Read the problem, or say which rule it breaks."""
        schedule = Ladder.of(numbers("segments", params["segments"]), numbers("rates", params["rates"]))
        heads = Heads.of(size(params, "heads"), size(params, "key_heads"), str(params["offset"]))
        sequence, ring = size(params, "sequence"), size(params, "ring")
        check_sequence(schedule, sequence, ring)
        dtype = one_of("dtype", params["dtype"], DTYPES)
        batch, dim, causal = size(params, "batch"), size(params, "dim"), flag(params, "causal")
        problem = cls(
            costs=Costs(schedule, heads, batch, sequence, dim, ITEM_BYTES[dtype], causal),
            ring=ring,
            dtype=dtype,
            backend=one_of("backend", params["backend"], BACKENDS),
            passes=one_of("passes", params["passes"], PASSES),
            only=one_of("only", params["only"], ONLY),
        )
        if problem.only == "communication" and ring == 1:
            raise BadInput("A ring of 1 moves nothing, so there is no communication to be measured only.")
        return problem

    @property
    def backward(self) -> bool:
        """Whether gradients are computed too."""
        return self.passes == "total"

    @property
    def shard(self) -> int:
        """Positions that a rank has."""
        return self.costs.sequence // self.ring

    def seat(self, rank: int, world: int) -> Seat:
        """Return where a rank sits.

        One process alone may compute what the last place of a ring computes, the busiest under a causal mask.
        """
        if self.only == "compute" and world == 1:
            return Seat(self.ring - 1, self.ring)
        return Seat.of(rank, world, self.ring)

    def check_device(self, kind: str) -> None:
        """Refuse a backend that a kind of device does not have."""
        if kind != "cpu":
            return
        if self.backend == "cudnn":
            raise BadInput("The backend cudnn runs on a GPU, not on a CPU.")
        if self.backend == "triton" and "cpu" not in triton_common.device_kinds():
            raise BadInput("The backend triton runs on a GPU, not on cpu.")


def numbers(name: str, text: Scalar) -> tuple[int, ...]:
    """Return a list of whole numbers that is written as text, such as ``2048,4096``."""
    words = [word for word in re.split(r"[,\s]+", str(text).strip()) if word]
    if not all(re.fullmatch(r"[+-]?\d+", word) for word in words):
        raise BadInput(f"{name} is a list of whole numbers such as 2048,4096, not {text!r}.")
    return tuple(int(word) for word in words)
