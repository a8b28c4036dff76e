"""All that was seen of one cell, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.experiments.energy.rows import Cell
    from assay.experiments.energy.stages import Seen
    from assay.stats.metered import Draw
    from assay.workloads.generation.params import Phase

    Draws = list[Draw] | str
    """Of a figure: one for each process, or why there is none."""

NOT_APART = "a server is not taken apart"
WHOLE: tuple[Phase, ...] = ("whole", "served")


@dataclass(frozen=True)
class CellSeen:
    """All windows of a cell by phase, the idle windows of its processes, and why a phase has none."""

    cell: Cell
    windows: Mapping[Phase, tuple[Seen, ...]]
    idle: Mapping[tuple[str, int, int], Seen]
    why_not: Mapping[Phase, str]
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
    def whole(self) -> tuple[Seen, ...]:
        """The windows in which whole requests ran."""
        return tuple(window for phase in WHOLE for window in self.windows.get(phase, ()))

    def of(self, phase: Phase) -> tuple[Seen, ...] | str:
        """Return the windows of a phase, or why there is none."""
        if phase == "whole":
            return self.whole or self.missing("served" if self.is_server else "whole")
        if self.is_server:
            return NOT_APART
        return self.windows.get(phase) or self.missing(phase)

    def missing(self, phase: Phase) -> str:
        """Say why a phase was not measured."""
        if phase == "decode" and self.cell.output_tokens == 1:
            return "one output token is made when the prompt is read, and nothing is decoded"
        return self.why_not.get(phase, "it was not measured")
