"""``--gpu-type T4,L4,A100``: run the same command on one machine per kind of GPU in parallel, then compare the results.

Each machine has its own child process here, which is this command with one kind of GPU: a signal, a crash or a missing
answer affects only that child, and its machine is released as usual. A kind of GPU that cannot run the command becomes
a row with the reason, and nothing is rented for it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from assay.cli import show
from assay.cli.flags import flag_rows
from assay.cli.host_flags import forwarded_words
from assay.core.errors import EXIT_INTERNAL_ERROR, EXIT_STOPPED, BadInput, MachineCannot, StopRequested
from assay.core.files import replace_atomically
from assay.core.format import format_duration
from assay.core.page import Column, Page, Section, Table, Text
from assay.core.processes import acknowledge_stop, stop_on_signals
from assay.hosts.fan_out import COMPARISON, FOLDER_VARIABLE, REPORT, FanOut, FanOutRun, recorded_offer
from assay.hosts.offers import format_usd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.cli.host_flags import HostFlags
    from assay.cli.rental import GpuRequest, RentalPlan
    from assay.core.page import Cell, Tone
    from assay.experiments.compare.report import ComparisonResult
    from assay.hosts.offers import OfferCandidate


REPLACED_OPTIONS = frozenset({"on", "provider", "gpu_type", "max_cost", "output_dir", "as_json", "dry_run"})
"""Flags that are set anew for each machine's process; all others are passed on unchanged."""

SINGLE_RUN_OPTIONS = frozenset({"update_config", "output", "report", "baseline"})
"""Flags about one result: every machine would write the same file."""


ERROR_PREFIX = "assay: "
"""With this a command begins the sentence that says why it could not."""


@dataclass
class ChildOutput:
    """The error message of a machine's process, if any, and when its output ended, by the monotonic clock."""

    error_message: str | None = None
    ended_s: float | None = None


@dataclass(frozen=True)
class ChildProcess:
    """A machine's process, and what is to be known of it."""

    run: FanOutRun
    process: subprocess.Popen[bytes]
    since_s: float
    reader: threading.Thread
    output: ChildOutput


def fan_out(flags: HostFlags, plan: RentalPlan) -> int:
    """Rent a machine for each kind of GPU at once, wait for all, compare; return the worst exit code."""
    from assay.cli import rental, show
    from assay.store.run_folder import create_run_path

    if flags.run is not None:
        raise BadInput(f"assay {plan.verb} is about one run; name one kind of GPU.")
    refuse_single_run_options(flags)
    rental.require_offers(plan)
    parent = (flags.output_dir or Path("runs")).absolute()
    parent.mkdir(parents=True, exist_ok=True)
    folder = create_run_path(parent, "fan-out")
    words = forwarded_words(flags, REPLACED_OPTIONS)
    legs = tuple(planned_run(kind) for kind in plan.kinds)
    whole = FanOut(words=words, runs=legs)
    whole.write(folder)
    for leg in legs:
        if leg.state != "waits":
            click.echo(f"{leg.gpu_label}: {leg.state}: {leg.reason}.", err=True)
    with stop_on_signals():
        running: list[ChildProcess] = []
        try:
            for kind, leg in zip(plan.kinds, legs, strict=True):
                if leg.state == "waits":
                    running.append(start_child(leg, child_command(words, kind, flags.on, folder), folder))
            stopped = wait_for_children(running)
        finally:
            stop_children(running)
        ended = {child.run.gpu_label: finished_run(child, folder) for child in running}
        whole = whole.model_copy(update={"runs": tuple(ended.get(leg.gpu_label, leg) for leg in legs)})
        whole.write(folder)
        show_fan_out(whole, folder, verb=plan.verb, as_json=flags.as_json)
    if stopped is not None:
        raise StopRequested(
            f"{str(stopped).rstrip('.')}; every machine is gone. What was measured is in {show.short_path(folder)}."
        )
    return whole.exit_code


def refuse_single_run_options(flags: HostFlags) -> None:
    """Refuse flags whose file or configuration only one result can have."""
    for row in flag_rows(type(flags)):
        if row.name in SINGLE_RUN_OPTIONS and getattr(flags, row.name):
            raise BadInput(
                f"{row.title} is for one result, and several kinds of GPU give several; each run folder "
                "has its own files, and `assay threshold apply RUN` writes a configuration from one of them."
            )


