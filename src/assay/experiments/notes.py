"""What was noted of trials, for the pages of all experiments: alike notes once, with the trials they are of.

starting takes 6.3 s, most of the 6.5 s asked for          block 1, alone
starting takes 7.1 s, most of the 6.5 s asked for          block 1, isolated
→ starting takes 6.3–7.1 s, most of the 6.5 s asked for    2: block 1, alone; block 1, isolated
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from assay.core.page import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from assay.core.page import Element
    from assay.core.results import Record

MOST_NAMED = 3
"""Trials that are named at most; the others are counted."""

_NUMBER = re.compile(r"(?<![\w.:/-])\d+(?:\.\d+)?(?![\w.:/]*\w)")
"""A number that stands for itself: not part of a name, a version or a path."""


class Noted(NamedTuple):
    """Something that was said of one or more trials."""

    said: str
    trials: tuple[str, ...]

    @property
    def where(self) -> str:
        """The first trials by name, and how many more."""
        named, more = self.trials[:MOST_NAMED], len(self.trials) - MOST_NAMED
        return "; ".join([*named, f"and {more} more"] if more > 0 else named)


def grouped(pairs: Iterable[tuple[str, str]]) -> list[Noted]:
    """Return what was said of trials, each once; what differs only in its numbers is told with their range."""
    alike: dict[str, list[tuple[str, str]]] = {}
    for text, trial in pairs:
        alike.setdefault(_NUMBER.sub("#", text), []).append((text, trial))
    return [
        Noted(merged([text for text, _ in several]), tuple(dict.fromkeys(trial for _, trial in several)))
        for several in alike.values()
    ]


def merged(several: Sequence[str]) -> str:
    """Return sentences that differ only in their numbers as one, each number as the range of all."""
    columns = zip(*(_NUMBER.findall(text) for text in several), strict=True)
    ranges = iter([_range(column) for column in columns])
    return _NUMBER.sub(lambda _: next(ranges), several[0])


def _range(numbers: Sequence[str]) -> str:
    low, high = min(numbers, key=float), max(numbers, key=float)
    return low if float(low) == float(high) else f"{low}–{high}"


def notes_table(records: Iterable[Record], labels: Mapping[str, str]) -> list[Element]:
    """Return every note once with the trials it is of; nothing where there is none. ``labels`` name the trials."""
    all_records = list(records)
    groups = grouped((note, labels.get(record.trial, record.block)) for record in all_records for note in record.notes)
    if not groups:
        return []
    return [
        Table(
            title="What was noted",
            columns=(Column(title="note"), Column(title="trials", numeric=True), Column(title="which")),
            rows=tuple((group.said, len(group.trials), _which(group, len(all_records))) for group in groups),
            note=f"Of {len(all_records)} trials. Numbers that differ between them are told from the lowest to the "
            "highest.",
        )
    ]


def _which(noted: Noted, all_of_them: int) -> str:
    return "all" if len(noted.trials) == all_of_them > MOST_NAMED else noted.where
