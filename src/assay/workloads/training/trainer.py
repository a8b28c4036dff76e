"""One training step, without synchronization with the device; its costs, and its check against float64.

    input ─▶ layer ─▶ output          the layer again in float64, from its actual input and output gradient:
          ◀─       ◀─ gradient        its output, the gradient of its input and those of its weights must agree

A whole network in float64 would be no reference: rounding grows from layer to layer, so that of fifty layers in
bfloat16 the gradient at the first has little to do with the exact one, however correct every layer is. Each layer by
itself is correct to the rounding of its precision. Then the optimizer's update is checked.

Costs are floating-point operations and weights, by shape. As usual only products are counted: normalization,
activations, the softmax, the loss and the optimizer are left out. Backward makes two products for each one forward, one
for the gradient of the weights and one for that of the input; a network's own input needs none.
"""

from __future__ import annotations

import copy
import math
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from assay.core.errors import BadInput, TrialFailed
from assay.core.results import Check
from assay.workloads.base import LaunchedKernels, PreparedWorkload
from assay.workloads.parameters import read_size
from assay.workloads.torch_device import Tensor, import_torch, library_of_kernels, list_kernels, synchronizer
from assay.workloads.torch_support import SquaredErrors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from assay.core.values import Params

PRECISIONS = ("float32", "tf32", "bfloat16")
"""Precision of products: float32, rounded to TF32, or bfloat16 by autocast. Weights are float32."""


class Trainer:
    """A model with its optimizer.

    Args:
        model: A ``torch.nn.Module`` on its device.
        optimizer_of: Creates an optimizer for weights.
        loss_of: Returns the mean loss of an output, given the targets.
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
        """Run forward and backward, update the weights, and return the loss before the update, on the device."""
        loss = self.gradients(inputs, targets)
        self.optimizer.step()
        return loss

    def gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the gradients of the weights, and return the loss."""
        torch = import_torch()
        self.optimizer.zero_grad(set_to_none=True)
        low = self.precision == "bfloat16"
        with tf32_rounding(tf32=self.precision == "tf32"):
            with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=low):
                loss = self._loss_of(self.model(inputs), targets)
            loss.backward()
        return loss.detach()

    def double(self) -> tuple[list[Tensor], Any]:
        """Return the weights in float64, and an optimizer for them with the same state as this one."""
        weights = [weight.detach().double().requires_grad_() for weight in self.weights]
        optimizer = self._optimizer_of(weights)
        optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        return weights, optimizer


def check_precision(precision: str, device_kind: str) -> None:
    """Refuse TF32 on devices without it."""
    if precision == "tf32" and device_kind == "cpu":
        raise BadInput("dtype tf32 is for GPUs; a CPU has no such products.")


@contextmanager
def tf32_rounding(*, tf32: bool) -> Iterator[None]:
    """Switch TF32 for products and convolutions on or off in the block; outside of it TF32 is off.

    cuDNN's older switch is set too, as PyTorch fails where the two are inconsistent.
    """
    backends = import_torch().backends

    def switch(*, on: bool) -> None:
        backends.cuda.matmul.fp32_precision = "tf32" if on else "ieee"
        backends.cudnn.allow_tf32 = on
        backends.cudnn.conv.fp32_precision = "tf32" if on else "ieee"

    switch(on=tf32)
    try:
        yield
    finally:
        switch(on=False)


@contextmanager
def seeded_init(seed: int, where: str) -> Iterator[None]:
    """Create modules of the block on a device from a seed, without affecting the global random state."""
    torch = import_torch()
    devices = [] if where == "cpu" else [torch.device(where)]
    with torch.random.fork_rng(devices=devices), torch.device(where):
        torch.manual_seed(seed)
        yield


TOLERANCES: Mapping[str, float] = {"float32": 1e-4, "tf32": 3e-3, "bfloat16": 2e-2}
"""The largest relative error of a layer that passes, by precision. That of float32 is below what TF32 reaches."""

UPDATE_TOLERANCE = 1e-2
"""The same for the optimizer's update of the weights, which is in float32 whatever the precision."""

LAYER_ERROR = "largest relative error of a layer's output or gradient against float64"


