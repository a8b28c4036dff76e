"""What an experiment is, how to find one by name (built-in, or an installed plug-in's), and its result on a run folder.

A new experiment is a package with its options, its plan (``step``), its report and an `EXPERIMENT`; a line in
`BUILT_IN`; and a verb in ``cli/``.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import ValidationError

from assay.core.errors import BadInput, suggest_nearest
from assay.core.values import Value, first_problem
from assay.experiments.reporting import assess_quality, quality_lines
from assay.store.identity import with_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from assay.core.page import Page
    from assay.core.results import FailureCode, Findings, SubjectFacts
    from assay.core.values import Block, Done
    from assay.launch.checkouts import Checkouts
    from assay.machine.model import Machine
    from assay.store.records import Records
    from assay.store.run_folder import RunFolder


OptionsT = TypeVar("OptionsT", bound=Value)


@dataclass(frozen=True)
class Report:
    """What an experiment makes of its records.

    ``files`` are text files of its own by their paths within the run folder; a long one is given part by part.
    ``baselines`` are the ids of trials that are no result by themselves: where only they were measured, nothing was.
    """

    findings: Findings
    page: Page
    files: Mapping[str, str | Iterable[str]] = field(default_factory=dict)
    baselines: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Experiment(Generic[OptionsT]):
    """A question, as the loop asks it: pure functions over the records so far.

    Attributes:
        name: As in `BUILT_IN`.
        options_type: The options of a run, as its plan stores them.
        step: Returns what to measure next, or that it is decided. The same records give the same answer.
        report: Returns the findings, the page and the files of its own. It analyses the records once for all of them.
        checkouts: Returns the checkouts that workers take their code from; null: they run the installed code.
    """

    name: str
    options_type: type[OptionsT]
    step: Callable[[Machine, OptionsT, Records], Block | Done]
    report: Callable[[Machine, OptionsT, Records], Report]
    checkouts: Callable[[OptionsT], Checkouts] | None = None


@dataclass(frozen=True)
class RunResult:
    """The result of a run; ``baselines`` are the IDs of trials that are no result on their own."""

    findings: Findings
    page: Page
    records: Records
    baselines: frozenset[str] = frozenset()

    @property
    def exit_code(self) -> int:
        """0 done; 4 when trials failed, or every tuner, or a metered GPU was lost; 1 when a gate failed.

        3 when nothing was measured because all was refused or skipped; 2 when the request was invalid.
        """
        if any(finding.gate == "failed" for finding in self.findings.findings):
            return 1
        states = {record.status for record in self.records}
        all_invalid = states == {"failed"} and all(record.invalid_request for record in self.records)
        if all_invalid or (states != {"failed"} and self._all_stages_are("bad_input")):
            return BadInput.exit_code
        skipped = [facts.skipped.code for facts in self._staged if facts.skipped is not None]
        if "failed" in states or self.untuned or set(skipped) - {"machine_cannot"}:
            return 4
        if any(record.lost_gpus for record in self.records):
            return 4
        if self._all_stages_are("machine_cannot"):
            return 3
        counted = {record.status for record in self.records if record.trial not in self.baselines}
        return 0 if "ok" in (counted or states) else 3

    def _all_stages_are(self, code: FailureCode) -> bool:
        """Return whether there are stages, and all of them were skipped for one reason."""
        later = [facts.skipped for facts in self._staged if facts.subject]
        return bool(later) and all(missing is not None and missing.code == code for missing in later)

    @property
    def _staged(self) -> list[SubjectFacts]:
        """Facts about subjects in stages; the first is what all of them need, and does not count on its own."""
        staged = [evidence for record in self.records if record.stages for evidence in record.evidence]
        return [facts for evidence in staged for facts in evidence.subjects]

    @property
    def untuned(self) -> int:
        """The number of tuners that ran if none of them found a configuration; 0 if one did, or none ran."""
        tunings = [tuning for record in self.records for tuning in record.tunings]
        return len(tunings) if all(tuning.config is None for tuning in tunings) else 0


BUILT_IN = {
    "contention": "assay.experiments.contention:EXPERIMENT",
    "energy": "assay.experiments.energy:EXPERIMENT",
    "gate": "assay.experiments.gate:EXPERIMENT",
    "matrix": "assay.experiments.matrix:EXPERIMENT",
    "power": "assay.experiments.power.characterize:EXPERIMENT",
    "power_sweep": "assay.experiments.power.sweep:EXPERIMENT",
    "run": "assay.experiments.run:EXPERIMENT",
    "scaling": "assay.experiments.scaling:EXPERIMENT",
    "scaling_prediction": "assay.experiments.scaling_prediction:EXPERIMENT",
    "threshold": "assay.experiments.threshold:EXPERIMENT",
}
ENTRY_POINT_GROUP = "assay.experiments"


def list_experiments() -> dict[str, str]:
    """Return every experiment's name and where it lives."""
    plugins = {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
    return {**plugins, **BUILT_IN}


def find_experiment(name: str) -> Experiment[Any]:
    """Return the experiment of that name."""
    table = list_experiments()
    if name not in table:
        raise BadInput(f"Unknown experiment {name!r}.{suggest_nearest(name, table)}")
    module, _, attribute = table[name].partition(":")
    experiment: Experiment[Any] = getattr(importlib.import_module(module), attribute)
    return experiment


def options_of(experiment: Experiment[Any], folder: RunFolder) -> Any:
    """Return the options of a run.

    Raises:
        BadInput: Its plan is of another version of Assay, or of an experiment with other options.
    """
    try:
        return experiment.options_type.model_validate(folder.plan.options)
    except ValidationError as error:
        raise BadInput(
            f"{folder.path / 'plan.json'} has options of another version of Assay: {first_problem(error)}."
        ) from None


def conclude(experiment: Experiment[Any], folder: RunFolder) -> RunResult:
    """Report on the records of a run folder, and write the findings."""
    options = options_of(experiment, folder)
    records = folder.records()
    trials = [trial for decision in folder.decisions() for trial in decision.block.trials]
    quality = assess_quality(records)
    report = experiment.report(folder.machine, options, records)
    findings = with_identity(report.findings, trials, folder.machine).model_copy(update={"quality": quality})
    page = report.page.model_copy(update={"quality": (*report.page.quality, *quality_lines(quality))})
    folder.keep_findings(findings, report.files)
    return RunResult(findings, page, records, report.baselines)
