"""From the samples of one subject to its estimate and the shape of its samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import NO_INTERVAL, Estimate, Scope, Summary
from assay.stats.intervals import autocorrelation, median_interval, refusal_of, restarts_interval, torn_between
from assay.stats.order import median, quantiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

OF_ONE_PROCESS = "median, order statistics at the effective sample size, widened where the samples wander"


def estimate(by_process: Sequence[Samples], unit: str, *, scope_of_one: Scope = "process") -> Estimate:
    """Return the median with its interval, from the samples of one process or of several restarts.

    Where every sample is a process of its own, as for a command, ``scope_of_one`` says "run".
    """
    n = sum(len(samples) for samples in by_process)
    medians = [median(samples) for samples in by_process]
    if len(medians) > 1:
        centre, low, high, method = restarts_interval(medians)
        return Estimate(value=centre, low=low, high=high, unit=unit, scope="run", method=method, n=n)
    pooled = by_process[0]
    within = median_interval(pooled)
    return Estimate(
        value=median(pooled),
        low=within[0] if within else None,
        high=within[1] if within else None,
        unit=unit,
        scope=scope_of_one,
        method=_method(pooled, within),
        n=n,
    )


def slowest(ranks: Sequence[Samples]) -> Samples:
    """Return the slowest rank of each iteration that all ranks made."""
    common = min(map(len, ranks))
    return np.asarray(np.max([samples[:common] for samples in ranks], axis=0), dtype=np.float64)


def _method(samples: Samples, interval: tuple[float, float] | None) -> str:
    """Return how the median of one process got its interval, or why it has none."""
    if interval is not None:
        return OF_ONE_PROCESS
    return f"{OF_ONE_PROCESS}{NO_INTERVAL}{why_none(samples)}"


def usual_method(processes: int) -> str:
    """Return the method of a time that is measured in so many processes."""
    return OF_ONE_PROCESS if processes == 1 else restarts_interval([1.0] * processes)[3]


def why_none(samples: Samples) -> str:
    """Return why the median of samples has no interval, as a clause."""
    levels = torn_between(samples)
    if levels is not None:
        return f"two levels, {levels.low:.4g} and {levels.high:.4g} ({levels.share_high:.0%} of the time)"
    return "the samples drift" if refusal_of(samples) == "drift" else "too few effective samples"


def summarise(
    role: str,
    subject: int,
    quantity: str,
    unit: str,
    by_process: Sequence[Samples],
    *,
    scope_of_one: Scope = "process",
) -> Summary:
    """Return the estimate of a quantity and the shape of its samples, over all restarts."""
    pooled = np.concatenate(list(by_process))
    mean = float(pooled.mean())
    first, middle, third = quantiles(pooled, (0.25, 0.5, 0.75))
    neighbours = [r for samples in by_process if (r := autocorrelation(samples)) is not None]
    return Summary(
        role=role,
        subject=subject,
        quantity=quantity,
        estimate=estimate(by_process, unit, scope_of_one=scope_of_one),
        n=len(pooled),
        mean=mean,
        quartiles=(float(first), float(middle), float(third)),
        minimum=float(pooled.min()),
        maximum=float(pooled.max()),
        cv=float(pooled.std(ddof=1)) / mean if len(pooled) > 1 and mean != 0 else None,
        autocorrelation=float(np.mean(neighbours)) if neighbours else None,
    )