@dataclass
class _LayerRecord:
    """A layer with its inputs, its output, and the gradients of both, ``output`` and ``input``."""

    layer: Any
    input: Tensor
    output: Tensor
    gradients: dict[str, Tensor] = field(default_factory=dict)

    def keep_gradient(self, name: str, tensor: Tensor) -> None:
        """Keep the gradient of a tensor once it is known."""

        def keep(gradient: Tensor) -> None:
            self.gradients[name] = gradient.detach().clone()

        tensor.register_hook(keep)


def check_step(trainer: Trainer, inputs: Tensor, targets: Tensor, what: str) -> Check:
    """Run one step on these inputs, and return the error of its worst layer, or infinity where the update is wrong.

    ``what`` describes the inputs: ``4 images``.
    """
    right: dict[int, Tensor] = {}
    errors = [_layer_error(record, right) for record in _record_layers(trainer, inputs, targets)]
    errors += [
        relative_error([(weight.grad, right[id(weight)])]) if id(weight) in right else math.inf
        for weight in trainer.weights
    ]
    right.clear()
    worst = max(errors, default=0.0) if _update_error(trainer) <= UPDATE_TOLERANCE else math.inf
    return Check(error=worst, tolerance=TOLERANCES[trainer.precision], measure=f"{LAYER_ERROR} over {what}")


