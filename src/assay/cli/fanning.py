"""``--gpu-type T4,L4,A100``: the same words on a machine with each kind of GPU, at once; then all of it compared.

Each machine has a process of its own here, which is this command with one kind of GPU: a signal, a crash or a missing
answer there is its own affair, and its machine goes back as it always does. What cannot work on a kind of GPU is a row
with its reason, and rents nothing.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import click

from assay.cli.ordering import inner_words
from assay.core.errors import EXIT_DEFECT, EXIT_STOPPED, BadInput, MachineCannot, StopRequested
from assay.core.stopping import acknowledge, stop_on_signals
from assay.hosts.fan_out import FOLDER_VARIABLE, FanOut, Leg, noted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from assay.cli.renting_plan import Kind, Wanted
    from assay.hosts.choosing import Candidate

OURS = frozenset({"on", "provider", "gpu_type", "max_cost", "output_dir", "as_json", "dry_run"})
"""What each machine's process is told anew; all other words it gets as they were given."""

ONE_RUN_ONLY = ("update_config", "output", "report", "baseline")
"""What is done with one result, and would be done by every machine to the same file."""


SAYS = "assay: "
"""With this a command begins the sentence that says why it could not."""


@dataclass
class Heard:
    """What a machine's process said of how it ended, if anything, and when it fell silent, by the monotonic clock."""

    said: str | None = None
    ended_s: float | None = None


@dataclass(frozen=True)
class Running:
    """A machine's process, and what is to be known of it."""

    leg: Leg
    process: subprocess.Popen[bytes]
    since_s: float
    reader: threading.Thread
    heard: Heard


def fan_out(ctx: click.Context, given: Mapping[str, Any], found: Wanted) -> int:
    """Rent a machine for each kind of GPU at once, wait for all, compare; return the worst exit code."""
    from assay.cli import fanned, renting, show
    from assay.store.runs import new_folder

    if "output_dir" not in given:
        raise BadInput(f"assay {found.verb} is about one run; name one kind of GPU.")
    refuse_one_run_only(given)
    renting.refuse_nothing(found)
    parent: Path = given["output_dir"].absolute()
    parent.mkdir(parents=True, exist_ok=True)
    folder = new_folder(parent, "fan-out")
    words = inner_words(ctx, OURS)
    legs = tuple(leg_of(kind) for kind in found.kinds)
    whole = FanOut(words=words, legs=legs)
    whole.write(folder)
    for leg in legs:
        if leg.state != "waits":
            click.echo(f"{leg.asked}: {leg.state}: {leg.reason}.", err=True)
    with stop_on_signals():
        running: list[Running] = []
        try:
            for kind, leg in zip(found.kinds, legs, strict=True):
                if leg.state == "waits":
                    running.append(start(leg, command(words, kind, given["on"], folder), folder))
            stopped = wait(running)
        finally:
            end(running)
        ended = {child.leg.asked: after(child, folder) for child in running}
        whole = whole.model_copy(update={"legs": tuple(ended.get(leg.asked, leg) for leg in legs)})
        whole.write(folder)
        fanned.shown(whole, folder, verb=found.verb, as_json=bool(given.get("as_json")))
    if stopped is not None:
        raise StopRequested(
            f"{str(stopped).rstrip('.')}; every machine is gone. What was measured is in {show.short(folder)}."
        )
    return whole.exit_code


def refuse_one_run_only(given: Mapping[str, Any]) -> None:
    """Say so where something is asked for that only one result can have."""
    for name in ONE_RUN_ONLY:
        if given.get(name):
            raise BadInput(
                f"--{name.replace('_', '-')} is for one result, and several kinds of GPU give several; each run folder "
                "has its own files, and `assay threshold apply RUN` writes a configuration from one of them."
            )


def leg_of(kind: Kind) -> Leg:
    """Return what is known of a kind of GPU before anything is rented."""
    gpu_label = label(kind)
    best = kind.choice.best
    if best is None:
        if kind.refused is not None:
            return Leg(asked=gpu_label, state="refused", reason=kind.refused)
        why = f"none can be rented from here: {kind.why_none}"
        return Leg(asked=gpu_label, state="failed", reason=why, exit_code=MachineCannot.exit_code)
    return Leg(asked=gpu_label, folder=gpu_label.replace(":", "x")).model_copy(update=as_taken(best))


