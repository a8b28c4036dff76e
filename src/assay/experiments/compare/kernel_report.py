"""The findings and the page of ``assay contention variance``.

Times, spread, configurations, agreement of devices, and what could not be used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.format import (
    change_cell,
    format_change,
    format_percent,
    format_range,
    format_ratio,
    format_time,
    is_uninformative,
    ratio_cell,
)
from assay.core.page import Column, Page, Section, Table, Text
from assay.core.results import Finding, Findings
from assay.experiments.compare.kernels import describe_not_comparable
from assay.experiments.reporting import EFFECT_TONES, share_estimate

if TYPE_CHECKING:
    from assay.core.page import Cell, Element, Tone
    from assay.core.results import Estimate, Verdict
    from assay.experiments.compare.kernels import ComparedKernel, DevicePicks, GroupAgreement, RepeatSpread
    from assay.experiments.compare.tunings import Config, TuningGroup
    from assay.stats.ratios import Proportion


def analyse_kernels(kernels: tuple[ComparedKernel, ...], minimum_effect: float) -> Findings:
    """Return the findings of all kernels."""
    findings = [finding for kernel in kernels for finding in _kernel_findings(kernel, minimum_effect)]
    return Findings(headline=headline(kernels, minimum_effect), findings=tuple(findings))


def _kernel_findings(kernel: ComparedKernel, minimum_effect: float) -> list[Finding]:
    name, findings = kernel.name, []
    times = kernel.times.ratio
    if times is not None:
        findings.append(
            _ratio_finding(f"{name}: the best time is longer than the baseline's", times, name, "time", minimum_effect)
        )
    for scatter, of in ((kernel.spreads.ratio, "repeats"), (kernel.spreads.samples_ratio, "samples")):
        if scatter is not None:
            findings.append(
                _ratio_finding(f"{name}: {of} scatter more than the baseline's", scatter, name, of, minimum_effect)
            )
    share = share_estimate(kernel.picks.mismatch, "picks that differ from the baseline's")
    if share is not None:
        findings.append(
            Finding(
                claim=f"{name}: another configuration is picked than in the baseline",
                estimate=share,
                verdict=mismatch_verdict(*kernel.picks.shares),
                reason=mismatch_reason(*kernel.picks.shares),
                records=(),
                facts={
                    "kernel": name,
                    "what": "picks",
                    "differ": kernel.picks.mismatch.count,
                    "of": kernel.picks.mismatch.n,
                    "baseline_differs": kernel.picks.baseline_mismatch.count,
                    "baseline_of": kernel.picks.baseline_mismatch.n,
                    "settings": ", ".join(dict.fromkeys(s for d in kernel.picks.devices for s in d.differing)) or None,
                },
            )
        )
    return findings


def _ratio_finding(claim: str, ratio: Estimate, kernel: str, what: str, minimum_effect: float) -> Finding:
    facts = {"kernel": kernel, "what": what}
    return Finding(claim=claim, estimate=ratio, verdict=ratio_verdict(ratio, minimum_effect), records=(), facts=facts)


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
    parts = [_kernel_text(kernel, minimum_effect) for kernel in kernels[:3]]
    more = f"; and {len(kernels) - 3} more kernel{'' if len(kernels) == 4 else 's'}" if len(kernels) > 3 else ""
    return f"{'; '.join(parts)}{more}."


def _kernel_text(kernel: ComparedKernel, minimum_effect: float) -> str:
    ratio, picks = kernel.times.ratio, kernel.picks.mismatch
    text = f"{kernel.name} {time_text(ratio, minimum_effect)}"
    return f"{text}, and {picks.count} of {picks.n} picks differ" if picks.n else text


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
    results = (times_table(kernels, minimum_effect), spread_table(kernels, minimum_effect), *picks_tables(kernels))
    sections = [
        Section(title="Results", elements=results),
        Section(title="Across devices", elements=tuple(agreement_table(kernels))),
        Section(title="What could not be used", elements=tuple(unusable_elements(groups))),
    ]
    return Page(
        title="assay contention variance",
        lead=findings.headline,
        sections=tuple(section for section in sections if section.elements),
        facts=tuple(
            (name, ", ".join(dict.fromkeys(source.path for source in group.sources)))
            for name, group in zip(("baseline", "concurrent"), groups, strict=True)
        ),
    )


def times_table(kernels: tuple[ComparedKernel, ...], minimum_effect: float) -> Table:
    """Return the best times on both sides."""
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            kernel.name,
            _ms_text(kernel.times.baseline_ms),
            _ms_text(kernel.times.concurrent_ms),
            ratio_cell(kernel.times.ratio),
            f"{kernel.times.results[0]} and {kernel.times.results[1]}",
        )
        for kernel in kernels
    )
    return Table(
        title="Best time",
        columns=_columns("kernel", "baseline", "concurrent", "ratio", "results", text=1),
        rows=rows,
        tones=tuple(EFFECT_TONES[ratio_verdict(kernel.times.ratio, minimum_effect)] for kernel in kernels),
        note=(
            "The best time that tuner or timing saw, in whatever configuration. Each device is held against itself. "
            "Marked: whether it takes longer, is known not to, or is unsure. Inconclusive: too few results to say."
        ),
    )


def spread_table(kernels: tuple[ComparedKernel, ...], minimum_effect: float) -> Table:
    """Return how much repeats of the same configuration scatter, and samples within a process."""
    rows: list[tuple[Cell, ...]] = []
    tones: list[Tone] = []
    for kernel in kernels:
        spreads = kernel.spreads
        baseline, concurrent = _spread_text(spreads.baseline), _spread_text(spreads.concurrent)
        rows.append((kernel.name, "repeats", baseline, concurrent, ratio_cell(spreads.ratio)))
        tones.append(EFFECT_TONES[ratio_verdict(spreads.ratio, minimum_effect)])
        if spreads.samples != (None, None):
            within = [None if cv is None else f"{cv:.3f}" for cv in spreads.samples]
            rows.append(
                (
                    kernel.name,
                    "samples",
                    *within,
                    ratio_cell(spreads.samples_ratio),
                )
            )
            tones.append(EFFECT_TONES[ratio_verdict(spreads.samples_ratio, minimum_effect)])
    return Table(
        title="Coefficient of variation",
        columns=_columns("kernel", "of", "baseline", "concurrent", "ratio", text=2),
        rows=tuple(rows),
        tones=tuple(tones),
        note=(
            "Repeats: the same configuration on the same device in several processes. Samples: within a process. "
            "A dash: nothing was timed twice; times of different configurations have no variance to speak of."
        ),
    )


def picks_tables(kernels: tuple[ComparedKernel, ...]) -> list[Element]:
    """Return which configurations were picked where, and how often they differ."""
    rows: list[tuple[Cell, ...]] = [
        (
            kernel.name,
            device.device,
            _cost_text(device),
            _config_text(device.baseline),
            _changes_text(device),
        )
        for kernel in kernels
        for device in kernel.picks.devices
    ]
    if not rows:
        return [Text(text="No configuration was picked on both sides.")]
    picked = Table(
        title="Usual picks",
        columns=(
            *_columns("kernel", "device", text=2),
            Column(title="costs", numeric=True),
            *_columns("baseline", "concurrent differs in", text=2),
        ),
        rows=tuple(rows),
        note=(
            "Costs: how much longer the concurrent pick takes than the baseline's, both as the baseline timed them, "
            "with the 95 % interval over its processes. Timed once: it has none, and may be chance."
        ),
    )
    tuned = [kernel for kernel in kernels if kernel.picks.mismatch.n]
    mismatch = Table(
        title="How often picks differ",
        columns=_columns("kernel", "from the baseline", "baseline from itself", text=1),
        rows=tuple((k.name, _share_text(k.picks.mismatch), _share_text(k.picks.baseline_mismatch)) for k in tuned),
        tones=tuple(EFFECT_TONES[mismatch_verdict(*k.picks.shares)] for k in tuned),
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


def _changes_text(device: DevicePicks) -> str:
    """Write the settings that differ, from the one value to the other."""
    changes = [f"{name} {device.baseline.get(name)} → {device.concurrent.get(name)}" for name in device.differing]
    return ", ".join(changes) or "nothing"


def agreement_table(kernels: tuple[ComparedKernel, ...]) -> list[Element]:
    """Return how far the devices of each group are apart."""
    rows: list[tuple[Cell, ...]] = [
        row
        for kernel in kernels
        for side, agreement in zip(("baseline", "concurrent"), kernel.agreements, strict=True)
        for row in _agreement_rows(kernel.name, side, agreement)
    ]
    if not rows:
        return []
    columns = _columns("kernel", "group", "devices", "slowest", "fastest", "apart", "same pick", text=2)
    note = "Apart: the slowest device's best time over the fastest's. Same pick: of pairs of devices, tuning by tuning."
    return [Table(title="Do devices agree?", columns=columns, rows=tuple(rows), note=note)]


def _agreement_rows(kernel: str, side: str, agreement: GroupAgreement | None) -> list[tuple[Cell, ...]]:
    if agreement is None:
        return []
    same = None if agreement.same_pick is None else f"{agreement.same_pick.count} of {agreement.same_pick.n}"
    apart = format_percent(agreement.slowest_over_fastest - 1)
    return [(kernel, side, agreement.devices, agreement.slowest, agreement.fastest, apart, same)]


def unusable_elements(groups: tuple[TuningGroup, TuningGroup]) -> list[Element]:
    """Return what could not be read, what of it could not be used, and the kernels that only one group has."""
    elements: list[Element] = [Text(text=f"{sentence}.", tone="bad") for group in groups for sentence in group.unusable]
    elements += [
        Text(text=f"{source.path}: {note}.", tone="unsure")
        for group in groups
        for source in group.sources
        for note in source.tuning.notes
    ]
    first, second = groups
    olders = ([source.tuning for source in group.sources] for group in groups)
    elements += [
        Text(text=f"Not comparable: {sentence}.", tone="unsure") for sentence in describe_not_comparable(*olders)
    ]
    for name, mine, theirs in (("baseline", first, second), ("concurrent", second, first)):
        lone = [kernel for kernel in mine.kernels if kernel not in theirs.kernels]
        if lone:
            elements.append(Text(text=f"Only the {name} has {', '.join(lone)}: not compared.", tone="unsure"))
    return elements


def _columns(*titles: str, text: int) -> tuple[Column, ...]:
    return tuple(Column(title=title, numeric=index >= text) for index, title in enumerate(titles))


def _ms_text(milliseconds: float | None) -> str | None:
    return None if milliseconds is None else format_time(1e3 * milliseconds)


def _spread_text(spread: RepeatSpread | None) -> str | None:
    return None if spread is None else f"{spread.cv:.3f}"


def _share_text(share: Proportion) -> str | None:
    interval = share.interval()
    if interval is None or share.value is None:
        return None
    return f"{share.count} of {share.n} ({format_range(*map(format_percent, interval))})"


def _config_text(config: Config) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())
