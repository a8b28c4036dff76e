"""A KV cache at fixed addresses, and attention of one token per sequence over it.

    columns   0 1 2 3 4 5 6 7 8 … length-1
    prompt    █ █ █ █ █ · · · ·            written at once
    step                ▲ slot             one column, for all layers; each step advances it

Only functions import this module: PyTorch and transformers need not be installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.cache_utils import Cache, StaticCache, StaticLayer

if TYPE_CHECKING:
    from assay.workloads.torch_device import Tensor


class ColumnCacheLayer(StaticLayer):  # type: ignore[misc]  # the type checker does not see transformers
    """One layer's keys and values; the column to write is a tensor shared by all layers.

    The prefill works as with a growing cache: attention gets the prompt's own keys and values, and no empty columns.
    """

    def __init__(self, length: int, slot: Tensor) -> None:
        super().__init__(max_cache_len=length)
        self.slot = slot

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the memory from the shape of the first keys and values."""
        batch, heads = key_states.shape[:2]
        self.dtype, self.device = key_states.dtype, key_states.device
        self.batch_size, self.num_heads = batch, heads
        self.k_head_dim, self.v_head_dim = key_states.shape[-1], value_states.shape[-1]
        self.keys = key_states.new_zeros((batch, heads, self.max_cache_len, self.k_head_dim))
        self.values = value_states.new_zeros((batch, heads, self.max_cache_len, self.v_head_dim))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write a prompt from the first column on, or one token at the slot; return the keys and values to attend."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        count = key_states.shape[-2]
        if count > 1:
            self.keys[:, :, :count].copy_(key_states)
            self.values[:, :, :count].copy_(value_states)
            return key_states, value_states
        self.keys.index_copy_(2, self.slot, key_states)
        self.values.index_copy_(2, self.slot, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of columns that attention sees, and the first of them."""
        return (query_length if query_length > 1 else self.max_cache_len), 0

    def get_seq_length(self) -> int:
        """Return 0, the number of tokens before the prompt, which always comes first."""
        return 0


def make_static_cache(config: Any, length: int, device: Any) -> tuple[Cache, Tensor] | None:
    """Return a cache of ``length`` columns and its slot; null for a model whose layers do not keep every token."""
    kinds = StaticCache(config=config, max_cache_len=length).layers
    if any(type(layer) is not StaticLayer for layer in kinds):
        return None
    slot = torch.zeros(1, dtype=torch.long, device=device)
    return Cache(layers=[ColumnCacheLayer(length, slot) for _ in kinds]), slot


def one_layer_cache(cache: Cache, index: int) -> Cache:
    """Return a cache with a single layer of another one."""
    return Cache(layers=[cache.layers[index]])


def grouped_attention(
    _module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    *,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return the attention of one token per sequence: heads that share keys are the rows of one small product.

    With a mask, transformers copies shared keys and values for each of their heads before PyTorch's attention, which
    for a large batch moves more bytes than the weights have.
    """
    batch, heads, _one, width = query.shape
    shared = key.shape[1]
    rows = query.reshape(batch, shared, heads // shared, width)
    output = scaled_dot_product_attention(rows, key, value, attn_mask=attention_mask, scale=scaling)
    return output.reshape(batch, 1, heads, value.shape[-1]), None
