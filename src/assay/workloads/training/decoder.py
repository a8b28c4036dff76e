"""A decoder like GPT-2's, small enough to read. This module imports PyTorch: only functions import it.

tokens ─ embedding + position ─┬─ norm ─ attention ─ + ─┬─ norm ─ 4× wide, GELU ─ + ─ … ─ norm ─ embeddingᵀ ─ next
                               └────────────────────────┴──────────────────────────┘   token
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from assay.workloads.torch_device import Tensor
    from assay.workloads.training.costs import Decoder

DEVIATION = 0.02
"""Standard deviation of the weights at the start."""


class Attention(nn.Module):  # type: ignore[misc]  # PyTorch is not there for the type checker
    """Attention of every position to itself and those before it. It has no weights, and is checked all the same."""

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


class Layer(nn.Module):  # type: ignore[misc]  # as above
    """Attention to what came before, then two products with a GELU between them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attend = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 3 * width), Attention(heads), nn.Linear(width, width)
        )
        self.think = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, sequence, width) after the layer."""
        x = x + self.attend(x)
        return x + self.think(x)


class GptLike(nn.Module):  # type: ignore[misc]  # as above
    """The whole decoder; the embedding of tokens also says which comes next."""

    def __init__(self, shape: Decoder) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.sequence, shape.width)
        self.layers = nn.Sequential(*(Layer(shape.width, shape.heads) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        self.next = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.next.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=DEVIATION)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return what speaks for each token of the vocabulary to come next, as rows for all positions."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.layers(self.tokens(tokens) + self.positions(positions))
        return self.next(self.norm(x)).flatten(0, 1)
