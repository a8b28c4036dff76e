"""The reference of dilated attention, in float64 and by another method.

Also the errors of plain attention to compare with.

Merging branches by their log-sum-exp equals one softmax in which a pair of positions counts as often as branches join
it: softmax(Q·Kᵀ/√d + log M)·V, M whole numbers. Gradients are autograd's. Tensors are (batch, sequence, heads, dim).
Half precision is held to the error of plain attention in the same dtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.workloads.dilated_attention.schedule import AttentionHeads
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.workloads.dilated_attention.schedule import DilationSchedule
    from assay.workloads.torch_device import Tensor


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


MAX_POSITIONS = 1024
"""Over more keys the error of plain attention is much the same."""


@dataclass
class RelativeErrors:
    """Squares of what is wrong and of what is right, summed up for output and gradients each."""

    error_squares: list[float] = field(default_factory=list)
    reference_squares: list[float] = field(default_factory=list)

    def add(self, outputs: Sequence[Tensor], right: Sequence[Tensor]) -> None:
        """Add a part of output and gradients, and what they must be."""
        self.error_squares = self.error_squares or [0.0] * len(right)
        self.reference_squares = self.reference_squares or [0.0] * len(right)
        for index, (output, expected) in enumerate(zip(outputs, right, strict=True)):
            self.error_squares[index] += float((output.detach().double() - expected).square().sum())
            self.reference_squares[index] += float(expected.square().sum())

    def relative(self) -> list[float]:
        """Return ‖found − right‖ / ‖right‖ of each; infinite where nothing, or no number, is to be held against."""
        errors = [
            math.sqrt(wrong / right) if right > 0 else 0.0 if wrong == 0 else math.inf
            for wrong, right in zip(self.error_squares, self.reference_squares, strict=True)
        ]
        return [error if math.isfinite(error) else math.inf for error in errors]


def plain_attention_errors(tensors: Sequence[Tensor], *, causal: bool) -> list[float]:
    """Return the errors of plain attention, and of its gradients where one of the output is given.

    Tensors are (batch, sequence, heads, dim), as many positions of which as ``MOST_POSITIONS`` are used.
    """
    errors = RelativeErrors()
    few = [x[:, :MAX_POSITIONS] for x in tensors]
    errors.add(_plain_attention(few, causal=causal), _plain_attention([x.double() for x in few], causal=causal))
    return errors.relative()


def _plain_attention(tensors: Sequence[Tensor], *, causal: bool) -> tuple[Tensor, ...]:
    torch = import_torch()
    q, k, v, *gradient = (x.detach().transpose(1, 2) for x in tensors)
    inputs = [x.requires_grad_(bool(gradient)) for x in (q, k, v)]
    with torch.enable_grad():
        out = torch.nn.functional.scaled_dot_product_attention(
            *inputs, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
        )
        gradients = torch.autograd.grad(out, inputs, gradient[0]) if gradient else ()
    return (out.detach(), *gradients)
