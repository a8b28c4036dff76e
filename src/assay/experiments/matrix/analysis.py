"""The contention matrix: what each aggressor does to each victim, with and without isolation, beyond chance.

Ratios are taken within a block, on logarithms, so that twice as long and half as long are equally far from no change.
The load of the aggressors (bytes, operations, CPU time per second) is measured while the victims are timed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from assay.experiments.matrix.plan import AGGRESSOR, VICTIM, pairs_by_trial
from assay.experiments.reporting import block_ratio_estimate
from assay.stats.blocks import aa_noise_floor, ratio_over_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from assay.core.results import Estimate, Evidence, Record
    from assay.experiments.matrix.plan import MatrixOptions, MatrixPair
    from assay.store.records import Records

    Samples = NDArray[np.float64]

Measure = Literal["median", "p99", "jitter"]
MEASURES: dict[Measure, str] = {
    "median": "median time",
    "p99": "99th percentile",
    "jitter": "jitter (coefficient of variation)",
}
MIN_P99_SAMPLES = 100
"""Of fewer samples the 99th percentile is the largest, or nearly."""

Outcome = Literal["no effect seen", "hurts", "cured by isolation", "not cured", "hurts only isolated", "not known"]
MAX_NO_EFFECT_RATIO = 2.0
"""Where the time may as well be twice as long, it is not called no effect."""


def compute_measure(samples: Samples, what: Measure) -> float | None:
    """Return one measure of the samples of one process; null where they do not tell it."""
    value = 0.0
    if what == "median" and len(samples):
        value = float(np.median(samples))
    elif what == "p99" and len(samples) >= MIN_P99_SAMPLES:
        value = float(np.quantile(samples, 0.99))
    elif what == "jitter" and len(samples) > 1 and (mean := float(samples.mean())) > 0:
        value = float(samples.std(ddof=1)) / mean
    return value if 0 < value < math.inf else None


def ratio_estimate(over: Mapping[str, float], under: Mapping[str, float]) -> Estimate | None:
    """Return how many times the one is the other, by the blocks that have both; null where none has."""
    ratio = ratio_over_blocks(log_ratios(over, under))
    blocks = 0 if ratio is None else ratio.blocks
    method = f"geometric mean of the ratios in {blocks} blocks, Student's t on their logarithms"
    return block_ratio_estimate(ratio, method)


def log_ratios(over: Mapping[str, float], under: Mapping[str, float]) -> list[float]:
    """Return the logarithm of the ratio in each block that has both."""
    return [math.log(over[block] / under[block]) for block in over if block in under]


def block_means(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Return the geometric mean of two readings of the same thing in each block; of one where the other is missing."""
    blocks = dict.fromkeys((*one, *other))
    readings = {block: [m[block] for m in (one, other) if block in m] for block in blocks}
    return {block: math.exp(float(np.mean(np.log(values)))) for block, values in readings.items()}


def effect_margin(twice: Sequence[float], minimum_effect: float) -> float:
    """Return the ratio beyond which a change counts: above what was asked for, and above what chance shows.

    ``twice`` has the logarithms of how the same thing, measured twice in each block, differs. Of a single block nothing
    counts.
    """
    floor = aa_noise_floor(twice, len(twice)) if len(twice) > 1 else None
    return math.inf if floor is None else 1 + max(minimum_effect, floor)


def judge_outcome(naive: Estimate | None, isolated: Estimate | None, less: Estimate | None, beyond: float) -> Outcome:
    """Return what an aggressor does to a victim; ``less`` is how many times more it does without isolation."""
    hurts, still = exceeds(naive, beyond), exceeds(isolated, beyond)
    if hurts is None:
        return "not known"
    surely_less = less is not None and less.high is not None and less.high < 1.0
    if still and (hurts or (exceeds(naive, 1.0) and not surely_less)):
        return "not cured"
    if not hurts:
        informative = naive is not None and naive.high is not None and naive.high <= MAX_NO_EFFECT_RATIO
        return "hurts only isolated" if still else "no effect seen" if informative else "not known"
    gone = still is not None and not exceeds(isolated, 1.0) and exceeds(less, 1.0)
    return "cured by isolation" if gone else "hurts"


