"""The tables of what the tuner picked: which configurations, how often in each phase, and what each costs."""

from __future__ import annotations

from string import ascii_uppercase
from typing import TYPE_CHECKING

from assay.core.page import Column, Table, Text
from assay.core.units import format_time
from assay.experiments.contention.choices import against_again, over_blocks, over_devices
from assay.experiments.contention.options import WORDS
from assay.experiments.contention.places import Place
from assay.experiments.contention.regret import regret_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Cell, Element
    from assay.core.results import Estimate
    from assay.experiments.contention.analysis import Analysis
    from assay.experiments.contention.options import ContentionOptions, Phase
    from assay.experiments.contention.places import Choice
    from assay.experiments.contention.regret import Regrets
    from assay.stats.shares import Share


def picks(options: ContentionOptions, found: Analysis) -> tuple[Element, ...]:
    """Return all that is known of the picks; nothing where nothing was tuned."""
    choices = found.layout.choices
    if not choices:
        return ()
    elements: list[Element] = []
    for index, subject in enumerate(options.subjects):
        mine = [choice for choice in choices if choice.place.subject == index]
        if mine:
            names = letters(mine)
            elements += [
                _configurations(options, subject.label, mine, names),
                *_regrets(options, found, index, names),
                _chosen(options, found, subject.label, mine, names),
            ]
    return (*elements, *_shares(options, found))


def letters(choices: Sequence[Choice]) -> dict[str, str]:
    """Return a short name for each configuration, A for the one that was picked most often."""
    counts: dict[str, int] = {}
    for choice in choices:
        if choice.key is not None:
            counts[choice.key] = counts.get(choice.key, 0) + 1
    ordered = sorted(counts, key=lambda key: (-counts[key], key))
    return {key: _letter(rank) for rank, key in enumerate(ordered)}


def _letter(place: int) -> str:
    more, last = divmod(place, len(ascii_uppercase))
    return (ascii_uppercase[more - 1] if more else "") + ascii_uppercase[last]


def _configurations(options: ContentionOptions, label: str, choices: Sequence[Choice], names: dict[str, str]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for key, name in names.items():
        config = next(c.config for c in choices if c.key == key) or {}
        text = " ".join(f"{setting}={value}" for setting, value in config.items())
        rows.append(
            (name, text, *(sum(c.key == key and c.phase == phase for c in choices) for phase in options.phases))
        )
    return Table(
        title=f"{label}: configurations that were picked, and how often in each phase",
        columns=(
            Column(title="pick"),
            Column(title="configuration"),
            *(Column(title=WORDS[phase], numeric=True) for phase in options.phases),
        ),
        rows=tuple(rows),
        note=_which_blocks(options),
    )


def _which_blocks(options: ContentionOptions) -> str | None:
    if options.tuned_blocks is None:
        return None
    return f"The tuner ran in the first {options.tuned_blocks} blocks only, which leaves time for more blocks."


def _regrets(options: ContentionOptions, found: Analysis, subject: int, names: dict[str, str]) -> list[Table]:
    by_device = {d: found.regrets[Place(subject, d)] for d in options.devices if Place(subject, d) in found.regrets}
    if not by_device:
        return []
    rows = tuple((name, *(_behind(regrets, key) for regrets in by_device.values())) for key, name in names.items())
    fastest = "; ".join(f"{device} {format_time(regrets.best_us)}" for device, regrets in by_device.items())
    return [
        Table(
            title=f"{options.subjects[subject].label}: regret of each pick, timed once more in quiet",
            columns=(Column(title="pick"), *(Column(title=device, numeric=True) for device in by_device)),
            rows=rows,
            note=(
                "How much slower than the best of them, in turns, with 95 % intervals; which is the best was found in "
                f"the other half of the time. The best takes: {fastest}."
            ),
        )
    ]


def _behind(known: Regrets, key: str) -> str | None:
    estimate = known.by_config.get(key)
    if estimate is None:
        return None
    return "best" if key == known.best else regret_text(estimate)


def regret_text(estimate: Estimate) -> str:
    """Write a regret in percent, with its interval."""
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value - 1:+.1%}"
    return f"{estimate.value - 1:+.1%} ({100 * (estimate.low - 1):+.1f} – {100 * (estimate.high - 1):+.1f})"


def _chosen(
    options: ContentionOptions, found: Analysis, label: str, choices: Sequence[Choice], names: dict[str, str]
) -> Element:
    rows: list[tuple[Cell, ...]] = []
    for device in options.devices:
        for block in found.layout.blocks:
            here = [c for c in choices if c.place.device == device and c.block == block]
            if here:
                cells = [_cell(found, options, here, phase, names) for phase in options.phases]
                rows.append((device, block, *cells))
    return Table(
        title=f"{label}: what was picked in each block",
        columns=(
            Column(title="device"),
            Column(title="block", numeric=True),
            *(Column(title=WORDS[phase]) for phase in options.phases),
        ),
        rows=tuple(rows),
        note="Letters as above, with the regret where it is surely more than none; – was not measured.",
    )


def _cell(
    found: Analysis, options: ContentionOptions, here: Sequence[Choice], phase: Phase, names: dict[str, str]
) -> str | None:
    texts = []
    for choice in sorted((c for c in here if c.phase == phase), key=lambda c: c.place):
        regret = regret_of(choice, found.regrets)
        lost = regret is not None and regret.low is not None and regret.low > 1
        behind = f" {regret.value - 1:+.1%}" if regret is not None and lost else ""
        name = "none" if choice.key is None else names[choice.key]
        worker = f"{choice.place.worker + 1}: " if options.workers > 1 and phase in {"naive", "isolated"} else ""
        texts.append(f"{worker}{name}{behind}")
    return "; ".join(texts) or None


def _shares(options: ContentionOptions, found: Analysis) -> list[Element]:
    rows: list[tuple[Cell, ...]] = [
        (f"{WORDS[phase]}, from alone in the same block", *share_cells(mismatch.share))
        for phase, mismatch in found.mismatches.items()
    ]
    rows.append((f"{WORDS['again']}, from alone in the same block (A/A)", *share_cells(against_again(found.picked))))
    rows += [
        (f"{WORDS[phase]}, from one block to the next", *share_cells(over_blocks(found.picked, phase)))
        for phase in options.phases
    ]
    if found.incomparable is None and len(options.devices) > 1:
        rows += [
            (f"{WORDS[p]}, from one device to the next", *share_cells(over_devices(found.picked, p, options.devices)))
            for p in options.phases
        ]
    table = Table(
        title="How often picks differ",
        columns=(
            Column(title="picks"),
            Column(title="differ", numeric=True),
            Column(title="share", numeric=True),
            Column(title="95 % interval", numeric=True),
        ),
        rows=tuple(rows),
        note="Exact (Clopper–Pearson) intervals, for comparisons that do not depend on each other.",
    )
    if found.incomparable is not None:
        return [table, Text(text=f"Picks of different GPUs are not compared: {found.incomparable}.", tone="unsure")]
    return [table]


def share_cells(share: Share) -> tuple[Cell, Cell, Cell]:
    """Return a share for three cells: how many of how many, in percent, and the interval."""
    value, interval = share.value, share.interval()
    if value is None or interval is None:
        return None, None, None
    return f"{share.count} of {share.n}", f"{value:.0%}", f"{interval[0]:.0%} – {interval[1]:.0%}"
