"""ResNet-50 v1.5, the definition that training benchmarks use. This module imports PyTorch: only functions import it.

    image ─ 7×7/2 ─ pool/2 ─┬─ 3 × (1×1, 3×3, 1×1)  64 wide ─┬─ 4 × 128 ─ 6 × 256 ─ 3 × 512 ─ mean ─ 1000 classes
                            └────────────── + ───────────────┘

Version 1.5 halves the image in a bottleneck's 3×3 convolution; version 1 did so in the 1×1 before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from assay.workloads.training.costs import BLOCKS, CLASSES, EXPANSION, STEM, WIDTHS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.workloads.torch_device import Tensor


class Bottleneck(nn.Module):  # type: ignore[misc]  # PyTorch is not there for the type checker
    """Three convolutions and what they are added to; the first of a stage also shrinks or widens that."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = width * EXPANSION
        self.body = nn.Sequential(
            *_convolution(before, width, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(width, after, 1),
        )
        same = before == after and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(before, after, 1, stride))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, channels, height, width) after the block."""
        return self.relu(self.body(x) + self.shortcut(x))


class ResNet50(nn.Module):  # type: ignore[misc]  # as above
    """Fifty layers with weights: a stem, sixteen bottlenecks, and the classes; fewer for tests."""

    def __init__(self, counts: Sequence[int] = BLOCKS, widths: Sequence[int] = WIDTHS, classes: int = CLASSES) -> None:
        super().__init__()
        blocks, before = [], STEM
        for stage, (count, width) in enumerate(zip(counts, widths, strict=True)):
            for block in range(count):
                blocks.append(Bottleneck(before, width, stride=2 if stage > 0 and block == 0 else 1))
                before = width * EXPANSION
        self.stem = nn.Sequential(*_convolution(3, STEM, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classes = nn.Linear(before, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return what speaks for each class, for every image."""
        return self.classes(self.pool(self.blocks(self.stem(images))).flatten(1))


def _convolution(before: int, after: int, side: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    """Return a convolution without bias and the normalisation that follows it, their weights drawn as He proposed."""
    convolution = nn.Conv2d(before, after, side, stride, padding=side // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution, nn.BatchNorm2d(after)
