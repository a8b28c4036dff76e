"""Compare two groups of tuning results kernel by kernel: best times, spread, picks, agreement of devices.

The findings and the page of ``assay contention variance``. The groups differ on purpose in schedule, isolation and
shared cores: these are not part of the work. Parameters, dtype, a fixed configuration, the conditions of the timing and
the model of the device are. Devices differ from each other, so each device is compared with itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import special

from assay.core.format import (
    change_cell,
    format_change,
    format_count,
    format_percent,
    format_range,
    format_ratio,
    format_time,
    is_uninformative,
    ratio_cell,
)
from assay.core.page import Column, Page, Section, Table, Text, build_table
from assay.core.results import Estimate, Finding, Findings
from assay.experiments.compare.pairing import describe_differences, find_differences, pair_strata, ratio_estimate
from assay.experiments.compare.tunings import best_times, config_key, most_common_pick
from assay.experiments.reporting import EFFECT_TONES, share_estimate, table_columns
from assay.stats.intervals import CONFIDENCE
from assay.stats.ratios import Proportion, pooled_ratio
from assay.store.identity import MODEL, SHARED_CORES, IdentityDetail, identity_details, identity_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from assay.core.page import Cell, Element, Tone
    from assay.core.results import Verdict
    from assay.experiments.compare.tunings import Config, KernelTuning, TuningGroup, TuningPick, ValuesByDevice

    WorkKey = tuple[str, tuple[IdentityDetail, ...] | None]


class RepeatSpread(NamedTuple):
    """The coefficient of variation of repeats of the same thing, and the degrees of freedom it is known with."""

    cv: float
    freedom: int


def stratified_ratio(baseline: Mapping[str, list[float]], concurrent: Mapping[str, list[float]]) -> Estimate | None:
    """Return how many times the baseline the other group is, each device compared with itself; null without any.

    Logarithms of the numbers are a level for each device, plus the same difference between the groups in all, plus
    noise: least squares, Student's t. Where no device is in both groups, all numbers are taken as one.
    """
    groups, matched = pair_strata(baseline, concurrent)
    pooled_level = pooled_ratio(groups)
    if pooled_level is None:
        return None
    n, has_interval = sum(len(a) + len(b) for a, b in groups), pooled_level.error is not None
    where = format_count(len(groups), "device") if matched else "devices that differ"
    method = f"log-ratio over {n} results on {where}, {'least squares' if has_interval else 'too few to tell'}"
    return ratio_estimate(pooled_level, method, n, "run" if has_interval else "process")


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
    """Return how the picks of both sides differ, each held against one of the baseline's in turn."""
    first, second = _picks_by_device(baseline), _picks_by_device(concurrent)
    rows: list[DevicePicks] = []
    mismatch = Proportion(0, 0)
    for device in (device for device in first if device in second):
        keys, others = ([config_key(pick.config) for pick in side[device]] for side in (first, second))
        differs = [key != keys[index % len(keys)] for index, key in enumerate(others)]
        mismatch += Proportion(sum(differs), len(differs))
        one, other = most_common_pick(first[device]), most_common_pick(second[device])
        if one is not None and other is not None and one.config is not None and other.config is not None:
            differing = differing_settings(one.config, other.config)
            there = [tuning for tuning in baseline if tuning.device == device]
            cost = _pick_cost(there, one.config, other.config) if differing else None
            rows.append(DevicePicks(device, one.config, other.config, differing, cost))
    chance = sum((self_mismatch_share(picks) for picks in first.values()), Proportion(0, 0))
    return KernelPicks(tuple(rows), mismatch, chance)


def _picks_by_device(group: Iterable[KernelTuning]) -> dict[str | None, list[TuningPick]]:
    picks_by_device: dict[str | None, list[TuningPick]] = defaultdict(list)
    for tuning in group:
        picks_by_device[tuning.device] += [pick for pick in tuning.picks if pick.config is not None]
    return {device: picks for device, picks in picks_by_device.items() if picks}


def self_mismatch_share(picks: Sequence[TuningPick]) -> Proportion:
    """Return how many picks of one side differ from each other, in pairs of which none has a part in two."""
    keys = [config_key(pick.config) for pick in picks]
    pairs = list(zip(keys[0::2], keys[1::2], strict=False))
    return Proportion(sum(a != b for a, b in pairs), len(pairs))


