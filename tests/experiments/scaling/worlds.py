"""Worlds of known truth: what ranks take alone, beside each other and for their transfers is given; records follow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.results import (
    Check,
    Estimate,
    Evidence,
    GpuWindowStats,
    Missing,
    Record,
    Series,
    SubjectFacts,
    Window,
    WindowStats,
)
from assay.core.values import Block, Subject
from assay.experiments.scaling import EXPERIMENT
from assay.experiments.scaling.plan import ScalingOptions, has_transfers, plan_trials, shape_costs
from assay.stats.intervals import summarize_samples
from tests.experiments.remembered import Remembered
from tests.machines import machine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from assay.core.page import Page, Table
    from assay.core.results import Finding, Findings
    from assay.core.values import Trial
    from assay.experiments.scaling.analysis import AnalysedShape
    from assay.experiments.scaling.plan import PlannedTrial, ScalingShape
    from assay.machine.model import Machine

    Samples = NDArray[np.float64]

FOUR_CORES = machine(cores=(4,))
ATTENTION = Subject(
    workload="dilated_attention",
    impl="torch",
    params={
        "batch": 2, "sequence": 64, "heads": 4, "key_heads": 4, "dim": 8, "segments": "16,32,64", "rates": "1,2,4",
        "ring": 1, "dtype": "float32", "causal": False, "offset": "modulo", "backend": "auto", "passes": "forward",
        "only": "all",
    },
)  # fmt: skip
GEMM = Subject(workload="gemm", impl="torch", params={"m": 64, "n": 64, "k": 64, "dtype": "float32"})


def options(**changes: Any) -> ScalingOptions:
    """Return options for up to four groups of cores, with what is asked for changed."""
    told = {
        "subject": ATTENTION,
        "sequences": (64, 128),
        "worlds": (2,),
        "rings": (1, 2),
        "devices": ("cpu:0", "cpu:1", "cpu:2", "cpu:3"),
        "benchmark_runs": 10,
    }
    return ScalingOptions.model_validate({**told, **changes})


@dataclass
class World:
    """A machine on which everything is known; times in microseconds.

    Attributes:
        token_us: What one rank takes for a token of a batch, alone, forward and backward.
        forward: The share of that which is forward.
        shard: How well a share is computed alone, against the whole.
        contention: How fast a share is computed beside neighbours, against alone.
        balance: Mean computing over the slowest rank's, which is the last.
        transfer_us: What the transfers take by themselves.
        hidden: The share of them that is hidden behind computing.
        starts: Standard deviation of log time from process to process.
        within: The same from iteration to iteration, each rank by itself.
        failing: Why shapes do not come off, by their names; "share" before the name for shares alone.
        error: Of every check.
        extra_bytes: Received beyond what the formula says.
    """

    token_us: float = 100.0
    forward: float = 0.4
    shard: float = 0.9
    contention: float = 0.8
    balance: float = 0.9
    transfer_us: float = 1000.0
    hidden: float = 0.75
    starts: float = 0.0
    within: float = 0.0
    failing: Mapping[str, str] = field(default_factory=dict)
    error: float = 1e-7
    extra_bytes: float = 0.0
    joules: Estimate | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self.chance = np.random.default_rng(self.seed)
        self.kept: dict[str, Samples] = {}
        self.now_ns = 10**9

    def alone_us(self, wanted: ScalingOptions, shape: ScalingShape) -> float:
        """Return what one rank takes alone for all that a ring does."""
        return self.token_us * shape_costs(wanted, shape).batch * shape_costs(wanted, shape).sequence

    def share_us(self, wanted: ScalingOptions, shape: ScalingShape) -> float:
        """Return what a share of a ring takes alone; a ring of one has nothing but the whole."""
        if shape.ring == 1:
            return self.alone_us(wanted, shape)
        return self.alone_us(wanted, shape) / shape.ring / self.shard

    def computing_us(self, wanted: ScalingOptions, shape: ScalingShape) -> Samples:
        """Return what each rank computes beside its neighbours; the last place of a ring is the slowest."""
        if shape.world == 1:
            return np.array([self.alone_us(wanted, shape)])
        mean = self.share_us(wanted, shape) / self.contention
        if shape.ring == 1:
            return np.full(shape.world, mean)
        slow = mean / self.balance
        others = (shape.ring * mean - slow) / (shape.ring - 1)
        return np.tile([*[others] * (shape.ring - 1), slow], shape.rings)

    def time_us(self, wanted: ScalingOptions, shape: ScalingShape) -> float:
        """Return what a call takes: the slowest rank, and what of the transfers is not hidden."""
        exposed = self.transfer_us * (1 - self.hidden) if has_transfers(wanted, shape) else 0.0
        return float(self.computing_us(wanted, shape).max()) + exposed

    def record(self, wanted: ScalingOptions, plan: PlannedTrial) -> Record:
        """Return what comes of a trial."""
        start = self.now_ns
        self.now_ns += 2 * 10**9
        window = Window(
            host="h", boot_id="b", start_ns=start, end_ns=self.now_ns, started_at="2026-11-15T12:00:00.000+00:00"
        )
        told: dict[str, Any] = {"trial": plan.trial.id, "block": plan.trial.block, "attempt": 1, "window": window}
        name = f"{'share ' if plan.kind == 'share' else ''}{plan.shape.name}"
        if name in self.failing:
            return Record(**told, status="failed", reason=self.failing[name])
        return Record(
            **told,
            series=(series := tuple(self._series(wanted, plan))),
            estimates=tuple(
                summarize_samples("ring", s.subject, s.quantity, "µs", [self.kept[s.file]])
                for s in series
                if s.rank == 0
            ),
            evidence=tuple(self._evidence(wanted, plan, rank) for rank in range(plan.trial.roles[0].ranks)),
            during=WindowStats(
                observed_s=1.0, samples=5, gpus=(GpuWindowStats(gpu=0, uuid="u", memory_used_mib=900.0),)
            ),
            energy=self.joules if plan.kind == "energy" else None,
            energy_note="of the GPU" if self.joules else None,
            status="ok",
        )

    def _levels(self, wanted: ScalingOptions, plan: PlannedTrial, name: str) -> Samples:
        """Return the time of each rank of a subject."""
        if plan.kind == "yardstick":
            return np.array([1000.0])
        if plan.kind == "share":
            return np.array([self.share_us(wanted, plan.shape)])
        if not wanted.is_attention:
            return np.full(plan.shape.world, 1000.0 if plan.shape.world == 1 else 1000.0 / self.contention)
        computing = self.computing_us(wanted, plan.shape)
        if name == "communication":
            return np.full(plan.shape.world, self.transfer_us)
        if name == "compute" or not has_transfers(wanted, plan.shape):
            return computing * (self.forward if name == "forward" else 1.0)
        exposed = self.transfer_us * (1 - self.hidden)
        return (computing + exposed) * (self.forward if name == "forward" else 1.0)

    def _series(self, wanted: ScalingOptions, plan: PlannedTrial) -> list[Series]:
        found = []
        start = self.chance.normal(0.0, self.starts)
        n = wanted.benchmark_runs
        for number, name in enumerate(plan.names):
            for rank, level in enumerate(self._levels(wanted, plan, name)):
                file = f"{plan.trial.id}-{rank}-{number}"
                self.kept[file] = level * np.exp(start + self.chance.normal(0.0, self.within, n))
                found.append(
                    Series(
                        role="ring", rank=rank, subject=number, restart=0, quantity="call_us", unit="µs", file=file,
                        n=n, start_ns=self.now_ns - 10**9, end_ns=self.now_ns,
                    )
                )  # fmt: skip
        return found

    def _evidence(self, wanted: ScalingOptions, plan: PlannedTrial, rank: int) -> Evidence:
        return Evidence(
            role="ring", rank=rank, restart=0, pid=1, device=plan.trial.roles[0].device_of(rank),
            isolation_asked="full", isolation_held="full", allowed_cores=(0,), thread_limit=1, memory_nodes=None,
            setup_s=0.1, peak_memory_mib=300.0,
            subjects=tuple(self._facts(wanted, plan, rank, n, name) for n, name in enumerate(plan.names)),
        )  # fmt: skip

    def _facts(self, wanted: ScalingOptions, plan: PlannedTrial, rank: int, number: int, name: str) -> SubjectFacts:
        checked = Check(error=self.error, tolerance=1e-5, measure="relative error")
        if not wanted.is_attention or plan.kind == "yardstick":
            return SubjectFacts(subject=number, flop=2e9, check=checked)
        costs, place = shape_costs(wanted, plan.shape), rank % plan.shape.ring
        flop = costs.flop_at(place, plan.shape.ring) * 3.5
        must = costs.received_bytes(place, plan.shape.ring) + costs.backward_received_bytes(place, plan.shape.ring)
        measured = {"received_bytes": must + self.extra_bytes, "expected_received_bytes": float(must)}
        return SubjectFacts(
            subject=number,
            flop=flop,
            check=checked if name in {"forward", "total"} else None,
            measured={**measured, "peak_allocated_mib": 100.0 / plan.shape.ring, "peak_reserved_mib": 128.0},
        )

    def run(self, wanted: ScalingOptions, on: Machine = FOUR_CORES) -> Remembered:
        """Walk the experiment's own steps to the end."""
        plans = {each.trial.id: each for each in plan_trials(wanted)}
        records: list[Record] = []
        while isinstance(block := EXPERIMENT.step(on, wanted, Remembered(records, self.kept)), Block):
            records += [self.record(wanted, plans[trial.id]) for trial in block.trials]
        return Remembered(records, self.kept)


