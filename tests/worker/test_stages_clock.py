"""How long a stage lasts, by a clock of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.values import Role, Staged
from assay.isolation.placement import Allotment
from assay.worker.protocol import Prepare, TakeStage
from assay.worker.sequences import StagedSubjects
from tests.running import function

if TYPE_CHECKING:
    from pathlib import Path


class Reluctant:
    """A clock that goes on by 10 ms at each look, as on a machine that is busy with others."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 10_000_000
        return self.now_ns


def test_the_calls_of_a_stage_fill_the_time_that_was_ordered(workplace: Path) -> None:
    role = Role(name="model", subjects=(function("fine"),), devices=("cpu:0",), isolation="none")
    mode, allotment = Staged(duration_s=1.0, stage_s=0.055), Allotment(device="cpu:0", level="none")
    told = Prepare(role=role, rank=0, restart=0, allotment=allotment, all_cpus=(0,), mode=mode, seed=0)
    stages = StagedSubjects(told, mode, "cpu:0", Reluctant())
    stages.begin()
    stretch, _ = stages.take(TakeStage(subject=0))
    (calls,) = [series for series in stretch.series if series.quantity == "call_us"]
    start_ns, end_ns = calls.window or (0, 0)
    assert (end_ns - start_ns, len(calls.samples)) == (60_000_000, 3)
