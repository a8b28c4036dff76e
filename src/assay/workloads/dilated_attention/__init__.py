"""Dilated attention, on one device and over ranks: exact forward and backward, as functions and as modules.

Names are loaded when first used; ``DilatedAttention`` and ``RingDilatedAttention`` import PyTorch then.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.workloads.dilated_attention.exchange import Traffic
    from assay.workloads.dilated_attention.functional import barrier, dilated_attention, ring_dilated_attention
    from assay.workloads.dilated_attention.modules import DilatedAttention, RingDilatedAttention

__all__ = [
    "DilatedAttention",
    "RingDilatedAttention",
    "Traffic",
    "barrier",
    "dilated_attention",
    "ring_dilated_attention",
]

_MODULES = {
    "DilatedAttention": "modules",
    "RingDilatedAttention": "modules",
    "Traffic": "exchange",
    "dilated_attention": "functional",
    "barrier": "functional",
    "ring_dilated_attention": "functional",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
