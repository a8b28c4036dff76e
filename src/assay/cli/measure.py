"""What every measuring verb does: make or open the run folder, walk the loop, show the result."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from assay.cli import show
from assay.cli.remember import remember
from assay.core.errors import AssayError, BadInput, EndedEarly, MachineCannot, StopRequested
from assay.core.home import home
from assay.hosts.traces import note_run
from assay.launch.agent import serve
from assay.launch.hub import Hub
from assay.launch.local import LocalStarter
from assay.launch.trial import Launcher
from assay.machine.model import differences
from assay.runner import run
from assay.store.plan import Plan
from assay.store.runs import Busy, RunFolder
from assay.worker.rendezvous import Torchrun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from assay.core.values import Value
    from assay.experiments.base import Experiment
    from assay.launch.crew import Starter
    from assay.machine.model import Machine
    from assay.runner import Result


Ending = TypeVar("Ending", bound=AssayError | StopRequested)


def as_told(
    experiment: Experiment[Any],
    options: Value,
    machine: Machine,
    seed: int,
    given: Mapping[str, Any],
    *,
    kept: bool = True,
    afterwards: Callable[[Path, int], int] | None = None,
) -> int:
    """Start a new run where, shown how and watched as the flags that measuring verbs share say; return the exit code.

    Ranks of a torchrun other than 0 serve it. ``afterwards`` is given the run folder and the exit code so far, and has
    the last word. ``kept`` is false for a folder that nobody will find afterwards.
    """
    torchrun = Torchrun.found()
    if torchrun is not None and torchrun.rank > 0:
        return serve(torchrun, machine)
    home()
    plan = Plan(
        experiment=experiment.name,
        options=options.as_json(),
        seed=seed,
        versions=machine.versions,
        cwd=str(Path.cwd()),
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        monitor=given["monitor"],
        monitor_interval_s=given["monitor_interval"],
    )
    folder = RunFolder.create(given["output_dir"].absolute(), plan, machine)
    remembered = kept and given.get("history", True)
    code = go_on(experiment, folder, machine, as_json=given["as_json"], kept=kept, remembered=remembered)
    if afterwards is None:
        return code
    try:
        return afterwards(folder.path, code)
    except StopRequested as stopped:
        raise StopRequested(f"{stopped}; everything measured is kept in {show.short(folder.path)}.") from None


def go_on(
    experiment: Experiment[Any],
    folder: RunFolder,
    machine: Machine,
    *,
    as_json: bool,
    kept: bool = True,
    remembered: bool = True,
) -> int:
    """Measure what a run folder still lacks; what was measured is kept whatever happens.

    ``kept`` is false for a folder that nobody will find afterwards, ``remembered`` for a run that is not to enter the
    history.
    """
    torchrun = Torchrun.found()
    if torchrun is not None and torchrun.rank > 0:
        return serve(torchrun, machine)
    changed = differences(folder.machine, machine)
    if changed:
        raise MachineCannot(
            f"{show.short(folder.path)} was begun on another machine or with other software, and mixing the two would "
            f"compare what cannot be compared ({'; '.join(changed[:3])}); start a new run instead."
        )
    cwd = Path(folder.plan.cwd)
    if not cwd.is_dir():
        raise MachineCannot(f"The folder {cwd}, from which this run was started, is gone.")
    try:
        if kept:
            note_run(folder.path)
        with show.progress() as progress, starter_for(torchrun, folder.path, cwd) as starter:
            launcher = Launcher(machine, starter)
            if isinstance(starter, Hub):
                launcher = Launcher(machine, starter, starter.machines, helpers=starter.helpers)
            findings = run(experiment, folder, machine, launcher, progress)
            if isinstance(starter, Hub):
                starter.exit_code = findings.exit_code
    except Busy:
        raise
    except (StopRequested, EndedEarly, MachineCannot, BadInput) as error:
        raise (_with_the_way_on(error, folder) if kept else _with_nothing_kept(error)) from error
    try:
        return shown(findings, folder.path, as_json=as_json) if kept else show.passing(findings, as_json=as_json)
    finally:
        if remembered:
            remember(folder.path)


def shown(found: Result, folder: Path, *, as_json: bool) -> int:
    """Show a result; whoever is too impatient for the report is told that nothing is lost."""
    try:
        return show.result(found, folder, as_json=as_json)
    except StopRequested as stopped:
        way_on = f"`assay report {show.short(folder)}` draws it"
        raise StopRequested(
            f"{stopped} while the report was drawn; everything measured is kept, and {way_on}."
        ) from None


@contextmanager
def starter_for(place: Torchrun | None, run_folder: Path, cwd: Path) -> Iterator[Starter]:
    """Start workers here, or with the other ranks of the torchrun this is rank 0 of."""
    if place is None:
        yield LocalStarter(run_folder, cwd)
        return
    with Hub(place, run_folder=run_folder, cwd=cwd) as hub:
        yield hub


def _with_nothing_kept(error: Ending) -> Ending:
    """Return the same error, saying also that nothing is left to go on with."""
    return type(error)(f"{str(error).rstrip('.')}; nothing is kept.")


def _with_the_way_on(error: Ending, folder: RunFolder) -> Ending | MachineCannot:
    """Return the same error, saying also what is kept and how to go on."""
    if not folder.path.exists():
        return MachineCannot(f"The run folder {folder.path} is gone, and with it what was measured.")
    if isinstance(error, BadInput):
        return error
    record_count = len(folder.counting())
    trials = f"{record_count} trial{'' if record_count == 1 else 's'}"
    sentence, way_on = str(error).rstrip("."), f"`assay resume {show.short(folder.path)}` goes on"
    return type(error)(f"{sentence}; {trials} kept. {way_on}{_done_again(folder)}.")


def _done_again(folder: RunFolder) -> str:
    """Say which block is measured again as it is not whole; nothing where all that were begun are."""
    decisions = folder.decisions()
    if not decisions or folder.finished(decisions[-1].block) is not None:
        return ""
    block = decisions[-1].block
    done = sum(record.block == block.name for record in folder.counting())
    return f"; {block.name}, of which {done} of {len(block.trials)} trials were done, is measured again as a whole"
