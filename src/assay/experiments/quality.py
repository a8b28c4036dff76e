"""How far a run can be trusted, for the first lines of every page: disturbed trials and by whom, isolation that held.

2 of 12 trials disturbed: ffmpeg (1.4 cores).
Isolation full did not hold in 12 of 12 trials (none held): cpu:0 shared core 0 with cpu:2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Text
from assay.core.results import DataQuality, InterferenceSource, IsolationShortfall
from assay.isolation.allot import LEVELS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.plan import Isolation
    from assay.core.results import Evidence, Interference, InterferenceKind, Record

MOST_NAMED = 3
ADVICE = "`--strangers wait` waits for a quiet machine"


def quality_of(records: Iterable[Record]) -> DataQuality:
    """Return how far records can be trusted; trials without a result are not counted."""
    measured = [record for record in records if record.status == "ok"]
    disturbed = [record for record in measured if record.disturbed]
    return DataQuality(
        trials=len(measured),
        watched=sum(r.disturbance is not None or r.meanwhile is not None or bool(r.disturbed) for r in measured),
        disturbed=len(disturbed),
        retaken=sum(record.take > 1 for record in measured),
        sources=tuple(_sources([record.disturbed for record in disturbed])),
        isolation=tuple(_shortfalls([record.evidence for record in measured])),
    )


def _sources(trials: Sequence[Sequence[Interference]]) -> list[InterferenceSource]:
    """Return who disturbed trials, the most frequent first; of each, its most in one trial."""
    by_source: dict[tuple[InterferenceKind, str], list[Interference]] = {}
    for several in trials:
        largest: dict[tuple[InterferenceKind, str], Interference] = {}
        for interference in several:
            largest_so_far = largest.get((interference.kind, interference.source))
            if largest_so_far is None or (interference.amount or 0.0) > (largest_so_far.amount or 0.0):
                largest[interference.kind, interference.source] = interference
        for key, interference in largest.items():
            by_source.setdefault(key, []).append(interference)
    sources = [
        InterferenceSource(
            kind=kind,
            source=source,
            trials=len(several),
            amount=max(
                (interference.amount for interference in several if interference.amount is not None), default=None
            ),
            unit=several[0].unit,
        )
        for (kind, source), several in by_source.items()
    ]
    return sorted(sources, key=lambda source: -source.trials)


def _shortfalls(trials: Sequence[Sequence[Evidence]]) -> list[IsolationShortfall]:
    """Return the levels that were asked for and did not hold."""
    short: dict[Isolation, list[list[Evidence]]] = {}
    for workers in trials:
        for level in dict.fromkeys(worker.isolation_asked for worker in workers):
            below = [w for w in workers if w.isolation_asked == level and w.isolation_held != level]
            if below:
                short.setdefault(level, []).append(below)
    return [
        IsolationShortfall(
            asked=level,
            held=min((w.isolation_held for below in several for w in below), key=LEVELS.index),
            trials=len(several),
            codes=tuple(dict.fromkeys(x.code for below in several for w in below for x in w.isolation_limits)),
            message=next((x.message for below in several for w in below for x in w.isolation_limits), "reason unknown"),
        )
        for level, several in short.items()
    ]


def quality_lines(quality: DataQuality) -> tuple[Text, ...]:
    """Return the lines that stand under the headline of a page."""
    return (*_interference_line(quality), *(_isolation_line(quality, shortfall) for shortfall in quality.isolation))


def disturbed_by(quality: DataQuality) -> str:
    """Write "2 of 12 trials disturbed: ffmpeg (1.4 cores)"; empty where none was."""
    if not quality.disturbed:
        return ""
    several = [_named(source, quality) for source in quality.sources[:MOST_NAMED]]
    more = len(quality.sources) - MOST_NAMED
    several += [f"{more} more"] if more > 0 else []
    return f"{quality.disturbed} of {_trials(quality.trials)} disturbed: {', '.join(several)}"


def process_line(complaints: Sequence[Interference]) -> Text:
    """Return the line for what one process measured, without trials: "Disturbed: ffmpeg (1.4 cores)."."""
    if not complaints:
        return Text(text="No interference detected.")
    named = [_with(c.source, [amount_text(c.amount, c.unit)] if c.amount is not None else []) for c in complaints]
    return Text(text=f"Disturbed: {', '.join(named)}.", tone="unsure")


def _interference_line(quality: DataQuality) -> list[Text]:
    again = f"; {quality.retaken} measured again" if quality.retaken else ""
    if quality.disturbed:
        often = 2 * quality.disturbed > quality.trials
        return [Text(text=f"{disturbed_by(quality)}{again}{f'; {ADVICE}' if often else ''}.", tone="unsure")]
    if quality.watched == 0 or quality.watched < quality.trials:
        return []
    where = "the trial" if quality.trials == 1 else _trials(quality.trials)
    return [Text(text=f"No interference detected in {where}{again}.")]


def _named(source: InterferenceSource, quality: DataQuality) -> str:
    facts = [amount_text(source.amount, source.unit)] if source.amount is not None else []
    if source.trials < quality.disturbed:
        facts.append(_trials(source.trials))
    return _with(source.source, facts)


def _with(source: str, facts: Sequence[str]) -> str:
    return f"{source} ({', '.join(facts)})" if facts else source


def held_text(evidence: Evidence) -> str:
    """Write the level that held, and the one that was asked for where it did not: "none, not full"."""
    held, requested = evidence.isolation_held, evidence.isolation_asked
    return held if held == requested else f"{held}, not {requested}"


def amount_text(amount: float, unit: str | None) -> str:
    """Write an amount of interference: "1.4 cores", "3.2 %"."""
    return f"{amount:.{1 if amount < 100 else 0}f} {unit or ''}".strip()


def _isolation_line(quality: DataQuality, short: IsolationShortfall) -> Text:
    where = f"{short.trials} of {_trials(quality.trials)}"
    return Text(
        text=f"Isolation {short.asked} did not hold in {where} ({short.held} held): {short.message}.", tone="unsure"
    )


def _trials(count: int) -> str:
    return f"{count} trial{'' if count == 1 else 's'}"
