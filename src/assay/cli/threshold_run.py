"""``assay threshold run``.

Measure both paths over a grid until the crossover is decided; then write files and the configuration, and apply the
gates.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from assay.cli.host_options import LOCAL, HostOption, dispatch_remote, host_options
from assay.cli.params import (
    SEVERAL,
    Duration,
    ListOption,
    cache_option,
    device_options,
    how_to_decide,
    how_to_measure,
    output_group,
    run_options,
    unsure_option,
    verb,
    what_to_measure,
    worker_options,
)
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.experiments.compare.thresholds import ThresholdBaseline
    from assay.experiments.threshold.answers import ThresholdAnswer
    from assay.experiments.threshold.spec import ThresholdOptions
    from assay.hosts.base import Job
    from assay.machine.model import Machine


PATH_TYPE = click.Path(path_type=Path)


@verb("run")
@click.argument("thresholds", required=False, type=PATH_TYPE)
@what_to_measure
@click.option("--grid", metavar="NAME", help="Grid of the file: small or large.  [default: its first]")
@click.option("--sizes", cls=ListOption, item=r"\d+", metavar="N...", help="Measure only these sizes of the grid.")
@device_options("the first", cpu_groups="1", several=False)
@how_to_decide
@click.option(
    "--safety-margin",
    metavar="X",
    help="1.2, or conservative, balanced, aggressive.  [default: from the file]",
)
@click.option(
    "--decide-on",
    type=click.Choice(["call", "span", "cautious"]),
    default="cautious",
    show_default=True,
    metavar="TIME",
    help="Time that decides: call, span (kernels only), or cautious (the higher threshold).",
)
@click.option("--baseline", type=PATH_TYPE, metavar="FILE", help="Exit with code 1 if a threshold exceeds this file's.")
@unsure_option
@how_to_measure
@click.option("--duration", type=Duration(), help="Time per process.  [default: 60s; 20s on a CPU]")
@click.option("--budget", type=Duration(), help="Total time.  [default: 4m; 90s on a CPU]")
@click.option("--processes", type=SEVERAL, help="Maximum number of processes.  [default: 5]")
@cache_option
@click.option("--quick", is_flag=True, help="Quick first look: 2 processes, half the time.")
@worker_options()
@output_group
@click.option("--output", "-o", type=PATH_TYPE, metavar="FILE", help="Write the results as JSON.")
@click.option("--report", type=PATH_TYPE, metavar="FILE", help="Write the report as Markdown.")
@click.option("--update-config", is_flag=True, help="Write the thresholds to --config.")
@click.option(
    "--config",
    type=PATH_TYPE,
    default="configs/base.yaml",
    show_default=True,
    metavar="FILE",
    help="Configuration to update.",
)
@run_options
@click.option("--provider", cls=HostOption, hidden=True)
@click.option(
    "--gpu-type", "--gpu", "gpu_type", cls=HostOption, metavar="L4", help="GPU model; T4,L4 rents one of each."
)
@host_options(but=("gpu_type",))
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> int:
    """Find the problem size from which a fast path is faster by a margin.

    Measures both NSA branches, or the file THRESHOLDS. Exit code 1: a threshold rose above --baseline, or the fast path
    failed its parity check; then nothing is written.

    \b
    assay threshold run
    assay threshold run --quick --device cpu
    assay threshold run examples/thresholds.yaml --safety-margin 1.5
    assay threshold run --grid large --update-config --config configs/base.yaml
    assay threshold run --baseline results.json --unsure fail
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.cli import dry_run, options_file
    from assay.experiments.threshold import EXPERIMENT
    from assay.machine.detect import detect

    flags = apply_provider_alias(flags)
    if (code := dispatch_remote(ctx, flags, ThresholdHook(flags))) is not None:
        return code
    if flags["file"] is not None:
        flags = options_file.merge_options_file(ctx, flags, flags["file"], EXPERIMENT)
    machine = detect(name_host=flags["name_host"])
    options = flags["options"] if "options" in flags else build_options(flags, machine)
    if flags["dry_run"]:
        ThresholdOutputs.prepared(options, machine, flags)
        return dry_run.show_dry_run(EXPERIMENT, options, machine, as_json=flags["as_json"])
    return measure_and_decide(options, machine, flags)


def measure_and_decide(options: ThresholdOptions, machine: Machine, flags: dict[str, Any]) -> int:
    """Look at everything that will be written first; measure; then write, and ask the gates."""
    from assay.cli import measuring
    from assay.experiments.threshold import EXPERIMENT

    after = ThresholdOutputs.prepared(options, machine, flags)
    return measuring.start_run(EXPERIMENT, options, machine, options.seed, flags, afterwards=after)


