"""Results of the older threshold benchmark: its JSON file, and the lines it printed, one for each point of its grid.

    S=256 w=32 sliding masked 0.12 ms  fa2 0.10 ms  speedup x1.20
    S=256 l=32 d=16 compressed masked 0.12 ms  fa2 0.10 ms  speedup x1.20

Times are in milliseconds, printed with two decimals. The speed-up was computed before they were rounded, so it may be
anything that the rounded times allow. Speed-ups of the file have no interval: they decide only where they are a quarter
above or below the margin. ``assay compare`` reads their rows as plain numbers.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from assay.core.errors import BadInput
from assay.experiments.compare.pairing import CellName, ComparedCell
from assay.experiments.compare.sources import parameter_details, positive_float
from assay.experiments.threshold.cells import NO_INTERVAL_FACTOR, PointObservations
from assay.experiments.threshold.results_file import SavedThresholds, ThresholdDevice, build_parity_facts, parse_subject
from assay.experiments.threshold.spec import DEFAULT_SPEC_FILE, GridPoint, Threshold, load_thresholds
from assay.workloads.nsa.branches import effective_length

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pydantic import JsonValue

    from assay.core.values import Params
    from assay.experiments.threshold.cells import ParityState
    from assay.experiments.threshold.spec import ThresholdSpec

OlderRow = dict[str, Any]
OLDER_BLOCK, OLDER_STRIDE = 32, 16
"""Of the older tool's compressed branch, where a row does not say."""

NO_INTERVALS_NOTE = (
    f"These speed-ups carry no interval: one counts only where it is {NO_INTERVAL_FACTOR:g} "
    "times above the margin, or below it."
)


def load_results(content: Mapping[str, Any], file: Path) -> SavedThresholds:
    """Return what a file says of both branches.

    Raises:
        BadInput: It has no row of a branch, or a row has no size or speed-up.
    """
    info = content.get("device_info")
    values = info if isinstance(info, dict) else {}
    names = ("device_name", "torch_version", "cuda_version")
    device = ThresholdDevice(**{name: None if values.get(name) is None else str(values[name]) for name in names})
    thresholds = tuple(_load_thresholds(content, file))
    return SavedThresholds(device, thresholds, "call", None, None, (NO_INTERVALS_NOTE,))


def _load_thresholds(content: Mapping[str, Any], file: Path) -> list[tuple[Threshold, tuple[PointObservations, ...]]]:
    """Return both branches as far as a file has rows of them."""
    rows = content.get("results")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadInput(f"{file} holds no results: it has no list of rows under the key results.")
    passed = content.get("parity_passed")
    parity: ParityState = "passed" if passed is True else "failed" if passed is False else "skipped"
    result = []
    for spec in load_thresholds(DEFAULT_SPEC_FILE):
        mine = [row for row in rows if row.get("branch") == spec.size]
        if mine:
            observations = tuple(_older_observations(row, parity, file) for row in mine)
            result.append((_older_threshold(spec, mine, file), observations))
    if not result:
        raise BadInput(f"{file}: no row is of the branch sliding or compressed.")
    return result


def _older_threshold(spec: ThresholdSpec, rows: list[OlderRow], file: Path) -> Threshold:
    reference, fast = parse_subject(spec.reference), parse_subject(spec.fast)
    params = [_older_params(row, spec.size, file) for row in rows]
    return Threshold(
        name=spec.name,
        key=spec.key,
        never=spec.never,
        margin=spec.margin,
        axis=spec.size,
        branch="sliding" if spec.size == "sliding" else "compressed",
        points=tuple(GridPoint(size=effective_length(p), params=p, reference=reference, fast=fast) for p in params),
    )


def _older_params(row: OlderRow, branch: str, file: Path) -> Params:
    sizes = {"sequence": row.get("sequence_length")}
    if branch == "sliding":
        sizes["window"] = row.get("window_size")
    else:
        sizes |= {"block": row.get("l") or OLDER_BLOCK, "stride": row.get("d") or OLDER_STRIDE}
    wrong = next((name for name, size in sizes.items() if not isinstance(size, int) or size < 1), None)
    if wrong is not None:
        raise BadInput(f"{file}: a row of the {branch} branch has the {wrong} {sizes[wrong]!r}, which is no size.")
    return dict(sizes)


def _older_observations(row: OlderRow, parity: ParityState, file: Path) -> PointObservations:
    speedup = row.get("speedup")
    if isinstance(speedup, bool) or not isinstance(speedup, int | float) or not math.isfinite(speedup) or speedup <= 0:
        raise BadInput(f"{file}: a row has the speedup {speedup!r}, which is no number above zero.")
    return PointObservations(single=math.log(speedup), checked=build_parity_facts(parity, None))


_NUMBER_PATTERN = r"(\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_LINE_PATTERN = re.compile(
    rf"\s*S=(?P<S>\d+)\s+(?:w=(?P<w>\d+)\s+sliding|l=(?P<l>\d+)\s+d=(?P<d>\d+)\s+compressed)\s+"
    rf"masked\s+(?P<masked>{_NUMBER_PATTERN})\s*ms\s+fa2\s+(?P<fa2>{_NUMBER_PATTERN})\s*ms\s+speedup\s+x\s*(?P<speedup>{_NUMBER_PATTERN})\s*"
)
_LINE_PREFIX = re.compile(r"\s*S=\d+\s+(?:w=\d+|l=\d+\s+d=\d+)\b.*\bmasked\b")


