"""One line while something is timed: renewed on a terminal, a plain line for each step elsewhere."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from assay.core.units import format_span
from assay.reports.wording import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from assay.worker.wish import Begins

_DOING = {
    "loading": "loading",
    "calling": "first call of",
    "timing": "timing",
    "tracing": "tracing",
    "counting": "ncu counts in the kernels of",
}


class WaitingLine:
    """Says what is being done; ``budget_s`` is how long timing takes at most, about, unless it says so itself."""

    def __init__(self, console: Console, budget_s: float = 0.0) -> None:
        self._console = console
        self._budget_s = budget_s
        self._which = ""
        self._doing = ""
        self._since_s = time.monotonic()
        self._counts_down = False

    def process(self, number: int, of: int) -> None:
        """One of several processes begins."""
        self._which = f"process {number} of {of}: " if of > 1 else ""

    def begins(self, begins: Begins) -> None:
        """Something else begins."""
        self._doing = f"{self._which}{_DOING[begins.phase]} {one_line(begins.name)}"
        self._budget_s = self._budget_s if begins.budget_s is None else begins.budget_s
        self._since_s = time.monotonic()
        self._counts_down = begins.phase == "timing"
        if self._console.is_terminal:
            self.tick()
            return
        if begins.phase == "calling":
            return
        most = f", for {format_span(self._budget_s)} at most" if self._counts_down else ""
        with contextlib.suppress(OSError):  # a log that cannot be written must not end the measurement
            self._console.print(f"{self._doing}{most} …", markup=False, highlight=False, soft_wrap=True)

    def tick(self) -> None:
        """Renew the line."""
        if not self._doing or not self._console.is_terminal:
            return
        passed_s = time.monotonic() - self._since_s
        left_s = self._budget_s - passed_s
        if self._counts_down and left_s > 0:
            clock = f"at most {format_span(left_s)} left"
        else:
            clock = format_span(passed_s) if passed_s >= 1 else ""
        room = max(10, self._console.width - len(clock) - 8)
        self._write(f"\r\x1b[2K  {self._doing[:room]} …  {clock}")

    def close(self) -> None:
        """Take the line off the screen."""
        if self._doing and self._console.is_terminal:
            self._write("\r\x1b[2K")
        self._doing = ""

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._console.file.write(text)
            self._console.file.flush()
