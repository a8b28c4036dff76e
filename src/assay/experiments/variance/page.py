"""What the comparison shows: times, spread, configurations, agreement of devices, and what could not be used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Page, Section, Table, Text
from assay.core.units import format_time
from assay.experiments.variance.findings import mismatch_verdict, verdict
from assay.experiments.variance.matching import not_comparable
from assay.experiments.wide import tells_nothing

if TYPE_CHECKING:
    from assay.core.page import Cell, Element, Tone
    from assay.core.results import Estimate, Findings, Verdict
    from assay.experiments.variance.compare import Agreement, Kernel
    from assay.experiments.variance.effects import Spread
    from assay.experiments.variance.older_format import Config
    from assay.experiments.variance.picks import Device
    from assay.experiments.variance.sources import Group
    from assay.stats.shares import Share

TONES: dict[Verdict, Tone] = {"yes": "bad", "no": "good", "unsure": "unsure"}


def page(kernels: tuple[Kernel, ...], findings: Findings, groups: tuple[Group, Group], minimum_effect: float) -> Page:
    """Return the whole page."""
    results = (times_table(kernels, minimum_effect), spread_table(kernels, minimum_effect), *picks_tables(kernels))
    sections = [
        Section(title="Results", elements=results),
        Section(title="Across devices", elements=tuple(agreement_table(kernels))),
        Section(title="What could not be used", elements=tuple(trouble(groups))),
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


def times_table(kernels: tuple[Kernel, ...], minimum_effect: float) -> Table:
    """Return the best times on both sides."""
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            kernel.name,
            _ms(kernel.times.baseline_ms),
            _ms(kernel.times.concurrent_ms),
            _ratio(kernel.times.ratio),
            _interval(kernel.times.ratio),
            f"{kernel.times.results[0]} and {kernel.times.results[1]}",
        )
        for kernel in kernels
    )
    return Table(
        title="Best time",
        columns=_columns("kernel", "baseline", "concurrent", "ratio", "95 % interval", "results", text=1),
        rows=rows,
        tones=tuple(TONES[verdict(kernel.times.ratio, minimum_effect)] for kernel in kernels),
        note=(
            "The best time that tuner or timing saw, in whatever configuration. Each device is held against itself. "
            "Marked: whether it takes longer, is known not to, or is unsure. “Or any”: too few results to say."
        ),
    )


def spread_table(kernels: tuple[Kernel, ...], minimum_effect: float) -> Table:
    """Return how much repeats of the same configuration scatter, and samples within a process."""
    rows: list[tuple[Cell, ...]] = []
    tones: list[Tone] = []
    for kernel in kernels:
        spreads = kernel.spreads
        baseline, concurrent = _spread(spreads.baseline), _spread(spreads.concurrent)
        rows.append((kernel.name, "repeats", baseline, concurrent, _ratio(spreads.ratio), _interval(spreads.ratio)))
        tones.append(TONES[verdict(spreads.ratio, minimum_effect)])
        if spreads.samples != (None, None):
            within = [None if cv is None else f"{cv:.3f}" for cv in spreads.samples]
            rows.append(
                (kernel.name, "samples", *within, _ratio(spreads.samples_ratio), _interval(spreads.samples_ratio))
            )
            tones.append(TONES[verdict(spreads.samples_ratio, minimum_effect)])
    return Table(
        title="Coefficient of variation",
        columns=_columns("kernel", "of", "baseline", "concurrent", "ratio", "95 % interval", text=2),
        rows=tuple(rows),
        tones=tuple(tones),
        note=(
            "Repeats: the same configuration on the same device in several processes. Samples: within a process. "
            "A dash: nothing was timed twice; times of different configurations have no variance to speak of."
        ),
    )


def picks_tables(kernels: tuple[Kernel, ...]) -> list[Element]:
    """Return which configurations were picked where, and how often they differ."""
    rows: list[tuple[Cell, ...]] = [
        (
            kernel.name,
            device.device,
            _cost(device),
            _config(device.baseline),
            _changes(device),
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
        rows=tuple((k.name, _share(k.picks.mismatch), _share(k.picks.by_chance)) for k in tuned),
        tones=tuple(TONES[mismatch_verdict(*k.picks.shares)] for k in tuned),
        note="With exact 95 % intervals. A dash: without repeats of the baseline it is not known.",
    )
    return [picked, mismatch]


def _cost(device: Device) -> str | None:
    """Write what another pick costs, with its interval or why there is none."""
    if not device.differ:
        return "the same"
    cost = device.cost
    if cost is None:
        return None
    if cost.low is None or cost.high is None:
        return f"{_added(cost.value)} % (timed once)"
    if tells_nothing(cost.low, cost.high):
        return f"{_added(cost.value)} % (or any)"
    return f"{_added(cost.value)} % ({_added(cost.low)} – {_added(cost.high)})"


def _added(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}"


def _changes(device: Device) -> str:
    """Write the settings that differ, from the one value to the other."""
    changes = [f"{name} {device.baseline.get(name)} → {device.concurrent.get(name)}" for name in device.differ]
    return ", ".join(changes) or "nothing"


def agreement_table(kernels: tuple[Kernel, ...]) -> list[Element]:
    """Return how far the devices of each group are apart."""
    rows: list[tuple[Cell, ...]] = [
        row
        for kernel in kernels
        for side, agreement in zip(("baseline", "concurrent"), kernel.agreements, strict=True)
        for row in _agreement(kernel.name, side, agreement)
    ]
    if not rows:
        return []
    columns = _columns("kernel", "group", "devices", "slowest", "fastest", "apart", "same pick", text=2)
    note = "Apart: the slowest device's best time over the fastest's. Same pick: of pairs of devices, tuning by tuning."
    return [Table(title="Do devices agree?", columns=columns, rows=tuple(rows), note=note)]


def _agreement(kernel: str, side: str, found: Agreement | None) -> list[tuple[Cell, ...]]:
    if found is None:
        return []
    same = None if found.same_pick is None else f"{found.same_pick.count} of {found.same_pick.n}"
    apart = f"{100 * (found.apart - 1):.1f} %"
    return [(kernel, side, found.devices, found.slowest, found.fastest, apart, same)]


def trouble(groups: tuple[Group, Group]) -> list[Element]:
    """Return what could not be read, what of it could not be used, and the kernels that only one group has."""
    elements: list[Element] = [Text(text=f"{sentence}.", tone="bad") for group in groups for sentence in group.unusable]
    elements += [
        Text(text=f"{source.path}: {note}.", tone="unsure")
        for group in groups
        for source in group.sources
        for note in source.older.notes
    ]
    first, second = groups
    olders = ([source.older for source in group.sources] for group in groups)
    elements += [Text(text=f"Not comparable: {sentence}.", tone="unsure") for sentence in not_comparable(*olders)]
    for name, mine, theirs in (("baseline", first, second), ("concurrent", second, first)):
        lone = [kernel for kernel in mine.kernels if kernel not in theirs.kernels]
        if lone:
            elements.append(Text(text=f"Only the {name} has {', '.join(lone)}: not compared.", tone="unsure"))
    return elements


def _columns(*titles: str, text: int) -> tuple[Column, ...]:
    return tuple(Column(title=title, numeric=index >= text) for index, title in enumerate(titles))


def _ms(milliseconds: float | None) -> str | None:
    return None if milliseconds is None else format_time(1e3 * milliseconds)


def _ratio(estimate: Estimate | None) -> str | None:
    return None if estimate is None else f"{estimate.value:.3f}"


def _interval(estimate: Estimate | None) -> str | None:
    if estimate is None or estimate.low is None or estimate.high is None:
        return None
    return "or any" if tells_nothing(estimate.low, estimate.high) else f"{estimate.low:.3f} – {estimate.high:.3f}"


def _spread(found: Spread | None) -> str | None:
    return None if found is None else f"{found.cv:.3f}"


def _share(share: Share) -> str | None:
    interval = share.interval()
    if interval is None or share.value is None:
        return None
    return f"{share.count} of {share.n} ({100 * interval[0]:.0f} – {100 * interval[1]:.0f} %)"


def _config(config: Config) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())