DURATION_S = {"cuda": 60.0, "cpu": 20.0}
BUDGET_S = {"cuda": 240.0, "cpu": 90.0}
QUICK_SHARE = 0.5
QUICK_PROCESSES = 2


def apply_provider_alias(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given with ``--provider`` read as ``--on``."""
    provider, on = flags["provider"], flags["on"]
    if provider is not None and on not in {LOCAL, provider}:
        raise BadInput(f"--provider {provider} and --on {on} name different hosts; give only --on.")
    merged = {**flags, "provider": None, "on": provider or on}
    if merged["on"] == LOCAL and flags["gpu_type"] is not None:
        raise BadInput(
            f"--gpu-type {flags['gpu_type']} needs --on with a host that rents GPUs; "
            "use --gpus 0 to choose a GPU of this machine."
        )
    return merged


def build_options(flags: Mapping[str, Any], machine: Machine) -> ThresholdOptions:
    """Return the options that the flags mean on this machine."""
    from pydantic import ValidationError

    from assay.core.values import first_problem
    from assay.experiments.threshold.spec import (
        DEFAULT_SPEC_FILE,
        GROWTH,
        MAX_BLOCKS,
        ThresholdOptions,
        build_threshold,
        load_thresholds,
        parse_margin,
    )
    from assay.isolation.devices import choose_devices, kind_of

    groups = flags["cpu_groups"] or (None if flags["devices"] and flags["devices"] != ("cpu",) else 1)
    chosen = choose_devices(machine, gpus=flags["gpus"], devices=flags["devices"], cpu_groups=groups)
    named_devices = flags["gpus"] or [name for name in flags["devices"] if ":" in name]
    if len(named_devices) > 1:
        raise BadInput(f"A threshold belongs to one device, but {len(named_devices)} are named; run it once for each.")
    device = chosen[0]
    kind = kind_of(device)
    path: Path = flags["thresholds"] or DEFAULT_SPEC_FILE
    margin = None if flags["safety_margin"] is None else parse_margin(flags["safety_margin"])
    sizes = [_size(word) for word in flags["sizes"]]
    if kind == "cpu" and flags["decide_on"] == "span":
        raise BadInput("--decide-on span applies to GPUs only; use --decide-on call on a CPU.")
    if kind == "cpu" and flags["cache"] == "cold":
        raise BadInput("--cache cold applies to GPUs only; remove it, or choose a GPU with --gpus.")
    share = QUICK_SHARE if flags["quick"] else 1.0
    try:
        return ThresholdOptions(
            thresholds=tuple(
                build_threshold(threshold, kind=kind, grid=flags["grid"], margin=margin, sizes=sizes)
                for threshold in load_thresholds(path)
            ),
            device=device,
            decide_on=flags["decide_on"],
            growth=GROWTH,
            blocks=flags["processes"] or (QUICK_PROCESSES if flags["quick"] else MAX_BLOCKS),
            duration_s=flags["duration"] or DURATION_S[kind] * share,
            budget_s=flags["budget"] or BUDGET_S[kind] * share,
            isolation=flags["isolation"],
            on_interference=flags["on_interference"],
            cache=flags["cache"],
            timeout_s=flags["timeout"],
            cpu_groups=groups,
            retakes=flags["retakes"],
            seed=flags["seed"],
        )
    except ValidationError as error:
        raise BadInput(f"{first_problem(error)}.") from None


def _size(word: str) -> int:
    """Return a size of the grid."""
    if not (word.isascii() and word.isdecimal() and len(word) <= 18 and int(word) > 0):
        raise BadInput(f"--sizes takes positive integers such as 1024,4096, not {word!r}.")
    return int(word)


@dataclass(frozen=True)
class ThresholdOutputs:
    """What is to be done with the results, looked at before anything is measured."""

    options: ThresholdOptions
    config: Path | None
    output: Path | None
    report: Path | None
    baseline: ThresholdBaseline | None
    fail_unsure: bool
    as_json: bool

    @classmethod
    def prepared(cls, options: ThresholdOptions, machine: Machine, flags: Mapping[str, Any]) -> Self:
        """Make sure that all of it can be done: the files can be written, the keys are there, the baseline fits."""
        from assay.experiments.compare import thresholds as baseline
        from assay.experiments.threshold.results_file import describe_device

        check_writable(flags)
        config = flags["config"] if flags["update_config"] else None
        if config is not None:
            check_keys(config, {threshold.key: threshold.never for threshold in options.thresholds})
        before = None if flags["baseline"] is None else baseline.read_baseline(flags["baseline"])
        if before is not None:
            for warning in baseline.check_baseline(
                before, options, describe_device(machine, options.device).device_name
            ):
                click.echo(warning, err=True)
        return cls(
            options, config, flags["output"], flags["report"], before, flags["unsure"] == "fail", flags["as_json"]
        )

    def __call__(self, run: Path, code: int) -> int:
        """Write the files, ask the gates, and write the configuration unless one says no; return the exit code."""
        from assay.experiments.threshold.answers import build_answer
        from assay.experiments.threshold.results_file import read_saved

        self._leave(run)
        answers = [
            build_answer(judgement, self.options.decide_on)
            for judgement in read_saved(run).judge(None, self.options.decide_on)
        ]
        if not any(threshold_answer.judgement.measured for threshold_answer in answers):
            return code or 3
        refused = parity_failed(answers)
        if self.baseline is not None:
            refused = self._rose(answers, self.baseline) or refused
        if self.config is not None:
            update_config(self.config, answers, write=not refused, as_json=self.as_json)
        return 1 if refused else code

    def _leave(self, run: Path) -> None:
        """Leave the results and the report where they were asked for; the report's figures stay in the run folder."""
        from assay.core.files import replace_atomically
        from assay.experiments.threshold.results_file import RESULTS_FILE

        if self.output is not None:
            replace_atomically(self.output, (run / RESULTS_FILE).read_bytes())
        if self.report is not None:
            text = (run / "report.md").read_text(encoding="utf-8")
            figures = os.path.relpath(run / "figures", self.report.absolute().parent)
            replace_atomically(self.report, text.replace("](figures/", f"]({figures}/").encode())

    def _rose(self, answers: Sequence[ThresholdAnswer], before: ThresholdBaseline) -> bool:
        from assay.experiments.compare.thresholds import compare_with_baseline

        comparisons = compare_with_baseline(answers, before, "this run")
        for comparison in comparisons:
            click.echo(f"Baseline: {comparison.text}.", err=True)
        return any(
            comparison.rose == "yes" or (comparison.rose == "unsure" and self.fail_unsure) for comparison in comparisons
        )


class ThresholdHook:
    """What is done here with a run that came back: all that `After` does, looked at before it is sent."""

    local_options = frozenset({"output", "report", "update_config", "config", "baseline", "unsure"})
    extra_words: tuple[str, ...] = ()

    def __init__(self, flags: Mapping[str, Any]) -> None:
        self._given = flags

    def prepared(self, job: Job) -> Callable[[Path, int], int]:
        """Make sure of what can be made sure of without the machine; the rest when the run is here."""
        from assay.experiments.threshold.spec import DEFAULT_SPEC_FILE, load_thresholds

        check_writable(self._given)
        if self._given["update_config"] and self._given["file"] is None:
            thresholds = load_thresholds(self._given["thresholds"] or DEFAULT_SPEC_FILE)
            check_keys(self._given["config"], {threshold.key: threshold.never for threshold in thresholds})
        if self._given["baseline"] is not None:
            from assay.experiments.compare import thresholds as baseline

            baseline.read_baseline(self._given["baseline"])
        return self._afterwards

    def _afterwards(self, run: Path, code: int) -> int:
        from assay.experiments.threshold.spec import ThresholdOptions
        from assay.store.run_folder import RunFolder

        folder = RunFolder.open(run)
        options = ThresholdOptions.model_validate(folder.plan.options)
        return ThresholdOutputs.prepared(options, folder.machine, self._given)(run, code)


def check_writable(flags: Mapping[str, Any]) -> None:
    """Make sure that the files that are asked for can be written.

    Raises:
        BadInput: The folder of one is not there.
    """
    for path in (flags["output"], flags["report"]):
        if path is not None and not path.absolute().parent.is_dir():
            raise BadInput(f"{path} cannot be written: its folder does not exist; create it first.")


def parity_failed(answers: Sequence[ThresholdAnswer]) -> bool:
    """Return whether a fast path is not known to be right, and say so."""
    failures = [failed for failed in answers if failed.judgement.measured and failed.parity != "passed"]
    for failed in failures:
        click.echo(f"Parity: {failed.name}: {failed.reasons[0]}", err=True)
    return bool(failures)


def check_keys(config: Path, keys: Mapping[str, Any]) -> None:
    """Make sure that a configuration is there and has the keys that will be written.

    Raises:
        BadInput: It is not, or has not.
    """
    from assay.store import yaml_edit

    yaml_edit.preview_edit(config, keys)


def update_config(config: Path, answers: Sequence[ThresholdAnswer], *, write: bool, as_json: bool) -> None:
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
    shown = yaml_edit.preview_edit(config, changes)
    click.echo(shown or f"{config} has these values already.", nl=not shown, err=as_json)
    if write and shown:
        yaml_edit.edit_file(config, changes)
        click.echo(f"{config} is written.", err=True)
    elif shown:
        click.echo(f"{config} is left as it is.", err=True)
