"""The published table of what tuners chose, from what was kept."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from typing import TYPE_CHECKING, Any

from assay.stats.numerics import t_quantile
from assay.stats.ratios import Proportion

if TYPE_CHECKING:
    from collections.abc import Mapping

Kept = dict[str, Any]
CONFIDENCE = 0.95
COLUMNS = (
    "tuner",
    "condition",
    "tries",
    "different choices",
    "other than in quiet, same try",
    "regret, mean",
    "worst",
    "its time over the quiet time",
    "tuning, s",
)


def key_of(config: Mapping[str, Any]) -> str:
    """Return a configuration as text, the same for the same one."""
    return json.dumps(config, sort_keys=True, separators=(",", ":"))


def quiet_us(visit: Kept, spec: str) -> dict[str, float]:
    """Return the time of each configuration in quiet, in one visit."""
    return {key: statistics.median(times) for key, times in visit["quiet"].get(spec, {}).items()}


def regrets(visit: Kept, spec: str) -> dict[str, float]:
    """Return how much slower each configuration is in quiet than the best that was chosen in a visit, as a share."""
    medians = quiet_us(visit, spec)
    best = min(medians.values(), default=math.nan)
    return {key: value / best - 1 for key, value in medians.items()}


def mean_and_half(values: list[float]) -> tuple[float, float | None]:
    """Return the mean and half its 95 % interval (Student's t); null for fewer than two."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None
    return mean, t_quantile(CONFIDENCE, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def table(raw: Kept, tuners: Mapping[Any, str]) -> str:
    """Return the table: what each tuner chose in each condition, and what that costs in quiet."""
    rows = [
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
    ]
    tries = [summarize_try(visit, t, tuners) for visit in raw["visits"] for t in visit["tries"]]
    conditions = dict.fromkeys(t["condition"] for t in sorted(tries, key=lambda t: t["condition"] != "quiet"))
    for tuner in tuners:
        for condition in conditions:
            some = [t for t in tries if (t["tuner"], t["condition"]) == (tuner, condition)]
            if some:
                rows.append(_row(tries, some))
    text = [f"{t['tuner']}, {t['condition']}, try {t['try']}: {t['reason']}." for t in tries if t["config"] is None]
    return "\n".join([*rows, *(["", *text] if text else [])])


def summarize_try(visit: Kept, one: Kept, tuners: Mapping[Any, str]) -> Kept:
    """Return a try with its regret and how much longer its time was than in quiet; null where not timed again."""
    spec = tuners[one["tuner"]]
    key = None if one["config"] is None else key_of(one["config"])
    quiet = quiet_us(visit, spec).get(key or "")
    ratio = one["time_us"] / quiet if quiet and one["time_us"] is not None else None
    return {**one, "key": key, "regret": regrets(visit, spec).get(key or ""), "seen": ratio}


def _row(tries: list[Kept], some: list[Kept]) -> str:
    tuner, condition = some[0]["tuner"], some[0]["condition"]
    good = [t for t in some if t["key"] is not None]
    lost = [100 * t["regret"] for t in good if t["regret"] is not None]
    mean, half = mean_and_half(lost) if lost else (None, None)
    ratios = [t["seen"] for t in good if t["seen"] is not None]
    took = [t["tuning_s"] for t in good if t["tuning_s"] is not None]
    took_s = f"{statistics.median(took):.1f}" if took else "–"
    regret = "–" if mean is None else f"{mean:.1f} %" if half is None else f"{mean:.1f} ± {half:.1f} %"
    return (
        f"| {tuner} | {condition} | {len(good)} of {len(some)} | {len({t['key'] for t in good})} "
        f"| {_mismatch(tries, good)} | {regret} | {f'{max(lost):.1f} %' if lost else '–'} "
        f"| {f'{statistics.median(ratios):.2f}' if ratios else '–'} | {took_s} |"
    )


def _mismatch(tries: list[Kept], good: list[Kept]) -> str:
    if not good:
        return "–"
    tuner, condition = good[0]["tuner"], good[0]["condition"]
    quiet = {t["try"]: t["key"] for t in tries if (t["tuner"], t["condition"]) == (tuner, "quiet") and t["key"]}
    if condition == "quiet":
        ordered = [quiet[number] for number in sorted(quiet)]
        share = Proportion(sum(a != b for a, b in itertools.pairwise(ordered)), max(0, len(ordered) - 1))
        what = " (from one try to the next)"
    else:
        pairs = [(t["key"], quiet[t["try"]]) for t in good if t["try"] in quiet]
        share, what = Proportion(sum(a != b for a, b in pairs), len(pairs)), ""
    interval = share.interval()
    if interval is None:
        return "–"
    return f"{share.count} of {share.n}{what}, {100 * interval[0]:.0f}–{100 * interval[1]:.0f} %"