def differing_settings(one: Config, other: Config) -> tuple[str, ...]:
    """Return the settings in which two configurations differ."""
    return tuple(name for name in dict.fromkeys((*one, *other)) if one.get(name) != other.get(name))


def _pick_cost(baseline: list[KernelTuning], one: Config, other: Config) -> Estimate | None:
    """Return the other configuration's time over the one's, as the same timer saw both; null where it did not."""
    keys = [config_key(one), config_key(other)]
    times: dict[str | None, dict[str, list[float]]] = {}
    for entry in (entry for tuning in baseline for entry in tuning.timed):
        key, by_key = config_key(entry.config), times.setdefault(entry.timer, {})
        if key in keys:
            by_key.setdefault(key, []).extend(entry.times_ms)
    for by_key in times.values():
        mine, theirs = by_key.get(keys[0]), by_key.get(keys[1])
        if mine and theirs:
            return stratified_ratio({"": mine}, {"": theirs})
    return None


PLACEMENT_CONDITIONS = frozenset({SHARED_CORES, "cpu_groups"})
"""Conditions that say which cores a kernel had, as the isolation does."""


def group_by_work(group: Iterable[KernelTuning]) -> dict[WorkKey, list[KernelTuning]]:
    """Return the results of a group by the kernel and what must agree, in order; null where the file does not say."""
    by_key: dict[WorkKey, list[KernelTuning]] = {}
    for tuning in group:
        key: WorkKey = (tuning.kernel, None)
        if tuning.identity is not None:
            details = [
                detail
                for detail in identity_details(tuning.identity)
                if detail.aspect not in {"workload", "schedule", "isolation"}
                and detail.name not in PLACEMENT_CONDITIONS
            ]
            model = identity_model(tuning.identity)
            details += [] if model is None else [IdentityDetail(MODEL, MODEL, model)]
            key = tuning.identity.get("workload", {}).get("workload", tuning.kernel), tuple(details)
        by_key.setdefault(key, []).append(tuning)
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
    groups, others = group_by_work(baseline), group_by_work(concurrent)
    return tuple(
        ComparedKernel(
            name=mine[0].kernel,
            times=compare_times(mine, others[work]),
            spreads=compare_spreads(mine, others[work]),
            picks=compare_picks(mine, others[work]),
            agreements=(group_agreement(mine), group_agreement(others[work])),
        )
        for work, mine in groups.items()
        if work in others
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


def _geometric_mean(by_device: ValuesByDevice) -> float | None:
    """Return the geometric mean over devices of their geometric means."""
    levels = [float(np.mean(np.log(times))) for times in by_device.values()]
    return math.exp(float(np.mean(levels))) if levels else None


def compare_spreads(baseline: list[KernelTuning], concurrent: list[KernelTuning]) -> KernelSpreads:
    """Return how much repeats scatter on both sides."""
    first, second = repeat_spread(_repeated_times(baseline)), repeat_spread(_repeated_times(concurrent))
    scatter: list[ValuesByDevice] = []
    for group in (baseline, concurrent):
        cvs: ValuesByDevice = defaultdict(list)
        for tuning in group:
            cvs[tuning.device or ""] += [cv for entry in tuning.timed for cv in entry.cvs]
        scatter.append({device: values for device, values in cvs.items() if values})
    return KernelSpreads(
        baseline=first,
        concurrent=second,
        ratio=spread_ratio(first, second),
        samples=(_geometric_mean(scatter[0]), _geometric_mean(scatter[1])),
        samples_ratio=stratified_ratio(scatter[0], scatter[1]),
    )


def _repeated_times(group: Iterable[KernelTuning]) -> dict[str, list[list[float]]]:
    """Return, for each device, the times of everything that is the same there: who timed it, the configuration."""
    by_device: dict[str, dict[tuple[str | None, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for tuning in group:
        for entry in tuning.timed:
            if entry.config is not None or entry.timer is not None:
                by_device[tuning.device or ""][entry.timer, config_key(entry.config)] += entry.times_ms
    return {device: list(things.values()) for device, things in by_device.items()}


def group_agreement(group: list[KernelTuning]) -> GroupAgreement | None:
    """Return how far the devices of a group are apart; null for fewer than two that are known."""
    levels = {d: math.exp(float(np.mean(np.log(t)))) for d, t in best_times(group).items() if d}
    if len(levels) < 2:
        return None
    picks = {
        device: [config_key(pick.config) for pick in several] for device, several in _picks_by_device(group).items()
    }
    pairs = [pair for a, b in combinations(picks.values(), 2) for pair in zip(a, b, strict=False)]
    same_pick = Proportion(sum(a == b for a, b in pairs), len(pairs)) if pairs else None
    slowest, fastest = max(levels, key=levels.__getitem__), min(levels, key=levels.__getitem__)
    return GroupAgreement(len(levels), slowest, fastest, levels[slowest] / levels[fastest], same_pick)


def analyse_kernels(kernels: tuple[ComparedKernel, ...], minimum_effect: float) -> Findings:
    """Return the findings of all kernels."""
    findings = [finding for kernel in kernels for finding in _kernel_findings(kernel, minimum_effect)]
    return Findings(headline=headline(kernels, minimum_effect), findings=tuple(findings))


def _kernel_findings(kernel: ComparedKernel, minimum_effect: float) -> list[Finding]:
    name, picks = kernel.name, kernel.picks
    ratios = (
        ("the best time is longer than the baseline's", "time", kernel.times.ratio),
        ("repeats scatter more than the baseline's", "repeats", kernel.spreads.ratio),
        ("samples scatter more than the baseline's", "samples", kernel.spreads.samples_ratio),
    )
    findings = [
        Finding(
            claim=f"{name}: {claim}",
            estimate=ratio,
            verdict=ratio_verdict(ratio, minimum_effect),
            records=(),
            facts={"kernel": name, "what": what},
        )
        for claim, what, ratio in ratios
        if ratio is not None
    ]
    share = share_estimate(picks.mismatch, "picks that differ from the baseline's")
    if share is not None:
        findings.append(
            Finding(
                claim=f"{name}: another configuration is picked than in the baseline",
                estimate=share,
                verdict=mismatch_verdict(*picks.shares),
                reason=mismatch_reason(*picks.shares),
                records=(),
                facts={
                    "kernel": name,
                    "what": "picks",
                    "differ": picks.mismatch.count,
                    "of": picks.mismatch.n,
                    "baseline_differs": picks.baseline_mismatch.count,
                    "baseline_of": picks.baseline_mismatch.n,
                    "settings": ", ".join(dict.fromkeys(s for d in picks.devices for s in d.differing)) or None,
                },
            )
        )
    return findings


def ratio_verdict(ratio: Estimate | None, minimum_effect: float) -> Verdict:
    """Return whether a ratio surely is larger than 1 by more than the minimum effect."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return "unsure"
    if ratio.low > 1 + minimum_effect:
        return "yes"
    return "no" if ratio.high <= 1 + minimum_effect else "unsure"


def mismatch_verdict(share: Proportion, chance: Proportion) -> Verdict:
    """Return whether picks surely differ more often than those of the baseline do among themselves."""
    ours, theirs = share.interval(), chance.interval()
    if ours is None or theirs is None:
        return "unsure"
    if ours[0] > theirs[1]:
        return "yes"
    return "no" if ours[1] <= theirs[0] or not share.count else "unsure"


def mismatch_reason(share: Proportion, chance: Proportion) -> str:
    """Write how often picks differ, and how often they do by themselves."""
    text = f"{share.count} of {share.n} differ from the baseline"
    if not chance.n:
        return f"{text}; how often the baseline differs from itself is not known without repeats of it"
    return f"{text}; among themselves {chance.count} of {chance.n} of the baseline do"


def headline(kernels: tuple[ComparedKernel, ...], minimum_effect: float) -> str:
    """Return in one sentence what changed."""
    parts = []
    for kernel in kernels[:3]:
        picks = kernel.picks.mismatch
        differ = f", and {picks.count} of {picks.n} picks differ" if picks.n else ""
        parts.append(f"{kernel.name} {time_text(kernel.times.ratio, minimum_effect)}{differ}")
    more = f"; and {format_count(len(kernels) - 3, 'more kernel')}" if len(kernels) > 3 else ""
    return f"{'; '.join(parts)}{more}."


def time_text(ratio: Estimate | None, minimum_effect: float) -> str:
    """Write how a time compares."""
    if ratio is None:
        return "has no times to compare"
    if ratio.low is None or ratio.high is None:
        return (
            f"takes {format_ratio(ratio.value)} as long as the baseline, of which too few results say how sure that is"
        )
    interval = format_ratio(ratio.value, ratio.low, ratio.high)
    if is_uninformative(ratio.low, ratio.high):
        return f"takes {interval} as long as the baseline: there are too few results to say"
    if ratio.low > 1 + minimum_effect:
        return f"takes longer than the baseline, {interval}"
    if ratio.high < 1 / (1 + minimum_effect):
        return f"takes less time than the baseline, {interval}"
    return f"shows no sure difference in time beyond {format_percent(minimum_effect, digits=3)}, {interval}"


def build_page(
    kernels: tuple[ComparedKernel, ...],
    findings: Findings,
    groups: tuple[TuningGroup, TuningGroup],
    minimum_effect: float,
) -> Page:
    """Return the whole page."""
    results = (_times_table(kernels, minimum_effect), _spread_table(kernels, minimum_effect), *_picks_tables(kernels))
    sections = [
        Section(title="Results", elements=results),
        Section(title="Across devices", elements=tuple(_agreement_table(kernels))),
        Section(title="What could not be used", elements=tuple(_unusable_elements(groups))),
    ]
    return Page(
        title="assay contention variance",
        lead=findings.headline,
        sections=tuple(section for section in sections if section.elements),
        facts=tuple(
            (name, ", ".join(dict.fromkeys(tuning.source for tuning in group.tunings)))
            for name, group in zip(("baseline", "concurrent"), groups, strict=True)
        ),
    )


def _times_table(kernels: tuple[ComparedKernel, ...], minimum_effect: float) -> Table:
    """Return the best times on both sides."""
    return build_table(
        "Best time",
        kernels,
        {
            "kernel": lambda kernel: kernel.name,
            "baseline": lambda kernel: _ms_text(kernel.times.baseline_ms),
            "concurrent": lambda kernel: _ms_text(kernel.times.concurrent_ms),
            "ratio": lambda kernel: ratio_cell(kernel.times.ratio),
            "results": lambda kernel: f"{kernel.times.results[0]} and {kernel.times.results[1]}",
        },
        numeric=("baseline", "concurrent", "ratio", "results"),
        tone=lambda kernel: EFFECT_TONES[ratio_verdict(kernel.times.ratio, minimum_effect)],
        note=(
            "The best time that tuner or timing saw, in whatever configuration. Each device is held against itself. "
            "Marked: whether it takes longer, is known not to, or is unsure. Inconclusive: too few results to say."
        ),
    )


def _ms_text(milliseconds: float | None) -> str | None:
    return None if milliseconds is None else format_time(1e3 * milliseconds)


def _spread_table(kernels: tuple[ComparedKernel, ...], minimum_effect: float) -> Table:
    """Return how much repeats of the same configuration scatter, and samples within a process."""
    rows: list[tuple[Cell, ...]] = []
    tones: list[Tone] = []
    for kernel in kernels:
        spreads = kernel.spreads
        repeats = [None if spread is None else spread.cv for spread in (spreads.baseline, spreads.concurrent)]
        sides = [("repeats", repeats, spreads.ratio)]
        if spreads.samples != (None, None):
            sides.append(("samples", list(spreads.samples), spreads.samples_ratio))
        for of, cvs, ratio in sides:
            texts = (None if cv is None else f"{cv:.3f}" for cv in cvs)
            rows.append((kernel.name, of, *texts, ratio_cell(ratio)))
            tones.append(EFFECT_TONES[ratio_verdict(ratio, minimum_effect)])
    return Table(
        title="Coefficient of variation",
        columns=table_columns("kernel", "of", "baseline", "concurrent", "ratio", words=2),
        rows=tuple(rows),
        tones=tuple(tones),
        note=(
            "Repeats: the same configuration on the same device in several processes. Samples: within a process. "
            "A dash: nothing was timed twice; times of different configurations have no variance to speak of."
        ),
    )


def _picks_tables(kernels: tuple[ComparedKernel, ...]) -> list[Element]:
    """Return which configurations were picked where, and how often they differ."""
    rows: list[tuple[Cell, ...]] = []
    for kernel in kernels:
        for device in kernel.picks.devices:
            baseline = " ".join(f"{name}={value}" for name, value in device.baseline.items())
            changes = [f"{n} {device.baseline.get(n)} → {device.concurrent.get(n)}" for n in device.differing]
            changed = ", ".join(changes) or "nothing"
            rows.append((kernel.name, device.device, _cost_text(device), baseline, changed))
    if not rows:
        return [Text(text="No configuration was picked on both sides.")]
    titles = ("kernel", "device", "costs", "baseline", "concurrent differs in")
    picked = Table(
        title="Usual picks",
        columns=tuple(Column(title=title, numeric=title == "costs") for title in titles),
        rows=tuple(rows),
        note=(
            "Costs: how much longer the concurrent pick takes than the baseline's, both as the baseline timed them, "
            "with the 95 % interval over its processes. Timed once: it has none, and may be chance."
        ),
    )
    mismatch = build_table(
        "How often picks differ",
        [kernel for kernel in kernels if kernel.picks.mismatch.n],
        {
            "kernel": lambda kernel: kernel.name,
            "from the baseline": lambda kernel: _share_text(kernel.picks.mismatch),
            "baseline from itself": lambda kernel: _share_text(kernel.picks.baseline_mismatch),
        },
        numeric=("from the baseline", "baseline from itself"),
        tone=lambda kernel: EFFECT_TONES[mismatch_verdict(*kernel.picks.shares)],
        note="With exact 95 % intervals. A dash: without repeats of the baseline it is not known.",
    )
    return [picked, mismatch]


def _cost_text(device: DevicePicks) -> str | None:
    """Write what another pick costs, with its interval or why there is none."""
    if not device.differing:
        return "the same"
    cost = device.cost
    if cost is None:
        return None
    return f"{format_change(cost.value)} (timed once)" if cost.low is None else change_cell(cost)


def _share_text(share: Proportion) -> str | None:
    interval = share.interval()
    if interval is None:
        return None
    return f"{share.count} of {share.n} ({format_range(*map(format_percent, interval))})"


def _agreement_table(kernels: tuple[ComparedKernel, ...]) -> list[Element]:
    """Return how far the devices of each group are apart."""
    rows: list[tuple[Cell, ...]] = []
    for kernel in kernels:
        for side, group in zip(("baseline", "concurrent"), kernel.agreements, strict=True):
            if group is not None:
                same = None if group.same_pick is None else f"{group.same_pick.count} of {group.same_pick.n}"
                apart = format_percent(group.slowest_over_fastest - 1)
                rows.append((kernel.name, side, group.devices, group.slowest, group.fastest, apart, same))
    if not rows:
        return []
    columns = table_columns("kernel", "group", "devices", "slowest", "fastest", "apart", "same pick", words=2)
    note = "Apart: the slowest device's best time over the fastest's. Same pick: of pairs of devices, tuning by tuning."
    return [Table(title="Do devices agree?", columns=columns, rows=tuple(rows), note=note)]


def _unusable_elements(groups: tuple[TuningGroup, TuningGroup]) -> list[Element]:
    """Return what could not be read, what of it could not be used, and the kernels that only one group has."""
    first, second = groups
    texts = [f"{tuning.source}: {note}" for group in groups for tuning in group.tunings for note in tuning.notes]
    texts += [f"Not comparable: {text}" for text in describe_not_comparable(first.tunings, second.tunings)]
    for name, mine, theirs in (("baseline", first, second), ("concurrent", second, first)):
        lone = [kernel for kernel in mine.kernels if kernel not in theirs.kernels]
        texts += [f"Only the {name} has {', '.join(lone)}: not compared"] if lone else []
    unusable = [Text(text=f"{sentence}.", tone="bad") for group in groups for sentence in group.unusable]
    return [*unusable, *(Text(text=f"{text}.", tone="unsure") for text in texts)]
