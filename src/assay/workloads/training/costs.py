"""What a training step costs by its shape: floating-point operations and weights. Pure.

Only products are counted, as is usual: what normalisation, activations, the softmax, the loss and the optimizer take
is left out. Backward makes two products for each one forward, one for the gradient of the weights and one for that of
the input; a network's own input needs none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from assay.core.errors import BadInput
from assay.workloads.parameters import size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assay.core.values import Params

STEM = 64
BLOCKS = (3, 4, 6, 3)
WIDTHS = (64, 128, 256, 512)
EXPANSION = 4
"""A bottleneck gives this many times as many channels as it is wide."""

CLASSES = 1000
RESNET50_WEIGHTS = 25_557_032
"""The published number of weights, which every definition of ResNet-50 with a thousand classes has."""

SMALLEST_IMAGE = 32
"""Pixels a side; the last stage of ResNet-50 sees a thirty-second of it."""


def resnet_flop(
    batch: int, pixels: int, counts: Sequence[int] = BLOCKS, widths: Sequence[int] = WIDTHS, classes: int = CLASSES
) -> float:
    """Return the operations of one step on square images of so many pixels a side, of ResNet-50 v1.5 unless told."""
    convolutions = list(_convolutions(pixels, counts, widths))
    forward = sum(convolutions) + 2.0 * widths[-1] * EXPANSION * classes
    return batch * (3 * forward - convolutions[0])


def _convolutions(pixels: int, counts: Sequence[int], widths: Sequence[int]) -> Iterator[float]:
    """Yield the operations of each convolution for one image, forward; the first is the stem's."""
    side = _halved(pixels)
    yield _convolution(3, STEM, 7, side)
    side, before = _halved(side), STEM
    for stage, (count, width) in enumerate(zip(counts, widths, strict=True)):
        after = width * EXPANSION
        for block in range(count):
            outer, side = side, _halved(side) if stage > 0 and block == 0 else side
            yield _convolution(before, width, 1, outer)
            yield _convolution(width, width, 3, side)
            yield _convolution(width, after, 1, side)
            if block == 0:
                yield _convolution(before, after, 1, side)
            before = after


def _convolution(before: int, after: int, kernel: int, side: int) -> float:
    return 2.0 * before * after * kernel**2 * side**2


def _halved(side: int) -> int:
    """Return the side after a stride of two, padded so that nothing is lost."""
    return (side + 1) // 2


@dataclass(frozen=True)
class Decoder:
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
        shape = cls(*(size(params, name) for name in names))
        if shape.width % shape.heads:
            raise BadInput(f"width is a multiple of heads, and {shape.width} is none of {shape.heads}.")
        return shape

    @property
    def weights(self) -> int:
        """How many weights: embeddings of tokens and positions, layers of 12·width² and 13·width, the last norm."""
        w = self.width
        return (self.vocabulary + self.sequence) * w + self.layers * (12 * w * w + 13 * w) + 2 * w

    @property
    def flop(self) -> float:
        """Operations of one step: three times the products forward, of which attention uses s·(s+1)/2 pairs."""
        w, s = self.width, self.sequence
        products = 2.0 * s * (self.layers * 12 * w * w + self.vocabulary * w)
        attention = 4.0 * self.layers * w * (s * (s + 1) // 2)
        return 3.0 * self.batch * (products + attention)
