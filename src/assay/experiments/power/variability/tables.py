"""What is written rather than drawn: few GPUs each, GPUs that stand out, places, variances, correlations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from assay.core.page import Column, Table, Text
from assay.core.units import format_time
from assay.experiments.power.variability import words
from assay.experiments.power.variability.measures import HOTTER_C, TIME
from assay.stats.grouped import means
from assay.stats.longrun import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Cell, Element, Tone
    from assay.core.results import Verdict
    from assay.experiments.power.variability.analysis import Looked
    from assay.experiments.power.variability.peers import Outlier
    from assay.experiments.power.variability.places import Effect
    from assay.stats.components import Component

FEW = 16
"""So many GPUs have a row and a strip each."""
MOST_OF_A_KIND, MOST_PLACES = 10, 30
WIDE = 1.0
"""A standard deviation of all of the time: an interval that reaches so far says nothing."""
BAD: dict[Verdict, Tone] = {"yes": "bad", "no": "good", "unsure": "unsure"}


def gpus_table(looked: Looked) -> list[Element]:
    """Return each GPU with its numbers, where they are few."""
    fleet, numbers = looked.fleet, looked.numbers[TIME.name]
    if len(fleet.gpus) > FEW:
        return []
    columns = {name: _by_gpu(looked, name) for name in ("temperature_c", "sm_mhz", "power_w", "energy_per_call_j")}
    runs = np.bincount(np.unique(np.stack([fleet.gpu, fleet.run]), axis=1)[0], minlength=len(fleet.gpus))
    rows: list[tuple[Cell, ...]] = []
    for gpu in np.argsort(numbers.value, kind="stable"):
        time = math.exp(numbers.value[gpu])
        cells = [None if not np.isfinite(column[gpu]) else float(column[gpu]) for column in columns.values()]
        rows.append((fleet.name(int(gpu)), format_time(time), _against_mean(looked, int(gpu)), *cells, int(runs[gpu])))
    titles = ("GPU", "time", "against the mean", "°C", "SM MHz", "W", "J a call", "runs")
    return [
        Table(
            title="The GPUs, the fastest first",
            columns=tuple(Column(title=title, numeric=title != "GPU") for title in titles),
            rows=tuple(rows),
            note="Time: geometric mean over runs, cases levelled. 95 % intervals over runs; a dash was not measured.",
        )
    ]


def _by_gpu(looked: Looked, name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    values = looked.fleet.column(name)
    there = np.isfinite(values)
    return means(values[there], looked.fleet.gpu[there], len(looked.fleet.gpus))


def _against_mean(looked: Looked, gpu: int) -> str:
    """Write how a GPU's time differs from the mean of all."""
    numbers = looked.numbers[TIME.name]
    value = float(numbers.value[gpu] - np.nanmean(numbers.value))
    if numbers.unit is None:
        return words.apart(TIME, value)
    half = quantile(0.95, max(1, round(float(numbers.freedom[gpu])))) * float(numbers.error[gpu])
    return words.apart(TIME, value, value - half, value + half)


def outliers_table(looked: Looked) -> list[Element]:
    """Return the GPUs that stand out, kind by kind, those that surely do first."""
    kinds: dict[str, list[Outlier]] = {}
    for one in sorted(looked.told, key=lambda one: one.verdict != "yes"):
        kinds.setdefault(one.word, []).append(one)
    shown = [one for own in kinds.values() for one in own[:MOST_OF_A_KIND]]
    if not shown:
        return []
    more = f"The first {MOST_OF_A_KIND} of each kind; all are in gpus.csv. " if len(shown) < len(looked.told) else ""
    return [
        Table(
            title="GPUs that stand out",
            columns=tuple(
                Column(title=title, numeric=index > 2)
                for index, title in enumerate(("GPU", "is", "held against", "by", "against the fleet"))
            ),
            rows=tuple(_outlier(looked, one) for one in shown),
            tones=tuple("unsure" if one.verdict != "yes" else _tone(one) for one in shown),
            note=(
                f"{more}Unlikely among its peers at a false rate of 5 % over all GPUs, and beyond "
                f"{words.percent(looked.minimum_effect, 0)} (heat: {HOTTER_C:g} °C) in its whole interval; unsure "
                "where its interval reaches into that. What is slow or hungry also spends more energy on each call."
            ),
        )
    ]


def _tone(one: Outlier) -> Tone:
    return "bad" if one.peers.value > 0 else "good"


def _outlier(looked: Looked, one: Outlier) -> tuple[Cell, ...]:
    peers, fleet = one.peers, one.fleet
    return (
        looked.fleet.name(one.gpu),
        one.word,
        one.against,
        words.apart(one.measure, peers.value, peers.low, peers.high),
        words.apart(one.measure, fleet.value, fleet.low, fleet.high),
    )


