"""``assay threshold``: measure both paths over a grid until the crossover is decided, and write the configuration.

``run`` measures, ``apply`` decides from existing results, ``parse`` reads an older benchmark's output.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from assay.cli import flags as cli
from assay.cli import show
from assay.cli.host_flags import LOCAL, DurationEstimate, HostFlags, RemoteHook, dispatch_remote, rental_flag
from assay.core.errors import BadInput, MachineCannot
from assay.core.files import read_text, replace_atomically
from assay.core.format import MAX_REPEATS
from assay.experiments.threshold.spec import (
    DEFAULT_SPEC_FILE,
    GROWTH,
    MIN_BLOCKS,
    DecideOn,
    ThresholdOptions,
    build_threshold,
    load_thresholds,
    parse_margin,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.compat.threshold import PrintedLines
    from assay.core.page import Page
    from assay.experiments.compare.thresholds import ThresholdBaseline
    from assay.experiments.threshold.answers import ThresholdAnswer
    from assay.experiments.threshold.results_file import SavedThresholds
    from assay.machine.model import Machine

USUAL = {"cuda": {"duration_s": 60.0, "budget_s": 240.0}, "cpu": {"duration_s": 20.0, "budget_s": 90.0}}
QUICK_SHARE = 0.5
CONFIG = Path("configs/base.yaml")


class ThresholdRunFlags(cli.CacheFlags, cli.IsolationFlags, cli.UnsureFlags, cli.MeasureFlags, HostFlags):
    """What `assay threshold run` can be asked for."""

    thresholds: Path | None = cli.argument("[THRESHOLDS]")
    grid: str | None = cli.what_flag(metavar="NAME", shown="its first", help="Grid of the file: small or large.")
    sizes: tuple[str, ...] = cli.what_flag(
        default=(), item=r"\d+", metavar="N...", help="Measure only these sizes of the grid."
    )
    gpus: tuple[str, ...] = cli.gpus_flag("the first", several=False)
    cpu_groups: int | None = cli.cpu_groups_flag("1")
    safety_margin: str | None = cli.decide_flag(
        metavar="X", shown="from the file", help="1.2, or conservative, balanced, aggressive."
    )
    decide_on: DecideOn = cli.option_of(
        ThresholdOptions,
        "decide_on",
        group=cli.DECISION,
        metavar="TIME",
        help="Time that decides: call, span (kernels only), or cautious (the higher threshold).",
    )
    baseline: Path | None = cli.decide_flag(metavar="FILE", help="Exit with code 1 if a threshold exceeds this file's.")
    duration_s: float | None = cli.how_flag(gt=0, shown="60s; 20s on a CPU", help="Time per process.")
    budget_s: float | None = cli.how_flag(gt=0, shown="4m; 90s on a CPU", help="Total time.")
    blocks: int | None = cli.how_option(
        ThresholdOptions, "blocks", "--processes", optional=True, le=MAX_REPEATS, help="Maximum number of processes."
    )
    quick: bool = cli.how_flag(default=False, help="Quick first look: 2 processes, half the time.")
    output: Path | None = cli.output_flag("--output -o", metavar="FILE", help="Write the results as JSON.")
    report: Path | None = cli.output_flag(metavar="FILE", help="Write the report as Markdown.")
    update_config: bool = cli.output_flag(default=False, help="Write the thresholds to --config.")
    config: Path = cli.output_flag(default=CONFIG, metavar="FILE", help="Configuration to update.")
    provider: str | None = rental_flag(hidden=True)
    gpu_type: str | None = rental_flag(aliases="--gpu", metavar="L4", help="GPU model; T4,L4 rents one of each.")

    def spec_file(self) -> Path:
        """Return the file with the thresholds."""
        return self.thresholds or DEFAULT_SPEC_FILE

    def usual(self, kind: str) -> dict[str, Any]:
        """Return the options that are used where their flags are not given."""
        if not self.quick:
            return {**USUAL[kind]}
        return {name: QUICK_SHARE * value for name, value in USUAL[kind].items()} | {"blocks": MIN_BLOCKS}

    def estimate_duration(self) -> DurationEstimate:
        """Return its budget."""
        if self.budget_s is not None:
            return super().estimate_duration()
        budget_s = self.usual("cpu" if self.measures_cpu_only() else "cuda")["budget_s"]
        return DurationEstimate(budget_s, f"its budget{' with --quick' if self.quick else ''}")

    def named_workloads(self) -> tuple[str, ...]:
        """Return both paths of every threshold."""
        thresholds = load_thresholds(self.spec_file())
        return tuple(name for threshold in thresholds for name in (threshold.reference, threshold.fast))


@cli.verb("threshold run", ThresholdRunFlags)
def measure_thresholds(flags: ThresholdRunFlags) -> int:
    """Find the problem size from which a fast path is faster by a margin.

    Measures both NSA branches, or the file THRESHOLDS. Exit code 1: a threshold rose above --baseline, or the fast path
    failed its parity check; then nothing is written.

        assay threshold run
        assay threshold run --quick --device cpu
        assay threshold run examples/thresholds.yaml --safety-margin 1.5
        assay threshold run --grid large --update-config --config configs/base.yaml
        assay threshold run --baseline results.json --unsure fail
    """
    from assay.cli import measuring
    from assay.experiments.threshold import EXPERIMENT

    flags = apply_provider_alias(flags)
    local = frozenset({"output", "report", "update_config", "config", "baseline", "unsure"})
    if (code := dispatch_remote(flags, RemoteHook(partial(prepare_remote, flags), local))) is not None:
        return code
    flags, options, machine = measuring.plan_run(flags, EXPERIMENT, build_options)
    outputs = ThresholdOutputs.prepared(options, machine, flags)
    return measuring.start_run(EXPERIMENT, options, machine, flags, afterwards=outputs.write)


def apply_provider_alias(flags: ThresholdRunFlags) -> ThresholdRunFlags:
    """Return the flags with ``--provider`` read as ``--on``."""
    provider, on = flags.provider, flags.on
    if provider is not None and on not in {LOCAL, provider}:
        raise BadInput(f"--provider {provider} and --on {on} name different hosts; give only --on.")
    if (provider or on) == LOCAL and flags.gpu_type is not None:
        raise BadInput(
            f"--gpu-type {flags.gpu_type} needs --on with a host that rents GPUs; "
            "use --gpus 0 to choose a GPU of this machine."
        )
    return flags.model_copy(update={"provider": None, "on": provider or on})


def build_options(flags: ThresholdRunFlags, machine: Machine) -> ThresholdOptions:
    """Return the options that the flags mean on this machine."""
    from assay.machine.devices import kind_of

    device, groups = flags.choose_one_device(machine)
    kind = kind_of(device)
    margin = None if flags.safety_margin is None else parse_margin(flags.safety_margin)
    sizes = [_size(word) for word in flags.sizes]
    if kind == "cpu" and flags.decide_on == "span":
        raise BadInput("--decide-on span applies to GPUs only; use --decide-on call on a CPU.")
    flags.refuse_cold_cache(kind)
    return flags.fill(
        ThresholdOptions,
        flags.usual(kind),
        thresholds=tuple(
            build_threshold(threshold, kind=kind, grid=flags.grid, margin=margin, sizes=sizes)
            for threshold in load_thresholds(flags.spec_file())
        ),
        device=device,
        growth=GROWTH,
        cpu_groups=groups,
    )


def _size(word: str) -> int:
    """Return a size of the grid."""
    if not (word.isascii() and word.isdecimal() and len(word) <= 18 and int(word) > 0):
        raise BadInput(f"--sizes takes positive integers such as 1024,4096, not {word!r}.")
    return int(word)


@dataclass(frozen=True)
class ThresholdOutputs:
    """What to do with the results, checked before anything is measured."""

    options: ThresholdOptions
    baseline: ThresholdBaseline | None
    flags: ThresholdRunFlags

    @classmethod
    def prepared(cls, options: ThresholdOptions, machine: Machine, flags: ThresholdRunFlags) -> Self:
        """Make sure that all of it can be done: the files can be written, the keys are there, the baseline fits."""
        from assay.experiments.compare import thresholds
        from assay.experiments.threshold.results_file import describe_device

        check_writable(flags)
        if flags.update_config:
            check_keys(flags.config, {threshold.key: threshold.never for threshold in options.thresholds})
        baseline = None if flags.baseline is None else thresholds.read_baseline(flags.baseline)
        if baseline is not None:
            device_name = describe_device(machine, options.device).device_name
            for warning in thresholds.check_baseline(baseline, options, device_name):
                click.echo(warning, err=True)
        return cls(options, baseline, flags)

    def write(self, run: Path, code: int) -> int:
        """Write the files, apply the gates, and write the configuration unless one fails; return the exit code."""
        from assay.experiments.threshold.answers import build_answer
        from assay.experiments.threshold.results_file import read_saved

        self._copy_files(run)
        judgements = read_saved(run).judge(None, self.options.decide_on)
        answers = [build_answer(judgement, self.options.decide_on) for judgement in judgements]
        if not any(answer.judgement.measured for answer in answers):
            return code or MachineCannot.exit_code
        refused = parity_failed(answers)
        if self.baseline is not None:
            refused = self._rose(answers, self.baseline) or refused
        if self.flags.update_config:
            update_config(self.flags.config, answers, write=not refused, as_json=self.flags.as_json)
        return 1 if refused else code

    def _copy_files(self, run: Path) -> None:
        """Copy the results and the report to where they were requested; its figures stay in the run folder."""
        from assay.experiments.threshold.results_file import RESULTS_FILE

        if self.flags.output is not None:
            replace_atomically(self.flags.output, (run / RESULTS_FILE).read_bytes())
        if (report := self.flags.report) is not None:
            figures = os.path.relpath(run / "figures", report.absolute().parent)
            text = (run / "report.md").read_text(encoding="utf-8").replace("](figures/", f"]({figures}/")
            replace_atomically(report, text.encode())

    def _rose(self, answers: Sequence[ThresholdAnswer], baseline: ThresholdBaseline) -> bool:
        """Compare with the baseline, and return whether the gate fails."""
        from assay.experiments.compare.thresholds import compare_with_baseline

        comparisons = compare_with_baseline(answers, baseline, "this run")
        for comparison in comparisons:
            click.echo(f"Baseline: {comparison.text}.", err=True)
        failing = {"yes", "unsure"} if self.flags.unsure == "fail" else {"yes"}
        return any(comparison.rose in failing for comparison in comparisons)


def prepare_remote(flags: ThresholdRunFlags) -> Callable[[Path, int], int]:
    """Check what can be checked without the machine; the rest when the run is here."""
    check_writable(flags)
    if flags.update_config and flags.options_file is None:
        thresholds = load_thresholds(flags.spec_file())
        check_keys(flags.config, {threshold.key: threshold.never for threshold in thresholds})
    if flags.baseline is not None:
        from assay.experiments.compare.thresholds import read_baseline

        read_baseline(flags.baseline)

    def afterwards(run: Path, code: int) -> int:
        from assay.store.run_folder import RunFolder

        folder = RunFolder.open(run)
        options = ThresholdOptions.model_validate(folder.plan.options)
        return ThresholdOutputs.prepared(options, folder.machine, flags).write(run, code)

    return afterwards


def check_writable(flags: ThresholdRunFlags) -> None:
    """Make sure that the folders of the requested files exist."""
    for path in (flags.output, flags.report):
        if path is not None and not path.absolute().parent.is_dir():
            raise BadInput(f"{path} cannot be written: its folder does not exist; create it first.")


def parity_failed(answers: Sequence[ThresholdAnswer]) -> bool:
    """Return whether a fast path has not passed its parity check, and print why."""
    failures = [failed for failed in answers if failed.judgement.measured and failed.parity != "passed"]
    for failed in failures:
        click.echo(f"Parity: {failed.name}: {failed.reasons[0]}", err=True)
    return bool(failures)


def check_keys(config: Path, keys: Mapping[str, Any]) -> None:
    """Check that a configuration exists and has the keys that will be written.

    Raises:
        BadInput: It is not, or has not.
    """
    from assay.store import yaml_edit

    yaml_edit.preview_edit(config, keys)


def update_config(config: Path, answers: Sequence[ThresholdAnswer], *, write: bool, as_json: bool) -> None:
    """Show what changes in a configuration, and write it if ``write`` is set."""
    from assay.store import yaml_edit

    changes = {answer.key: answer.value for answer in answers if answer.value is not None}
    for answer in answers:
        if answer.value is None:
            click.echo(f"Nothing is written to {answer.key}: {answer.headline}.", err=True)
    if not changes:
        return
    shown = yaml_edit.preview_edit(config, changes)
    click.echo(shown or f"{config} has these values already.", nl=not shown, err=as_json)
    if write and shown:
        yaml_edit.edit_file(config, changes)
        click.echo(f"{config} is written.", err=True)
    elif shown:
        click.echo(f"{config} is left as it is.", err=True)


class ThresholdApplyFlags(cli.JsonFlags):
    """What `assay threshold apply` can be asked for."""

    results: Path = cli.argument("RESULTS", required=True)
    config: Path = cli.flag(default=CONFIG, metavar="FILE", help="Configuration to update.")
    safety_margin: str | None = cli.flag(
        metavar="X", shown="as measured", help="1.2, or conservative, balanced, aggressive."
    )
    decide_on: DecideOn | None = cli.flag(shown="as measured", help="Time that decides.")
    update: bool = cli.flag("--update-config/--dry-run", default=True, help="Write the thresholds, or only show them.")


@cli.verb("threshold apply", ThresholdApplyFlags)
def apply_thresholds(flags: ThresholdApplyFlags) -> int:
    """Decide from RESULTS, a run folder or a JSON file, and write the configuration; measures nothing.

    Exit code 1: the fast path failed its parity check; nothing is written.

        assay threshold apply runs/latest --config configs/base.yaml
        assay threshold apply results.json --safety-margin 1.5 --dry-run
    """
    from assay.experiments.threshold.answers import build_answer
    from assay.experiments.threshold.results_file import build_results, read_saved

    margin = None if flags.safety_margin is None else parse_margin(flags.safety_margin)
    saved = read_saved(flags.results)
    decide_on = flags.decide_on or saved.decide_on
    answers = [build_answer(judgement, decide_on) for judgement in saved.judge(margin, decide_on)]
    check_keys(flags.config, {answer.key: answer.judgement.threshold.never for answer in answers})
    for note in result_notes(saved):
        click.echo(note, err=True)
    identity = None if saved.results is None else saved.results.identity
    result = build_results(saved.device, answers, decide_on, saved.measured_at, identity)
    show.print_result(result.as_json(), answers_page(flags.results, saved, answers), as_json=flags.as_json)
    refused = parity_failed(answers)
    update_config(flags.config, answers, write=flags.update and not refused, as_json=flags.as_json)
    return 1 if refused else 0


def result_notes(saved: SavedThresholds) -> list[str]:
    """Return notes on the results: the device, and what is missing."""
    from assay.machine.detect import detect

    here = {gpu.name for gpu in detect().gpus}
    device = saved.device.device_name
    lines = [f"Measured on {device or 'a device that the file does not name'}."]
    if here and device not in here:
        lines.append(f"This machine has {', '.join(sorted(here))}: thresholds of another device may not hold here.")
    return [*lines, *saved.notes]


def answers_page(path: Path, saved: SavedThresholds, answers: Sequence[ThresholdAnswer]) -> Page:
    """Return the page of the answers."""
    from assay.core.page import Page, Section
    from assay.experiments.threshold.report import answers_table, reason_texts, write_headline

    return Page(
        title=f"assay threshold apply: {path}",
        lead=write_headline(answers),
        sections=(Section(title="Results", elements=(answers_table(answers), *reason_texts(answers))),),
        facts=(("measured", saved.measured_at or "not said"),),
    )


STDIN = Path("-")
MAX_LISTED_LINES = 5
"""At most this many lines are listed; of more, only the number is shown."""


class ThresholdParseFlags(cli.Flags):
    """What `assay threshold parse` can be asked for."""

    file: Path = cli.argument("FILE", required=True)
    output: Path | None = cli.flag("--output -o", metavar="FILE", shown="stdout", help="Write to a file.")


@cli.verb("threshold parse", ThresholdParseFlags)
def parse_older_output(flags: ThresholdParseFlags) -> int:
    """Convert the output of an older benchmark to JSON.

    FILE is a text file, or - for stdin, with lines such as

        S=256 w=32 sliding masked 0.12 ms  fa2 0.10 ms  speedup x1.20
        S=256 l=32 d=16 compressed masked 0.12 ms  fa2 0.10 ms  speedup x1.20

    `assay threshold apply` and `assay compare` accept the result. Parity and GPU are not part of such lines and stay
    null.
    """
    from assay.compat.threshold import parse_printed_lines

    file, output = flags.file, flags.output
    name = "stdin" if file == STDIN else str(file)
    parsed = parse_printed_lines(read_input(file))
    if not parsed.rows:
        raise BadInput(no_rows_error(parsed, name))
    for note in parse_notes(parsed):
        click.echo(f"{name}: {note}.", err=True)
    data = {"device_info": None, "recommendation": None, "results": [row.as_json() for row in parsed.rows]}
    text = json.dumps({**data, "parity_passed": None}, indent=2)
    if output is None:
        click.echo(text)
        return 0
    replace_atomically(output, f"{text}\n".encode())
    click.echo(f"{len(parsed.rows)} {'row' if len(parsed.rows) == 1 else 'rows'} written to {output}.", err=True)
    return 0


def read_input(file: Path) -> str:
    """Return the text of a file or of stdin."""
    if file != STDIN:
        return read_text(file).removeprefix("\ufeff")
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput("stdin is not UTF-8 text.") from None


def no_rows_error(parsed: PrintedLines, name: str) -> str:
    """Return that there is no row, and what the file has instead."""
    if not parsed.others:
        return f"{name} is empty: it holds no line of the older bench."
    broken = f"; line {parsed.broken[0]} begins like one, but is not whole" if parsed.broken else ""
    return (
        f"None of the {parsed.others} lines of {name} is one of the older bench, such as "
        f"`S=256 w=32 sliding masked 0.12 ms  fa2 0.10 ms  speedup x1.20`{broken}."
    )


def parse_notes(parsed: PrintedLines) -> list[str]:
    """Return notes on what was read."""
    notes: list[str] = []
    if parsed.others:
        were = "line was" if parsed.others == 1 else "lines were"
        notes.append(f"{parsed.others} other {were} left out")
    if parsed.broken:
        notes.append(f"{_lines(parsed.broken)} like a row, but not whole: left out")
    more = [f"and {len(parsed.odd) - MAX_LISTED_LINES} more such remarks"] if len(parsed.odd) > MAX_LISTED_LINES else []
    return [*notes, *parsed.odd[:MAX_LISTED_LINES], *more]


def _lines(numbers: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, numbers[:MAX_LISTED_LINES])) + (" …" if len(numbers) > MAX_LISTED_LINES else "")
    return f"line {shown} begins" if len(numbers) == 1 else f"lines {shown} begin"
