"""Progress of a run or of a measurement: one line that is redrawn on a terminal, plain lines elsewhere.

The line of a run is redrawn when something happens and at most once a second in between, by a kernel timer and not by
a busy thread: waiting for a measurement must not disturb it.
"""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING

from assay.core.format import format_count, format_duration, format_time
from assay.experiments.reporting import primary_time
from assay.reports.text import one_line

if TYPE_CHECKING:
    from types import FrameType

    from rich.console import Console

    from assay.core.results import Estimate, Record
    from assay.core.values import Block, Trial
    from assay.worker.request import PhaseStarted


TICK_S = 1.0
MAX_TIMES = 8
"""Maximum number of times of one trial that are listed."""


def _print_line(console: Console, text: str) -> None:
    with contextlib.suppress(OSError):  # a log that cannot be written must not end the measurement
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def _overwrite_line(console: Console, text: str = "") -> None:
    """Replace the live line; an empty text removes it."""
    with contextlib.suppress(OSError):
        console.file.write(f"\r\x1b[2K{text}")
        console.file.flush()


class PlainProgress:
    """A line for each block and each trial; for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._in_block = 0
        self._begun: dict[str, None] = {}
        self._what = ""

    def block(self, block: Block, *, again: bool) -> None:
        """Print which block begins, and the maximum time left."""
        self._in_block, self._begun = len(block.trials), {}
        left = f", at most {format_duration(block.left_s)} left" if block.left_s is not None else ""
        trials = format_count(len(block.trials), "trial")
        self._line(f"{block.name}{' (again)' if again else ''}: {block.why}, {trials}{left}")

    def trial(self, trial: Trial) -> None:
        """Print which trial begins."""
        again = trial.id in self._begun
        self._begun[trial.id] = None
        self._what = f"{describe_trial(trial)}{' again, as it was disturbed' if again else ''}"
        self._line(f"  {self._place} {self._what} …")

    def record(self, record: Record) -> None:
        """Print the outcome of a trial."""
        self._line(f"  {self._place} {self._what}: {describe_outcome(record)}")

    @property
    def _place(self) -> str:
        """The number of this trial in the block; a repeated trial keeps its number."""
        return f"{len(self._begun)}/{self._in_block}"

    def close(self) -> None:
        """Do nothing: nothing is left on the screen."""

    def _line(self, text: str) -> None:
        _print_line(self._console, text)


class LiveProgress(PlainProgress):
    """One line with the time left, for a terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._doing = ""
        self._ends_at: float | None = None
        self._before = signal.signal(signal.SIGALRM, self._tick)
        signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)

    def block(self, block: Block, *, again: bool) -> None:
        """Print which block begins, and estimate when the run ends."""
        super().block(block, again=again)
        self._ends_at = None if block.left_s is None else time.monotonic() + block.left_s

    def trial(self, trial: Trial) -> None:
        """Show the running trial."""
        self._begun[trial.id] = None
        self._what = describe_trial(trial)
        self._doing = f"{self._place} {self._what}"
        self._draw()

    def record(self, record: Record) -> None:
        """Print the result above the live line."""
        self._erase()
        super().record(record)

    def close(self) -> None:
        """Remove the live line from the screen."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)
        self._erase()

    def _tick(self, number: int, frame: FrameType | None) -> None:
        if self._doing:
            self._draw()

    def _draw(self) -> None:
        left = ""
        if self._ends_at is not None:
            left = f"  at most {format_duration(max(0.0, self._ends_at - time.monotonic()))} left"
        room = max(10, self._console.width - len(left) - 3)
        _overwrite_line(self._console, f"  {self._doing[:room]}{left}")

    def _erase(self) -> None:
        self._doing = ""
        _overwrite_line(self._console)


def describe_trial(trial: Trial) -> str:
    """Describe a trial briefly: what is timed where, concurrently with what, and how."""
    timed = [role for role in trial.roles if role.duty == "timed"]
    subjects = ", ".join(dict.fromkeys(s.label for role in timed for s in role.subjects))
    devices = " and ".join(dict.fromkeys(device for role in timed for device in role.devices))
    loads = dict.fromkeys(s.label for role in trial.roles if role.duty == "load" for s in role.subjects)
    how = {"alone": "", "together": " together", "turns": " in turns"}[trial.schedule] if len(timed) > 1 else ""
    loads_text = f" beside {', '.join(loads)}" if loads else ""
    quiet = ", once it is quiet (waits up to 2 min)" if trial.on_interference == "wait" else ""
    phase = trial.settings.get("phase")
    return f"{f'{phase}: ' if isinstance(phase, str) else ''}{subjects} on {devices}{how}{loads_text}{quiet}"


def describe_outcome(record: Record) -> str:
    """Describe the outcome of a trial briefly."""
    if record.status != "ok":
        return f"{record.status}: {record.reason}"
    left_out = [f.skipped.detail for e in record.evidence for f in e.subjects if f.skipped is not None]
    skipped = [f"{len(left_out)} left out: {left_out[0]}"] if left_out else []
    if record.stages:
        processes = len({stage.restart for stage in record.stages})
        duration = format_duration(sum(stage.end_ns - stage.start_ns for stage in record.stages) / 1e9)
        apart = f" in {processes} processes" if processes > 1 else ""
        return "; ".join([f"{format_count(len(record.stages), 'stage')}{apart}, {duration} measured", *skipped])
    timed = [s for s in record.estimates if s.quantity == primary_time([record], s.role)]
    if len(timed) > MAX_TIMES or left_out:  # too many to list
        times_us = [s.estimate.value for s in timed]
        span = [f"{len(timed)} timed, {format_time(min(times_us))} to {format_time(max(times_us))}"] if timed else []
        return "; ".join([*span, *skipped])
    several_roles = len({s.role for s in timed}) > 1
    return ", ".join(f"{f'{s.role} ' if several_roles else ''}{_describe_time(s.estimate)}" for s in timed)


def _describe_time(estimate: Estimate) -> str:
    share = estimate.relative_half_width
    half_width = "" if share is None or share >= 10 else f" ±{share:.1%}"  # that wide it says nothing
    return f"{format_time(estimate.value)}{half_width}"


_PHASE_TEXTS = {
    "loading": "loading",
    "calling": "first call of",
    "timing": "timing",
    "tracing": "tracing",
    "counting": "ncu counts in the kernels of",
}


class StatusLine:
    """Shows the current phase; ``budget_s`` is the approximate timing limit, unless the phase gives its own."""

    def __init__(self, console: Console, budget_s: float = 0.0) -> None:
        self._console = console
        self._budget_s = budget_s
        self._which = ""
        self._doing = ""
        self._since_s = time.monotonic()
        self._counts_down = False

    def process(self, number: int, of: int) -> None:
        """Note that one of several processes begins."""
        self._which = f"process {number} of {of}: " if of > 1 else ""

    def begins(self, begins: PhaseStarted) -> None:
        """Note that another phase begins."""
        self._doing = f"{self._which}{_PHASE_TEXTS[begins.phase]} {one_line(begins.name)}"
        self._budget_s = self._budget_s if begins.budget_s is None else begins.budget_s
        self._since_s = time.monotonic()
        self._counts_down = begins.phase == "timing"
        if self._console.is_terminal:
            self.tick()
            return
        if begins.phase == "calling":
            return
        most = f", for {format_duration(self._budget_s)} at most" if self._counts_down else ""
        _print_line(self._console, f"{self._doing}{most} …")

    def tick(self) -> None:
        """Redraw the line."""
        if not self._doing or not self._console.is_terminal:
            return
        passed_s = time.monotonic() - self._since_s
        left_s = self._budget_s - passed_s
        if self._counts_down and left_s > 0:
            clock = f"at most {format_duration(left_s)} left"
        else:
            clock = format_duration(passed_s) if passed_s >= 1 else ""
        room = max(10, self._console.width - len(clock) - 8)
        _overwrite_line(self._console, f"  {self._doing[:room]} …  {clock}")

    def close(self) -> None:
        """Remove the line from the screen."""
        if self._doing and self._console.is_terminal:
            _overwrite_line(self._console)
        self._doing = ""