def places_table(looked: Looked) -> list[Element]:
    """Return what slots add to the time, and the racks and hosts whose GPUs stray together by any measure."""
    slots = looked.centres[TIME.name].of("slot")
    strays = [e for e in looked.places if e.verdict == "yes" and (e.what != "slot" or e.measure != TIME)]
    strays.sort(key=lambda effect: (effect.what, effect.measure.name, -abs(effect.value)))
    shown: list[Effect] = [*slots, *strays[:MOST_PLACES]]
    more = f"The first {MOST_PLACES} of {len(strays):,} that stray; --json has all. " * (len(strays) > MOST_PLACES)
    if not shown:
        return [Text(text=_no_places(looked))] if len(looked.fleet.gpus) > 1 else []
    return [
        Table(
            title="Slots, hosts and racks",
            columns=tuple(
                Column(title=title, numeric=index > 1)
                for index, title in enumerate(("place", "of", "its GPUs take or have", "GPUs"))
            ),
            rows=tuple(
                (
                    f"{effect.what} {effect.name}",
                    effect.measure.title,
                    words.apart(effect.measure, effect.value, effect.low, effect.high),
                    effect.members,
                )
                for effect in shown
            ),
            tones=tuple(_place_tone(effect) for effect in shown),
            note=(
                f"{more}Slots are held against the middle of their host, hosts against their rack, racks "
                "against the fleet. Slots are all told; racks and hosts where they surely differ."
            ),
        )
    ]


def _place_tone(effect: Effect) -> Tone:
    if effect.verdict != "yes":
        return "plain" if effect.verdict == "no" else "unsure"
    return "bad" if effect.value > 0 else "good"


def _no_places(looked: Looked) -> str:
    hosts = len(looked.fleet.hosts)
    if hosts < 3:
        return f"Of {words.counted(hosts, 'host')} it cannot be told whether it is the slot or the GPU in it."
    return "No slot, host or rack surely strays as a whole."


def components_table(looked: Looked) -> list[Element]:
    """Return where the variance of a call's time comes from."""
    shown = [one for one in looked.components if one.variance is not None or one.level not in {"racks", "hosts"}]
    typical = {one.level: one for one in looked.typical or ()}
    with_typical = looked.typical is not None
    titles = [
        "between",
        "standard deviation",
        "share of the variance",
        "how many",
        *["without outliers"][:with_typical],
    ]
    return [
        Table(
            title="Where the variance of a call's time comes from",
            columns=tuple(Column(title=title, numeric=index > 0) for index, title in enumerate(titles)),
            rows=tuple(
                (
                    one.level,
                    _deviation(one),
                    _share(one),
                    one.members,
                    *([_deviation(typical[one.level]) if one.level in typical else None][:with_typical]),
                )
                for one in shown
            ),
            note=_merged(shown),
        )
    ]


def _deviation(one: Component) -> str | None:
    if one.variance is None:
        return None
    value = percent_of(math.sqrt(one.variance))
    if one.low is None or one.high is None:
        return value
    low, high = (100 * math.sqrt(end) for end in (one.low, one.high))
    return f"{value} (or any)" if high > WIDE * 100 else f"{value} ({low:.2g} – {high:.2g})"


def percent_of(share: float) -> str:
    """Write a small share in percent with two digits."""
    return f"{100 * share:.2g} %"


def _share(one: Component) -> str | None:
    if one.share is None:
        return None
    if one.share_low is None or one.share_high is None:
        return words.percent(one.share, 0)
    return f"{words.percent(one.share, 0)} ({100 * one.share_low:.0f} – {100 * one.share_high:.0f})"


def _merged(shown: Sequence[Component]) -> str:
    """Say which levels cannot be told from others."""
    remarks = [
        f"{one.level} cannot be told from {one.within}: there is one for each"
        if one.within
        else f"there is but one of the {one.level}: how they differ cannot be told"
        for one in shown
        if one.variance is None
    ]
    plain = "Standard deviations of the time, with 95 % intervals; each is what a level adds to those below it."
    return f"{plain} {remarks[0][0].upper()}{'; '.join(remarks)[1:]}." if remarks else plain


def pairs_table(looked: Looked) -> list[Element]:
    """Return what goes together."""
    measured = [pair for pair in looked.pairs if pair.found is not None]
    if not measured:
        return []
    rows: list[tuple[Cell, ...]] = []
    for pair in measured:
        association = pair.found
        if association is None:
            continue
        interval = (
            None
            if association.low is None or association.high is None
            else f"{_rho(association.low)} – {_rho(association.high)}"
        )
        rows.append((pair.claim, _rho(association.rho), interval, pair.over, association.n))
    few = any(pair.over == "rows of few GPUs" for pair in measured)
    note = "Spearman's rank correlation of the first with the second thing; 95 % intervals."
    dependent = " So few GPUs are no sample: rows of one GPU are not independent, and there is no interval."
    return [
        Table(
            title="What goes together",
            columns=tuple(
                Column(title=title, numeric=title not in {"claim", "over"})
                for title in ("claim", "rho", "95 % interval", "over", "n")
            ),
            rows=tuple(rows),
            tones=tuple({"yes": "good", "no": "plain", "unsure": "unsure"}[pair.verdict] for pair in measured),
            note=note + (dependent if few else ""),
        )
    ]


def _rho(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")
