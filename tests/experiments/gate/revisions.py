"""Gates that were never measured: how much slower head is, is known, and so is the right answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.results import Evidence, Record, Series, Window
from assay.core.values import Block, Subject
from assay.experiments.gate import EXPERIMENT, GateOptions
from assay.launch.checkouts import Checkouts, Revision
from tests.experiments.remembered import Remembered
from tests.machines import machine

if TYPE_CHECKING:
    from assay.core.values import Trial
    from assay.store.records import Records

SECOND = 10**9
MACHINE = machine()
"""A gate does not look at the machine to decide what comes next."""


def revision(name: Any, ref: str, commit: str) -> Revision:
    return Revision(name=name, ref=ref, commit=commit, checkout=f"/gates/{name}", interpreter="/bin/python")


def options(**changes: Any) -> GateOptions:
    revisions = (revision("base", "main", "a" * 40), revision("head", "HEAD", "b" * 40))
    told = {
        "checkouts": Checkouts(repository="/repo", folder="", revisions=revisions),
        "subject": Subject(workload="bench.py:work", impl="python"),
        "device": "cpu:0",
        **changes,
    }
    return GateOptions.model_validate(told)


@dataclass
class World:
    """A machine on which the truth is known.

    Attributes:
        change: Head over base, by quantity.
        noise: The spread of the logarithm from sample to sample.
        between: The same from restart to restart.
        fails_in: The restart that fails, counted from 1.
    """

    change: dict[str, float] = field(default_factory=lambda: {"call_us": 1.0})
    noise: float = 0.02
    between: float = 0.004
    takes_s: float = 4.0
    fails_in: int | None = None
    level: float = 1000.0
    seed: int = 0
    kept: dict[str, Any] = field(default_factory=dict)

    def measured(self, wanted: GateOptions) -> Records:
        """Walk the loop to its end, as the runner does."""
        chance, records = np.random.default_rng(self.seed), list[Record]()
        while isinstance(block := EXPERIMENT.step(MACHINE, wanted, Remembered(records, self.kept)), Block):
            assert [block.name] == [trial.block for trial in block.trials]
            records.append(self._record(block.trials[0], chance, len(records)))
        return Remembered(records, self.kept)

    def _record(self, trial: Trial, chance: np.random.Generator, before: int) -> Record:
        failed = self.fails_in == before + 1
        start, took = before * int(self.takes_s * SECOND), int(self.takes_s * SECOND)
        return Record(
            trial=trial.id,
            block=trial.block,
            attempt=1,
            window=Window(host="h", boot_id="b", start_ns=start, end_ns=start + took, started_at="now"),
            series=() if failed else tuple(self._series(trial, chance)),
            evidence=tuple(_evidence(role.name) for role in trial.roles),
            status="failed" if failed else "ok",
            reason="head: ValueError: the moon" if failed else None,
        )

    def _series(self, trial: Trial, chance: np.random.Generator) -> list[Series]:
        found = []
        for quantity, change in self.change.items():
            log = np.log(change) + chance.normal(0, self.between)
            for role in trial.roles:
                name = f"{trial.id}-{role.name}-{quantity}"
                level = self.level * (np.exp(log) if role.name == "head" else 1.0)
                self.kept[name] = level * np.exp(chance.normal(0, self.noise, 50))
                found.append(_taken(role.name, quantity, name))
        return found


def _taken(role: str, quantity: str, file: str) -> Series:
    return Series(
        role=role, rank=0, subject=0, restart=0, quantity=quantity, unit="µs", file=file, n=50, start_ns=0, end_ns=1
    )


def _evidence(role: str) -> Evidence:
    return Evidence(
        role=role, rank=0, restart=0, pid=1, device="cpu:0", isolation_asked="none", isolation_held="none",
        allowed_cores=(0,), thread_limit=None, memory_nodes=None, setup_s=0.5,
    )  # fmt: skip
