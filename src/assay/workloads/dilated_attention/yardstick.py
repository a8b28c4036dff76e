"""How far tensors are from float64, and how far plain attention of their dtype is: what half precision is held to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.workloads.torch_device import Tensor

MOST_POSITIONS = 1024
"""Over more keys the error of plain attention is much the same."""


@dataclass
class Errors:
    """Squares of what is wrong and of what is right, summed up for output and gradients each."""

    wrong: list[float] = field(default_factory=list)
    right: list[float] = field(default_factory=list)

    def add(self, found: Sequence[Tensor], right: Sequence[Tensor]) -> None:
        """Add a part of output and gradients, and what they must be."""
        self.wrong = self.wrong or [0.0] * len(right)
        self.right = self.right or [0.0] * len(right)
        for index, (output, expected) in enumerate(zip(found, right, strict=True)):
            self.wrong[index] += float((output.detach().double() - expected).square().sum())
            self.right[index] += float(expected.square().sum())

    def relative(self) -> list[float]:
        """Return ‖found − right‖ / ‖right‖ of each; infinite where nothing, or no number, is to be held against."""
        errors = [
            math.sqrt(wrong / right) if right > 0 else 0.0 if wrong == 0 else math.inf
            for wrong, right in zip(self.wrong, self.right, strict=True)
        ]
        return [error if math.isfinite(error) else math.inf for error in errors]


def plain_errors(given: Sequence[Tensor], *, causal: bool) -> list[float]:
    """Return the errors of plain attention, and of its gradients where one of the output is given.

    Tensors are (batch, sequence, heads, dim), as many positions of which as ``MOST_POSITIONS`` are used.
    """
    errors = Errors()
    few = [x[:, :MOST_POSITIONS] for x in given]
    errors.add(_plain(few, causal=causal), _plain([x.double() for x in few], causal=causal))
    return errors.relative()


def _plain(given: Sequence[Tensor], *, causal: bool) -> tuple[Tensor, ...]:
    torch = import_torch()
    q, k, v, *gradient = (x.detach().transpose(1, 2) for x in given)
    inputs = [x.requires_grad_(bool(gradient)) for x in (q, k, v)]
    with torch.enable_grad():
        out = torch.nn.functional.scaled_dot_product_attention(
            *inputs, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
        )
        gradients = torch.autograd.grad(out, inputs, gradient[0]) if gradient else ()
    return (out.detach(), *gradients)
