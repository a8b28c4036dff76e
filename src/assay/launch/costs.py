"""What a token of each stage cost, over its processes: a quantity as any other, for comparisons and the history."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Summary
from assay.stats.metered import Draw, joules_of, rate_spread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.core.results import Stage
    from assay.launch.outcome import RawSeries

COSTS = {"output_tokens": "output_token_j", "input_tokens": "input_token_j"}
"""What is counted, and what one of it costs: of what makes tokens, those made; of what only reads them, those read."""
CALL_US = "call_us"
NOTHING = np.empty(0)

Place = tuple[str, int]


def costs(stages: Iterable[Stage], series: Iterable[RawSeries]) -> tuple[Summary, ...]:
    """Return the joules of a token of each role and subject whose stages have an energy, with an interval."""
    samples = {
        (one.role, one.subject, one.restart, one.quantity): np.frombuffer(one.data)
        for one in series
        if one.rank == 0 and one.quantity in {*COSTS, CALL_US} and one.data
    }
    draws: dict[tuple[Place, str], list[Draw]] = {}
    for stage in stages:
        stage_key = stage.role, stage.subject, stage.restart
        name = next(
            (name for name in COSTS if (*stage_key, name) in samples and samples[*stage_key, name].sum() > 0), None
        )
        if name is not None and stage.energy is not None:
            counts = samples[*stage_key, name]
            spread = rate_spread(counts, samples.get((*stage_key, CALL_US), NOTHING))
            draw = Draw(stage.energy.value / float(counts.sum()), stage.energy.relative_half_width, stage.calls, spread)
            draws.setdefault((stage_key[:2], COSTS[name]), []).append(draw)
    return tuple(_summary(key, quantity, key_draws) for (key, quantity), key_draws in draws.items())


def _summary(place: Place, quantity: str, draws: list[Draw]) -> Summary:
    values = np.array([draw.value for draw in draws])
    first, middle, third = np.quantile(values, [0.25, 0.5, 0.75])
    mean = float(values.mean())
    return Summary(
        role=place[0],
        subject=place[1],
        quantity=quantity,
        estimate=joules_of(draws),
        n=len(draws),
        mean=mean,
        quartiles=(float(first), float(middle), float(third)),
        minimum=float(values.min()),
        maximum=float(values.max()),
        cv=float(values.std(ddof=1)) / mean if len(draws) > 1 and mean else None,
        autocorrelation=None,
    )
