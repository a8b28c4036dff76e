"""The trained models: ResNet-50 v1.5 and a small GPT-2-like decoder.

Only functions import this module, as it imports PyTorch.

    image ─ 7×7/2 ─ pool/2 ─┬─ 3 × (1×1, 3×3, 1×1)  64 wide ─┬─ 4 × 128 ─ 6 × 256 ─ 3 × 512 ─ mean ─ 1000 classes
                            └────────────── + ───────────────┘

Version 1.5 halves the image in a bottleneck's 3×3 convolution; version 1 did so in the 1×1 before it.

tokens ─ embedding + position ─┬─ norm ─ attention ─ + ─┬─ norm ─ 4× wide, GELU ─ + ─ … ─ norm ─ embeddingᵀ ─ next
                               └────────────────────────┴──────────────────────────┘   token
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from assay.workloads.training.trainer import CLASSES, EXPANSION, STAGE_BLOCKS, STAGE_WIDTHS, STEM_WIDTH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.workloads.torch_device import Tensor
    from assay.workloads.training.trainer import DecoderShape


class Bottleneck(nn.Module):  # type: ignore[misc]  # the type checker does not see PyTorch
    """Three convolutions with a shortcut; the first of a stage also downsamples or widens the shortcut."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = width * EXPANSION
        self.body = nn.Sequential(
            *_conv_norm(before, width, 1),
            nn.ReLU(inplace=True),
            *_conv_norm(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_conv_norm(width, after, 1),
        )
        same = before == after and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*_conv_norm(before, after, 1, stride))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, channels, height, width) after the block."""
        return self.relu(self.body(x) + self.shortcut(x))


class ResNet50(nn.Module):  # type: ignore[misc]  # as above
    """Fifty layers with weights: a stem, sixteen bottlenecks, and the classes; fewer for tests."""

    def __init__(
        self, counts: Sequence[int] = STAGE_BLOCKS, widths: Sequence[int] = STAGE_WIDTHS, classes: int = CLASSES
    ) -> None:
        super().__init__()
        blocks, before = [], STEM_WIDTH
        for stage, (count, width) in enumerate(zip(counts, widths, strict=True)):
            for block in range(count):
                blocks.append(Bottleneck(before, width, stride=2 if stage > 0 and block == 0 else 1))
                before = width * EXPANSION
        self.stem = nn.Sequential(*_conv_norm(3, STEM_WIDTH, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classes = nn.Linear(before, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the classes for every image."""
        return self.classes(self.pool(self.blocks(self.stem(images))).flatten(1))


def _conv_norm(before: int, after: int, side: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    """Return a convolution without bias and its batch normalization, with He initialization."""
    convolution = nn.Conv2d(before, after, side, stride, padding=side // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution, nn.BatchNorm2d(after)


INIT_DEVIATION = 0.02  # standard deviation of the initial weights


class CausalSelfAttention(nn.Module):  # type: ignore[misc]  # the type checker does not see PyTorch
    """Attention of every position to itself and those before it; it is checked although it has no weights."""

    checked = True

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, sequence, width) from queries, keys and values side by side."""
        batch, sequence, three = x.shape
        by_head = (batch, sequence, self.heads, three // 3 // self.heads)
        q, k, v = (part.view(by_head).transpose(1, 2) for part in x.split(three // 3, dim=2))
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).reshape(batch, sequence, three // 3)


class DecoderLayer(nn.Module):  # type: ignore[misc]  # as above
    """Attention to what came before, then two products with a GELU between them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attend = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 3 * width), CausalSelfAttention(heads), nn.Linear(width, width)
        )
        self.think = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, sequence, width) after the layer."""
        x = x + self.attend(x)
        return x + self.think(x)


class GptLikeDecoder(nn.Module):  # type: ignore[misc]  # as above
    """The whole decoder; the token embedding is tied to the output projection."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.sequence, shape.width)
        self.layers = nn.Sequential(*(DecoderLayer(shape.width, shape.heads) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        self.next = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.next.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=INIT_DEVIATION)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token, one row per position."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.layers(self.tokens(tokens) + self.positions(positions))
        return self.next(self.norm(x)).flatten(0, 1)
