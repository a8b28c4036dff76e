"""Attention of one token a sequence, as steps of decoding need it. Only functions import this file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from assay.workloads.torch_device import Tensor


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
    """Return what one token a sequence sees: heads that share keys are the rows of one small product.

    With a mask, transformers has shared keys and values copied for each of their heads before PyTorch's attention,
    which for a large batch reads and writes more than the weights are.
    """
    batch, heads, _one, width = query.shape
    shared = key.shape[1]
    rows = query.reshape(batch, shared, heads // shared, width)
    output = scaled_dot_product_attention(rows, key, value, attn_mask=attention_mask, scale=scaling)
    return output.reshape(batch, 1, heads, value.shape[-1]), None
