"""Once ``assay threshold run`` has measured: files, gates, and the configuration unless a gate says no."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import click

from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from assay.experiments.threshold.answers import Answer
    from assay.experiments.threshold.baseline import Baseline
    from assay.experiments.threshold.options import ThresholdOptions
    from assay.hosts.base import Order
    from assay.machine.model import Machine


@dataclass(frozen=True)
class After:
    """What is to be done with the results, looked at before anything is measured."""

    options: ThresholdOptions
    config: Path | None
    output: Path | None
    report: Path | None
    baseline: Baseline | None
    fail_unsure: bool
    as_json: bool

    @classmethod
    def prepared(cls, options: ThresholdOptions, machine: Machine, given: Mapping[str, Any]) -> Self:
        """Make sure that all of it can be done: the files can be written, the keys are there, the baseline fits."""
        from assay.experiments.threshold import baseline
        from assay.experiments.threshold.older import device_info

        writable(given)
        config = given["config"] if given["update_config"] else None
        if config is not None:
            has_keys(config, {threshold.key: threshold.never for threshold in options.thresholds})
        before = None if given["baseline"] is None else baseline.read(given["baseline"])
        if before is not None:
            for warning in baseline.check(before, options, device_info(machine, options.device).device_name):
                click.echo(warning, err=True)
        return cls(
            options, config, given["output"], given["report"], before, given["unsure"] == "fail", given["as_json"]
        )

    def __call__(self, run: Path, code: int) -> int:
        """Write the files, ask the gates, and write the configuration unless one says no; return the exit code."""
        from assay.experiments.threshold.answers import answer
        from assay.experiments.threshold.saved import read

        self._leave(run)
        answers = [
            answer(judgement, self.options.decide_on) for judgement in read(run).judged(None, self.options.decide_on)
        ]
        if not any(threshold_answer.judged.measured for threshold_answer in answers):
            return code or 3
        refused = parity_says_no(answers)
        if self.baseline is not None:
            refused = self._rose(answers, self.baseline) or refused
        if self.config is not None:
            update(self.config, answers, write=not refused, as_json=self.as_json)
        return 1 if refused else code

    def _leave(self, run: Path) -> None:
        """Leave the results and the report where they were asked for; the report's figures stay in the run folder."""
        from assay.core.durable import replace_atomically
        from assay.experiments.threshold.older import FILE

        if self.output is not None:
            replace_atomically(self.output, (run / FILE).read_bytes())
        if self.report is not None:
            text = (run / "report.md").read_text(encoding="utf-8")
            figures = os.path.relpath(run / "figures", self.report.absolute().parent)
            replace_atomically(self.report, text.replace("](figures/", f"]({figures}/").encode())

    def _rose(self, answers: Sequence[Answer], before: Baseline) -> bool:
        from assay.experiments.threshold.baseline import compare

        comparisons = compare(answers, before)
        for comparison in comparisons:
            click.echo(f"Baseline: {comparison.said}.", err=True)
        return any(
            comparison.rose == "yes" or (comparison.rose == "unsure" and self.fail_unsure) for comparison in comparisons
        )


class Here:
    """What is done here with a run that came back: all that `After` does, looked at before it is sent."""

    kept = frozenset({"output", "report", "update_config", "config", "baseline", "unsure"})
    words: tuple[str, ...] = ()

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given

    def prepared(self, order: Order) -> Callable[[Path, int], int]:
        """Make sure of what can be made sure of without the machine; the rest when the run is here."""
        from assay.experiments.threshold.spec import DEFAULT, load

        writable(self._given)
        if self._given["update_config"] and self._given["file"] is None:
            thresholds = load(self._given["thresholds"] or DEFAULT)
            has_keys(self._given["config"], {threshold.key: threshold.never for threshold in thresholds})
        if self._given["baseline"] is not None:
            from assay.experiments.threshold import baseline

            baseline.read(self._given["baseline"])
        return self._afterwards

    def _afterwards(self, run: Path, code: int) -> int:
        from assay.experiments.threshold.options import ThresholdOptions
        from assay.store.runs import RunFolder

        folder = RunFolder.open(run)
        options = ThresholdOptions.model_validate(folder.plan.options)
        return After.prepared(options, folder.machine, self._given)(run, code)


def writable(given: Mapping[str, Any]) -> None:
    """Make sure that the files that are asked for can be written.

    Raises:
        BadInput: The folder of one is not there.
    """
    for path in (given["output"], given["report"]):
        if path is not None and not path.absolute().parent.is_dir():
            raise BadInput(f"{path} cannot be written: its folder does not exist.")


def parity_says_no(answers: Sequence[Answer]) -> bool:
    """Return whether a fast path is not known to be right, and say so."""
    failures = [failed for failed in answers if failed.judged.measured and failed.parity != "passed"]
    for failed in failures:
        click.echo(f"Parity: {failed.name}: {failed.why[0]}", err=True)
    return bool(failures)


def has_keys(config: Path, keys: Mapping[str, Any]) -> None:
    """Make sure that a configuration is there and has the keys that will be written.

    Raises:
        BadInput: It is not, or has not.
    """
    from assay.store import yaml_edit

    yaml_edit.preview(config, keys)


def update(config: Path, answers: Sequence[Answer], *, write: bool, as_json: bool) -> None:
    """Show what changes in a configuration, and write it unless that is not to be."""
    from assay.store import yaml_edit

    changes = {
        threshold_answer.key: threshold_answer.value
        for threshold_answer in answers
        if threshold_answer.value is not None
    }
    for threshold_answer in answers:
        if threshold_answer.value is None:
            click.echo(f"Nothing is written to {threshold_answer.key}: {threshold_answer.headline}.", err=True)
    if not changes:
        return
    shown = yaml_edit.preview(config, changes)
    click.echo(shown or f"{config} has these values already.", nl=not shown, err=as_json)
    if write and shown:
        yaml_edit.write(config, changes)
        click.echo(f"{config} is written.", err=True)
    elif shown:
        click.echo(f"{config} is left as it is.", err=True)
