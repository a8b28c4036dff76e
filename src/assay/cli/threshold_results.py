"""``assay threshold apply`` and ``assay threshold parse``.

Decide from existing results and write the configuration; read an older benchmark's output.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.cli.flags import Flags, JsonFlags, argument, flag, verb
from assay.core.errors import BadInput
from assay.experiments.threshold.spec import DecideOn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.compat.threshold import PrintedLines
    from assay.core.page import Page
    from assay.experiments.threshold.answers import ThresholdAnswer
    from assay.experiments.threshold.results_file import SavedThresholds


class ThresholdApplyFlags(JsonFlags):
    """What `assay threshold apply` can be asked for."""

    results: Path = argument("RESULTS", required=True)
    config: Path = flag(default=Path("configs/base.yaml"), metavar="FILE", help="Configuration to update.")
    safety_margin: str | None = flag(
        metavar="X", shown="as measured", help="1.2, or conservative, balanced, aggressive."
    )
    decide_on: DecideOn | None = flag(shown="as measured", help="Time that decides.")
    update: bool = flag("--update-config/--dry-run", default=True, help="Write the thresholds, or only show them.")


@verb("threshold apply", ThresholdApplyFlags)
def apply_thresholds(flags: ThresholdApplyFlags) -> int:
    """Decide from RESULTS, a run folder or a JSON file, and write the configuration; measures nothing.

    Exit code 1: the fast path failed its parity check; nothing is written.

        assay threshold apply runs/latest --config configs/base.yaml
        assay threshold apply results.json --safety-margin 1.5 --dry-run
    """
    from assay.cli import threshold_run
    from assay.experiments.threshold.answers import build_answer
    from assay.experiments.threshold.results_file import build_results, read_saved
    from assay.experiments.threshold.spec import parse_margin

    margin = None if flags.safety_margin is None else parse_margin(flags.safety_margin)
    saved = read_saved(flags.results)
    decide_on = flags.decide_on or saved.decide_on
    answers = [build_answer(judgement, decide_on) for judgement in saved.judge(margin, decide_on)]
    threshold_run.check_keys(
        flags.config,
        {threshold_answer.key: threshold_answer.judgement.threshold.never for threshold_answer in answers},
    )
    for note in result_notes(saved):
        click.echo(note, err=True)
    if flags.as_json:
        identity = None if saved.results is None else saved.results.identity
        result = build_results(saved.device, answers, decide_on, saved.measured_at, identity)
        click.echo(json.dumps(result.as_json(), indent=2, ensure_ascii=False))
    else:
        print_answers(answers_page(flags.results, saved, answers))
    refused = threshold_run.parity_failed(answers)
    threshold_run.update_config(flags.config, answers, write=flags.update and not refused, as_json=flags.as_json)
    return 1 if refused else 0


def result_notes(saved: SavedThresholds) -> list[str]:
    """Say what is to be known of the results: where they are from, and what they lack."""
    from assay.machine.detect import detect

    here = {gpu.name for gpu in detect().gpus}
    device = saved.device.device_name
    lines = [f"Measured on {device or 'a device that the file does not name'}."]
    if here and device not in here:
        lines.append(f"This machine has {', '.join(sorted(here))}: thresholds of another device may not hold here.")
    return [*lines, *saved.notes]


def answers_page(path: Path, saved: SavedThresholds, answers: Sequence[ThresholdAnswer]) -> Page:
    """Return what to show."""
    from assay.core.page import Page, Section
    from assay.experiments.threshold.report import answers_table, reason_texts, write_headline

    return Page(
        title=f"assay threshold apply: {path}",
        lead=write_headline(answers),
        sections=(Section(title="Results", elements=(answers_table(answers), *reason_texts(answers))),),
        facts=(("measured", saved.measured_at or "not said"),),
    )


def print_answers(result: Page) -> None:
    """Print it."""
    from assay.cli.show import console
    from assay.reports.terminal import print_page

    print_page(result, console(stderr=False))


STDIN = Path("-")
MAX_LISTED_LINES = 5
"""So many lines are named; of more, how many there are."""


class ThresholdParseFlags(Flags):
    """What `assay threshold parse` can be asked for."""

    file: Path = argument("FILE", required=True)
    output: Path | None = flag("--output -o", metavar="FILE", shown="stdout", help="Write to a file.")


@verb("threshold parse", ThresholdParseFlags)
def parse_older_output(flags: ThresholdParseFlags) -> int:
    """Convert the output of an older benchmark to JSON.

    FILE is a text file, or - for stdin, with lines such as

        S=256 w=32 sliding masked 0.12 ms  fa2 0.10 ms  speedup x1.20
        S=256 l=32 d=16 compressed masked 0.12 ms  fa2 0.10 ms  speedup x1.20

    `assay threshold apply` and `assay compare` accept the result. Parity and GPU are not part of such lines and stay
    null.
    """
    from assay.compat.threshold import parse_printed_lines
    from assay.core.files import replace_atomically

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
    from assay.core.files import read_text

    if file != STDIN:
        return read_text(file).removeprefix("\ufeff")
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput("stdin is not UTF-8 text.") from None


def no_rows_error(parsed: PrintedLines, name: str) -> str:
    """Say that there is no row, and what there is instead."""
    if not parsed.others:
        return f"{name} is empty: it holds no line of the older bench."
    broken = f"; line {parsed.broken[0]} begins like one, but is not whole" if parsed.broken else ""
    return (
        f"None of the {parsed.others} lines of {name} is one of the older bench, such as "
        f"`S=256 w=32 sliding masked 0.12 ms  fa2 0.10 ms  speedup x1.20`{broken}."
    )


def parse_notes(parsed: PrintedLines) -> list[str]:
    """Return what must be told of what was read."""
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
