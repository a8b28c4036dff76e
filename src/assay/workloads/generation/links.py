"""In which order layers go over GPUs: one that is linked to the next comes before it, as far as the links allow."""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import TYPE_CHECKING, get_args

from assay.machine.model import LinkPath

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.machine.model import Link

ALL_ORDERS_UP_TO = 8
"""Of so many GPUs every order is looked at; of more, the best next one is taken each time."""

_PATHS: tuple[str, ...] = get_args(LinkPath)
_LINKED = 1000
"""A pair with NVLinks is worth more than any without; of two such pairs the one with more of them."""


def ordered(device_ids: Sequence[int], links: Iterable[Link]) -> tuple[int, ...]:
    """Return the same GPUs so that neighbours are linked as well as can be; of equal orders the first, from that given.

    The way between two GPUs is as good as its NVLinks, and without any as what they share on PCIe.
    """
    worth = {link.gpus: _worth(link) for link in links}
    if len(device_ids) > ALL_ORDERS_UP_TO:
        return _nearest_next(device_ids, worth)
    return max(permutations(device_ids), key=lambda order: _sum(order, worth)) if device_ids else ()


def link_notes(device_ids: Sequence[int], links: Iterable[Link]) -> tuple[str, ...]:
    """Return, of neighbours in a pipeline, which are not linked, for people; nothing where no link is known."""
    link_of = {link.gpus: link for link in links}
    notes = []
    for one, other in pairwise(device_ids):
        link = link_of.get(_pair(one, other))
        if link is not None and not link.nvlinks:
            notes.append(f"GPU {one} and GPU {other} are not linked by NVLink: activations go over PCIe")
    return tuple(notes)


def _sum(order: Sequence[int], worth: dict[tuple[int, int], int]) -> int:
    return sum(worth.get(_pair(one, other), 0) for one, other in pairwise(order))


def _nearest_next(device_ids: Sequence[int], worth: dict[tuple[int, int], int]) -> tuple[int, ...]:
    order, left = [device_ids[0]], list(device_ids[1:])
    while left:
        after = max(left, key=lambda gpu: worth.get(_pair(order[-1], gpu), 0))
        left.remove(after)
        order.append(after)
    return tuple(order)


def _worth(link: Link) -> int:
    near = len(_PATHS) - _PATHS.index(link.path) if link.path is not None else 0
    return near + (_LINKED + link.nvlinks if link.nvlinks else 0)


def _pair(one: int, other: int) -> tuple[int, int]:
    return min(one, other), max(one, other)
