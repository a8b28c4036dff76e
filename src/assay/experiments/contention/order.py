"""In which order the phases of each block are measured: by lot, and balanced over blocks.

Over as many blocks as there are phases, each phase stands once in each place and follows each other once (Williams'
design), so that neither a drift over the run nor what a phase leaves behind favours one of them.
"""

from __future__ import annotations

import random
from typing import TypeVar

ItemT = TypeVar("ItemT")


def williams(n: int) -> list[list[int]]:
    """Return n rows of the numbers below n, for an even n: balanced for place and for what stands before."""
    first = [(position + 1) // 2 if position % 2 else (n - position // 2) % n for position in range(n)]
    return [[(number + row) % n for number in first] for row in range(n)]


def order_of(phases: tuple[ItemT, ...], block: int, seed: int) -> tuple[ItemT, ...]:
    """Return the phases in the order of a block, counted from 1; the same seed gives the same order."""
    rows = williams(len(phases))
    group, position = divmod(block - 1, len(rows))
    chance = random.Random(f"{seed}/{group}")  # noqa: S311 - an order is no secret
    names = list(phases)
    chance.shuffle(names)
    chance.shuffle(rows)
    return tuple(names[number] for number in rows[position])
