"""The options of ``assay contention run``, and the phases that follow from them."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from assay.core.values import HOST, Command, InterferencePolicy, Subject, TunerName, Value
from assay.experiments.contention.aggressors import Aggressor
from assay.stats.blocks import MINIMUM_EFFECT

Phase = Literal["baseline", "naive", "isolated", "again"]
PHASES: tuple[Phase, ...] = get_args(Phase)
BASELINE_PHASES: tuple[Phase, ...] = ("baseline", "again")
CONCURRENT_PHASES: tuple[Phase, ...] = ("naive", "isolated")

PHASE_LABELS: dict[str, str] = {
    "baseline": "alone",
    "again": "alone again",
    "naive": "side by side",
    "isolated": "isolated",
    "retimed": "alone, re-timed",
}
"""The phases for people. Isolated is side by side too, each worker with cores, memory and threads of its own."""


class ContentionOptions(Value):
    """What ``assay contention run`` was asked for."""

    subjects: tuple[Subject, ...] = Field(min_length=1)
    tunable: tuple[bool, ...] = Field(description="Of each subject, whether the tuner has a choice in it.")
    devices: tuple[str, ...] = Field(min_length=1)
    workers: int = Field(default=1, ge=1, description="Processes on each device, side by side.")
    aggressors: tuple[Aggressor, ...] = ()
    tuner: TunerName | None = Field(default="pick", description="Null: nothing is tuned.")
    tuner_command: Command | None = None
    repeat: int | None = Field(default=None, ge=1, description="So many blocks; null: as many as fit the budget.")
    budget_s: float = Field(default=300.0, gt=0)
    keeps_to_budget: bool = Field(default=True, description="False: only a duration was asked for, however long it is.")
    timing_s: float = Field(default=1.0, gt=0, description="Of each worker in each trial, starting not counted.")
    tuning_s: float = Field(default=1.0, gt=0)
    search_s: float = Field(default=0.0, ge=0, description="Of a tuner that cannot be given a budget; 0: it can.")
    tuned_blocks: int | None = Field(default=None, ge=1, description="Blocks that tune as well; null: all of them.")
    started_together: bool = Field(
        default=False, description="Workers that are timed alone start at once, and all but one of them wait."
    )
    cooldown_s: float = Field(default=0.0, ge=0)
    minimum_effect: float = Field(default=MINIMUM_EFFECT, gt=0, lt=1)
    on_interference: InterferencePolicy = "warn"
    retakes: int = Field(default=0, ge=0)
    timeout_s: float = Field(default=120.0, gt=0)
    cpu_groups: int | None = Field(default=None, ge=1)
    seed: int = 0

    @property
    def has_concurrency(self) -> bool:
        """Whether anything runs side by side at all."""
        return len(self.devices) * self.workers > 1 or bool(self.aggressors)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of a block; without company only the two quiet ones."""
        return PHASES if self.has_concurrency else BASELINE_PHASES

    @property
    def processes(self) -> int:
        """How many processes run at once when all run side by side."""
        return len(self.devices) * self.workers + sum(
            1 if load.location == "host" else len(self.devices) for load in self.aggressors
        )

    @property
    def placement_group(self) -> tuple[str, ...]:
        """Whose cores are shared out together, in every trial alike.

        Where loads on the host have cores of their own, devices lack them alone as well: what a device loses is then
        not taken for what its neighbours do. Several workers share what their device has alone, which is what is asked.
        """
        return (*self.devices, HOST) if any(load.location == "host" for load in self.aggressors) else self.devices

    def tunes(self, subject: int, block: int = 1) -> bool:
        """Return whether a configuration of a subject is chosen in each trial of a block."""
        return self.tuner is not None and self.tunable[subject] and block <= (self.tuned_blocks or block)
