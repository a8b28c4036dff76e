"""The references of ``reference.py`` for tensors, some rows at a time: computed in float64 where the tensors are.

Each takes the inputs and which rows of the output are wanted, a slice or a tensor of numbers, and leaves the inputs
alone. On a GPU this is what makes checking a large problem quick.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from assay.workloads.torch_device import Tensor

Which: TypeAlias = "slice | Tensor"
"""Rows of an output: a slice, or a tensor of their numbers."""


def matmul(a: Tensor, b: Tensor, which: Which) -> Tensor:
    """Return rows of a·b, as two products of half the depth: for float64 it is not the very call that is checked."""
    rows, half = a[which].double(), b.shape[0] // 2
    return rows[:, :half] @ b[:half].double() + rows[:, half:] @ b[half:].double()


def softmax(x: Tensor, which: Which) -> Tensor:
    """Return rows of the softmax along the last axis."""
    return _softmax(x[which].double())


def rms_norm(x: Tensor, weight: Tensor, eps: float, which: Which) -> Tensor:
    """Return rows of x divided by the root of their mean square plus eps, times the weights."""
    rows = x[which].double()
    return rows * (rows.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, which: Which) -> Tensor:
    """Return rows of x with mean 0 and variance 1, but for eps, times the weights, plus the biases."""
    rows = x[which].double()
    rows = rows - rows.mean(-1, keepdim=True)
    return rows * (rows.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double() + bias.double()


def attention(q: Tensor, k: Tensor, v: Tensor, which: Which, *, causal: bool) -> Tensor:
    """Return the attention of some queries of every head, as (query, batch, head, dim).

    The inputs are (batch, head, position, dim). With ``causal`` a query sees its own position and those before it.
    """
    scores = q[:, :, which].double() @ k.double().mT / math.sqrt(q.shape[3])
    if causal:
        positions = import_torch().arange(q.shape[2], device=q.device)
        scores.masked_fill_(positions > positions[which][:, None], -math.inf)
    return (_softmax(scores) @ v.double()).permute(2, 0, 1, 3)


def _softmax(x: Tensor) -> Tensor:
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)
