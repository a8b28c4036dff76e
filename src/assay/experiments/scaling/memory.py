"""What a rank's memory holds at its fullest: a model, linear in the length of its shard.

                    queries' heads         keys' heads            elements of
    inputs          q, gradient of output  k, v                   the dtype
    output          output                                        the dtype
    log-sum-exp     one to a position                             the sums
    sums            gradient of q          gradients of k and v   the sums (float32, float64 for float64)
    gradients       of q                   of k and v             the dtype
    messages                               keys and values that a step brings or takes away: a shard's, dilated
    work            a block's output, and a gradient of as many elements backward

The library's own memory (CUDA's context, workspaces, NCCL's buffers, what an allocator keeps back) is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.results import Estimate

if TYPE_CHECKING:
    from assay.workloads.dilated_attention.costs import Costs

MIB = 2**20
IN_FLIGHT = {False: 3, True: 6}
"""Messages that are held at once, forward or also backward: keys held, passed on and awaited; gradients likewise."""

METHOD = (
    "a model: tensors of a shard, their sums in float32, and messages; from what must be held to all of it at once; "
    "without the memory of CUDA's context, of workspaces, of NCCL and of what the allocator keeps back"
)


@dataclass(frozen=True)
class Held:
    """Bytes that a rank holds, by what for; all are linear in the length of its shard."""

    inputs: int
    output: int
    log_sums: int
    sums: int
    gradients: int
    messages: int
    work: int

    @property
    def least(self) -> int:
        """What is there at the end of a call whatever computes it."""
        return self.inputs + self.output + self.log_sums + self.gradients

    @property
    def peak(self) -> int:
        """What is there at the fullest moment as it is computed here: work is done before sums become gradients."""
        return self.inputs + self.output + self.log_sums + self.sums + self.messages + max(self.gradients, self.work)

    @property
    def most(self) -> int:
        """What is there where a kernel keeps sums of its own, and nothing is given back before the end."""
        return self.least + 2 * self.sums + self.messages + self.work


def held(costs: Costs, ranks: int, *, backward: bool) -> Held:
    """Return what the rank at the end of a ring holds in one call."""
    shard = costs.sequence // ranks
    queries, keys = costs.heads.queries, costs.heads.keys
    rows, wide = costs.batch * shard, max(4, costs.item_bytes)
    head, head_sums = rows * costs.dim * costs.item_bytes, rows * costs.dim * wide
    if not backward:
        inputs, sums, gradients = (queries + 2 * keys) * head, queries * head_sums, 0
    else:
        inputs = 2 * (queries + keys) * head
        sums, gradients = (queries + 2 * keys) * head_sums, (queries + 2 * keys) * head
    longer = [branch for branch in costs.ladder.branches if branch.segment > shard]
    message = max((2 * keys * head // branch.rate for branch in longer), default=0)
    return Held(
        inputs=inputs,
        output=queries * head,
        log_sums=queries * rows * wide,
        sums=sums,
        gradients=gradients,
        messages=IN_FLIGHT[backward] * message,
        work=queries * head * (2 if backward else 1),
    )


def memory_mib(costs: Costs, ranks: int, *, backward: bool) -> Estimate:
    """Return the most that a rank holds; the interval is from what must be there to what may be there at once."""
    parts = held(costs, ranks, backward=backward)
    return Estimate(
        value=parts.peak / MIB,
        low=parts.least / MIB,
        high=parts.most / MIB,
        unit="MiB",
        scope="machine",
        method=METHOD,
        n=1,
    )
