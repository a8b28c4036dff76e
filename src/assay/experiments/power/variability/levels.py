"""Where the variance of a call's time comes from: racks, hosts, GPUs, runs, repeats, restarts, calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.experiments.power.variability.measures import without_cases
from assay.stats.components import components

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.experiments.power.variability.fleet import Fleet
    from assay.stats.components import Component

    Codes = NDArray[np.intp]

NAMES = ("racks", "hosts", "GPUs", "runs", "repeats", "restarts", "calls")


def levels_of(fleet: Fleet, without: frozenset[int] = frozenset()) -> tuple[Component, ...]:
    """Return the variance of the logarithm of a call's time that each level adds; some GPUs may be left out.

    What a case adds to all of its GPUs is taken out first. Racks that are not known are a level of one member.
    """
    gone = np.zeros(len(fleet.gpus), dtype=np.bool_)
    gone[list(without)] = True
    rows = np.flatnonzero(~gone[fleet.gpu])
    if not len(rows):
        return ()
    times = fleet.column("median_us", log=True)[rows]
    adjusted = without_cases(times, fleet.gpu[rows], fleet.case[rows])
    leaves, of_row = _leaves(fleet, rows)
    values = leaves - (times - adjusted)[of_row]
    gpu = fleet.gpu[rows][of_row]
    rack = fleet.rack if (fleet.rack >= 0).all() else np.zeros(len(fleet.gpus), dtype=np.intp)
    design = [
        ("racks", rack[gpu]),
        ("hosts", fleet.host[gpu]),
        ("GPUs", gpu),
        ("runs", fleet.run[rows][of_row]),
        ("repeats", of_row),
        ("restarts", np.arange(len(values))),
    ]
    spread = fleet.column("cv")[rows]
    finite = np.isfinite(spread)
    calls = ("calls", np.log1p(spread[finite] ** 2), _dense(fleet.gpu[rows][finite])) if finite.any() else None
    return components(values, design, calls, spent={"repeats": len(np.unique(fleet.case[rows])) - 1})


def _leaves(fleet: Fleet, rows: Codes) -> tuple[NDArray[np.float64], Codes]:
    """Return the logarithm of each restart's median, or of the row's where none are told; and the row of each."""
    medians = [_restarts(fleet.rows[row].restart_medians_us) or (fleet.rows[row].median_us,) for row in rows]
    of_row = np.repeat(np.arange(len(rows)), [len(restart_medians) for restart_medians in medians])
    return np.log(np.concatenate([np.array(restart_medians) for restart_medians in medians])), of_row


def _restarts(medians: tuple[float, ...]) -> tuple[float, ...]:
    return medians if all(0 < median < float("inf") for median in medians) else ()


def _dense(codes: Codes) -> Codes:
    return np.asarray(np.unique(codes, return_inverse=True)[1], dtype=np.intp).reshape(-1)
