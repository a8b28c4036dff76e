"""The lines that an older bench printed, one for each point of its grid; from text to rows.

    S=256 w=32 sliding masked 0.12 ms  fa2 0.10 ms  speedup x1.20
    S=256 l=32 d=16 compressed masked 0.12 ms  fa2 0.10 ms  speedup x1.20

Times are in milliseconds, as they were printed: with two places behind the point. The speed-up was reckoned before
they were rounded, so that it may be anything that the rounded times allow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pydantic import JsonValue

_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_LINE = re.compile(
    rf"\s*S=(?P<S>\d+)\s+(?:w=(?P<w>\d+)\s+sliding|l=(?P<l>\d+)\s+d=(?P<d>\d+)\s+compressed)\s+"
    rf"masked\s+(?P<masked>{_NUMBER})\s*ms\s+fa2\s+(?P<fa2>{_NUMBER})\s*ms\s+speedup\s+x\s*(?P<speedup>{_NUMBER})\s*"
)
_LOOKS_LIKE_IT = re.compile(r"\s*S=\d+\s+(?:w=\d+|l=\d+\s+d=\d+)\b.*\bmasked\b")


class Printed(NamedTuple):
    """A number and by how much it may be off, as it was rounded to be printed."""

    value: float
    off: float

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the most it may have been."""
        return max(0.0, self.value - self.off), self.value + self.off


class Row(NamedTuple):
    """One point: its branch, its sizes, and what was printed. Null: of the other branch."""

    line: int
    sequence: int
    window: int | None
    block: int | None
    stride: int | None
    masked_ms: Printed
    fa2_ms: Printed
    speedup: Printed

    @property
    def branch(self) -> str:
        """Sliding where there is a window, compressed where there are blocks."""
        return "compressed" if self.window is None else "sliding"

    @property
    def is_consistent(self) -> bool:
        """Whether the speed-up is one that the two times, as they were rounded, allow."""
        (masked_low, masked_high), (fa2_low, fa2_high) = self.masked_ms.ends, self.fa2_ms.ends
        low, high = self.speedup.ends
        return low * fa2_low <= masked_high * (1 + 1e-9) and (masked_low <= high * fa2_high * (1 + 1e-9))

    def as_json(self) -> dict[str, JsonValue]:
        """Return the row under the older tool's names; of the compressed branch ``l`` and ``d`` too."""
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
class Read:
    """What a text holds: rows, and in words what of it is not as it should be.

    Attributes:
        rows: In the order of the lines.
        others: How many lines, blank ones left out, are of another form.
        broken: The numbers of lines that begin like a row and are none.
        odd: What must be known of some rows.
    """

    rows: tuple[Row, ...]
    others: int
    broken: tuple[int, ...]
    odd: tuple[str, ...]


def parse(text: str) -> Read:
    """Return the rows of a text."""
    rows: list[Row] = []
    broken: list[int] = []
    others = 0
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is not None:
            rows.append(_row(number, match))
        elif line.strip():
            others += 1
            broken += [number] if _LOOKS_LIKE_IT.match(line) else []
    return Read(tuple(rows), others, tuple(broken), tuple(_odd(rows)))


def _row(line: int, match: re.Match[str]) -> Row:
    counts = {name: None if match[name] is None else int(match[name]) for name in ("w", "l", "d")}
    return Row(
        line=line,
        sequence=int(match["S"]),
        window=counts["w"],
        block=counts["l"],
        stride=counts["d"],
        masked_ms=_printed(match["masked"]),
        fa2_ms=_printed(match["fa2"]),
        speedup=_printed(match["speedup"]),
    )


def _printed(text: str) -> Printed:
    """Return a number, off by at most half of the last digit that was printed."""
    digits, _, power = text.lower().partition("e")
    decimals = len(digits.partition(".")[2])
    return Printed(float(text), 0.5 * 10.0 ** (int(power or 0) - decimals))


def _odd(rows: list[Row]) -> list[str]:
    """Say which rows contradict themselves, and which points come twice."""
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
