"""A comparison in words: the answer in one sentence, and numbers as people read them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from assay.core.units import format_time, significant
from assay.experiments.comparing.aligning import in_words
from assay.experiments.comparing.judging import models
from assay.experiments.wide import tells_nothing
from assay.stats import ratios

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.experiments.comparing.aligning import Table
    from assay.experiments.comparing.judging import Pair
    from assay.experiments.comparing.thresholds import Rose
    from assay.experiments.comparing.values import Number
    from assay.stats.ratios import Level

US = {"ns": 1e-3, "µs": 1.0, "ms": 1e3, "s": 1e6}
ORDER = ("slower", "more", "faster", "less", "higher", "lower", "same", "unsure")
IN_WORDS = {"same": "the same"}
AT_MOST = 3
"""So many results that are not comparable are named in the headline."""


def number_of(numbers: Sequence[Number]) -> tuple[float | None, tuple[float, float] | None]:
    """Return what several devices of one result say together, and its interval; nulls where there is none."""
    good = [number for number in numbers if number.value is not None]
    if not good:
        return None, None
    if len(good) == 1 and len(good[0].draws) < 2:
        only = good[0]
        return only.value, None if only.low is None or only.high is None else (only.low, only.high)
    levels = [_level(number) for number in good]
    if any(level is None for level in levels):
        return None, None
    mean_level = ratios.mean([level for level in levels if level is not None])
    return mean_level.value, mean_level.interval()


def _level(number: Number) -> Level | None:
    if number.value is None:
        return None
    if len(number.draws) > 1:
        return ratios.drawn(number.draws)
    return ratios.level(number.value, number.low, number.high, number.processes)


def written(value: float | None, unit: str) -> str | None:
    """Write a number with its unit."""
    if value is None:
        return None
    if unit in US:
        return format_time(value * US[unit])
    if not unit and value == int(value):
        return str(int(value))
    return f"{significant(value)}{'' if unit in {'', '×'} else ' '}{unit}"


def shown(numbers: Sequence[Number]) -> str | None:
    """Write what a result says, with half its interval in percent; or why it says nothing."""
    if not numbers:
        return None
    value, ends = number_of(numbers)
    if value is None:
        return numbers[0].reason
    text = written(value, numbers[0].unit)
    if ends is None or not value:
        return text
    return f"{text} ± {significant(50 * (ends[1] - ends[0]) / abs(value), 2)} %"


def factor(ratio: Level | None) -> str | None:
    """Write a ratio."""
    return None if ratio is None else f"{ratio.value:.3f}"


def interval(ratio: Level | None) -> str | None:
    """Write the interval of a ratio; null where there is none."""
    ends = None if ratio is None else ratio.interval()
    if ends is None:
        return None
    return "or any" if tells_nothing(*ends) else f"{ends[0]:.3f} – {ends[1]:.3f}"


def headline(
    table: Table,
    pairs: Sequence[Pair],
    rising: Sequence[Rose],
    different: Sequence[str],
    minimum_effect: float,
) -> str:
    """Return what came of it in a sentence or two."""
    baseline, sentences = table.sources[0].path, []
    if pairs:
        counts = [(word, sum(pair.verdict == word for pair in pairs)) for word in ORDER]
        counts_text = ", ".join(f"{count} {IN_WORDS.get(word, word)}" for word, count in counts if count)
        many = f"{len(pairs)} number{'' if len(pairs) == 1 else 's'}"
        sentences.append(f"Of {many} in common with {baseline}: {counts_text}{_largest(pairs)}.")
        if all(pair.verdict == "same" for pair in pairs):
            sentences[-1] = f"All of {many} in common with {baseline} are the same to {100 * minimum_effect:g} %."
    rose = [rise.name for rise in rising if rise.rose == "yes"]
    sentences += [f"The threshold of {' and of '.join(rose)} rose."] if rose else []
    if different and not table.shared:
        sentences.append(f"Nothing is comparable with {baseline}: {_first(different)}.")
    elif different and pairs:
        sentences.append(f"Not comparable: {_first(different)}.")
    if table.shared and not pairs and not rising:
        on = ", ".join(f"{source.path} on {_on(table, index)}" for index, source in enumerate(table.sources))
        sentences.append(f"Side by side, without a verdict, as devices differ: {on}.")
    return " ".join(sentences)


def _first(sentences: Sequence[str]) -> str:
    more = f"; and {len(sentences) - AT_MOST} more" if len(sentences) > AT_MOST else ""
    return f"{'; '.join(sentences[:AT_MOST])}{more}"


def _largest(pairs: Sequence[Pair]) -> str:
    """Tell the change that is farthest from none, of those that are sure; nothing where none is."""
    changed = [pair for pair in pairs if pair.ratio is not None and pair.verdict not in {"same", "unsure"}]
    if not changed:
        return ""
    most = max(changed, key=lambda pair: abs(pair.ratio.log) if pair.ratio else 0.0)
    name = in_words(most.name, [pair.name for pair in pairs])
    value = math.nan if most.ratio is None else most.ratio.value
    return f"; the largest change is {name} ({most.name.quantity}), {value:.3f}× ({interval(most.ratio)})"


def _on(table: Table, place: int) -> str:
    """Write the models that a result was measured on."""
    names = models([number for row in table.shared.values() for number in row[place]])
    return ", ".join(sorted(names)) or "a device that is not told"
