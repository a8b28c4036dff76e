"""The experiment behind ``assay run``: time workloads on devices, sequentially or concurrently."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.values import Block, Done
from assay.experiments.run.plan import RunOptions, build_blocks, max_block_s
from assay.experiments.run.report import build_report

if TYPE_CHECKING:
    from assay.experiments.base import Report
    from assay.machine.model import Machine
    from assay.store.records import Records


class RunExperiment:
    """Every workload on every device, as often as asked, the order shuffled within each repeat."""

    name = "run"
    options_type = RunOptions

    def step(self, machine: Machine, options: RunOptions, records: Records) -> Block | Done:
        """Return the next block that has not been measured."""
        measured = {record.block for record in records}
        left = [block for block in build_blocks(options) if block.name not in measured]
        if not left:
            return Done(why=f"all {options.repeat} repeats are measured")
        return left[0].model_copy(update={"left_s": sum(map(max_block_s, left))})

    def report(self, machine: Machine, options: RunOptions, records: Records) -> Report:
        """Return the time of each workload on each device, every sample, and who ran where and when."""
        return build_report(machine, options, records)


EXPERIMENT = RunExperiment()
