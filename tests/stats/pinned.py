"""What statistics say about made-up samples, as it was when their coverage was last simulated.

python -m tests.stats.pinned      write it down again, where a method was changed on purpose
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from assay.stats import (
    blocks,
    changepoint,
    concave,
    correlation,
    crossover,
    intervals,
    multiple_comparisons,
    numerics,
    outliers,
    ratios,
    selection,
    sensor_intervals,
    sequential,
    shape,
    variance,
)
from tests.pinning import keep, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

KEPT = Path(__file__).parent / "pinned.json"
SIZES = (5, 12, 40, 150, 600)


def noise(n: int, seed: int = 0) -> Samples:
    """Return standard normal values that are the same with every version of every library."""
    parts = np.sin((np.arange(1, n + 1) + 1000 * seed) * 12.9898) * 43758.5453
    return np.asarray(special.ndtri(np.clip(parts - np.floor(parts), 1e-6, 1 - 1e-6)), dtype=np.float64)


def remembering(n: int, rho: float, seed: int = 0) -> Samples:
    """Return values of which each resembles the one before."""
    found = noise(n, seed)
    for place in range(1, n):
        found[place] = rho * found[place - 1] + math.sqrt(1 - rho**2) * found[place]
    return found


FAMILIES: dict[str, Callable[[int], Samples]] = {
    "quiet": lambda n: 100 * np.exp(0.001 * noise(n, 1)),
    "noisy": lambda n: 100 * np.exp(0.1 * noise(n, 2)),
    "remembering": lambda n: 100 * np.exp(0.05 * remembering(n, 0.7, 3)),
    "drifting": lambda n: 100 * np.exp(0.01 * noise(n, 4)) * (1 + 0.1 * np.arange(n) / n),
    "at two levels": lambda n: np.where(noise(n, 5) > 0.2, 100.0, 110.0) * np.exp(0.003 * noise(n, 6)),
    "switching in runs": lambda n: np.where((np.arange(n) * 5 // n) % 2, 100.0, 107.0) * np.exp(0.003 * noise(n, 7)),
    "with bursts": lambda n: 100 * np.exp(0.01 * noise(n, 8) + 0.8 * (noise(n, 9) > 1.7)),
    "in steps of a clock": lambda n: np.round(30 + 0.8 * noise(n, 10)),
}


def numbers() -> dict[str, Any]:
    """Return all that is pinned."""
    parts = (_samples, _pairs, _processes, _looks, _races, _series, _many, _thresholds, _curves, _distributions)
    return {f"{part.__name__[1:]}: {name}": told(each) for part in parts for name, each in part().items()}


def _samples() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, family in FAMILIES.items():
        for n in SIZES:
            values = family(n)
            found[f"{n} {name}"] = {
                "median": intervals.median_interval(values),
                "median at 80 %": intervals.median_interval(values, 0.8),
                "order": intervals.order_interval(values),
                "mean": intervals.mean_interval(values),
                "neighbours": [intervals.autocorrelation(values, lag) for lag in (1, 2)],
                "effective": intervals.effective_size(values),
                "refusal": intervals.interval_refusal(values),
                "torn": intervals.find_competing_levels(values),
                "tail": [intervals.quantile_interval(values, share) for share in (0.5, 0.9, 0.99)],
                "shape": shape.classify_shape(values),
                "moves": [shape.relative_median_range(values), shape.is_unsettled(values), shape.outlier_share(values)],
                "wanders": [shape.wanders(values), shape.wanders(values, straight=False)],
                "ranges": [shape.range_of_medians(values), shape.range_of_means(values)],
                "scores": shape.normal_scores(values)[:5],
                "long run": numerics.long_run_variance(values),
                "winsorised": [numerics.robust_scale(values), numerics.winsorize(values).max()],
                "drawn": _drawn(values),
                "summary": intervals.summarize_samples("role", 0, "call_us", "us", [values]).model_dump(
                    exclude={"role"}
                ),
            }
    return found


def _drawn(values: Samples) -> Any:
    chosen = intervals.draw_indices(values, 1)
    return [
        intervals.explain_no_process_interval(values) is None,
        intervals.draws_interval(intervals.medians_of_draws(values, chosen)),
        intervals.repeats_interval(values),
        intervals.repeats_interval(values - 100),
    ]


def _pairs() -> dict[str, Any]:
    found: dict[str, Any] = {}
    plan = sequential.plan_looks(16, 600)
    for name, family in FAMILIES.items():
        first = family(600)
        for change in (1.0, 1.004, 1.01, 1.05, 0.8):
            second = first * change * np.exp(0.004 * noise(600, 11))
            for look in (plan[0], plan[len(plan) // 2], plan[-1]):
                compared = sequential.compare_at_look(first, second, look, block=1 if change > 1 else 4)
                found[f"{name} against {change} at {look.n}"] = compared
    return found


def _processes() -> dict[str, Any]:
    medians = (100 * np.exp(0.02 * noise(12, 12))).tolist()
    draws = [
        sensor_intervals.ProcessReading(value, share, 100, 0.01 + share)
        for value, share in zip(medians, np.abs(0.01 * noise(12, 13)).tolist(), strict=True)
    ]
    levels = [
        ratios.log_estimate(m, m * 0.98, m * 1.03, p) for m, p in zip(medians, (None, 1, 2, 3, 5, 9), strict=False)
    ]
    known = [each for each in levels if each is not None]
    sides = [ratios.divide_estimates(known[0], other) for other in known[1:]] + [ratios.LogEstimate(0.3, 0.01, 4.0)]
    made = np.round(50 + noise(30, 14))
    return {
        "medians": {n: intervals.restarts_interval(medians[:n])[:3] for n in (2, 3, 6, 12)},
        "metered": {n: vars(sensor_intervals.combine_processes(draws[:n])) for n in (1, 2, 3, 12)},
        "metered without a sensor": {
            n: vars(
                sensor_intervals.combine_processes(
                    [sensor_intervals.ProcessReading(d.value, None, 10, 0.02) for d in draws[:n]]
                )
            )
            for n in (1, 2, 4)
        },
        "of no sign": vars(
            sensor_intervals.combine_processes(
                [sensor_intervals.ProcessReading(v - 100, None, None, 0.5) for v in medians]
            )
        ),
        "rates": [sensor_intervals.rate_spread(made[:n], 1 + 0.1 * noise(30, 15)[:n]) for n in (1, 2, 7, 30)],
        "ratios": [[each.log, each.error, each.degrees, each.interval(), each.interval(0.8)] for each in sides],
        "mean of ratios": ratios.geometric_mean(known),
        "pooled": [
            ratios.pooled_ratio([(medians[:a], medians[a : a + b]), (medians[6:9], medians[9:])])
            for a, b in ((1, 1), (2, 3), (3, 3))
        ],
        "decided": [ratios.decide_ratios(sides, effect) for effect in (0.0, 0.01, 0.05)],
        "drawn": ratios.log_estimate_of_draws(medians),
        "estimates": [
            intervals.estimate_median([FAMILIES["noisy"](40) * m for m in medians[:n]], "us") for n in (1, 2, 5)
        ],
        "gate": [
            [vars(blocks.decide_limit((0.05 * noise(n, 16) + shift).tolist(), 0.02, q)) for q in (1, 3)]
            for n in (3, 10, 40)
            for shift in (0.0, 0.03, 0.2)
        ],
        "restarts": [blocks.estimate_restarts_needed((0.05 * noise(8, 16) + s).tolist(), 0.02, 2) for s in (0.03, 0.3)],
        "looks of a gate": blocks.plan_gate_looks(4, 64),
    }


def _looks() -> dict[str, Any]:
    plan = sequential.plan_looks()
    values = FAMILIES["remembering"](4000)
    return {
        "plan": plan,
        "another plan": sequential.plan_looks(16, 900, 2.0),
        "intervals": [
            sequential.interval_at_look(values[: look.n], look, 0.95, about)
            for look in plan[::4]
            for about in ("median", "mean")
        ],
        "decided": [
            sequential.decide_to_stop(values[: look.n], look, p) for look in plan[::3] for p in (0.002, 0.01, 0.05)
        ],
    }


def _races() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, truth, scatter in (
        ("two alike", [0.0, 0.002], 0.01),
        ("a clear winner", [0.0, 0.05, 0.2, 0.6], 0.02),
        ("a crowd", [0.01 * n for n in range(14)], 0.03),
        ("one fails", [0.0, 0.01, 0.3], 0.01),
    ):
        race = selection.Race.start(len(truth), tolerance=0.02)
        for number in range(1, 25):
            drawn = scatter * noise(len(truth), 100 + number) + (0.5 if number % 7 == 0 else 0.0)
            times = {c: 50 * math.exp(truth[c] + drawn[c]) for c in race.contenders}
            if name == "one fails" and number == 5:
                times.pop(race.contenders[0])
            race = race.after(times)
            if number in {1, 2, 3, 5, 8, 13, 24}:
                standing = asdict(race.standing())
                found[f"{name} after {number}"] = [race.contenders, race.decided, sorted(race.failed), standing]
    return found


def _series() -> dict[str, Any]:
    made = {
        "stable": 0.01 * noise(60, 20),
        "a step up": 0.01 * noise(60, 21) + 0.05 * (np.arange(60) >= 30),
        "a step down": 0.01 * noise(60, 22) - 0.08 * (np.arange(60) >= 45),
        "taken back": 0.01 * noise(60, 23) + 0.06 * ((np.arange(60) >= 20) & (np.arange(60) < 40)),
        "remembering": 0.01 * remembering(60, 0.6, 24),
        "short": 0.01 * noise(9, 25),
        "with spikes": 0.01 * noise(60, 26) + 0.3 * (noise(60, 27) > 1.6),
    }
    hosts = [np.asarray(np.arange(len(each)) % 2, dtype=np.int64) for each in made.values()]
    alone = changepoint.find_level_shifts(list(made.values()))
    on_two = changepoint.find_level_shifts(list(made.values()), hosts, [0, 0, 0, 1, 1, 1, 1])
    return {
        "chances": [
            changepoint.false_alarm_probability(evidence, runs)
            for evidence in (2.0, 8.0, 12.0)
            for runs in (5, 30, 300)
        ],
        **dict(zip(made, alone, strict=True)),
        **{f"{name}, on two hosts": each for name, each in zip(made, on_two, strict=True)},
    }


def _many() -> dict[str, Any]:
    table = 0.02 * noise(40, 30).reshape(5, 8) + np.arange(5)[:, None] * 0.03 + np.arange(8) * 0.1
    table[1, 2] = table[4, 5] = np.nan
    cross = multiple_comparisons.fit_crossed(table)
    distances = np.concatenate([noise(30, 31), [6.0, -9.0]])
    codes = np.repeat(np.arange(4), 6), np.repeat(np.arange(12), 2)
    values = noise(24, 32) + 2 * noise(4, 33)[codes[0]] + noise(12, 34)[codes[1]]
    below = ("calls", np.abs(noise(12, 35)), np.arange(12))
    one, other, third = (noise(25, seed) for seed in (36, 37, 38))
    pairs = [
        correlation.rank_correlation(one.tolist()[:n], (one + k * other).tolist()[:n])
        for n in (5, 8, 25)
        for k in (0.3, 3)
    ]
    several = [blocks.average_units([[0.1, None, 0.3], [0.2, 0.25, 0.31], [None, 0.2, 0.2]])]
    return {
        "crossed": [cross.effects, cross.scatter, cross.freedom, cross.may_be_lowest(), cross.may_be_lowest(0.5)],
        "against": [cross.against(0), cross.against(3, 0.9, two_sided=False)],
        "contrasts": [cross.contrast(1, 4), cross.contrast(0, 3)],
        "unlikely": [
            outliers.outlier_p_values(distances[-n:], 0.1, fitted=f, least=0.2) for n in (4, 8, 32) for f in (1, 3)
        ],
        "scale": [
            outliers.estimate_scale(distances),
            outliers.estimate_tail_freedom(distances),
            outliers.estimate_tail_freedom(distances**3),
        ],
        "rates": [
            outliers.false_discovery_rates(np.array([0.01, 0.04, np.nan, 0.03, 0.5])),
            outliers.holm_p_values(np.array([0.01, 0.04, np.nan, 0.03, 0.5])),
        ],
        "components": [
            variance.estimate_components(values, [("host", codes[0]), ("run", codes[1])]),
            variance.estimate_components(values, [("host", codes[0]), ("run", codes[1])], below, spent={"run": 3}),
        ],
        "associations": [
            correlation.partial_correlation(one[:n], one + k * other, [third[:n]][:e], spent=s)
            if n == 25
            else correlation.partial_correlation(one[:n], (one + k * other)[:n], [third[:n]][:e], spent=s)
            for n in (5, 9, 25)
            for k in (0.5, 2.0)
            for e in (0, 1)
            for s in (0, 2)
        ],
        "correlations": pairs,
        "holm": correlation.adjust_holm([each for each in pairs if each is not None]),
        "ratios of blocks": [blocks.ratio_over_blocks((0.03 * noise(n, 39) + 0.02).tolist()) for n in (1, 2, 5, 20)],
        "by chance": [blocks.aa_noise_floor((0.01 * noise(n, 40)).tolist(), b) for n in (1, 3, 10) for b in (2, 5)],
        "judged": [
            blocks.decide_difference(blocks.ratio_over_blocks((0.01 * noise(9, 41) + s).tolist()), f)
            for s in (0.0, 0.02, 0.1)
            for f in (None, 0.01, 0.05)
        ],
        "together": several,
        "groups": [
            variance.group_means(values, codes[0], 4),
            variance.group_medians(values, codes[0], 4),
            variance.group_variances(values, codes[0], 4),
        ],
        "shares": [
            [ratios.Proportion(k, n).value, ratios.Proportion(k, n).interval(), ratios.Proportion(k, n).interval(0.5)]
            for k, n in ((0, 0), (0, 5), (3, 5), (5, 5), (200, 1000))
        ],
        "more often": [ratios.mcnemar_p(a, b) for a, b in ((0, 0), (5, 0), (5, 4), (30, 10))],
    }


def _thresholds() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, shift, scatter in (("clear", 0.4, 0.1), ("near", 0.2, 0.3), ("below", 0.05, 0.2)):
        cells = [
            [shift * (size - 3) + scatter * noise(n, 50 + 10 * size + p) + 0.05 * p for p in range(2)]
            for size, n in enumerate((0, 4, 10, 24, 40, 300))
        ]
        between = crossover.variance_between_processes(cells)
        bounds = [crossover.bound_speedup(each, 1.1, between) if size != 2 else None for size, each in enumerate(cells)]
        decision = crossover.decide_threshold(bounds)
        means = [each.mean for each in bounds if each is not None]
        found[name] = [
            between,
            bounds,
            decision,
            decision.monotone,
            crossover.next_size(bounds),
            [crossover.next_size(bounds[:n]) for n in range(1, 7)],
            crossover.next_size(bounds, most=20, enough=5),
            crossover.isotonic_regression(means, [each.pairs for each in bounds if each is not None]),
        ]
    found["looks"] = [crossover.next_look(n) for n in (0, 5, 30, 100, 500, 5000)]
    return found


def _curves() -> dict[str, Any]:
    x = np.array([100.0, 150.0, 150.0, 200.0, 300.0, 450.0])
    fitted = [concave.fit_concave(x, y) for y in (np.sqrt(x), np.minimum(x, 250.0) + 5 * noise(6, 60), 500 - x)]
    shared = [concave.allocate_total(fitted, total) for total in (200.0, 500.0, 900.0, 2000.0)]
    return {
        "fits": [[curve.y[::7], curve.low, curve.top, curve.at(170.0), curve.reaches(15.0)] for curve in fitted],
        "shares": [*shared, concave.allocate_total(fitted, 900.0, [200.0, 100.0, 310.0])],
    }


def _distributions() -> dict[str, Any]:
    freedoms = (1, 2, 3.5, 30, 1e6)
    return {
        "normal": [numerics.normal_quantile(p) for p in (1e-9, 0.025, 0.5, 0.9)],
        "student": [numerics.student_quantile(p, f) for p in (1e-6, 0.025, 0.5, 0.995) for f in freedoms],
        "of student": [numerics.student_cdf(t, f) for t in (-3.0, 0.0, 0.7) for f in freedoms],
        "f": [numerics.f_quantile(p, a, b) for p in (0.05, 0.95) for a in (1, 4) for b in (3, 50)],
        "binomial": [numerics.binomial_beyond(k, n, p) for k, n in ((0, 1), (3, 10), (49, 50)) for p in (0.1, 0.9)],
        "beta": [numerics.incomplete_beta(a, b, x) for a, b in ((0.5, 0.5), (3.0, 20.0)) for x in (0.0, 0.2, 0.9)],
    }


if __name__ == "__main__":
    keep(numbers(), KEPT)