def exceeds(ratio: Estimate | None, beyond: float) -> bool | None:
    """Return whether a ratio surely lies beyond a bound; null where nothing can be said."""
    if ratio is None or ratio.low is None or math.isinf(beyond):
        return None
    return ratio.low > beyond


MATRIX_TIMES = ("busy_us", "call_us")
"""What the kernels take and what a caller waits: an aggressor may hit the one and spare the other."""


class VictimRow(NamedTuple):
    """One victim on one device, in one of its times."""

    victim: int
    device: str
    quantity: str


class MatrixReading(NamedTuple):
    """What was measured of a row in one phase, beside one aggressor or none."""

    row: VictimRow
    phase: str
    aggressor: str | None
    measure: Measure


ReadingsByBlock = dict[MatrixReading, dict[str, float]]
"""Each measure by block."""


@dataclass(frozen=True)
class MatrixCell:
    """One aggressor beside one victim. Ratios are to the victim alone at the same isolation; null: not measured.

    ``beyond`` is the ratio that counts, infinite where nothing does.
    """

    row: VictimRow
    aggressor: str
    measure: Measure
    naive: Estimate | None
    isolated: Estimate | None
    reduction: Estimate | None
    beyond: float
    outcome: Outcome


@dataclass(frozen=True)
class VictimBaseline:
    """A victim without aggressor: the same measured twice, and unpinned over pinned."""

    row: VictimRow
    measure: Measure
    repeated: Estimate | None
    unpinned: Estimate | None


@dataclass(frozen=True)
class ContentionMatrix:
    """All that the records say, and what the numbers come from."""

    rows: tuple[VictimRow, ...]
    cells: tuple[MatrixCell, ...]
    baselines: tuple[VictimBaseline, ...]
    pairs: tuple[tuple[MatrixPair, Record], ...]

    def cell(self, row: VictimRow, aggressor: str, what: Measure = "median") -> MatrixCell:
        """Return one cell."""
        return next(c for c in self.cells if (c.row, c.aggressor, c.measure) == (row, aggressor, what))


def build_matrix(options: MatrixOptions, records: Records) -> ContentionMatrix:
    """Return the whole matrix from the records."""
    planned = pairs_by_trial(options, options.repeat)
    pairs = tuple((pair, record) for record in records for pair in planned.get(record.trial, ()))
    rows = _victim_rows(pairs)
    readings = _read_measures(options, records, pairs, rows)
    baselines = tuple(_victim_baseline(readings, row, what) for row in rows for what in MEASURES)
    cells = tuple(
        _matrix_cell(readings, baseline, aggressor.name, options.minimum_effect)
        for baseline in baselines
        for aggressor in options.aggressors
    )
    return ContentionMatrix(rows, cells, baselines, pairs)


def _victim_rows(pairs: Sequence[tuple[MatrixPair, Record]]) -> tuple[VictimRow, ...]:
    """Return the rows of the matrix: each victim on each device, in each time that was taken of it."""
    quantities_by_device: dict[tuple[int, str], set[str]] = defaultdict(set)
    for pair, record in pairs:
        if record.status == "ok":
            quantities_by_device[pair.victim, pair.device] |= {s.quantity for s in record.series if s.role == VICTIM}
    return tuple(
        VictimRow(victim, device, quantity)
        for (victim, device), quantities in sorted(quantities_by_device.items())
        for quantity in MATRIX_TIMES
        if quantity in quantities
    )


def victim_samples(options: MatrixOptions, records: Records, record: Record, row: VictimRow) -> list[Samples]:
    """Return a victim's samples of one time, an array for each process."""
    subject_index = row.victim if options.in_turns else 0
    series = [s for s in record.series if (s.role, s.quantity, s.subject) == (VICTIM, row.quantity, subject_index)]
    return [records.samples(s) for s in series]


