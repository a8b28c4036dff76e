"""Lay the counters of one run over the kernels of another: the same calls launch the same kernels in the same order."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from assay.monitor.kernels.ncu import columns_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.monitor.kernels.ncu import Counted
    from assay.monitor.kernels.rows import Kernel

_UNNAMED = re.compile(r"\(anonymous namespace\)::|<?unnamed>::")
"""How tools write a namespace without a name; ncu loses the first bracket of its own."""


def with_counters(
    kernels: Sequence[Kernel], counted: Sequence[Counted], link_bytes_per_s: float | None
) -> tuple[list[Kernel], int]:
    """Return the rows with the counters that are theirs, and how many rows have some.

    Where one run shows the kernels of the other in order, each gets its own, as far as they go. Otherwise a name that
    both show equally often is taken in order, and one that they do not gets none.
    """
    launched = sorted((k for k in kernels if k.kind == "kernel"), key=lambda k: (k.correlation or 0, k.index))
    pairs = dict(_pairs([plain_name(k.name) for k in launched], [plain_name(c.name) for c in counted]))
    updates = {
        launched[position].index: columns_of(counted[other], link_bytes_per_s) for position, other in pairs.items()
    }
    rows = [k.model_copy(update=updates[k.index]) if k.index in updates else k for k in kernels]
    return rows, len(updates)


def _pairs(ours: Sequence[str], theirs: Sequence[str]) -> Iterable[tuple[int, int]]:
    """Give the places that belong together."""
    if theirs and ours[: len(theirs)] == theirs[: len(ours)]:
        return zip(range(len(ours)), range(len(theirs)), strict=False)
    often, there = Counter(ours), Counter(theirs)
    alike = {name for name, count in often.items() if there[name] == count}
    return zip(
        (index for name in alike for index in _places(ours, name)),
        (index for name in alike for index in _places(theirs, name)),
        strict=True,
    )


def _places(names: Sequence[str], name: str) -> list[int]:
    return [index for index, other in enumerate(names) if other == name]


def plain_name(name: str) -> str:
    """Return a kernel's bare name, without namespaces, template arguments and parameters: tools differ in those."""
    text = _without_templates(_UNNAMED.sub("", name))
    head = text.partition("(")[0].strip()
    return head.split()[-1].rpartition("::")[2] if head else name


def _without_templates(name: str) -> str:
    outside: list[str] = []
    depth = 0
    for letter in name:
        depth += letter == "<"
        if depth == 0:
            outside.append(letter)
        depth -= letter == ">" and depth > 0
    return "".join(outside)
