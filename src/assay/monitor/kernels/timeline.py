"""All that ran in the calls of a trace, in order: kernels where a GPU was followed, else operators, else calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.monitor.kernels import kineto
from assay.monitor.kernels.rows import calls_as_rows
from assay.monitor.kernels.sensors import with_sensors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.monitor.kernels.kineto import Event, TraceClock
    from assay.monitor.kernels.rows import CallSpan, Kernel
    from assay.monitor.lines import Line

KERNELS = "kernels, copies and fills of the GPU, by its own clock"
OPERATORS = "PyTorch's outermost operators, by the host's clock"
CALLS = "calls, by the host's clock"


@dataclass(frozen=True)
class Timeline:
    """Rows, what they are, and how they lie on the host's clock."""

    kernels: list[Kernel]
    rows_are: str
    clock: TraceClock | None
    notes: tuple[str, ...] = ()


def timeline(name: str, spans: Sequence[CallSpan], events: Sequence[Event], *, on_gpu: bool) -> Timeline:
    """Return the rows of a trace: what PyTorch's profiler saw, or the calls where it saw nothing of the kind."""
    clock = kineto.clock_of(events, spans) if events else None
    shown = kineto.on_gpu(events) if on_gpu else kineto.operators(events)
    if shown:
        lost = ("the profiler's clock could not be tied to the host's: no sensors are laid beside the rows",)
        rows = kineto.rows(shown, events, clock)
        return Timeline(rows, KERNELS if on_gpu else OPERATORS, clock, () if clock is not None else lost)
    missing = "nothing on the GPU" if on_gpu else "no operator"
    nothing_recorded = (f"PyTorch's profiler saw {missing} in these calls",) if events else ()
    return Timeline(calls_as_rows(spans, name), CALLS, clock, nothing_recorded)


def beside(found: Timeline, lines: Sequence[Line], gpu: int | None) -> list[Kernel]:
    """Return the rows with what a GPU's sensors said beside them."""
    return found.kernels if gpu is None else with_sensors(found.kernels, lines, gpu)
