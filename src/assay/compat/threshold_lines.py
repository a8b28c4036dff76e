"""Parse the lines printed by an older benchmark, one for each point of its grid.

    S=256 w=32 sliding masked 0.12 ms  fa2 0.10 ms  speedup x1.20
    S=256 l=32 d=16 compressed masked 0.12 ms  fa2 0.10 ms  speedup x1.20

Times are in milliseconds, printed with two decimals. The speedup was computed before they were rounded, so it may be
anything that the rounded times allow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pydantic import JsonValue

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
    counts = {name: None if match[name] is None else int(match[name]) for name in ("w", "l", "d")}
    return PrintedRow(
        line=line,
        sequence=int(match["S"]),
        window=counts["w"],
        block=counts["l"],
        stride=counts["d"],
        masked_ms=_parse_number(match["masked"]),
        fa2_ms=_parse_number(match["fa2"]),
        speedup=_parse_number(match["speedup"]),
    )


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
