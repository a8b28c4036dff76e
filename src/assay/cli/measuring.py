"""What every measuring verb does.

Create or open the run folder, run the measuring loop, show the result; and recreate the checkouts of a run that is
resumed.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from assay.cli import show
from assay.cli.history_hook import import_into_history
from assay.core.errors import AssayError, BadInput, EndedEarly, MachineCannot, StopRequested
from assay.core.files import home_folder
from assay.core.guardian import Guardian
from assay.core.processes import stop_on_signals
from assay.core.values import Done
from assay.hosts.run_job import record_run
from assay.launch.checkouts import check_out, set_up_checkouts
from assay.launch.local import LocalStarter
from assay.launch.torchrun import Hub, serve_hub
from assay.launch.trial import Launcher
from assay.machine.model import describe_differences
from assay.runner import options_of, run
from assay.store.run_folder import RunFolder, RunFolderBusy, RunPlan
from assay.worker.rendezvous import Torchrun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from assay.core.values import Value
    from assay.experiments.base import Experiment
    from assay.launch.workers import WorkerStarter
    from assay.machine.model import Machine
    from assay.runner import RunResult


Ending = TypeVar("Ending", bound=AssayError | StopRequested)


def start_run(
    experiment: Experiment[Any],
    options: Value,
    machine: Machine,
    seed: int,
    flags: Mapping[str, Any],
    *,
    keep_run: bool = True,
    afterwards: Callable[[Path, int], int] | None = None,
) -> int:
    """Start a new run where, shown how and watched as the flags that measuring verbs share say; return the exit code.

    Ranks of a torchrun other than 0 serve it. ``afterwards`` is given the run folder and the exit code so far, and has
    the last word. ``keep_run`` is false for a folder that nobody will find afterwards.
    """
    torchrun = Torchrun.from_environment()
    if torchrun is not None and torchrun.rank > 0:
        return serve_hub(torchrun, machine)
    home_folder()
    plan = RunPlan(
        experiment=experiment.name,
        options=options.as_json(),
        seed=seed,
        versions=machine.versions,
        cwd=str(Path.cwd()),
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        monitor=flags["monitor"],
        monitor_interval_s=flags["monitor_interval"],
    )
    folder = RunFolder.create(flags["output_dir"].absolute(), plan, machine)
    remembered = keep_run and flags.get("history", True)
    code = continue_run(experiment, folder, machine, as_json=flags["as_json"], keep_run=keep_run, remembered=remembered)
    if afterwards is None:
        return code
    try:
        return afterwards(folder.path, code)
    except StopRequested as stopped:
        raise StopRequested(f"{stopped}; everything measured is kept in {show.short_path(folder.path)}.") from None


def continue_run(
    experiment: Experiment[Any],
    folder: RunFolder,
    machine: Machine,
    *,
    as_json: bool,
    keep_run: bool = True,
    remembered: bool = True,
) -> int:
    """Measure what a run folder still lacks; what was measured is kept whatever happens.

    ``keep_run`` is false for a folder that nobody will find afterwards, ``remembered`` for a run that is not to
    enter the history.
    """
    torchrun = Torchrun.from_environment()
    if torchrun is not None and torchrun.rank > 0:
        return serve_hub(torchrun, machine)
    changed = describe_differences(folder.machine, machine)
    if changed:
        raise MachineCannot(
            f"{show.short_path(folder.path)} was begun on another machine or with other software, and mixing "
            "the two would "
            f"compare what cannot be compared ({'; '.join(changed[:3])}); start a new run instead."
        )
    cwd = Path(folder.plan.cwd)
    if not cwd.is_dir():
        raise MachineCannot(f"The folder {cwd}, from which this run was started, is gone.")
    try:
        if keep_run:
            record_run(folder.path)
        with show.progress_display() as progress, worker_starter(torchrun, folder.path, cwd) as starter:
            launcher = Launcher(machine, starter)
            if isinstance(starter, Hub):
                launcher = Launcher(machine, starter, starter.machines, helpers=starter.helpers)
            findings = run(experiment, folder, machine, launcher, progress)
            if isinstance(starter, Hub):
                starter.exit_code = findings.exit_code
    except RunFolderBusy:
        raise
    except (StopRequested, EndedEarly, MachineCannot, BadInput) as error:
        raise (_error_with_resume_hint(error, folder) if keep_run else _error_without_run(error)) from error
    try:
        return (
            show_result(findings, folder.path, as_json=as_json)
            if keep_run
            else show.show_transient_result(findings, as_json=as_json)
        )
    finally:
        if remembered:
            import_into_history(folder.path)


def show_result(findings: RunResult, folder: Path, *, as_json: bool) -> int:
    """Show a result; whoever is too impatient for the report is told that nothing is lost."""
    try:
        return show.show_and_save_result(findings, folder, as_json=as_json)
    except StopRequested as stopped:
        way_on = f"`assay report {show.short_path(folder)}` draws it"
        raise StopRequested(
            f"{stopped} while the report was drawn; everything measured is kept, and {way_on}."
        ) from None


@contextmanager
def worker_starter(torchrun: Torchrun | None, run_folder: Path, cwd: Path) -> Iterator[WorkerStarter]:
    """Start workers here, or with the other ranks of the torchrun this is rank 0 of."""
    if torchrun is None:
        yield LocalStarter(run_folder, cwd)
        return
    with Hub(torchrun, run_folder=run_folder, cwd=cwd) as hub:
        yield hub


def _error_without_run(error: Ending) -> Ending:
    """Return the same error, saying also that nothing is left to go on with."""
    return type(error)(f"{str(error).rstrip('.')}; nothing is kept.")


def _error_with_resume_hint(error: Ending, folder: RunFolder) -> Ending | MachineCannot:
    """Return the same error, saying also what is kept and how to go on."""
    if not folder.path.exists():
        return MachineCannot(f"The run folder {folder.path} is gone, and with it what was measured.")
    if isinstance(error, BadInput):
        return error
    record_count = len(folder.counting())
    trials = f"{record_count} trial{'' if record_count == 1 else 's'}"
    sentence, way_on = str(error).rstrip("."), f"`assay resume {show.short_path(folder.path)}` goes on"
    return type(error)(f"{sentence}; {trials} kept. {way_on}{_report_repeated_block(folder)}.")


def _report_repeated_block(folder: RunFolder) -> str:
    """Say which block is measured again as it is not whole; nothing where all that were begun are."""
    decisions = folder.decisions()
    if not decisions or folder.finished(decisions[-1].block) is not None:
        return ""
    block = decisions[-1].block
    done = sum(record.block == block.name for record in folder.counting())
    return f"; {block.name}, of which {done} of {len(block.trials)} trials were done, is measured again as a whole"


@contextmanager
def checkouts_for_resume(experiment: Experiment[Any], folder: RunFolder, machine: Machine) -> Iterator[None]:
    """Have the checkouts there that what is left of a run is measured in; nothing where it needs none."""
    if experiment.checkouts is None or _is_complete(experiment, folder, machine):
        yield
        return
    checkouts = experiment.checkouts(options_of(experiment, folder))
    with stop_on_signals(), Guardian(), check_out(checkouts) as leases:
        set_up_checkouts(checkouts, leases, lambda line: click.echo(line, err=True))
        yield


def _is_complete(experiment: Experiment[Any], folder: RunFolder, machine: Machine) -> bool:
    """Return whether nothing is left to measure; what failed is measured again."""
    options = options_of(experiment, folder)
    good = folder.of([record for record in folder.counting() if record.status != "failed"])
    return isinstance(experiment.step(machine, options, good), Done)
