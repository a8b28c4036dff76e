"""Whether a training step is right: every layer for itself against float64, then the optimizer.

    input ─▶ layer ─▶ output          the layer again in float64, from the input and the gradient that it was given:
          ◀─       ◀─ gradient        its output, the gradient of its input and those of its weights must agree

A whole network in float64 would be no measure: rounding grows from layer to layer, so that of fifty layers in bfloat16
the gradient at the first has little to do with the exact one, however right every layer is. Each by itself is right to
the rounding of its precision.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.core.results import Check

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from assay.workloads.torch_device import Tensor
    from assay.workloads.training.trainer import Trainer

TOLERANCES: Mapping[str, float] = {"float32": 1e-4, "tf32": 3e-3, "bfloat16": 2e-2}
"""The largest relative error of a layer that passes, by precision. That of float32 is below what TF32 reaches."""

UPDATE_TOLERANCE = 1e-2
"""The same for how the optimizer moved the weights, which it does in float32 whatever the precision."""

MEASURE = "largest relative error of a layer's output or gradient against float64"


@dataclass
class _Seen:
    """A layer and what passed through it: what it was given, what it put out, and the gradients of both."""

    layer: Any
    given: Tensor
    out: Tensor
    of_out: Tensor | None = None
    of_given: Tensor | None = None

    def keep_of_out(self, gradient: Tensor) -> None:
        self.of_out = gradient.detach().clone()

    def keep_of_given(self, gradient: Tensor) -> None:
        self.of_given = gradient.detach().clone()


class Squares:
    """The squared difference of found from right values, and the squares of the right ones, tensor by tensor."""

    def __init__(self) -> None:
        self._difference = self._norm = 0.0

    def add(self, found: Tensor, right: Tensor) -> None:
        """Take in a tensor and what it should be."""
        self._difference += float((found.detach().double() - right).square().sum())
        self._norm += float(right.square().sum())

    @property
    def error(self) -> float:
        """The relative error; infinity where something is not finite, or should be zero throughout and is not."""
        if self._norm == 0:
            return 0.0 if self._difference == 0 else math.inf
        error = math.sqrt(self._difference / self._norm)
        return error if math.isfinite(error) else math.inf


def check(trainer: Trainer, inputs: Tensor, targets: Tensor, what: str) -> Check:
    """Make one step on these inputs, and return the error of its worst layer, or infinity where the update is wrong.

    ``what`` says what the inputs are, as ``4 images``.
    """
    records = _watched(trainer, inputs, targets)
    worst = 0.0
    right: dict[int, Tensor] = {}
    for record in records:
        worst = max(worst, _error(record, right))
    for weight in trainer.weights:
        worst = max(worst, relative_error([(weight.grad, right[id(weight)])]) if id(weight) in right else math.inf)
    right.clear()
    if not _update_error(trainer) <= UPDATE_TOLERANCE:
        worst = math.inf
    return Check(error=worst, tolerance=TOLERANCES[trainer.precision], measure=f"{MEASURE} over {what}")


def relative_error(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return ‖found − right‖ / ‖right‖ over pairs of tensors."""
    squares = Squares()
    for actual, expected in pairs:
        squares.add(actual, expected)
    return squares.error


def _watched(trainer: Trainer, inputs: Tensor, targets: Tensor) -> list[_Seen]:
    """Leave the gradients of one pass with the weights, and return what passed through each layer, in order."""
    records: list[_Seen] = []

    def before(_: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (given[0].view_as(given[0]), *given[1:])  # a name of its own, so that its gradient is of this use alone

    def after(layer: Any, given: tuple[Tensor, ...], out: Tensor) -> None:
        record = _Seen(layer, given[0], out.detach().clone())
        out.register_hook(record.keep_of_out)
        if given[0].requires_grad:
            given[0].register_hook(record.keep_of_given)
        records.append(record)

    layers = [layer for layer in trainer.model.modules() if _is_checked(layer)]
    hooks = [layer.register_forward_pre_hook(before) for layer in layers]
    hooks += [layer.register_forward_hook(after) for layer in layers]
    try:
        trainer.gradients(inputs, targets)
    finally:
        for hook in hooks:
            hook.remove()
    return records


def _is_checked(layer: Any) -> bool:
    """Return whether a layer is one by itself: it has weights of its own, or says that it is to be checked."""
    return next(layer.parameters(recurse=False), None) is not None or getattr(layer, "checked", False)


def _error(seen: _Seen, right: dict[int, Tensor]) -> float:
    """Return the error of a layer's output and of its input's gradient; add its weights' right ones to others' uses."""
    exact = copy.deepcopy(seen.layer).double()
    layer_input = seen.given.detach()
    layer_input = layer_input.double().requires_grad_() if layer_input.is_floating_point() else layer_input
    out = exact(layer_input)
    if seen.of_out is None or (seen.of_given is None) != (not seen.given.requires_grad):
        return math.inf
    out.backward(seen.of_out.double())
    for weight, other in zip(seen.layer.parameters(), exact.parameters(), strict=True):
        key = id(weight)
        right[key] = right[key] + other.grad if key in right else other.grad
    errors = [relative_error([(seen.out, out.detach())])]
    if seen.of_given is not None:
        errors.append(relative_error([(seen.of_given, layer_input.grad)]))
    return max(errors)


def _update_error(trainer: Trainer) -> float:
    """Have the optimizer move the weights, and return how far from where one in float64 moves them."""
    weights, optimizer = trainer.double()
    before = [weight.detach().clone() for weight in weights]
    for exact, weight in zip(weights, trainer.weights, strict=True):
        exact.grad = weight.grad.double()
    trainer.optimizer.step()
    optimizer.step()
    moved = [
        (w.detach().double() - b, (e - b).detach()) for w, e, b in zip(trainer.weights, weights, before, strict=True)
    ]
    return relative_error(moved)