def found_in(world: World, wanted: ScalingOptions, on: Machine = FOUR_CORES) -> tuple[Findings, Page]:
    """Return findings and page of a world."""
    records = world.run(wanted, on)
    report = EXPERIMENT.report(on, wanted, records)
    findings = report.findings
    return findings, report.page


def about(findings: Findings, topic: str, **facts: object) -> Finding:
    """Return the one finding about a topic with these facts."""
    (one,) = [f for f in findings.findings if f.kind == topic and all(f.facts.get(k) == v for k, v in facts.items())]
    return one


def table(page: Page, title: str) -> Table:
    """Return the table whose title has these words."""
    return next(e for s in page.sections for e in s.elements if e.kind == "table" and title in e.title)


def trial_of(wanted: ScalingOptions, kind: str, shape: ScalingShape) -> Trial:
    """Return the first trial of a kind for a shape."""
    return next(each.trial for each in plan_trials(wanted) if (each.kind, each.shape) == (kind, shape))


def estimate_of(shape: AnalysedShape, name: str) -> Estimate:
    """Return a number of a shape that must be there."""
    number = shape.numbers[name]
    assert isinstance(number, Estimate)
    return number


def missing_of(shape: AnalysedShape, name: str) -> Missing:
    """Return why a number of a shape is not there, as must be."""
    number = shape.numbers[name]
    assert isinstance(number, Missing)
    return number