def relative_error(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return ‖actual − expected‖ / ‖expected‖ over pairs of tensors."""
    squares = SquaredErrors()
    for actual, expected in pairs:
        squares.add(actual, expected)
    return squares.error


def _record_layers(trainer: Trainer, inputs: Tensor, targets: Tensor) -> list[_LayerRecord]:
    """Compute the gradients of one pass, and return the record of each layer with weights or a flag, in order."""
    records: list[_LayerRecord] = []

    def before(_: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return inputs[0].view_as(inputs[0]), *inputs[1:]  # its own tensor, so that its gradient is of this use only

    def after(layer: Any, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        record = _LayerRecord(layer, inputs[0], out.detach().clone())
        record.keep_gradient("output", out)
        if inputs[0].requires_grad:
            record.keep_gradient("input", inputs[0])
        records.append(record)

    with ExitStack() as hooks:
        for layer in trainer.model.modules():
            if next(layer.parameters(recurse=False), None) is not None or getattr(layer, "checked", False):
                hooks.callback(layer.register_forward_pre_hook(before).remove)
                hooks.callback(layer.register_forward_hook(after).remove)
        trainer.gradients(inputs, targets)
    return records


def _layer_error(record: _LayerRecord, right: dict[int, Tensor]) -> float:
    """Return the error of a layer's output and input gradient; add its expected weight gradients to ``right``."""
    exact = copy.deepcopy(record.layer).double()
    layer_input = record.input.detach()
    layer_input = layer_input.double().requires_grad_() if layer_input.is_floating_point() else layer_input
    out = exact(layer_input)
    gradients = record.gradients
    if "output" not in gradients or ("input" in gradients) != record.input.requires_grad:
        return math.inf
    out.backward(gradients["output"].double())
    for weight, other in zip(record.layer.parameters(), exact.parameters(), strict=True):
        key = id(weight)
        right[key] = right[key] + other.grad if key in right else other.grad
    error = relative_error([(record.output, out.detach())])
    if "input" not in gradients:
        return error
    return max(error, relative_error([(gradients["input"], layer_input.grad)]))


def _update_error(trainer: Trainer) -> float:
    """Run the optimizer, and return the relative error of its update against one in float64."""
    weights, optimizer = trainer.double()
    before = [weight.detach().clone() for weight in weights]
    for exact, weight in zip(weights, trainer.weights, strict=True):
        exact.grad = weight.grad.double()
    trainer.optimizer.step()
    optimizer.step()
    updated = zip(trainer.weights, weights, before, strict=True)
    return relative_error((w.detach().double() - b, (e - b).detach()) for w, e, b in updated)


TrainingBatch: TypeAlias = tuple[Tensor, Tensor]  # the inputs and targets of a model


def prepare_step(
    trainer: Trainer,
    feed: Callable[[], TrainingBatch],
    *,
    checked: Callable[[TrainingBatch], TrainingBatch],
    what: str,
    flop: float,
    where: str,
) -> PreparedWorkload:
    """Return a step as a call; ``feed`` gives it a batch, of which the part ``checked`` is checked, and is ``what``."""

    def call() -> Tensor:
        return trainer.step(*feed())

    def ran() -> LaunchedKernels:
        """Make calls, and return the distinct kernels that one of them launched, out of hundreds."""
        kernels = tuple(dict.fromkeys(list_kernels(call, where)))
        return LaunchedKernels(kernels, library_of_kernels(kernels))

    def measured() -> Mapping[str, float]:
        loss = float(call())
        if not math.isfinite(loss):
            raise TrialFailed(f"the loss of the step is {loss}")
        return {"weights": float(sum(weight.numel() for weight in trainer.weights)), "loss": loss}

    return PreparedWorkload(
        call=call,
        check=lambda: check_step(trainer, *checked(feed()), what),
        launched_kernels=ran,
        flop=flop,
        measured=measured,
        synchronize=synchronizer(where),
    )


STEM_WIDTH = 64
STAGE_BLOCKS = (3, 4, 6, 3)
STAGE_WIDTHS = (64, 128, 256, 512)
EXPANSION = 4  # ratio of a bottleneck's output channels to its width

CLASSES = 1000
RESNET50_WEIGHTS = 25_557_032
"""The published number of weights, which every definition of ResNet-50 with a thousand classes has."""

SMALLEST_IMAGE = 32  # smallest image side in pixels; the last stage of ResNet-50 has a thirty-second of it


def resnet_flop(
    batch: int,
    pixels: int,
    counts: Sequence[int] = STAGE_BLOCKS,
    widths: Sequence[int] = STAGE_WIDTHS,
    classes: int = CLASSES,
) -> float:
    """Return the FLOP of one step on square images of ``pixels`` a side, by default of ResNet-50 v1.5."""
    convolutions = list(_convolutions_flop(pixels, counts, widths))
    forward = sum(convolutions) + 2.0 * widths[-1] * EXPANSION * classes
    return batch * (3 * forward - convolutions[0])


def _convolutions_flop(pixels: int, counts: Sequence[int], widths: Sequence[int]) -> Iterator[float]:
    """Yield the forward FLOP of each convolution for one image; the first is the stem's.

    A stride of two halves a side, rounded up.
    """

    def convolution(before: int, after: int, kernel: int, side: int) -> float:
        return 2.0 * before * after * kernel**2 * side**2

    side = (pixels + 1) // 2
    yield convolution(3, STEM_WIDTH, 7, side)
    side, before = (side + 1) // 2, STEM_WIDTH
    for stage, (count, width) in enumerate(zip(counts, widths, strict=True)):
        after = width * EXPANSION
        for block in range(count):
            outer, side = side, (side + 1) // 2 if stage > 0 and block == 0 else side
            yield convolution(before, width, 1, outer)
            yield convolution(width, width, 3, side)
            yield convolution(width, after, 1, side)
            if block == 0:
                yield convolution(before, after, 1, side)
            before = after


@dataclass(frozen=True)
class DecoderShape:
    """The shape of a decoder and of one batch of its training."""

    layers: int
    width: int
    heads: int
    sequence: int
    batch: int
    vocabulary: int

    @classmethod
    def of(cls, params: Params) -> Self:
        """Read the shape from the parameters."""
        names = ("layers", "width", "heads", "sequence", "batch", "vocabulary")
        shape = cls(*(read_size(params, name) for name in names))
        if shape.width % shape.heads:
            raise BadInput(f"width is a multiple of heads, and {shape.width} is none of {shape.heads}.")
        return shape

    @property
    def weights(self) -> int:
        """Number of weights: embeddings of tokens and positions, layers of 12·width² and 13·width, the last norm."""
        w = self.width
        return (self.vocabulary + self.sequence) * w + self.layers * (12 * w * w + 13 * w) + 2 * w

    @property
    def flop(self) -> float:
        """FLOP of one step: three times the forward products, of which attention uses s·(s+1)/2 pairs."""
        w, s = self.width, self.sequence
        products = 2.0 * s * (self.layers * 12 * w * w + self.vocabulary * w)
        attention = 4.0 * self.layers * w * (s * (s + 1) // 2)
        return 3.0 * self.batch * (products + attention)
