"""A machine that only keeps time: its clock passes where something is called or read, or a neighbour is let in."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.timing.conditions import ContextSwitchCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pytest


@dataclass
class VirtualMachine:
    """Its clock costs ``read_ns`` to read; a neighbour, if there is one, takes the core every so often for a while."""

    now_ns: int = 1_000_000_000
    read_ns: int = 40
    neighbour_every_ns: float = math.inf
    neighbour_ns: float = 0.0
    seed: int = 0
    due_ns: float = field(default=math.inf, init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._next_visit()

    def _next_visit(self) -> None:
        if math.isfinite(self.neighbour_every_ns):
            self.due_ns = self.now_ns + self._chance.expovariate(1 / self.neighbour_every_ns)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Be the clock of the whole process."""
        patch.setattr(time, "perf_counter_ns", self.read)
        patch.setattr(time, "perf_counter", lambda: self.read() / 1e9)
        patch.setattr(ContextSwitchCounter, "notes", lambda _: ())

    def read(self) -> int:
        self.passes(self.read_ns)
        return self.now_ns

    def passes(self, ns: float) -> None:
        """Let time pass, and the neighbour in where it is due."""
        self.now_ns += round(ns)
        if self.now_ns >= self.due_ns:
            self.now_ns += round(self._chance.uniform(0.25, 1.75) * self.neighbour_ns)
            self._next_visit()

    def call(
        self, ns: float, *, slow: Mapping[int, float] | None = None, noise: float = 0.0, seed: int = 0
    ) -> Callable[[], None]:
        """Return a function that takes so long; the calls numbered in ``slow``, from 1, take that much longer."""
        count = 0
        chance = random.Random(seed)

        def function() -> None:
            nonlocal count
            count += 1
            extra = (slow or {}).get(count, 0.0)
            self.passes(ns * (1 + noise * chance.expovariate(1)) + extra if noise else ns + extra)

        return function
