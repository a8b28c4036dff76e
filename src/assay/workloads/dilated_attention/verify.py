"""Check a rank's shard of output and gradients against float64, block by block, head by head.

Positions in different blocks of lcm(segment lengths) never interact, and neither do key heads, so that one sequence,
key head and block is checked by itself. Where checking all of them would take long, some are: of every key head at
least one, in a random sequence and block. A rank recreates what it needs of other shards from the seed.

    half precision      the worst error may be twice that of plain attention in the same dtype
    float32, float64    the worst error may be what it may be for every workload
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from assay.core.results import Check
from assay.workloads.dilated_attention.functional import dilated_attention
from assay.workloads.dilated_attention.problem import BACKWARD_FLOP, SHARD_TENSORS
from assay.workloads.dilated_attention.schedule import AttentionHeads
from assay.workloads.numpy_support import RELATIVE_ERROR, tolerance_of
from assay.workloads.torch_device import import_torch
from assay.workloads.torch_support import FLOP_PER_ELEMENT, MOST_FLOP, SquaredErrors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assay.workloads.dilated_attention.problem import DilatedAttentionProblem, ShardSource
    from assay.workloads.dilated_attention.schedule import DilationSchedule, RingPosition
    from assay.workloads.torch_device import Tensor

MAX_ERROR_RATIO = 2.0  # how often the error of plain attention half precision may have
MIN_ROUNDING = 0.1  # of a dtype's epsilon: attention of a position or two may be plain and without error

MAX_CHECK_RATIO = 20.0
"""One unit of every head may take so many times what a check may; otherwise branches are merged in float64."""

SCORES_AT_ONCE = 2**23  # 64 MiB of float64, a few of which are held


class CheckUnit(NamedTuple):
    """A unit that is checked by itself."""

    block: int
    sequence: int
    head: int


@dataclass(frozen=True)
class ShardCheck:
    """Checks one rank's results."""

    problem: DilatedAttentionProblem  # what was to be computed
    position: RingPosition  # the rank's position
    source: ShardSource  # the data of its ring
    seed: int  # selects the units

    def check(self, outputs: tuple[Tensor, ...]) -> Check:
        """Return the error of the output and of the gradients after it."""
        units = self.units
        chosen = self.choose_units(MOST_FLOP[self.source.where.partition(":")[0]])
        errors = RelativeErrors()
        for actual, expected in self._branchwise(outputs) if chosen is None else self._dense(outputs, chosen):
            errors.add(actual, expected)
        worst, most, measure = self._worst_error(errors.relative())
        if chosen is None:
            measure += ", branches merged in float64"
        elif len(chosen) < len(units):
            measure += f", over {len(chosen)} of {len(units)} blocks of heads at random (seed {self.seed})"
        if not all(bool(x.isfinite().all()) for x in outputs):
            worst = math.inf
        return Check(error=worst, tolerance=most, measure=measure)

    @property
    def units(self) -> list[CheckUnit]:
        """Return all units."""
        costs = self.problem.costs
        return [CheckUnit(b, s, h) for b in self._blocks for s in range(costs.batch) for h in range(costs.heads.keys)]

    def choose_units(self, most_flop: float) -> list[CheckUnit] | None:
        """Return the units to check within ``most_flop``, at least one per head; null where that is too much."""
        units, heads = self.units, self.problem.costs.heads.keys
        affordable = int(most_flop / self._unit_flop)
        if affordable >= len(units):
            return units
        if MAX_CHECK_RATIO * most_flop < heads * self._unit_flop:
            return None
        order = np.random.default_rng(self.seed).permutation(len(units) // heads)
        rounds = max(1, affordable // heads)
        return [units[int(index) * heads + head] for index in order[:rounds] for head in range(heads)]

    @cached_property
    def _length(self) -> int:
        return math.lcm(*(branch.segment for branch in self.problem.costs.schedule.branches))

    @property
    def _own_rows(self) -> range:
        return range(self.problem.costs.sequence)[self.position.index * self.problem.shard :][: self.problem.shard]

    @property
    def _blocks(self) -> range:
        return range(self._own_rows[0] // self._length, self._own_rows[-1] // self._length + 1)

    @property
    def _unit_flop(self) -> float:
        """Return the FLOP to check one unit: gradients of keys need the scores of all rows of a block."""
        costs, backward = self.problem.costs, self.problem.backward
        rows = self._length if backward else min(self._length, self.problem.shard)
        flop_per_pair = (4.0 * costs.dim + FLOP_PER_ELEMENT) * (1 + BACKWARD_FLOP if backward else 1)
        return rows * self._length * costs.heads.shared_by * flop_per_pair

    def _worst_error(self, errors: list[float]) -> tuple[float, float, str]:
        """Return the worst error, its tolerance, and its name."""
        if self.problem.dtype in {"float32", "float64"}:
            return max(errors), tolerance_of(self.problem.dtype), f"worst {RELATIVE_ERROR}"
        tensors = [getattr(self.source.shard(self.position.index), name)[:1] for name in self._names]
        plain = plain_attention_errors(tensors, causal=self.problem.costs.causal)
        least = import_torch().finfo(tensors[0].dtype).eps * MIN_ROUNDING
        times = max(error / max(usual, least) for error, usual in zip(errors, plain, strict=True))
        return times, MAX_ERROR_RATIO, f"worst error over that of plain attention in {self.problem.dtype}"

    @property
    def _names(self) -> tuple[str, ...]:
        return SHARD_TENSORS if self.problem.backward else SHARD_TENSORS[:3]

    def _block_data(self, block: int) -> list[Tensor]:
        """Return the data of a block, of which the rank has a part."""
        first, last = block * self._length, (block + 1) * self._length
        shard = self.problem.shard
        pieces = []
        for index in range(first // shard, (last - 1) // shard + 1):
            some = self.source.shard(index)
            rows = slice(max(first - index * shard, 0), min(last - index * shard, shard))
            pieces.append([getattr(some, name)[:, rows] for name in self._names])
        return [import_torch().cat(parts, 1) for parts in zip(*pieces, strict=True)]

    def _block_rows(self, block: int) -> tuple[slice, slice]:
        """Return the rank's own rows of a block: within the block, and within its shard."""
        first = max(self._own_rows[0], block * self._length)
        last = min(self._own_rows[-1] + 1, (block + 1) * self._length)
        base, own = block * self._length, self._own_rows[0]
        return slice(first - base, last - base), slice(first - own, last - own)

    def _dense(
        self, outputs: tuple[Tensor, ...], chosen: list[CheckUnit]
    ) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Yield what was found for each unit, and what the dense reference says."""
        for block in sorted({unit.block for unit in chosen}):
            whole = self._block_data(block)
            within, mine = self._block_rows(block)
            for unit in (unit for unit in chosen if unit.block == block):
                yield [self._select_unit(x, unit)[:, mine] for x in outputs], self._expected(whole, unit, within)

    def _select_unit(self, x: Tensor, unit: CheckUnit) -> Tensor:
        """Return a unit's sequence and heads, of queries or of keys."""
        heads = self.problem.costs.heads
        heads_per_key = x.shape[2] // heads.keys
        return x[unit.sequence : unit.sequence + 1, :, unit.head * heads_per_key : (unit.head + 1) * heads_per_key]

    def _expected(self, whole: list[Tensor], unit: CheckUnit, within: slice) -> list[Tensor]:
        torch, costs = import_torch(), self.problem.costs
        q, k, v, *gradient = (self._select_unit(x, unit) for x in whole)
        heads = SingleHead.select(costs.heads, unit.head)
        at_once = max(1, SCORES_AT_ONCE // (self._length * heads.shared_by))
        if gradient:
            right = blockwise_attention(
                q, k, v, costs.schedule, heads, gradient=gradient[0], block=at_once, causal=costs.causal
            )
            return [x[:, within] for x in right]
        attend = partial(dense_attention, q, k, v, costs.schedule, heads, causal=costs.causal)
        rows = torch.arange(within.start, within.stop, device=q.device).split(at_once)
        return [torch.cat([attend(rows=some) for some in rows], 1)]

    def _branchwise(self, outputs: tuple[Tensor, ...]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Yield what was found for each block and sequence, and what branches merged in float64 on one device say."""
        torch, costs = import_torch(), self.problem.costs
        segments = [branch.segment for branch in costs.schedule.branches]
        rates = [branch.rate for branch in costs.schedule.branches]
        for block in self._blocks:
            whole = self._block_data(block)
            within, mine = self._block_rows(block)
            for number in range(costs.batch):
                q, k, v, *gradient = (x[number : number + 1].detach().double() for x in whole)
                inputs = tuple(x.requires_grad_(bool(gradient)) for x in (q, k, v))
                with torch.enable_grad():
                    out = dilated_attention(
                        q, k, v, segments, rates, causal=costs.causal, offset=costs.heads.rule, backend="math"
                    )
                    right = (out, *(torch.autograd.grad(out, inputs, gradient[0]) if gradient else ()))
                yield [x[number : number + 1, mine] for x in outputs], [x.detach()[:, within] for x in right]


@dataclass(frozen=True)
class SingleHead(AttentionHeads):
    """One key head out of several, with the query heads that share it; its offset is the one it has among all."""

    number: int = 0
    key_heads: int = 1

    @classmethod
    def select(cls, heads: AttentionHeads, number: int) -> SingleHead:
        """Return a key head by its number."""
        return cls(heads.shared_by, 1, heads.rule, number, heads.keys)

    def offset(self, key_head: int, rate: int) -> int:
        """Return its offset."""
        return AttentionHeads(self.key_heads, self.key_heads, self.rule).offset(self.number + key_head, rate)


def multiplicity(
    schedule: DilationSchedule, heads: AttentionHeads, sequence: int, rows: Tensor, *, causal: bool
) -> Tensor:
    """Return how many branches join each of some rows to each position, as (key head, row, position) of float64."""
    torch = import_torch()
    positions = torch.arange(sequence, device=rows.device)
    count = torch.zeros(heads.keys, len(rows), sequence, dtype=torch.float64, device=rows.device)
    for branch in schedule.branches:
        together = rows[:, None] // branch.segment == positions // branch.segment
        for head in range(heads.keys):
            offset = heads.offset(head, branch.rate)
            selected = [where % branch.segment % branch.rate == offset for where in (rows, positions)]
            count[head] += together & selected[0][:, None] & selected[1]
    return count * (positions <= rows[:, None]) if causal else count


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    schedule: DilationSchedule,
    heads: AttentionHeads,
    *,
    causal: bool = False,
    key_padding_mask: Tensor | None = None,
    rows: Tensor | None = None,
) -> Tensor:
    """Return the attention of all rows, or of some, in float64; a row that no branch joins to anything is 0.

    Autograd can go through it.
    """
    torch = import_torch()
    if rows is None:
        rows = torch.arange(q.shape[1], device=q.device)
    counts = multiplicity(schedule, heads, q.shape[1], rows, causal=causal)[None, :, None]
    if key_padding_mask is not None:
        counts = counts * ~key_padding_mask[:, None, None, None, :]
    queries = q[:, rows].double().unflatten(2, (heads.keys, heads.shared_by)).permute(0, 2, 3, 1, 4)
    keys, values = (x.double().permute(0, 2, 1, 3)[:, :, None] for x in (k, v))
    scores = (queries @ keys.mT / math.sqrt(q.shape[3])).masked_fill(counts == 0, -math.inf)
    peak = scores.detach().amax(-1, keepdim=True)
    powers = counts * (scores - peak.masked_fill(peak == -math.inf, 0)).exp()
    total = powers.sum(-1, keepdim=True)
    out = powers / total.masked_fill(total == 0, 1) @ values
    return out.permute(0, 3, 1, 2, 4).flatten(2, 3)


def blockwise_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    schedule: DilationSchedule,
    heads: AttentionHeads,
    *,
    gradient: Tensor,
    block: int = 256,
    causal: bool = False,
    key_padding_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the output and, given its gradient, those of q, k and v; ``block`` rows of scores are held at a time."""
    torch = import_torch()
    keys, values = (x.detach().double().requires_grad_() for x in (k, v))
    outputs, dq = [], []
    dk, dv = torch.zeros_like(keys), torch.zeros_like(values)
    for rows in torch.arange(q.shape[1], device=q.device).split(block):
        queries = q.detach().double().requires_grad_()
        with torch.enable_grad():
            out = dense_attention(
                queries, keys, values, schedule, heads, causal=causal, key_padding_mask=key_padding_mask, rows=rows
            )
            gradients = torch.autograd.grad(out, (queries, keys, values), gradient[:, rows].double())
        outputs.append(out.detach())
        dq.append(gradients[0][:, rows])
        dk += gradients[1]
        dv += gradients[2]
    return torch.cat(outputs, 1), torch.cat(dq, 1), dk, dv


class RelativeErrors:
    """The relative errors of an output and of gradients, each summed up part by part."""

    def __init__(self) -> None:
        self._squares: list[SquaredErrors] = []

    def add(self, outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
        """Add a part of output and gradients, and what they must be."""
        self._squares = self._squares or [SquaredErrors() for _ in expected]
        for squares, output, right in zip(self._squares, outputs, expected, strict=True):
            squares.add(output, right)

    def relative(self) -> list[float]:
        """Return ‖actual − expected‖ / ‖expected‖ of each."""
        return [squares.error for squares in self._squares]


MAX_POSITIONS = 1024  # over more keys the error of plain attention is much the same


def plain_attention_errors(tensors: Sequence[Tensor], *, causal: bool) -> list[float]:
    """Return the errors of plain attention, and of its gradients where one of the output is given.

    Tensors are (batch, sequence, heads, dim), of which at most ``MAX_POSITIONS`` positions are used.
    """

    def attend(*tensors: Tensor) -> tuple[Tensor, ...]:
        torch = import_torch()
        q, k, v, *gradient = (x.detach().transpose(1, 2) for x in tensors)
        inputs = [x.requires_grad_(bool(gradient)) for x in (q, k, v)]
        shared = q.shape[1] != k.shape[1]
        with torch.enable_grad():
            out = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=causal, enable_gqa=shared)
            gradients = torch.autograd.grad(out, inputs, gradient[0]) if gradient else ()
        return (out.detach(), *gradients)

    errors, few = RelativeErrors(), [x[:, :MAX_POSITIONS] for x in tensors]
    errors.add(attend(*few), attend(*(x.double() for x in few)))
    return errors.relative()
