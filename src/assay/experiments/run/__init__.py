"""The experiment behind ``assay run``: time workloads on devices, sequentially or concurrently."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.plan import Block, Done
from assay.experiments.run.plan import RunOptions, build_blocks, max_block_s
from assay.experiments.run.report import analyse, build_page

if TYPE_CHECKING:
    from assay.core.page import Page
    from assay.core.results import Findings
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

    def analyse(self, machine: Machine, options: RunOptions, records: Records) -> Findings:
        """Return the time of each workload on each device, and whether it is known as exactly as was wanted."""
        return analyse(options, records)

    def page(self, machine: Machine, options: RunOptions, findings: Findings, records: Records) -> Page:
        """Return the result table, every sample, who ran where and when, and what went wrong."""
        return build_page(machine, options, findings, records)


EXPERIMENT = RunExperiment()
