"""What was observed of each phase of each cell: one window per process, with its samples, joules and facts.

A server's answers are checked: whether they have the requested length, who counted their tokens, how many tokens a
chunk has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Note
from assay.stats.sensor_intervals import ProcessReading, mean_spread, rate_spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from assay.core.results import Estimate, Record, Stage, SubjectFacts
    from assay.core.values import Params
    from assay.experiments.energy.plan import CellPhase
    from assay.experiments.energy.result import EnergyCell
    from assay.stats.intervals import Samples
    from assay.store.records import Records
    from assay.workloads.generation.params import Phase


NOT_REACHED = "its turn did not come before the time was up"
NO_SAMPLES = np.empty(0)


@dataclass(frozen=True)
class PhaseWindow:
    """One window: a place, in one process of a record. ``facts`` are what its worker found out about it."""

    cell_phase: CellPhase
    record: Record
    stage: Stage
    facts: SubjectFacts | None
    series: Mapping[str, Samples] = field(repr=False)

    @property
    def process(self) -> tuple[str, int, int]:
        """Which process it was."""
        return self.record.trial, self.record.take, self.stage.restart

    @property
    def window_s(self) -> float:
        """How long it was, from its first call's start to its last one's end."""
        return (self.stage.end_ns - self.stage.start_ns) / 1e9

    def samples(self, name: str) -> Samples:
        """Return what calls reported under a name, in order; nothing where they did not."""
        return self.series.get(name, NO_SAMPLES)

    def count(self, *names: str) -> float:
        """Return what calls counted under some names, all of them together."""
        return math.fsum(float(self.samples(name).sum()) for name in names)

    def draw(self, value: float, share: float | None, *counted: str) -> ProcessReading:
        """Return a value that was counted over its calls, with how far the sensor and the calls leave it open."""
        return ProcessReading(value, share, self.stage.calls, self.spread(*counted))

    def spread(self, *counted: str) -> float | None:
        """Return how far its calls leave open how much is made in a time; half an interval, as a share.

        Of a single call, from how its tokens followed each other. Null where that was not seen either.
        """
        times = self.samples("call_us")
        counts = [samples for name in counted if len(samples := self.samples(name)) == len(times)]
        if not counts:
            return None
        if len(times) == 1:
            return mean_spread(self.samples("gap_us"))
        return rate_spread(np.sum(counts, axis=0), times)

    def fact(self, name: str) -> float | None:
        """Return a number that the worker found out; null where it did not."""
        measured = self.facts.measured if self.facts is not None else None
        value = None if measured is None else measured.get(name)
        return value if value is not None and math.isfinite(value) else None

    @property
    def host_energy(self) -> Estimate | None:
        """What processors and their memory spent meanwhile; null where it is not told."""
        parts = [energy for name, energy in self.stage.host_energy.items() if name.startswith("package")]
        if not parts:
            return None
        value = math.fsum(part.value for part in parts)
        off = math.fsum(part.value - part.low for part in parts if part.low is not None)
        return parts[0].model_copy(update={"value": value, "low": value - off, "high": value + off})


@dataclass(frozen=True)
class MissedPhase:
    """A place that a process did not measure, or not to its end, and why."""

    cell_phase: CellPhase
    record: Record
    restart: int
    reason: str
    reached: bool = True


@dataclass(frozen=True)
class EnergyObservations:
    """All windows, all that was missed, and the records they are of."""

    windows: tuple[PhaseWindow, ...]
    missed: tuple[MissedPhase, ...]
    records: tuple[Record, ...]


def collect_observations(
    measured: Iterable[tuple[tuple[CellPhase, ...], Record]], records: Records
) -> EnergyObservations:
    """Return what records say, each given with the places of its subjects."""
    windows: list[PhaseWindow] = []
    missed: list[MissedPhase] = []
    pairs = list(measured)
    for phases, record in pairs:
        facts = {(e.restart, f.subject): f for e in record.evidence if e.rank == 0 for f in e.subjects}
        of_stages = _samples_by_stage(record, records)
        for stage in record.stages:
            key = stage.restart, stage.subject
            windows.append(PhaseWindow(phases[stage.subject], record, stage, facts.get(key), of_stages.get(key, {})))
        for (restart, subject), facts_of_subject in facts.items():
            if facts_of_subject.skipped is not None:
                is_reached = facts_of_subject.is_reached
                reason = facts_of_subject.skipped.detail if is_reached else (record.reason or NOT_REACHED)
                missed.append(MissedPhase(phases[subject], record, restart, reason, is_reached))
    return EnergyObservations(tuple(windows), tuple(missed), tuple(record for _, record in pairs))


def _samples_by_stage(record: Record, records: Records) -> dict[tuple[int, int], dict[str, Samples]]:
    """Return the samples of each stage by their names; of ranks those of the first, where tokens arrive."""
    by_stage: dict[tuple[int, int], dict[str, Samples]] = {}
    for series in record.series:
        if series.rank == 0:
            by_stage.setdefault((series.restart, series.subject), {})[series.quantity] = records.samples(series)
    return by_stage


if TYPE_CHECKING:
    DrawsOrReason = list[ProcessReading] | str
    """Of a figure: one for each process, or why there is none."""

SERVER_NOT_SPLIT = "a server is not taken apart"
WHOLE_REQUEST_PHASES: tuple[Phase, ...] = ("whole", "served")


@dataclass(frozen=True)
class CellObservations:
    """All windows of a cell by phase, the idle windows of its processes, and why a phase has none."""

    cell: EnergyCell
    windows: Mapping[Phase, tuple[PhaseWindow, ...]]
    idle: Mapping[tuple[str, int, int], PhaseWindow]
    missing_reasons: Mapping[Phase, str]
    carbon_g_per_kwh: float | None = None

    @property
    def is_measured(self) -> bool:
        """Whether there is any window of it."""
        return any(self.windows.values())

    @property
    def is_server(self) -> bool:
        """Whether a server made the tokens."""
        return self.cell.mode == "server"

    @property
    def whole(self) -> tuple[PhaseWindow, ...]:
        """The windows in which whole requests ran."""
        return tuple(window for phase in WHOLE_REQUEST_PHASES for window in self.windows.get(phase, ()))

    def windows_of(self, phase: Phase) -> tuple[PhaseWindow, ...] | str:
        """Return the windows of a phase, or why there is none."""
        if phase == "whole":
            return self.whole or self.explain_missing("served" if self.is_server else "whole")
        if self.is_server:
            return SERVER_NOT_SPLIT
        return self.windows.get(phase) or self.explain_missing(phase)

    def explain_missing(self, phase: Phase) -> str:
        """Say why a phase was not measured."""
        if phase == "decode" and self.cell.output_tokens == 1:
            return "one output token is made when the prompt is read, and nothing is decoded"
        return self.missing_reasons.get(phase, "it was not measured")


LENGTH_TOLERANCE = 0.05
"""From this share of answers on that are shorter or longer than asked for, requests are not what the cell says."""
CHUNK_TOKENS_TOLERANCE = 1.02
"""From so many tokens in a chunk on it is said."""

SERVER_STALLED = "server_stalled"
"""The code of the note on streams that were silent for far longer than usual."""
CHUNKS_COUNTED = "the server does not count its tokens (no usage): output tokens are the chunks that came"
NO_COMPLETE_ANSWER = "no answer was whole"
PROMPT_TOKENS_UNKNOWN = "how many tokens prompts have is not known"


def describe_length_mismatch(cell: CellObservations) -> str | None:
    """Say that answers had another length than was asked for; null where they had it, but for a few."""
    answered = _sum_counts(cell, "requests")
    if not answered or _sum_counts(cell, "short_requests", "long_requests") <= LENGTH_TOLERANCE * answered:
        return None
    mean = (_sum_counts(cell, "answer_tokens") or _sum_counts(cell, "output_tokens")) / answered
    return f"answers had {mean:.1f} tokens on average, not {cell.cell.output_tokens}"


def describe_incomplete_answers(cell: CellObservations) -> str | None:
    """Say that windows of a server ended before an answer did; null where some answer ended in each of them."""
    without = [window for window in cell.whole if not window.count("requests")] if cell.is_server else []
    if not without:
        return None
    length = f"{max(window.window_s for window in without):.2g} s"
    if len(without) == len(cell.whole):
        return f"{NO_COMPLETE_ANSWER} within the window of {length}"
    return f"{NO_COMPLETE_ANSWER} within {len(without)} of {len(cell.whole)} windows, of up to {length}"


def collect_server_notes(cell: CellObservations) -> list[Note]:
    """Return what a server's user should know of its answers, the gravest first; of a model of ours nothing."""
    return (
        [*_incomplete_notes(cell), *_length_notes(cell), *_stall_notes(cell), *_count_notes(cell), *_chunk_notes(cell)]
        if cell.is_server
        else []
    )


