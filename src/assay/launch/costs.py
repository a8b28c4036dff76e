"""What a token of each stage cost, over its processes: a quantity as any other, for comparisons and the history."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Estimate, Summary
from assay.stats.metered import Draw, typical

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.core.results import Stage
    from assay.launch.outcome import RawSeries

COSTS = {"output_tokens": "output_token_j", "input_tokens": "input_token_j"}
"""What is counted, and what one of it costs: of what makes tokens, those made; of what only reads them, those read."""

Place = tuple[str, int]


def costs(stages: Iterable[Stage], series: Iterable[RawSeries]) -> tuple[Summary, ...]:
    """Return the joules of a token of each role and subject whose stages have an energy, with an interval."""
    counted = {
        (one.role, one.subject, one.restart, one.quantity): float(np.frombuffer(one.data).sum())
        for one in series
        if one.rank == 0 and one.quantity in COSTS and one.data
    }
    draws: dict[tuple[Place, str], list[Draw]] = {}
    for stage in stages:
        where = stage.role, stage.subject, stage.restart
        name = next((name for name in COSTS if counted.get((*where, name), 0.0) > 0), None)
        if name is not None and stage.energy is not None:
            value = stage.energy.value / counted[*where, name]
            draws.setdefault((where[:2], COSTS[name]), []).append(Draw(value, stage.energy.relative_half_width))
    return tuple(_summary(place, quantity, found) for (place, quantity), found in draws.items())


def _summary(place: Place, quantity: str, draws: list[Draw]) -> Summary:
    values = np.array([draw.value for draw in draws])
    first, middle, third = np.quantile(values, [0.25, 0.5, 0.75])
    found, mean = typical(draws), float(values.mean())
    return Summary(
        role=place[0],
        subject=place[1],
        quantity=quantity,
        estimate=Estimate(
            value=found.value,
            low=found.low,
            high=found.high,
            unit="J",
            scope="run" if len(draws) > 1 else "process",
            method=found.method,
            n=len(draws),
        ),
        n=len(draws),
        mean=mean,
        quartiles=(float(first), float(middle), float(third)),
        minimum=float(values.min()),
        maximum=float(values.max()),
        cv=float(values.std(ddof=1)) / mean if len(draws) > 1 and mean else None,
        autocorrelation=None,
    )
