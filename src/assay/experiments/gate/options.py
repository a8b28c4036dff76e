"""What ``assay gate`` was asked for: two revisions, what is measured in both, and how much worse is too much."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from assay.core.plan import Cache, Isolation, StrangerPolicy, Subject
from assay.core.values import Value
from assay.launch.checkouts import Checkouts, Revision
from assay.stats.gates import FEWEST, MOST

DecideOn = Literal["both", "kernels", "call"]

RESTARTS, QUICK_RESTARTS = 5, 3
DURATION_S, QUICK_DURATION_S = 3.0, 1.0
BUDGET_S, QUICK_BUDGET_S = 120.0, 30.0
MINIMUM_EFFECT = 0.02


class GateOptions(Value):
    """Two revisions held against each other on one device."""

    checkouts: Checkouts
    subject: Subject
    device: str
    minimum_effect: float = Field(default=MINIMUM_EFFECT, gt=0, lt=1, description="0.02: worse by 2 % is too much.")
    restarts: int = Field(default=RESTARTS, ge=FEWEST, le=MOST, description="Before the first look.")
    duration_s: float = Field(default=DURATION_S, gt=0, description="A restart, its starting not counted.")
    budget_s: float = Field(default=BUDGET_S, gt=0, description="No restart begins that would not fit any more.")
    decide_on: DecideOn = Field(default="both", description="On a GPU: the time of the kernels, of a call, or both.")
    gate_time: bool = Field(default=True, description="False: only the metrics are judged.")
    lower_is_better: tuple[str, ...] = Field(default=(), description="Numbers of a command that are judged.")
    higher_is_better: tuple[str, ...] = ()
    unsure: Literal["pass", "fail"] = "pass"
    isolation: Isolation = "full"
    strangers: StrangerPolicy = "warn"
    cache: Cache | None = None
    timeout_s: float = Field(default=120.0, gt=0)
    cpu_groups: int | None = Field(default=None, ge=1)
    retakes: int = Field(default=0, ge=0)
    notes: tuple[str, ...] = Field(default=(), description="What was said of the revisions before they were measured.")
    seed: int = 0

    @model_validator(mode="after")
    def _something_is_judged(self) -> Self:
        if not self.gate_time and not self.lower_is_better and not self.higher_is_better:
            raise ValueError(
                "nothing is judged: without the time, name a metric with --lower-is-better or --higher-is-better"
            )
        return self

    @property
    def base(self) -> Revision:
        """The revision that the other is held against."""
        return self.checkouts.revisions[0]

    @property
    def head(self) -> Revision:
        """The revision that is judged."""
        return self.checkouts.revisions[1]

    @property
    def same_commit(self) -> bool:
        """Whether it is one commit twice: an A/A run, which shows what the machine itself does."""
        return self.base.commit == self.head.commit
