"""What a look at the history came to, as values."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, Field

from assay.core.results import Estimate, Origin
from assay.core.values import SCHEMA_VERSION, Value
from assay.experiments.comparing.judging import Verdict

Standing = Literal["regression", "improvement", "change", "confounded", "taken back", "small", "maybe chance"]
"""What a step is called. ``change``: whether that is better cannot be said of its quantity."""


class Moment(Value):
    """A run of a series, by what people need of it."""

    run: str
    began_at: AwareDatetime
    commit: str | None = Field(description="Of the code; null: not known.")
    dirty: bool | None = Field(description="Whether files differed from it.")
    folder: str

    @property
    def code(self) -> str | None:
        """The commit in short; a plus says that files differed from it."""
        return None if self.commit is None else f"{self.commit[:10]}{'+' if self.dirty else ''}"


class Stepped(Value):
    """A step of one series."""

    key: str
    what: str
    where: str
    details: str
    quantity: str
    unit: str
    standing: Standing
    verdict: Verdict
    ratio: Estimate = Field(description="The new level over the old.")
    before: float = Field(description="The old level, in the unit.")
    first_bad: Moment = Field(description="The first run after the step, as likely as no other.")
    last_good: Moment
    earliest: Moment = Field(description="The step began with this run or a later one, most likely.")
    latest: Moment = Field(description="The step began with this run or an earlier one, most likely.")
    told: Moment = Field(description="The run after which it could be told.")
    runs_after: int = Field(description="Runs of the series from the first after the step on.")
    chance: float = Field(description="That a stable series as long as this looks so.")
    confounded_by: tuple[str, ...] = Field(default=(), description="Hosts or drivers that changed at the same time.")
    beside: tuple[str, ...] = Field(default=(), description="What else changed at the same time.")


class Found(Value):
    """All steps, the largest regression first, and what could not be looked at."""

    schema_version: int = Field(default=SCHEMA_VERSION, serialization_alias="schema", validation_alias="schema")
    headline: str
    steps: tuple[Stepped, ...]
    series: int = Field(description="That were looked at.")
    runs: int = Field(description="Of these series, together.")
    too_short: int = Field(description="Series that have fewer runs than it takes.")
    not_positive: int = Field(description="Runs left out as their value is not above zero.")
    drifted: tuple[str, ...] = Field(default=(), description="Keys of series without a step that moved all the same.")
    false_share: float = Field(description="Of the steps that are told, how many may be false.")
    minimum_effect: float = Field(description="Steps that are smaller are called small.")
    origin: Origin = "real"

    @property
    def regressions(self) -> tuple[Stepped, ...]:
        """The steps that a gate would stop at."""
        return tuple(step for step in self.steps if step.standing == "regression")