def as_taken(candidate: Candidate) -> dict[str, str | float | None]:
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


def label(kind: Kind) -> str:
    """Write a kind of GPU as it stands behind ``--gpu-type``."""
    count = kind.choice.need.gpu_count
    return f"{kind.asked}" if count == 1 else f"{kind.asked}:{count}"


def command(words: Sequence[str], kind: Kind, on: str, folder: Path) -> list[str]:
    """Return the command line of one machine's process."""
    gpu_label = label(kind)
    own_words = ["--on", on, "--gpu-type", gpu_label, "--output-dir", str(folder / gpu_label.replace(":", "x"))]
    max_cost_usd = kind.choice.need.max_cost_usd
    if max_cost_usd is not None:
        own_words += ["--max-cost", f"{math.floor(max_cost_usd * 1e6) / 1e6:f}"]
    cut = words.index("--") if "--" in words else len(words)
    return [*words[:cut], *own_words, *words[cut:]]


def start(leg: Leg, words: Sequence[str], folder: Path) -> Running:
    """Start a machine's process; what it says is shown with the kind of GPU before it, and kept."""
    child_folder = folder / (leg.folder or leg.asked)
    child_folder.mkdir()
    since_s = time.monotonic()
    with (child_folder / "leg.out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "assay.cli.leg", str(os.getpid()), *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            env={**os.environ, FOLDER_VARIABLE: str(child_folder)},
            start_new_session=True,
        )
    output = Heard()
    assert process.stderr is not None  # noqa: S101 - a pipe was asked for
    reader = threading.Thread(
        target=_read, args=(process.stderr, child_folder / "leg.err", leg.asked, output), daemon=True
    )
    reader.start()
    return Running(leg, process, since_s, reader, output)


def _read(stream: IO[bytes], path: Path, name: str, heard: Heard) -> None:
    """Show each line of a machine's process, and keep all of them."""
    with stream, path.open("wb") as log:
        for line in stream:
            log.write(line)
            text = line.decode(errors="replace").rstrip()
            if text.startswith(SAYS):
                heard.said = text.removeprefix(SAYS).rstrip(".")
            if text:
                with contextlib.suppress(OSError):
                    click.echo(f"{name}: {text}", err=True)
    heard.ended_s = time.monotonic()


def wait(running: Sequence[Running]) -> StopRequested | None:
    """Wait until every machine's process has ended; return the signal that ended the waiting, if one did."""
    try:
        for child in running:
            child.process.wait()
            child.reader.join()
    except StopRequested as stopped:
        acknowledge()
        return stopped
    return None


def end(running: Sequence[Running]) -> None:
    """Ask what still runs to stop, and wait until it has given its machine back."""
    left = [child for child in running if child.process.poll() is None]
    for child in left:
        child.process.send_signal(signal.SIGTERM)
    for child in running:
        child.process.wait()
        child.reader.join()


def after(each: Running, folder: Path) -> Leg:
    """Return how a machine's process ended."""
    from assay.store.runs import run_paths

    code = each.process.returncode
    child_folder = folder / (each.leg.folder or each.leg.asked)
    runs, offer = run_paths(child_folder), noted(child_folder)
    if code < 0 or (code == 0 and not runs):
        code = EXIT_STOPPED if code < 0 else EXIT_DEFECT
    failed = code not in {0, 1} or not runs
    reason = each.heard.said or f"it ended with exit code {code}; {each.leg.folder}/leg.err has what it said"
    leg = each.leg if offer is None else each.leg.model_copy(update=as_taken(offer))
    return leg.model_copy(
        update={
            "state": "failed" if failed else "done",
            "exit_code": code,
            "reason": reason if failed else None,
            "run": str(runs[-1].relative_to(folder)) if runs else None,
            "took_s": None if each.heard.ended_s is None else round(each.heard.ended_s - each.since_s, 1),
        }
    )