def _incomplete_notes(cell: CellObservations) -> list[Note]:
    reason = describe_incomplete_answers(cell)
    if reason is None:
        return []
    message = f"{reason}: make scenario.window_s longer than an answer takes"
    return [Note(code="incomplete_answers", message=message, severity="warning")]


def _length_notes(cell: CellObservations) -> list[Note]:
    """Say how many answers had fewer or more tokens than were asked for, and what that means for requests."""
    answered, requested, reason = _sum_counts(cell, "requests"), cell.cell.output_tokens, describe_length_mismatch(cell)
    words = {"short_requests": "ended before", "long_requests": "went on beyond"}
    counts = {name: count for name in words if (count := _sum_counts(cell, name))}
    parts = [
        f"{count:.0f} of {answered:.0f} answers {words[name]} the {requested} tokens asked for"
        for name, count in counts.items()
    ]
    if reason is None:
        return [
            Note(code=f"{name.removesuffix('_requests')}_answers", message=part, params={name: count})
            for (name, count), part in zip(counts.items(), parts, strict=True)
        ]
    message = f"{' and '.join(parts)}; figures of requests are left out, as {reason}"
    return [Note(code="answer_length", message=message, severity="warning", params=dict(counts))]


def _stall_notes(cell: CellObservations) -> list[Note]:
    """Say how long streams were silent that were so for far longer than usual."""
    lengths = [float(us) / 1e6 for window in cell.whole for us in window.samples("silence_us")]
    if not lengths:
        return []
    often, longest = "once" if len(lengths) == 1 else f"{len(lengths)} times", f"{max(lengths):.2g} s"
    message = f"the server stalled: {often} a stream was silent for far longer than usual, for up to {longest}"
    params: Params = {"stalls": len(lengths), "longest_s": max(lengths)}
    return [Note(code=SERVER_STALLED, message=message, severity="warning", params=params)]


