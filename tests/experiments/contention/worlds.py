"""Worlds of known truth: what each phase does to times, spreads and picks is given, and records follow from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.results import Evidence, GpuWindowStats, Record, Series, Tuning, Window, WindowStats
from assay.core.values import Block, Subject
from assay.experiments.budget import expected_trial_s
from assay.experiments.contention import EXPERIMENT
from assay.experiments.contention.options import ContentionOptions
from tests.experiments.remembered import Remembered
from tests.machines import machine

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from assay.core.page import Page, Table
    from assay.core.results import Finding, Findings
    from assay.core.values import Params, Role, Trial
    from assay.machine.model import Machine

    Samples = NDArray[np.float64]

TWO_CORES = machine(cores=(2,))
FAST: Params = {"block": 64}
SLOW: Params = {"block": 8}
SOFTMAX = Subject(workload="softmax", impl="numpy", params={"rows": 64}, config=FAST)
GEMM = Subject(workload="gemm", impl="numpy", params={"n": 64}, config=FAST)


def options(**changes: Any) -> ContentionOptions:
    """Return options for two groups of cores, with what is asked for changed."""
    told = {
        "subjects": (SOFTMAX,),
        "tunable": (True,),
        "devices": ("cpu:0", "cpu:1"),
        "repeat": 4,
        "budget_s": 60.0,
        "timing_s": 0.5,
        "tuning_s": 1.0,
    }
    return ContentionOptions.model_validate({**told, **changes})


@dataclass
class World:
    """A machine on which everything is known.

    Attributes:
        slower: By how much each phase multiplies times.
        callers_wait: By how much more it multiplies those of calls.
        wider: By how much each phase multiplies the spread of repeats.
        picks_wrong: How often the tuner picks the slow configuration in a phase.
        regret: How much longer the slow configuration takes.
        starts: Standard deviation of log time from process to process.
        within: The same within a process.
        drift: Log time that is added over the whole run.
        devices: By how much a device multiplies times.
        refused: Trials that do not come off, as (block, phase), or (block, phase, device).
        nothing_found: Phases in which the tuner finds nothing.
    """

    slower: dict[str, float] = field(default_factory=dict)
    callers_wait: dict[str, float] = field(default_factory=dict)
    wider: dict[str, float] = field(default_factory=dict)
    picks_wrong: dict[str, float] = field(default_factory=dict)
    regret: float = 1.2
    starts: float = 0.02
    within: float = 0.03
    drift: float = 0.0
    devices: dict[str, float] = field(default_factory=dict)
    refused: Collection[tuple[object, ...]] = ()
    nothing_found: set[str] = field(default_factory=set)
    quantities: tuple[str, ...] = ("call_us",)
    samples: int = 120
    watched: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        self.chance = np.random.default_rng(self.seed)
        self.kept: dict[str, Samples] = {}
        self.now_s = 100.0

    def record(self, trial: Trial) -> Record:
        """Return what comes of a trial."""
        phase, start_s = str(trial.settings["phase"]), self.now_s
        self.now_s += expected_trial_s(trial)
        window = Window(
            host="h", boot_id="b", start_ns=int(start_s * 1e9), end_ns=int(self.now_s * 1e9), started_at="then"
        )
        told: dict[str, Any] = {"trial": trial.id, "block": trial.block, "attempt": 1, "window": window}
        number = int(trial.block.rpartition("-")[2]) if "-" in trial.block else 0
        if any(which in self.refused for which in ((number, phase), (number, phase, trial.devices[0]))):
            return Record(**told, status="refused", reason="it is not quiet here")
        timed = [role for role in trial.roles if role.duty == "timed"]
        return Record(
            **told,
            series=tuple(s for role in timed for s in self._series(trial, role, phase)),
            tunings=tuple(self._tuning(role, phase) for role in timed if role.tuner is not None),
            evidence=tuple(_evidence(role) for role in trial.roles),
            during=self._seen(phase) if self.watched else None,
            status="ok",
        )

    def _series(self, trial: Trial, role: Role, phase: str) -> list[Series]:
        found = []
        for restart in range(trial.restarts):
            start = self.chance.normal(0.0, self.starts)
            for place, subject in enumerate(role.subjects):
                level = 100.0 * self.slower.get(phase, 1.0) * self.devices.get(role.devices[0], 1.0)
                level *= self.regret if subject.config == SLOW else 1.0
                level *= float(np.exp(self.drift * (self.now_s - 100.0) / 60.0))
                spread = self.within * self.wider.get(phase, 1.0)
                for quantity in self.quantities:
                    name = f"{trial.id}-{role.name}-{restart}-{place}-{quantity}"
                    noise = start + self.chance.normal(0.0, spread, self.samples)
                    waited = self.callers_wait.get(phase, 1.0) if quantity == "call_us" else 1.0
                    self.kept[name] = waited * level * np.exp(noise)
                    ns = int((self.now_s - 0.5) * 1e9)
                    found.append(
                        Series(
                            role=role.name, rank=0, subject=place, restart=restart, quantity=quantity, unit="µs",
                            file=name, n=self.samples, start_ns=ns - 10**8, end_ns=ns,
                        )
                    )  # fmt: skip
        return found

    def _tuning(self, role: Role, phase: str) -> Tuning:
        wrong = self.chance.random() < self.picks_wrong.get(phase, 0.0)
        nothing = phase in self.nothing_found
        return Tuning(
            role=role.name,
            restart=0,
            tuner="pick",
            config=None if nothing else SLOW if wrong else FAST,
            time_us=None if nothing else 100.0,
            reason="no configuration works" if nothing else None,
            tuning_s=1.0,
            start_ns=0,
            end_ns=1,
        )

    def _seen(self, phase: str) -> WindowStats:
        busy = 50.0 * self.slower.get(phase, 1.0) + float(self.chance.normal(0.0, 1.0))
        return WindowStats(
            observed_s=1.0, samples=5, cpu_percent=busy, steal_percent=None, gpus=(GpuWindowStats(gpu=0, uuid="u"),)
        )

    def run(self, wanted: ContentionOptions, on: Machine = TWO_CORES) -> Remembered:
        """Walk the experiment's own steps to the end."""
        records: list[Record] = []
        while isinstance(block := EXPERIMENT.step(on, wanted, Remembered(records, self.kept)), Block):
            records += [self.record(trial) for trial in block.trials]
        return Remembered(records, self.kept)


def _evidence(role: Role) -> Evidence:
    return Evidence(
        role=role.name, rank=0, restart=0, pid=1, device=role.devices[0], isolation_asked=role.isolation,
        isolation_held=role.isolation, allowed_cores=(0,), thread_limit=1, memory_nodes=None, setup_s=0.1,
        involuntary_switches=3,
    )  # fmt: skip


def found_in(world: World, wanted: ContentionOptions, on: Machine = TWO_CORES) -> tuple[Findings, Page]:
    """Return findings and page of a world."""
    records = world.run(wanted, on)
    report = EXPERIMENT.report(on, wanted, records)
    findings = report.findings
    return findings, report.page


def about(findings: Findings, topic: str, **facts: object) -> list[Finding]:
    """Return the findings about a topic, with these facts."""
    return [f for f in findings.findings if f.kind == topic and all(f.facts.get(k) == v for k, v in facts.items())]


def overall(findings: Findings, topic: str, phase: str) -> Finding:
    """Return the finding about a phase, all places together."""
    return next(f for f in about(findings, topic, phase=phase) if "device" not in f.facts)


def table(page: Page, title: str) -> Table:
    """Return the table whose title has these words."""
    return next(e for s in page.sections for e in s.elements if e.kind == "table" and title in e.title)
