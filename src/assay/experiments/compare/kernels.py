"""Compare two groups of tuning results kernel by kernel: best times, spread, picks, agreement of devices.

The groups differ on purpose in schedule, isolation and shared cores: these are not part of the work. Parameters,
dtype, a
fixed configuration, the conditions of the timing and the model of the device are. Devices differ from each other, so
each device is compared with itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import special

from assay.core.results import Estimate
from assay.experiments.compare.pairing import describe_differences, find_differences
from assay.experiments.compare.tunings import config_key, most_common_pick
from assay.stats.intervals import CONFIDENCE
from assay.stats.ratios import Proportion, pooled_ratio
from assay.store.identity import MODEL, SHARED_CORES, IdentityDetail, identity_details, identity_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from assay.experiments.compare.tunings import Config, KernelTuning, TuningPick


ValuesByStratum = dict[str, list[float]]
"""Positive numbers by what they share: the device, the configuration."""


class RepeatSpread(NamedTuple):
    """The coefficient of variation of repeats of the same thing, and the degrees of freedom it is known with."""

    cv: float
    freedom: int


def stratified_ratio(baseline: ValuesByStratum, concurrent: ValuesByStratum) -> Estimate | None:
    """Return how many times the baseline the other group is, each stratum held against itself; null without any.

    Logarithms of the numbers are a level for each stratum, plus the same difference between the groups in all, plus
    noise: least squares, Student's t. Where no stratum has both groups, all numbers are taken as one.
    """
    shared = [s for s in baseline if baseline[s] and concurrent.get(s)]
    if shared:
        groups = [(baseline[s], concurrent[s]) for s in shared]
    else:
        groups = [([v for vs in baseline.values() for v in vs], [v for vs in concurrent.values() for v in vs])]
    pooled_level = pooled_ratio(groups)
    if pooled_level is None:
        return None
    n, ends = sum(len(a) + len(b) for a, b in groups), pooled_level.interval()
    where = f"{len(groups)} {'device' if len(groups) == 1 else 'devices'}" if shared else "devices that differ"
    return Estimate(
        value=pooled_level.value,
        low=None if ends is None else ends[0],
        high=None if ends is None else ends[1],
        unit="×",
        scope="run" if ends is not None else "process",
        method=f"log-ratio over {n} results on {where}, {'least squares' if ends is not None else 'too few to tell'}",
        n=n,
    )


def repeat_spread(repeats: Mapping[str, Sequence[Sequence[float]]]) -> RepeatSpread | None:
    """Return how much the same thing scatters when it is timed again; null where nothing was timed twice.

    ``repeats`` has, for each device, the times of each thing that was timed there. Things that were timed in the same
    processes share what these processes add: a device tells no more than it had processes beyond the first.
    """
    several = {d: [np.log(times) for times in things if len(times) > 1] for d, things in repeats.items()}
    freedom = sum(max(map(len, logs)) - 1 for logs in several.values() if logs)
    if not freedom:
        return None
    everything = [values for logs in several.values() for values in logs]
    squares = sum(float(np.sum((values - values.mean()) ** 2)) for values in everything)
    return RepeatSpread(math.sqrt(math.expm1(squares / sum(len(values) - 1 for values in everything))), freedom)


def spread_ratio(baseline: RepeatSpread | None, concurrent: RepeatSpread | None) -> Estimate | None:
    """Return how many times as much the other group scatters; null where one of them does not tell or not scatter."""
    if baseline is None or concurrent is None or baseline.cv == 0 or concurrent.cv == 0:
        return None
    value, tail = concurrent.cv / baseline.cv, (1 - CONFIDENCE) / 2
    freedoms = (concurrent.freedom, baseline.freedom)
    low, high = (value / math.sqrt(float(special.fdtri(*freedoms, p))) for p in (1 - tail, tail))
    return Estimate(
        value=value,
        low=low,
        high=high,
        unit="×",
        scope="run",
        method=f"ratio of variances of logarithms, F with {freedoms[0]} and {freedoms[1]} degrees of freedom",
        n=sum(freedoms) + 2,
    )


@dataclass(frozen=True)
class DevicePicks:
    """The usual pick of each side on one device, the settings in which they differ, and what the other one costs.

    ``cost`` is its time over that of the baseline's pick, both as the baseline timed them: 1.05 is 5 % slower. It has
    an interval where they were timed in several processes; null where one of them was not timed.
    """

    device: str | None
    baseline: Config
    concurrent: Config
    differing: tuple[str, ...]
    cost: Estimate | None


@dataclass(frozen=True)
class KernelPicks:
    """All devices that both sides have picks of; how often picks differ, and how often those of the baseline do."""

    devices: tuple[DevicePicks, ...]
    mismatch: Proportion
    baseline_mismatch: Proportion

    @property
    def shares(self) -> tuple[Proportion, Proportion]:
        """Both shares, to be judged together."""
        return self.mismatch, self.baseline_mismatch


def compare_picks(baseline: list[KernelTuning], concurrent: list[KernelTuning]) -> KernelPicks:
    """Return how the picks of both sides differ."""
    first, second = _picks_by_device(baseline), _picks_by_device(concurrent)
    shared = [device for device in first if device in second]
    rows = [_compare_device(device, first[device], second[device], baseline) for device in shared]
    mismatch = sum((mismatch_share(first[d], second[d]) for d in shared), Proportion(0, 0))
    chance = sum((self_mismatch_share(picks) for picks in first.values()), Proportion(0, 0))
    return KernelPicks(tuple(row for row in rows if row is not None), mismatch, chance)


def _picks_by_device(group: Iterable[KernelTuning]) -> dict[str | None, list[TuningPick]]:
    picks_by_device: dict[str | None, list[TuningPick]] = defaultdict(list)
    for older in group:
        picks_by_device[older.device] += [pick for pick in older.picks if pick.config is not None]
    return {device: picks for device, picks in picks_by_device.items() if picks}


def mismatch_share(baseline: Sequence[TuningPick], concurrent: Sequence[TuningPick]) -> Proportion:
    """Return how many of the other side's picks differ from the baseline's, each held against one of them in turn."""
    first = [config_key(pick.config) for pick in baseline]
    second = [config_key(pick.config) for pick in concurrent]
    return Proportion(sum(key != first[index % len(first)] for index, key in enumerate(second)), len(second))


def self_mismatch_share(picks: Sequence[TuningPick]) -> Proportion:
    """Return how many picks of one side differ from each other, in pairs of which none has a part in two."""
    keys = [config_key(pick.config) for pick in picks]
    pairs = list(zip(keys[0::2], keys[1::2], strict=False))
    return Proportion(sum(a != b for a, b in pairs), len(pairs))


def differing_settings(one: Config, other: Config) -> tuple[str, ...]:
    """Return the settings in which two configurations differ."""
    return tuple(name for name in dict.fromkeys((*one, *other)) if one.get(name) != other.get(name))


def _compare_device(
    device: str | None, first: list[TuningPick], second: list[TuningPick], baseline: list[KernelTuning]
) -> DevicePicks | None:
    one, other = most_common_pick(tuple(first)), most_common_pick(tuple(second))
    if one is None or other is None or one.config is None or other.config is None:
        return None
    there, differ = (
        [older for older in baseline if older.device == device],
        differing_settings(one.config, other.config),
    )
    cost = _pick_cost(there, one.config, other.config) if differ else None
    return DevicePicks(device, one.config, other.config, differ, cost)


def _pick_cost(baseline: list[KernelTuning], one: Config, other: Config) -> Estimate | None:
    """Return the other configuration's time over the one's, as the same timer saw both; null where it did not."""
    times: dict[tuple[str | None, str], list[float]] = defaultdict(list)
    for older in baseline:
        for entry in older.timed:
            times[entry.timer, config_key(entry.config)] += entry.times_ms
    for by in dict.fromkeys(by for by, _ in times):
        mine, theirs = times.get((by, config_key(one))), times.get((by, config_key(other)))
        if mine and theirs:
            return stratified_ratio({"": mine}, {"": theirs})
    return None


if TYPE_CHECKING:
    WorkKey = tuple[str, tuple[IdentityDetail, ...] | None]

PLACEMENT_CONDITIONS = frozenset({SHARED_CORES, "cpu_groups"})
"""Conditions that say which cores a kernel had, as the isolation does."""


def work_key(older: KernelTuning) -> WorkKey:
    """Return what was measured: the kernel, and what must agree; null where the file does not say."""
    if older.identity is None:
        return older.kernel, None
    label = older.identity.get("workload", {}).get("workload", older.kernel)
    details = (d for d in identity_details(older.identity) if d.aspect not in {"workload", "schedule", "isolation"})
    model = identity_model(older.identity)
    device = () if model is None else (IdentityDetail(MODEL, MODEL, model),)
    return label, (*(detail for detail in details if detail.name not in PLACEMENT_CONDITIONS), *device)


def group_by_work(group: Iterable[KernelTuning]) -> dict[WorkKey, list[KernelTuning]]:
    """Return the results of a group by what they are of, in order."""
    by_key: dict[WorkKey, list[KernelTuning]] = {}
    for older in group:
        by_key.setdefault(work_key(older), []).append(older)
    return by_key


def describe_not_comparable(baseline: Sequence[KernelTuning], concurrent: Sequence[KernelTuning]) -> tuple[str, ...]:
    """Say of each kernel that both groups have, but not of the same work, in what it differs."""
    first, second = group_by_work(baseline), group_by_work(concurrent)
    lone = [work for work in second if work not in first]
    texts: list[str] = []
    for label, details in (work for work in first if work not in second):
        others = [other for name, other in lone if name == label]
        if not others:
            continue
        if details is None or None in others:
            texts.append(f"{label}: only one of the groups records its parameters")
            continue
        candidates = [find_differences(details, other) for other in others if other is not None]
        texts.append(f"{label}: {describe_differences(min(candidates, key=len))}")
    return tuple(texts)


@dataclass(frozen=True)
class KernelTimes:
    """Best times in milliseconds, their geometric mean on each side, and the ratio; null: no time on that side."""

    baseline_ms: float | None
    concurrent_ms: float | None
    results: tuple[int, int]
    ratio: Estimate | None


@dataclass(frozen=True)
class KernelSpreads:
    """How much repeats of the same configuration scatter from process to process, and samples within a process.

    Null where no configuration was timed twice: times of different configurations have no variance to speak of.
    """

    baseline: RepeatSpread | None
    concurrent: RepeatSpread | None
    ratio: Estimate | None
    samples: tuple[float | None, float | None]
    samples_ratio: Estimate | None


@dataclass(frozen=True)
class GroupAgreement:
    """How far devices of one group are apart: the slowest's time over the fastest's; how often picks are the same."""

    devices: int
    slowest: str
    fastest: str
    slowest_over_fastest: float
    same_pick: Proportion | None


@dataclass(frozen=True)
class ComparedKernel:
    """All that is said of one kernel."""

    name: str
    times: KernelTimes
    spreads: KernelSpreads
    picks: KernelPicks
    agreements: tuple[GroupAgreement | None, GroupAgreement | None]


def compare_kernels(baseline: Sequence[KernelTuning], concurrent: Sequence[KernelTuning]) -> tuple[ComparedKernel, ...]:
    """Return every kernel of which both groups measured the same work, in the order of the baseline."""
    first, second = group_by_work(baseline), group_by_work(concurrent)
    return tuple(_compare_kernel(mine[0].kernel, mine, second[work]) for work, mine in first.items() if work in second)


def _compare_kernel(name: str, baseline: list[KernelTuning], concurrent: list[KernelTuning]) -> ComparedKernel:
    return ComparedKernel(
        name=name,
        times=compare_times(baseline, concurrent),
        spreads=compare_spreads(baseline, concurrent),
        picks=compare_picks(baseline, concurrent),
        agreements=(group_agreement(baseline), group_agreement(concurrent)),
    )


def compare_times(baseline: list[KernelTuning], concurrent: list[KernelTuning]) -> KernelTimes:
    """Return the best times of both sides and how they differ."""
    first, second = best_times(baseline), best_times(concurrent)
    return KernelTimes(
        baseline_ms=_geometric_mean(first),
        concurrent_ms=_geometric_mean(second),
        results=(sum(map(len, first.values())), sum(map(len, second.values()))),
        ratio=stratified_ratio(first, second),
    )


def best_times(group: Iterable[KernelTuning]) -> ValuesByStratum:
    """Return the time of the best configuration in each tuning by device; of what was not tuned, its time."""
    times_by_device: ValuesByStratum = defaultdict(list)
    for older in group:
        picked = [pick.time_ms for pick in older.picks if pick.time_ms is not None]
        timed = older.timed[0].times_ms if older.timed and not picked else ()
        times_by_device[older.device or ""] += [*picked, *timed]
    return {device: times for device, times in times_by_device.items() if times}


def _geometric_mean(by_device: ValuesByStratum) -> float | None:
    """Return the geometric mean over devices of their geometric means."""
    levels = [float(np.mean(np.log(times))) for times in by_device.values()]
    return math.exp(float(np.mean(levels))) if levels else None


def compare_spreads(baseline: list[KernelTuning], concurrent: list[KernelTuning]) -> KernelSpreads:
    """Return how much repeats scatter on both sides."""
    first, second = repeat_spread(repeated_times(baseline)), repeat_spread(repeated_times(concurrent))
    scatter = [_sample_cvs(group) for group in (baseline, concurrent)]
    return KernelSpreads(
        baseline=first,
        concurrent=second,
        ratio=spread_ratio(first, second),
        samples=(_geometric_mean(scatter[0]), _geometric_mean(scatter[1])),
        samples_ratio=stratified_ratio(scatter[0], scatter[1]),
    )


def repeated_times(group: Iterable[KernelTuning]) -> dict[str, list[list[float]]]:
    """Return, for each device, the times of everything that is the same there: who timed it, the configuration."""
    by_device: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for older in group:
        for entry in older.timed:
            if entry.config is not None or entry.timer is not None:
                by_device[older.device or ""][f"{entry.timer} {config_key(entry.config)}"] += entry.times_ms
    return {device: list(things.values()) for device, things in by_device.items()}


def _sample_cvs(group: Iterable[KernelTuning]) -> ValuesByStratum:
    cvs_by_device: ValuesByStratum = defaultdict(list)
    for older in group:
        for entry in older.timed:
            cvs_by_device[older.device or ""] += entry.cvs
    return {device: cvs for device, cvs in cvs_by_device.items() if cvs}


def group_agreement(group: list[KernelTuning]) -> GroupAgreement | None:
    """Return how far the devices of a group are apart; null for fewer than two that are known."""
    levels = {d: math.exp(float(np.mean(np.log(t)))) for d, t in best_times(group).items() if d}
    if len(levels) < 2:
        return None
    slowest, fastest = max(levels, key=levels.__getitem__), min(levels, key=levels.__getitem__)
    return GroupAgreement(len(levels), slowest, fastest, levels[slowest] / levels[fastest], _same_pick_share(group))


def _same_pick_share(group: list[KernelTuning]) -> Proportion | None:
    """Return of how many pairs of devices the picks, tuning by tuning, are the same."""
    picks: dict[str, list[str]] = defaultdict(list)
    for older in group:
        picks[older.device or ""] += [config_key(pick.config) for pick in older.picks if pick.config is not None]
    pairs = [pair for a, b in combinations(picks.values(), 2) for pair in zip(a, b, strict=False)]
    return Proportion(sum(a == b for a, b in pairs), len(pairs)) if pairs else None
