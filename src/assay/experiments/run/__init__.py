"""The plain experiment behind ``assay run``: time workloads on devices, one after another or side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.plan import Block, Done
from assay.experiments.run.findings import analyse
from assay.experiments.run.page import page
from assay.experiments.run.plan import START_UP_S, RunOptions, trials_of

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
        """Return the next repeat that has not been measured."""
        measured = {record.block for record in records}
        for repeat in range(1, options.repeat + 1):
            name = f"repeat-{repeat}"
            if name not in measured:
                trials = trials_of(options, name, repeat)
                left = len(trials) * (options.repeat - repeat + 1)
                return Block(
                    name=name,
                    why=f"repeat {repeat} of {options.repeat}",
                    trials=trials,
                    left_s=left * (options.duration_s + options.cooldown_s + START_UP_S),
                )
        return Done(why=f"all {options.repeat} repeats are measured")

    def analyse(self, machine: Machine, options: RunOptions, records: Records) -> Findings:
        """Return the time of each workload on each device, and whether it is known as exactly as was wanted."""
        return analyse(options, records)

    def page(self, machine: Machine, options: RunOptions, findings: Findings, records: Records) -> Page:
        """Return the result table, every sample, who ran where and when, and what went wrong."""
        return page(machine, options, findings, records)


EXPERIMENT = RunExperiment()
