"""How large a square product is: as asked for, or large enough to fill a GPU; and whether the memory holds it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, MachineCannot
from assay.workloads.problems import ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.values import Scalar

FILL = "fill"
"""The word for a size that fills the device, which is known only where it runs."""

LARGEST = 2**31 - 1
"""cuBLAS counts rows and columns in 32 bits; the elements of a matrix are counted in 64."""

TILE_ROWS, TILE_COLS = 128, 256
"""What one multiprocessor computes of the result at a time, in cuBLAS's large kernels."""

TARGETS: Mapping[str, int] = {"float16": 16384, "float32": 16384, "float64": 8192}
"""About how large a product that fills a GPU is: a few to some hundred milliseconds on today's cards."""

TARGET_FEW_DOUBLES = 4096
"""The same for float64 on cards that have a double unit for every 32 or 64 others."""

FULL_DOUBLES = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})
"""Compute capabilities of the cards that multiply float64 at half or all of the rate of float32."""

ON_CPU = 512
MOST_OF_MEMORY = 0.5
"""A size that fills takes at most this share of the device's memory."""

CHECKED_AT_ONCE = 2**24
"""Elements of the second factor that are held in float64 at a time while a result is checked: 128 MiB."""

BESIDE_BYTES = 2**29
"""For what is there beside the matrices: the library's workspace, and data while it is drawn."""

_WHOLE = re.compile(r"[0-9]+")
_GIB = 2**30


@dataclass(frozen=True)
class Card:
    """What of a GPU decides which size fills it."""

    multiprocessors: int
    memory_bytes: int
    capability: tuple[int, int]


def read(value: Scalar) -> int | None:
    """Return a size as it was written, or null for the one that fills the device."""
    text = str(value).strip()
    if isinstance(value, bool) or (text != FILL and not (_WHOLE.fullmatch(text) and int(text) >= 1)):
        raise BadInput(f"n is the word {FILL} or a whole number of at least 1, not {value!r}.")
    if text == FILL:
        return None
    if int(text) > LARGEST:
        raise BadInput(f"n is at most {LARGEST}, which is as far as cuBLAS counts rows, and {text} is more.")
    return int(text)


def filling(card: Card, dtype: str) -> int:
    """Return the n whose tiles fill a card's multiprocessors in waves with the fewest left idle in the last one.

    Of the multiples of a tile within a tenth of the target the one that leaves the smallest share idle, and of equal
    ones the nearest to the target. A card with little memory gets the largest multiple that leaves enough of it.
    """
    few = dtype == "float64" and card.capability not in FULL_DOUBLES
    target = TARGET_FEW_DOUBLES if few else TARGETS[dtype]
    most = largest(int(card.memory_bytes * MOST_OF_MEMORY), dtype)
    if most < target:
        return max(TILE_COLS, most // TILE_COLS * TILE_COLS)
    near = range(target * 9 // 10 // TILE_COLS * TILE_COLS, target * 11 // 10 + 1, TILE_COLS)
    return min((n for n in near if n <= most), key=lambda n: (idle_share(n, card.multiprocessors), abs(n - target)))


def idle_share(n: int, multiprocessors: int) -> float:
    """Return which share of the multiprocessors' time is lost in the last wave of tiles."""
    tiles = -(-n // TILE_ROWS) * -(-n // TILE_COLS)
    waves = -(-tiles // multiprocessors)
    return 1 - tiles / (waves * multiprocessors)


def needed_bytes(n: int, dtype: str) -> int:
    """Return the memory that three matrices take, with what is held beside them while the result is checked."""
    wide = 2 * 8 * min(n * n, max(n, CHECKED_AT_ONCE))
    return 3 * n * n * ITEM_BYTES[dtype] + wide + (BESIDE_BYTES if n > ON_CPU else 0)


def largest(free_bytes: int, dtype: str) -> int:
    """Return the largest n whose matrices fit into so much memory; 0 where none does."""
    low, high = 0, math.isqrt(max(0, free_bytes)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed_bytes(middle, dtype) <= free_bytes else (low, middle)
    return low


def make_sure_it_fits(n: int, dtype: str, free_bytes: int, *, name: str, device: str) -> None:
    """Refuse a size that the memory does not hold, before any of it is taken."""
    needed = needed_bytes(n, dtype)
    if needed > free_bytes:
        raise MachineCannot(
            f"{name} with n = {n} needs {needed / _GIB:.1f} GiB of memory, and {free_bytes / _GIB:.1f} GiB are free "
            f"on {device}: the largest n that fits is {largest(free_bytes, dtype)}."
        )