def planned_run(request: GpuRequest) -> FanOutRun:
    """Return the state of a kind of GPU before anything is rented."""
    gpu_label = gpu_type_label(request)
    best = request.choice.best
    if best is None:
        if request.refusal is not None:
            return FanOutRun(gpu_label=gpu_label, state="refused", reason=request.refusal)
        why = f"none can be rented from here: {request.no_offer_reason}"
        return FanOutRun(gpu_label=gpu_label, state="failed", reason=why, exit_code=MachineCannot.exit_code)
    return FanOutRun(gpu_label=gpu_label, folder=gpu_label.replace(":", "x")).model_copy(update=offer_fields(best))


def offer_fields(candidate: OfferCandidate) -> dict[str, str | float | None]:
    """Return what is kept of the offer that is taken for a kind of GPU."""
    offer = candidate.offer
    return {
        "gpu": offer.gpu,
        "host": offer.host,
        "offer": offer.name,
        "usd_per_hour": offer.usd_per_hour,
        "priced_on": offer.priced_on,
        "expected_usd": candidate.cost_usd,
        "most_usd": candidate.most_usd,
    }


def gpu_type_label(request: GpuRequest) -> str:
    """Write a kind of GPU as it stands behind ``--gpu-type``."""
    count = request.choice.need.gpu_count
    return f"{request.name}" if count == 1 else f"{request.name}:{count}"


def child_command(words: Sequence[str], request: GpuRequest, on: str, folder: Path) -> list[str]:
    """Return the command line of one machine's process."""
    gpu_label = gpu_type_label(request)
    own_words = ["--on", on, "--gpu-type", gpu_label, "--output-dir", str(folder / gpu_label.replace(":", "x"))]
    max_cost_usd = request.choice.need.max_cost_usd
    if max_cost_usd is not None:
        own_words += ["--max-cost", f"{math.floor(max_cost_usd * 1e6) / 1e6:f}"]
    cut = words.index("--") if "--" in words else len(words)
    return [*words[:cut], *own_words, *words[cut:]]


def start_child(leg: FanOutRun, words: Sequence[str], folder: Path) -> ChildProcess:
    """Start a machine's process; its stderr is shown with the kind of GPU as a prefix, and kept."""
    child_folder = folder / (leg.folder or leg.gpu_label)
    child_folder.mkdir()
    since_s = time.monotonic()
    with (child_folder / "leg.out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "assay.cli.fan_out_child", str(os.getpid()), *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            env={**os.environ, FOLDER_VARIABLE: str(child_folder)},
            start_new_session=True,
        )
    output = ChildOutput()
    assert process.stderr is not None  # noqa: S101 - a pipe was asked for
    reader = threading.Thread(
        target=_read_stderr, args=(process.stderr, child_folder / "leg.err", leg.gpu_label, output), daemon=True
    )
    reader.start()
    return ChildProcess(leg, process, since_s, reader, output)


def _read_stderr(stream: IO[bytes], path: Path, name: str, heard: ChildOutput) -> None:
    """Show each line of a machine's process, and keep all of them."""
    with stream, path.open("wb") as log:
        for line in stream:
            log.write(line)
            text = line.decode(errors="replace").rstrip()
            if text.startswith(ERROR_PREFIX):
                heard.error_message = text.removeprefix(ERROR_PREFIX).rstrip(".")
            if text:
                with contextlib.suppress(OSError):
                    click.echo(f"{name}: {text}", err=True)
    heard.ended_s = time.monotonic()


def wait_for_children(running: Sequence[ChildProcess]) -> StopRequested | None:
    """Wait until every machine's process has ended; return the signal that ended the waiting, if one did."""
    try:
        for child in running:
            child.process.wait()
            child.reader.join()
    except StopRequested as stopped:
        acknowledge_stop()
        return stopped
    return None


def stop_children(running: Sequence[ChildProcess]) -> None:
    """Ask what still runs to stop, and wait until it has given its machine back."""
    left = [child for child in running if child.process.poll() is None]
    for child in left:
        child.process.send_signal(signal.SIGTERM)
    for child in running:
        child.process.wait()
        child.reader.join()


def finished_run(child: ChildProcess, folder: Path) -> FanOutRun:
    """Return how a machine's process ended."""
    from assay.store.run_folder import run_paths

    code = child.process.returncode
    child_folder = folder / (child.run.folder or child.run.gpu_label)
    runs, offer = run_paths(child_folder), recorded_offer(child_folder)
    if code < 0 or (code == 0 and not runs):
        code = EXIT_STOPPED if code < 0 else EXIT_INTERNAL_ERROR
    failed = code not in {0, 1} or not runs
    reason = (
        child.output.error_message or f"it ended with exit code {code}; {child.run.folder}/leg.err has what it said"
    )
    leg = child.run if offer is None else child.run.model_copy(update=offer_fields(offer))
    return leg.model_copy(
        update={
            "state": "failed" if failed else "done",
            "exit_code": code,
            "reason": reason if failed else None,
            "run": str(runs[-1].relative_to(folder)) if runs else None,
            "took_s": None if child.output.ended_s is None else round(child.output.ended_s - child.since_s, 1),
        }
    )


