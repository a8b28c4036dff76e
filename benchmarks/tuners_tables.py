"""The published table of what tuners chose, from what was kept."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from typing import TYPE_CHECKING, Any

from assay.stats.longrun import quantile
from assay.stats.shares import Share

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


def regrets(raw: Kept, spec: str) -> dict[str, float]:
    """Return how much slower each configuration is in quiet than the best that was chosen, as a share."""
    medians = {key: statistics.median(times) for key, times in raw["quiet"].get(spec, {}).items()}
    best = min(medians.values(), default=math.nan)
    return {key: value / best - 1 for key, value in medians.items()}


def mean_and_half(values: list[float]) -> tuple[float, float | None]:
    """Return the mean and half its 95 % interval (Student's t); null for fewer than two."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None
    return mean, quantile(CONFIDENCE, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def table(raw: Kept, tuners: Mapping[Any, str]) -> str:
    """Return the table: what each tuner chose in each condition, and what that costs in quiet."""
    rows = [
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
    ]
    conditions = list(
        dict.fromkeys(t["condition"] for t in sorted(raw["tries"], key=lambda t: t["condition"] != "quiet"))
    )
    for tuner, spec in tuners.items():
        behind = regrets(raw, spec)
        for condition in conditions:
            tries = [t for t in raw["tries"] if (t["tuner"], t["condition"]) == (tuner, condition)]
            if tries:
                rows.append(_row(raw, tries, behind, spec))
    left = len(raw.get("skipped", []))
    failed = [t for t in raw["tries"] if t["config"] is None]
    said = [f"{left} tries were left out for want of time." if left else ""]
    said += [f"{t['tuner']}, {t['condition']}, try {t['try']}: {t['reason']}." for t in failed]
    return "\n".join([*rows, *(["", *filter(None, said)] if any(said) else [])])


def _row(raw: Kept, tries: list[Kept], behind: dict[str, float], spec: str) -> str:
    tuner, condition = tries[0]["tuner"], tries[0]["condition"]
    good = [t for t in tries if t["config"] is not None]
    keys = [key_of(t["config"]) for t in good]
    lost = [100 * behind[key] for key in keys if key in behind]
    mean, half = mean_and_half(lost) if lost else (None, None)
    quiet_us = {key: statistics.median(times) for key, times in raw["quiet"].get(spec, {}).items()}
    seen = [
        t["time_us"] / quiet_us[key_of(t["config"])]
        for t in good
        if t["time_us"] is not None and key_of(t["config"]) in quiet_us
    ]
    took = [t["tuning_s"] for t in good if t["tuning_s"] is not None]
    regret = "–" if mean is None else f"{mean:.1f} %" if half is None else f"{mean:.1f} ± {half:.1f} %"
    return (
        f"| {tuner} | {condition} | {len(good)} of {len(tries)} | {len(set(keys))} | {_mismatch(raw, tuner, good)} "
        f"| {regret} | {f'{max(lost):.1f} %' if lost else '–'} "
        f"| {f'{statistics.median(seen):.2f}' if seen else '–'} | {f'{statistics.median(took):.1f}' if took else '–'} |"
    )


def _mismatch(raw: Kept, tuner: str, good: list[Kept]) -> str:
    quiet = {
        t["try"]: key_of(t["config"])
        for t in raw["tries"]
        if t["tuner"] == tuner and t["condition"] == "quiet" and t["config"] is not None
    }
    if good and good[0]["condition"] == "quiet":
        ordered = [quiet[number] for number in sorted(quiet)]
        share = Share(sum(a != b for a, b in itertools.pairwise(ordered)), max(0, len(ordered) - 1))
        what = " (from one try to the next)"
    else:
        pairs = [(key_of(t["config"]), quiet[t["try"]]) for t in good if t["try"] in quiet]
        share, what = Share(sum(a != b for a, b in pairs), len(pairs)), ""
    interval = share.interval()
    if interval is None:
        return "–"
    return f"{share.count} of {share.n}{what}, {100 * interval[0]:.0f}–{100 * interval[1]:.0f} %"
