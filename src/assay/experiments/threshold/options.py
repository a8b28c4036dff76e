"""The options of ``assay threshold run``: thresholds, each with its grid, and how they are measured."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from assay.core.values import Cache, InterferencePolicy, Isolation, Params, Scalar, Subject, Value

TimeKind = Literal["call", "span"]
TIME_KINDS: tuple[TimeKind, ...] = ("call", "span")
DecideOn = Literal["call", "span", "cautious"]

ROUNDS, GROWTH = 8, 2
"""Pairs of a point in each of the first two processes, and how many times as many each next one takes: together they
make 8, 16, 32, 64 and 128, which are planned looks. Most sizes need few, and few sizes need many."""
MAX_BLOCKS = 5
MIN_BLOCKS = 2
"""One process is one draw: what differs between processes is not seen in one."""


class GridPoint(Value):
    """One place of a grid: its parameters, its size on the threshold's axis, and the two that are compared there."""

    size: int | float
    params: Params
    reference: Subject
    fast: Subject


class Threshold(Value):
    """From which size on is ``fast`` faster than ``reference`` by the margin? The answer is written to ``key``."""

    name: str = Field(min_length=1)
    key: str = Field(min_length=1)
    never: Scalar = Field(description="What is written where it never is.")
    margin: float = Field(gt=1)
    axis: str = Field(description="What a size is, in words.")
    branch: Literal["sliding", "compressed"] | None = None
    points: tuple[GridPoint, ...] = Field(min_length=1)

    @property
    def sizes(self) -> tuple[int | float, ...]:
        """The sizes of the grid, each once, in order."""
        return tuple(sorted({point.size for point in self.points}))

    @property
    def axes(self) -> tuple[str, ...]:
        """The parameters in which points differ."""
        names = dict.fromkeys(name for point in self.points for name in point.params)
        return tuple(n for n in names if len({str(point.params.get(n)) for point in self.points}) > 1)


class ThresholdOptions(Value):
    """Thresholds that are looked for in one run, on one device."""

    thresholds: tuple[Threshold, ...] = Field(min_length=1)
    device: str
    decide_on: DecideOn = Field(default="cautious", description="Cautious: by both times, so the higher threshold.")
    rounds: int = Field(default=ROUNDS, ge=4, description="Pairs of a point in each of the first two processes.")
    growth: int = Field(default=1, ge=1, description="Each next process takes so many times as many.")
    blocks: int = Field(default=MAX_BLOCKS, ge=MIN_BLOCKS, description="Processes at the most.")
    duration_s: float = Field(default=60.0, gt=0, description="A process, its starting not counted, at the most.")
    budget_s: float | None = Field(default=None, gt=0, description="No process begins that would not fit any more.")
    isolation: Isolation = "full"
    on_interference: InterferencePolicy = "warn"
    cache: Cache | None = None
    timeout_s: float = Field(default=120.0, gt=0)
    cpu_groups: int | None = Field(default=None, ge=1)
    retakes: int = Field(default=0, ge=0)
    seed: int = 0

    def rounds_of(self, number: int) -> int:
        """Return the pairs of a point in a process, the first being 1."""
        return int(self.rounds * self.growth ** max(0, number - 2))

    @model_validator(mode="after")
    def _check_unique(self) -> Self:
        for what, texts in (
            ("named", [threshold.name for threshold in self.thresholds]),
            ("written to", [threshold.key for threshold in self.thresholds]),
        ):
            twice = sorted({name for name in texts if texts.count(name) > 1})
            if twice:
                raise ValueError(f"two thresholds are {what} {twice[0]}")
        return self