def _count_notes(cell: CellObservations) -> list[Note]:
    """Say who has counted the tokens of the answers."""
    answered, uncounted = _sum_counts(cell, "requests"), _sum_counts(cell, "uncounted_requests")
    if not answered:
        return []
    if not uncounted:
        return [Note(code="server_counted", message="tokens are the server's own counts (usage)")]
    params: Params = {"uncounted": uncounted, "answered": answered}
    if uncounted < answered:
        message = f"{uncounted:.0f} of {answered:.0f} answers came without the server's count: there chunks count"
        return [Note(code="partly_counted", message=message, params=params)]
    per_chunk = next((ratio for window in cell.whole if (ratio := window.fact("tokens_per_chunk")) is not None), 1.0)
    several = "which may have several each" if per_chunk == 1 else f"each for {per_chunk:.3g}, as before the load"
    is_known = any(len(window.samples("input_tokens")) for window in cell.whole)
    prompts = "those of prompts are as it counted them before the load" if is_known else PROMPT_TOKENS_UNKNOWN
    return [Note(code="chunks_counted", message=f"{CHUNKS_COUNTED}, {several}; {prompts}", params=params)]


def _chunk_notes(cell: CellObservations) -> list[Note]:
    """Say how many tokens came at once, by the server's own count."""
    chunks = sum(len(window.samples(name)) for window in cell.whole for name in ("first_token_us", "gap_us"))
    tokens = _sum_counts(cell, "output_tokens")
    if (
        _sum_counts(cell, "uncounted_requests")
        or not chunks
        or 1 / CHUNK_TOKENS_TOLERANCE <= tokens / chunks <= CHUNK_TOKENS_TOLERANCE
    ):
        return []
    message = (
        f"a chunk has {tokens / chunks:.3g} tokens on average: it counts for about so many when it comes, an answer is "
        "set right by the server's count at its end, and gaps are between chunks"
    )
    return [Note(code="several_tokens_a_chunk", message=message, params={"tokens_per_chunk": tokens / chunks})]


def _sum_counts(cell: CellObservations, *names: str) -> float:
    return sum(window.count(*names) for window in cell.whole)
