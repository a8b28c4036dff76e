"""One training step, queued without ever waiting for the device."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from assay.workloads.torch_device import Tensor

PRECISIONS = ("float32", "tf32", "bfloat16")
"""In what products are made: float32 as it is, rounded to TF32, or bfloat16 by autocast. Weights are float32."""


class Trainer:
    """A model with its optimizer.

    Args:
        model: A ``torch.nn.Module`` on its device.
        optimizer_of: Makes the optimizer of some weights.
        loss_of: Returns the mean loss of what a model put out, given the targets.
        precision: One of ``PRECISIONS``.
    """

    def __init__(
        self,
        model: Any,
        optimizer_of: Callable[[Sequence[Tensor]], Any],
        loss_of: Callable[[Tensor, Tensor], Tensor],
        precision: str,
    ) -> None:
        self.weights: list[Tensor] = list(model.parameters())
        self.optimizer = optimizer_of(self.weights)
        self.model, self.precision = model, precision
        self._optimizer_of, self._loss_of = optimizer_of, loss_of

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Go forward and backward, move the weights, and return the loss before that, still on the device."""
        loss = self.gradients(inputs, targets)
        self.optimizer.step()
        return loss

    def gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Leave the gradients of the loss with the weights, and return the loss."""
        torch = import_torch()
        self.optimizer.zero_grad(set_to_none=True)
        low = self.precision == "bfloat16"
        with rounding(tf32=self.precision == "tf32"):
            with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=low):
                loss = self._loss_of(self.model(inputs), targets)
            loss.backward()
        return loss.detach()

    def double(self) -> tuple[list[Tensor], Any]:
        """Return the weights in float64, and an optimizer of theirs in the same state as this one's."""
        weights = [weight.detach().double().requires_grad_() for weight in self.weights]
        optimizer = self._optimizer_of(weights)
        optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        return weights, optimizer


def check_precision(precision: str, device_kind: str) -> None:
    """Refuse to round to TF32 where no hardware does."""
    if precision == "tf32" and device_kind == "cpu":
        raise BadInput("dtype tf32 is for GPUs; a CPU has no such products.")


@contextmanager
def rounding(*, tf32: bool) -> Iterator[None]:
    """Let products and convolutions be rounded to TF32 inside the block, or not; outside of it they never are."""
    _round(tf32=tf32)
    try:
        yield
    finally:
        _round(tf32=False)


def _round(*, tf32: bool) -> None:
    """Set PyTorch's switches; cuDNN's older one too, without which PyTorch finds the two at odds and fails."""
    backends, word = import_torch().backends, "tf32" if tf32 else "ieee"
    backends.cuda.matmul.fp32_precision = word
    backends.cudnn.allow_tf32 = tf32
    backends.cudnn.conv.fp32_precision = word


@contextmanager
def drawn(seed: int, where: str) -> Iterator[None]:
    """Make what is made inside the block on a device, from a seed, and leave other random numbers as they were."""
    torch = import_torch()
    devices = [] if where == "cpu" else [torch.device(where)]
    with torch.random.fork_rng(devices=devices), torch.device(where):
        torch.manual_seed(seed)
        yield
