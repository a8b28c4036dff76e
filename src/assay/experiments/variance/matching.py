"""Which results of two groups are of the same work.

Groups differ on purpose in when and beside whom their kernels ran: schedule, isolation and shared cores are no part of
the work. Parameters, dtype, a fixed configuration, the conditions of the timing and the model of the device are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.differences import describe, differences
from assay.store.identity import MODEL, SHARED, Detail, details_in, model_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.experiments.variance.older_format import Older

    Work = tuple[str, tuple[Detail, ...] | None]

PLACEMENT = frozenset({SHARED, "cpu_groups"})
"""Conditions that say which cores a kernel had, as the isolation does."""


def work_of(older: Older) -> Work:
    """Return what was measured: the kernel, and what must agree; null where the file does not say."""
    if older.identity is None:
        return older.kernel, None
    label = older.identity.get("workload", {}).get("workload", older.kernel)
    details = (d for d in details_in(older.identity) if d.aspect not in {"workload", "schedule", "isolation"})
    model = model_in(older.identity)
    device = () if model is None else (Detail(MODEL, MODEL, model),)
    return label, (*(detail for detail in details if detail.name not in PLACEMENT), *device)


def by_work(group: Iterable[Older]) -> dict[Work, list[Older]]:
    """Return the results of a group by what they are of, in order."""
    by_key: dict[Work, list[Older]] = {}
    for older in group:
        by_key.setdefault(work_of(older), []).append(older)
    return by_key


def not_comparable(baseline: Sequence[Older], concurrent: Sequence[Older]) -> tuple[str, ...]:
    """Say of each kernel that both groups have, but not of the same work, in what it differs."""
    first, second = by_work(baseline), by_work(concurrent)
    lone = [work for work in second if work not in first]
    texts: list[str] = []
    for label, details in (work for work in first if work not in second):
        others = [other for name, other in lone if name == label]
        if not others:
            continue
        if details is None or None in others:
            texts.append(f"{label}: only one of the groups records its parameters")
            continue
        candidates = [differences(details, other) for other in others if other is not None]
        texts.append(f"{label}: {describe(min(candidates, key=len))}")
    return tuple(texts)
