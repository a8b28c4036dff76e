"""Threshold runs that were never measured: the speed-up at every point is known, and so is the right answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.results import Evidence, Missing, Parity, Record, Series, SubjectFacts, Window
from assay.core.values import Block, Paired, Subject
from assay.experiments.threshold.plan import replay_run
from assay.experiments.threshold.spec import GROWTH, GridPoint, Threshold, ThresholdOptions
from tests.experiments.remembered import Remembered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.core.values import Trial
    from assay.store.records import Records

PASSED = Parity(passed=True, measure="as it should be")
SECOND = 10**9


def point(size: float, **params: int) -> GridPoint:
    given = params or {"n": int(size)}
    return GridPoint(
        size=size,
        params=given,
        reference=Subject(workload="plain", impl="old", params=given),
        fast=Subject(workload="plain", impl="new", params=given),
    )


def threshold(sizes: Sequence[float], *, name: str = "sorting", margin: float = 1.2, **changes: Any) -> Threshold:
    told = {"key": f"runtime.{name}_min", "never": 10**9, "axis": "n", "points": tuple(map(point, sizes)), **changes}
    return Threshold(name=name, margin=margin, **told)


def options(*thresholds: Threshold, **changes: Any) -> ThresholdOptions:
    return ThresholdOptions.model_validate({"thresholds": thresholds, "device": "cpu:0", "growth": GROWTH, **changes})


@dataclass
class World:
    """A machine on which the truth is known.

    Attributes:
        speed_up: Of a point, by its parameters, and by a time.
        noise: The spread of the logarithm from pair to pair.
        between: The same from process to process.
        times: The series that are taken.
        left_out: Why a subject of a pair is left out, by its parameters and whether it is the fast one.
        parity: What the check of a fast path says.
    """

    speed_up: Callable[[dict[str, Any], str], float]
    noise: float = 0.05
    between: float = 0.0
    times: tuple[str, ...] = ("call_us",)
    left_out: Callable[[dict[str, Any], bool], str | None] = lambda params, fast: None
    parity: Callable[[dict[str, Any]], Parity | None] = lambda params: PASSED
    takes_s: float = 10.0
    seed: int = 0
    kept: dict[str, Any] = field(default_factory=dict)

    def measured(self, wanted: ThresholdOptions, *, at_most: int = 10) -> Records:
        """Walk the loop to its end, as the runner does."""
        chance, records = np.random.default_rng(self.seed), list[Record]()
        while isinstance(step := replay_run(wanted, Remembered(records, self.kept)).next_step, Block):
            assert len(records) < at_most, "it goes on and on"
            assert [step.name] == [trial.block for trial in step.trials]
            records.append(self._record(step.trials[0], chance, len(records)))
        return Remembered(records, self.kept)

    def _record(self, trial: Trial, chance: np.random.Generator, before: int) -> Record:
        series: list[Series] = []
        facts: list[SubjectFacts] = []
        (role,) = trial.roles
        assert isinstance(trial.mode, Paired)
        for place, subject in enumerate(role.subjects):
            fast = bool(place % 2)
            why = self.left_out(subject.params, fast)
            parity = self.parity(subject.params) if fast and trial.mode.parity else None
            facts.append(
                SubjectFacts(
                    subject=place,
                    skipped=why
                    and Missing(code="out_of_memory" if why.startswith("out of memory") else "error", detail=why),
                    parity=parity,
                )
            )
        for pair in range(0, len(role.subjects), 2):
            params = role.subjects[pair].params
            if facts[pair].skipped is None and facts[pair + 1].skipped is None:
                series += self._pair(trial, trial.mode.rounds, pair, params, chance)
        start, took = before * int(self.takes_s * SECOND), int(self.takes_s * SECOND)
        return Record(
            trial=trial.id,
            block=trial.block,
            attempt=1,
            window=Window(host="h", boot_id="b", start_ns=start, end_ns=start + took, started_at="now"),
            series=tuple(series),
            evidence=(_evidence(role.devices[0], tuple(facts)),),
            status="ok",
        )

    def _pair(self, trial: Trial, rounds: int, pair: int, params: Any, chance: np.random.Generator) -> list[Series]:
        found = []
        for time in self.times:
            log = np.log(self.speed_up(params, time)) + chance.normal(0, self.between)
            for side in (0, 1):
                level = 100.0 if side == 0 else 100.0 / np.exp(log)
                name = f"{trial.id}-{pair + side}-{time}"
                self.kept[name] = level * np.exp(chance.normal(0, self.noise / np.sqrt(2), rounds))
                found.append(_series(pair + side, time, name, rounds))
        return found


def _series(subject: int, quantity: str, file: str, count: int) -> Series:
    return Series(
        role="pairs", rank=0, subject=subject, restart=0, quantity=quantity, unit="µs", file=file, n=count,
        start_ns=0, end_ns=1,
    )  # fmt: skip


def _evidence(device: str, facts: tuple[SubjectFacts, ...]) -> Evidence:
    return Evidence(
        role="pairs", rank=0, restart=0, pid=1, device=device, isolation_asked="none", isolation_held="none",
        allowed_cores=(0,), thread_limit=None, memory_nodes=None, setup_s=1.0, subjects=facts,
    )  # fmt: skip
