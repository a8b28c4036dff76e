"""How hard the aggressors really pressed: what they moved, computed and used while the victims were timed."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from assay.experiments.matrix.plan import AGGRESSOR

if TYPE_CHECKING:
    from assay.core.results import Evidence, Record
    from assay.experiments.matrix.plan import Meeting


class Intensity(NamedTuple):
    """What a load did in a second; null where it was not stated or not measured."""

    gb_s: float | None
    gflops: float | None
    cores: float | None


def intensity(evidence: Evidence) -> Intensity:
    """Return what one load process did: its calls' bytes and operations, and CPU time, over the time it was up."""
    if not evidence.load_s:
        return Intensity(None, None, None)
    facts = evidence.subjects[0] if evidence.subjects else None
    moved, flop = (facts.bytes_moved, facts.flop) if facts else (None, None)
    rate = None if evidence.load_calls is None else evidence.load_calls / evidence.load_s
    return Intensity(
        gb_s=None if moved is None or rate is None else moved * rate / 1e9,
        gflops=None if flop is None or rate is None else flop * rate / 1e9,
        cores=None if evidence.load_cpu_s is None else evidence.load_cpu_s / evidence.load_s,
    )


def mean(several: list[Intensity]) -> Intensity:
    """Return the mean of several, each number over those that have it."""
    columns = zip(*several, strict=True) if several else ((), (), ())
    present = [[value for value in column if value is not None] for column in columns]
    return Intensity(*(float(np.mean(values)) if values else None for values in present))


def intensities(pairs: list[tuple[Meeting, Record]]) -> dict[tuple[str, str], Intensity]:
    """Return how hard each aggressor pressed in each phase, over all trials it was in."""
    loads: dict[tuple[str, str], list[Intensity]] = defaultdict(list)
    for meeting, record in pairs:
        if record.status == "ok" and meeting.aggressor is not None:
            loads[meeting.aggressor, meeting.phase] += [
                intensity(evidence) for evidence in record.evidence if evidence.role == AGGRESSOR
            ]
    return {key: mean(several) for key, several in loads.items()}