class PrintedNumber(NamedTuple):
    """A number and its maximum rounding error."""

    value: float
    off: float

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest value before rounding."""
        return max(0.0, self.value - self.off), self.value + self.off


class PrintedRow(NamedTuple):
    """One point: its branch, its sizes, and what was printed. Null: belongs to the other branch."""

    line: int
    sequence: int
    window: int | None
    block: int | None
    stride: int | None
    masked_ms: PrintedNumber
    fa2_ms: PrintedNumber
    speedup: PrintedNumber

    @property
    def branch(self) -> str:
        """Sliding where there is a window, compressed where there are blocks."""
        return "compressed" if self.window is None else "sliding"

    @property
    def is_consistent(self) -> bool:
        """Whether the speed-up is consistent with the two rounded times."""
        (masked_low, masked_high), (fa2_low, fa2_high) = self.masked_ms.ends, self.fa2_ms.ends
        low, high = self.speedup.ends
        return low * fa2_low <= masked_high * (1 + 1e-9) and (masked_low <= high * fa2_high * (1 + 1e-9))

    def as_json(self) -> dict[str, JsonValue]:
        """Return the row under the older tool's names; for the compressed branch also ``l`` and ``d``."""
        row: dict[str, JsonValue] = {
            "branch": self.branch,
            "sequence_length": self.sequence,
            "window_size": self.window,
            "speedup": self.speedup.value,
            "masked_ms": self.masked_ms.value,
            "fa2_ms": self.fa2_ms.value,
        }
        return row if self.window is not None else {**row, "l": self.block, "d": self.stride}


@dataclass(frozen=True)
class PrintedLines:
    """The content of a text: rows, and descriptions of its problems.

    Attributes:
        rows: In the order of the lines.
        others: Number of other lines, blank ones left out.
        broken: The numbers of lines that begin like a row but are not valid.
        odd: Remarks on inconsistent rows.
    """

    rows: tuple[PrintedRow, ...]
    others: int
    broken: tuple[int, ...]
    odd: tuple[str, ...]


def parse_printed_lines(text: str) -> PrintedLines:
    """Return the rows of a text."""
    rows: list[PrintedRow] = []
    broken: list[int] = []
    others = 0
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE_PATTERN.fullmatch(line)
        if match is not None:
            rows.append(_parse_row(number, match))
        elif line.strip():
            others += 1
            broken += [number] if _LINE_PREFIX.match(line) else []
    return PrintedLines(tuple(rows), others, tuple(broken), tuple(_find_contradictions(rows)))


def _parse_row(line: int, match: re.Match[str]) -> PrintedRow:
    window, block, stride = (None if match[name] is None else int(match[name]) for name in ("w", "l", "d"))
    times = (_parse_number(match[name]) for name in ("masked", "fa2", "speedup"))
    return PrintedRow(line, int(match["S"]), window, block, stride, *times)


def _parse_number(text: str) -> PrintedNumber:
    """Return a number with the rounding error of half of its last printed digit."""
    digits, _, power = text.lower().partition("e")
    decimals = len(digits.partition(".")[2])
    return PrintedNumber(float(text), 0.5 * 10.0 ** (int(power or 0) - decimals))


def _find_contradictions(rows: list[PrintedRow]) -> list[str]:
    """Return the rows that contradict themselves, and the points that occur twice."""
    sentences: list[str] = []
    first_lines: dict[tuple[int | None, ...], int] = {}
    for row in rows:
        if not row.is_consistent:
            ratio = f"x{row.masked_ms.value / row.fa2_ms.value:.2f}" if row.fa2_ms.value else "without a bound"
            text = f"the printed speed-up x{row.speedup.value:g} disagrees with its times, which say {ratio}"
            sentences.append(f"line {row.line}: {text}")
        point = (row.sequence, row.window, row.block, row.stride)
        if point in first_lines:
            sentences.append(f"line {row.line}: the same point as line {first_lines[point]}")
        first_lines.setdefault(point, row.line)
    return sentences


def is_threshold_result(content: JsonValue) -> bool:
    """Return whether this is a threshold tool's result, or a bare list of its rows."""
    rows = content.get("results") if isinstance(content, dict) else content
    if not isinstance(rows, list):
        return False
    if isinstance(content, dict) and ("recommendation" in content or "device_info" in content):
        return True
    return bool(rows) and isinstance(rows[0], dict) and "branch" in rows[0]


def row_cells(rows: Iterable[JsonValue], model: str | None) -> list[ComparedCell]:
    """Return the speed-up and the two times of every row of the older form; other keys are ignored."""
    return [number for row in rows if isinstance(row, dict) for number in _row_cells(row, model)]


def _row_cells(row: Mapping[str, JsonValue], model: str | None) -> Iterator[ComparedCell]:
    params = row.get("params")
    own = params if isinstance(params, dict) else {}
    settings = {"S": row.get("sequence_length"), "w": row.get("window_size")}
    if settings["S"] is None:
        settings = own
    elif row.get("branch") == "compressed":
        sizes = {"l": ("block", 32), "d": ("stride", 16)}
        settings |= {name: row.get(name) or own.get(longer) or usual for name, (longer, usual) in sizes.items()}
    for quantity, unit in (("speedup", "×"), ("masked_ms", "ms"), ("fa2_ms", "ms")):
        value = positive_float(row.get(quantity))
        name = CellName(str(row.get("branch")), parameter_details(settings), quantity)
        low, high = (positive_float(row.get(end)) if quantity == "speedup" else None for end in ("low", "high"))
        if value is not None:
            if low is None or high is None:
                low = high = None
            yield ComparedCell(name, None, model, value, low, high, unit=unit)
