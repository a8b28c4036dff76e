"""How long a branch is for the query that sees the most, and the cells that thresholds are looked for in.

A threshold of a branch is a length: from it on the flash path is used.

    sliding       the most keys a query sees: max over t of min(window, t + 1)
    compressed    the compressed tokens the last query sees: 0 if S < block, else ⌊(S − block) / stride⌋ + 1
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.workloads.parameters import size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.values import Params

SLIDING, COMPRESSED = "sliding_attention", "compressed_attention"


def sliding_length(sequence: int, window: int) -> int:
    """Return the most keys that a query of a sequence sees through a window."""
    return min(window, sequence)


def compressed_length(sequence: int, block: int, stride: int) -> int:
    """Return how many compressed tokens the last query of a sequence sees: those whose blocks are over."""
    return 0 if sequence < block else (sequence - block) // stride + 1


def effective_length(params: Params) -> int:
    """Return the length of the branch that has these parameters: of the sliding one where there is a window."""
    if "window" in params:
        return sliding_length(size(params, "sequence"), size(params, "window"))
    if "block" in params and "stride" in params:
        return compressed_length(*(size(params, name) for name in ("sequence", "block", "stride")))
    raise BadInput(f"Neither a window nor a block and a stride are among {', '.join(params) or 'no parameters'}.")


def _sliding(sequences: Sequence[int], windows: Sequence[int]) -> tuple[Params, ...]:
    cells = [(s, w) for s, w in product(sequences, windows) if w <= s]
    return tuple({**_HEADS, "sequence": s, "window": w} for s, w in cells)


def _compressed(sequences: Sequence[int]) -> tuple[Params, ...]:
    return tuple({**_HEADS, "sequence": s, "block": 32, "stride": 16} for s in sequences)


_HEADS: Params = {"batch": 1, "groups": 2, "heads": 2, "head_dim": 64}

GRIDS: Mapping[str, Mapping[str, tuple[Params, ...]]] = {
    "older": {
        SLIDING: _sliding((256, 512, 1024), (32, 64, 128, 256)),
        COMPRESSED: _compressed((256, 512, 1024)),
    },
    "long": {
        SLIDING: _sliding(tuple(4**n for n in range(4, 9)), tuple(2**n for n in range(5, 13))),
        COMPRESSED: _compressed(tuple(2**n for n in range(8, 17))),
    },
}
"""Cells of each branch by the grid's name: that of the older tool, and one with sequences of up to 65,536."""