MACHINE_COLUMNS = ("GPU", "host", "$ an hour", "priced", "state", "exit code", "took", "about", "run, or why not")
MINIMUM_EFFECT = 0.02
STATE_TONES: dict[str, Tone] = {"done": "good", "failed": "bad", "refused": "unsure", "waits": "unsure"}


def show_fan_out(whole: FanOut, folder: Path, *, verb: str, as_json: bool) -> None:
    """Compare what was measured, write it into the folder, and show it."""
    from assay.reports.documents import to_markdown

    result, comparison_page, reason = compare_runs(whole, folder)
    page = Page(
        title=f"assay {verb} on {', '.join(leg.gpu_label for leg in whole.runs)}",
        lead=_fan_out_headline(whole),
        sections=(
            Section(title="Machines", elements=(_machines_table(whole),)),
            *(() if comparison_page is None else comparison_page.sections),
            *(() if reason is None else (Section(title="What to know", elements=(Text(text=reason, tone="unsure"),)),)),
        ),
        origin="real" if result is None else result.origin,
    )
    replace_atomically(folder / REPORT, to_markdown(page, {}).encode())
    if result is not None:
        text = json.dumps(result.as_json(), indent=2, ensure_ascii=False)
        replace_atomically(folder / COMPARISON, f"{text}\n".encode())
    data = {"folder": str(folder), "exit_code": whole.exit_code, **whole.as_json()}
    comparison = None if result is None else result.as_json()
    show.print_result({**data, "comparison": comparison}, page, as_json=as_json)
    click.echo(f"Report: {show.short_path(folder)}/{REPORT}", err=True)


def compare_runs(whole: FanOut, folder: Path) -> tuple[ComparisonResult | None, Page | None, str | None]:
    """Return the comparison of the runs and its page; or why there is none, as a sentence."""
    from assay.experiments.compare.pairing import align_results
    from assay.experiments.compare.report import build_page, compare_results
    from assay.experiments.compare.sources import read_source

    with_runs = [(leg, folder / leg.run) for leg in whole.runs if leg.run is not None]
    if len(with_runs) < 2:
        return None, None, "There is nothing to compare: of the kinds of GPU, fewer than two were measured."
    try:
        table = align_results([replace(read_source(path), path=leg.gpu_label) for leg, path in with_runs])
        result = compare_results(table, MINIMUM_EFFECT)
    except BadInput as error:
        return None, None, str(error)
    return result, build_page(result), None


def _fan_out_headline(whole: FanOut) -> str:
    counts = {state: sum(leg.state == state for leg in whole.runs) for state in ("done", "failed", "refused")}
    counts_text = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    spent = [leg.usd_per_hour * leg.took_s / 3600 for leg in whole.runs if leg.usd_per_hour and leg.took_s]
    money = f"; about {format_usd(sum(spent))} at the quoted prices" if spent else ""
    return f"{len(whole.runs)} kinds of GPU: {counts_text}{money}."


def _machines_table(whole: FanOut) -> Table:
    return Table(
        title="What was rented, and what was not",
        columns=tuple(
            Column(title=title, numeric=title in {"$ an hour", "took", "about"}) for title in MACHINE_COLUMNS
        ),
        rows=tuple(_machine_row(leg) for leg in whole.runs),
        tones=tuple(STATE_TONES[leg.state] for leg in whole.runs),
        note="“About” is the quoted price times how long it took; `assay rentals` has what was billed, where told.",
    )


def _machine_row(leg: FanOutRun) -> tuple[Cell, ...]:
    cost = None if leg.usd_per_hour is None or leg.took_s is None else format_usd(leg.usd_per_hour * leg.took_s / 3600)
    return (
        leg.gpu_label if leg.gpu in {None, leg.gpu_label} else f"{leg.gpu_label} ({leg.gpu})",
        leg.host,
        None if leg.usd_per_hour is None else f"${leg.usd_per_hour:.2f}",
        None if leg.host is None else leg.priced_on or "now",
        leg.state,
        leg.exit_code,
        None if leg.took_s is None else format_duration(leg.took_s),
        cost,
        leg.reason or leg.run,
    )