def _read_measures(
    options: MatrixOptions,
    records: Records,
    pairs: Sequence[tuple[MatrixPair, Record]],
    rows: Sequence[VictimRow],
) -> ReadingsByBlock:
    """Return each measure of each row, phase and aggressor, by block; what cannot be told is left out."""
    readings: ReadingsByBlock = {}
    for pair, record in pairs:
        for row in rows if record.status == "ok" else ():
            if row[:2] == (pair.victim, pair.device):
                for samples in victim_samples(options, records, record, row):
                    for what in MEASURES:
                        value = compute_measure(samples, what)
                        if value is not None:
                            reading = MatrixReading(row, pair.phase, pair.aggressor, what)
                            readings.setdefault(reading, {})[record.block] = value
    return readings


def _victim_baseline(readings: ReadingsByBlock, row: VictimRow, what: Measure) -> VictimBaseline:
    alone, again, bare = _readings_alone(readings, row, what)
    return VictimBaseline(row, what, ratio_estimate(again, alone), ratio_estimate(bare, block_means(alone, again)))


def _readings_alone(readings: ReadingsByBlock, row: VictimRow, what: Measure) -> list[dict[str, float]]:
    return [readings.get(MatrixReading(row, phase, None, what), {}) for phase in ("alone", "again", "bare")]


def _matrix_cell(
    readings: ReadingsByBlock, baseline: VictimBaseline, aggressor: str, minimum_effect: float
) -> MatrixCell:
    """Return one cell; each level is held against the victim alone at that level."""
    row, what = baseline.row, baseline.measure
    alone, again, bare = _readings_alone(readings, row, what)
    loud = {phase: readings.get(MatrixReading(row, phase, aggressor, what), {}) for phase in ("naive", "isolated")}
    pinned = block_means(alone, again)
    naive, isolated = ratio_estimate(loud["naive"], bare), ratio_estimate(loud["isolated"], pinned)
    less = ratio_estimate(_block_ratios(loud["naive"], bare), _block_ratios(loud["isolated"], pinned))
    beyond = effect_margin(log_ratios(again, alone), minimum_effect)
    return MatrixCell(row, aggressor, what, naive, isolated, less, beyond, judge_outcome(naive, isolated, less, beyond))


def _block_ratios(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {block: value / other[block] for block, value in one.items() if block in other}


class AggressorLoad(NamedTuple):
    """What a load did in a second; null where it was not stated or not measured."""

    gb_s: float | None
    gflops: float | None
    cores: float | None


def aggressor_load(evidence: Evidence) -> AggressorLoad:
    """Return what one load process did: its calls' bytes and operations, and CPU time, over the time it was up."""
    if not evidence.load_s:
        return AggressorLoad(None, None, None)
    facts = evidence.subjects[0] if evidence.subjects else None
    moved, flop = (facts.bytes_moved, facts.flop) if facts else (None, None)
    rate = None if evidence.load_calls is None else evidence.load_calls / evidence.load_s
    return AggressorLoad(
        gb_s=None if moved is None or rate is None else moved * rate / 1e9,
        gflops=None if flop is None or rate is None else flop * rate / 1e9,
        cores=None if evidence.load_cpu_s is None else evidence.load_cpu_s / evidence.load_s,
    )


def mean_load(several: list[AggressorLoad]) -> AggressorLoad:
    """Return the mean of several, each number over those that have it."""
    columns = zip(*several, strict=True) if several else ((), (), ())
    present = [[value for value in column if value is not None] for column in columns]
    return AggressorLoad(*(float(np.mean(values)) if values else None for values in present))


def aggressor_loads(pairs: Iterable[tuple[MatrixPair, Record]]) -> dict[tuple[str, str], AggressorLoad]:
    """Return how hard each aggressor pressed in each phase, over all trials it was in."""
    loads: dict[tuple[str, str], list[AggressorLoad]] = defaultdict(list)
    for pair, record in pairs:
        if record.status == "ok" and pair.aggressor is not None:
            loads[pair.aggressor, pair.phase] += [aggressor_load(e) for e in record.evidence if e.role == AGGRESSOR]
    return {key: mean_load(several) for key, several in loads.items()}
