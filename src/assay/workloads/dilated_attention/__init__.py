"""Dilated attention, on one device and over ranks: exact forward and backward, as functions and as modules.

Names are loaded when first used; ``DilatedAttention`` and ``RingDilatedAttention`` import PyTorch then.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.workloads.dilated_attention.exchange import Traffic
    from assay.workloads.dilated_attention.local import dilated_attention
    from assay.workloads.dilated_attention.modules import DilatedAttention, RingDilatedAttention
    from assay.workloads.dilated_attention.ring import meet, ring_dilated_attention

__all__ = [
    "DilatedAttention",
    "RingDilatedAttention",
    "Traffic",
    "dilated_attention",
    "meet",
    "ring_dilated_attention",
]

_HOMES = {
    "DilatedAttention": "modules",
    "RingDilatedAttention": "modules",
    "Traffic": "exchange",
    "dilated_attention": "local",
    "meet": "ring",
    "ring_dilated_attention": "ring",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
