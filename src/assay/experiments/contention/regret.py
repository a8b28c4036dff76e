"""What a pick costs: its time in quiet over that of the best configuration that was picked anywhere.

Configurations were timed in turns in one process. Which is the best is found in one half of the time, and how far the
others are behind in the other half: chance that makes one look best does not also make it look better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Estimate
from assay.experiments.contention.places import Place, key_of
from assay.experiments.contention.retime import bare, retiming
from assay.experiments.times import decisive
from assay.stats.intervals import CONFIDENCE, mean_interval
from assay.stats.longrun import quantile, winsorised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.core.plan import Role
    from assay.core.results import Record
    from assay.experiments.contention.effects import Table
    from assay.experiments.contention.options import ContentionOptions
    from assay.experiments.contention.places import Choice
    from assay.machine.model import Machine
    from assay.store.records import Records

    Samples = NDArray[np.float64]

PARTS = 24
"""Parts of the time that each process is cut into; configurations are compared part by part."""
FEWEST_PROCESSES = 3
"""With fewer, the interval is within processes and says so."""


@dataclass(frozen=True)
class Regrets:
    """Of one subject on one device: the regret of each configuration by its key, 1 for the best; the best's time."""

    best: str
    best_us: float
    by_config: dict[str, Estimate]
    trial: str


def regrets(
    machine: Machine, options: ContentionOptions, choices: Sequence[Choice], records: Records
) -> dict[Place, Regrets]:
    """Return the regrets at each place that was timed again."""
    block = retiming(machine, options, choices)
    planned = {trial.id: trial for trial in block.trials} if block is not None else {}
    by_slot: dict[Place, Regrets] = {}
    for record in records:
        trial = planned.get(record.trial)
        if trial is None or record.status != "ok":
            continue
        role = trial.roles[0]
        subject = [bare(candidate) for candidate in options.subjects].index(bare(role.subjects[0]))
        slot_regrets = _judged(records, record, role)
        if slot_regrets is not None:
            by_slot[Place(subject, role.devices[0])] = slot_regrets
    return by_slot


def regret_table(choices: Sequence[Choice], known: dict[Place, Regrets]) -> Table:
    """Return the logarithm of each pick's regret, by phase, place and block; picks not timed again are left out."""
    table: Table = {}
    for choice in choices:
        regret = regret_of(choice, known)
        if regret is not None:
            table.setdefault((choice.phase, choice.place), {})[choice.block] = math.log(regret.value)
    return table


def regret_of(choice: Choice, known: dict[Place, Regrets]) -> Estimate | None:
    """Return the regret of a pick; null where it was not timed again."""
    slot_regrets = known.get(choice.place.alone)
    return slot_regrets.by_config.get(choice.key) if slot_regrets is not None and choice.key is not None else None


def _judged(records: Records, record: Record, role: Role) -> Regrets | None:
    """Return the regrets from one record of configurations in turns; null where some have no samples."""
    quantity = decisive([record], role.name)
    restarts = sorted({s.restart for s in record.series})
    # processes × configurations × parts, in logarithms
    logs = []
    for restart in restarts:
        series = {s.subject: s for s in record.series if s.quantity == quantity and s.restart == restart}
        if len(series) == len(role.subjects):
            samples = [records.samples(series[index]) for index in range(len(role.subjects))]
            logs.append(in_parts(samples))
    if not logs:
        return None
    ranked = np.concatenate([process[:, 0::2] for process in logs], axis=1)
    best = int(np.argmin(np.median(ranked, axis=1)))
    keys = [key_of(subject.config or {}) for subject in role.subjects]
    best_us = math.exp(float(np.median(np.concatenate([process[best] for process in logs]))))
    behind = {
        key: _behind([process[index, 1::2] - process[best, 1::2] for process in logs]) for index, key in enumerate(keys)
    }
    return Regrets(keys[best], best_us, behind, record.trial)


def in_parts(taken: Sequence[Samples]) -> Samples:
    """Return the logarithm of the median time of each configuration in each part of a process's time."""
    parts = min(PARTS, *(len(samples) for samples in taken))
    parts -= parts % 2 if parts > 1 else 0
    return np.array(
        [[math.log(max(float(np.median(p)), 1e-6)) for p in np.array_split(samples, parts)] for samples in taken]
    )


def _behind(by_process: Sequence[Samples]) -> Estimate:
    """Return how far a configuration is behind the best: over processes where there are enough, else within them."""
    values = [winsorised(process) for process in by_process if len(process)] or [np.zeros(1)]
    means = np.array([float(process.mean()) for process in values])
    n = sum(len(process) for process in values)
    if len(means) >= FEWEST_PROCESSES:
        centre, spread = float(means.mean()), float(means.std(ddof=1))
        half = quantile(CONFIDENCE, len(means) - 1) * spread / math.sqrt(len(means))
        how = f"mean log-ratio in turns, Student's t over {len(means)} processes"
        return _ratio(centre, (centre - half, centre + half), "run", how, n)
    pooled = np.concatenate(values)
    how = f"mean log-ratio in turns, within {len(means)} process{'es' if len(means) > 1 else ''}"
    return _ratio(float(pooled.mean()), mean_interval(pooled), "process", how, n)


def _ratio(centre: float, interval: tuple[float, float] | None, scope: str, how: str, n: int) -> Estimate:
    low, high = (math.exp(interval[0]), math.exp(interval[1])) if interval is not None else (None, None)
    return Estimate(
        value=math.exp(centre),
        low=low,
        high=high,
        unit="×",
        scope="run" if scope == "run" else "process",
        method=how,
        n=n,
    )
