"""What every measuring verb does: read its options file, show a dry run, or create the run folder and measure.

flags ──▶ plan_run ──▶ start_run ──▶ continue_run ──▶ the result, and the run in the history
          │            └ or show_dry_run
          └ --options fills in the flags that were not given, or is the whole plan of another run
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click
from pydantic import ValidationError

from assay.cli import show
from assay.cli.commands import OUTPUT
from assay.cli.flags import HOST_GROUPS, MONITORING, ExperimentFlags, flag_rows
from assay.core.errors import AssayError, BadInput, EndedEarly, MachineCannot, StopRequested, suggest_nearest
from assay.core.files import home_folder
from assay.core.format import format_duration
from assay.core.guardian import Guardian
from assay.core.processes import stop_on_signals
from assay.core.values import SCHEMA_VERSION, Counted, Done, first_problem
from assay.core.yaml_input import read_settings
from assay.experiments.base import options_of
from assay.hosts.run_job import FOLDER_VARIABLE, record_run
from assay.launch.checkouts import check_out, set_up_checkouts
from assay.launch.local import LocalStarter
from assay.launch.torchrun import Hub, serve_hub
from assay.launch.trial import Launcher, TrialPlacement, compute_placements, predict_isolation
from assay.machine.model import describe_differences
from assay.reports.progress import describe_trial
from assay.runner import run
from assay.store.records import Records
from assay.store.run_folder import RunFolder, RunFolderBusy, RunPlan
from assay.worker.rendezvous import Torchrun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pydantic import JsonValue

    from assay.core.values import Block, Trial
    from assay.experiments.base import Experiment, RunResult
    from assay.launch.workers import WorkerStarter
    from assay.machine.model import Machine


class SeededOptions(Protocol):
    """The options of an experiment."""

    @property
    def seed(self) -> int:
        """The random seed."""
        ...

    def as_json(self) -> dict[str, JsonValue]:
        """Return them as plain data."""
        ...


Ending = TypeVar("Ending", bound=AssayError | StopRequested)
FlagsT = TypeVar("FlagsT", bound=ExperimentFlags)
OptionsT = TypeVar("OptionsT", bound=SeededOptions)


def plan_run(
    flags: FlagsT, experiment: Experiment[Any], build: Callable[[FlagsT, Machine], OptionsT]
) -> tuple[FlagsT, OptionsT, Machine]:
    """Return the flags with those of an options file, the experiment's options they mean here, and this machine."""
    from assay.machine.detect import detect

    plan: OptionsT | None = None
    if flags.options_file is not None:
        flags, plan = merge_options_file(flags, flags.options_file, experiment)
    machine = detect(name_host=flags.name_host)
    return flags, build(flags, machine) if plan is None else plan, machine


ALLOWED_WITH_PLAN = frozenset({"options_file", "apply", "baseline", "unsure"})
"""Flags that are no part of a plan, besides those of the output, the monitoring and remote machines."""


def merge_options_file(flags: FlagsT, file: Path, experiment: Experiment[Any]) -> tuple[FlagsT, Any]:
    """Return the flags with those of a YAML or JSON file filled in, and the options in the ``plan.json`` of a run.

    Flags given on the command line win over the file.
    """
    content = read_settings(file)
    if not isinstance(content, dict):
        raise BadInput(f"{file} holds no options: it must map option names to values.")
    if "experiment" in content and "options" in content:
        return flags, _options_from_plan(flags, content, file, experiment)
    rows = {_plain(name): row for row in flag_rows(type(flags)) for name in (*row.spellings, row.name)}
    values: dict[str, Any] = {}
    for name, value in content.items():
        row = rows.get(_plain(name))
        if row is None:
            accepted = (n for n, row in rows.items() if row.name != "options_file" and row.group not in HOST_GROUPS)
            raise BadInput(f"{file} has an unknown option {name!r}.{suggest_nearest(_plain(name), accepted)}")
        if row.name == "options_file":
            raise BadInput(f"{file}: an options file cannot name another one.")
        if value is None or isinstance(value, dict):
            raise BadInput(f"{file}: {name} takes a value, not {value!r}.")
        if row.group in HOST_GROUPS:
            raise BadInput(f"{file}: {row.title} is accepted on the command line only, not in a file.")
        several = row.style in {"many", "list", "rest", "arguments"}
        if isinstance(value, list) and not several:
            raise BadInput(f"{file}: {name} takes one value, not a list.")
        items = tuple(map(str, value if isinstance(value, list) else (value,)))
        values[row.name] = items if several else items[0]
    merged = type(flags).read(values, flags.line, f"{file}: ")
    named = flags.line.named | (flags.line.from_environment - values.keys())
    return merged.model_copy(update={name: getattr(flags, name) for name in named}), None


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _options_from_plan(
    flags: ExperimentFlags, content: Mapping[str, JsonValue], file: Path, experiment: Experiment[Any]
) -> Any:
    """Return the options of a plan; a plan is whole, so flags that would change a part of it are refused."""
    allowed_groups = {OUTPUT, MONITORING, *HOST_GROUPS}
    extra = [
        row.title
        for row in flag_rows(type(flags))
        if row.name in flags.line.named and row.group not in allowed_groups and row.name not in ALLOWED_WITH_PLAN
    ]
    if extra:
        raise BadInput(f"{file} is the whole plan of a run; {', '.join(extra)} cannot change it.")
    if content["experiment"] != experiment.name:
        raise BadInput(f"{file} is the plan of another experiment ({content['experiment']}).")
    try:
        return experiment.options_type.model_validate(content["options"])
    except ValidationError as error:
        raise BadInput(f"{file}: options: {first_problem(error)}.") from None


def start_run(
    experiment: Experiment[Any],
    options: SeededOptions,
    machine: Machine,
    flags: ExperimentFlags,
    *,
    keep_run: bool = True,
    afterwards: Callable[[Path, int], int] | None = None,
) -> int:
    """Start a new run, or show what it would measure first (`--dry-run`); return the exit code.

    Ranks of a torchrun other than 0 serve it. ``afterwards`` is given the run folder and the exit code so far, and
    returns the final one. ``keep_run`` is false for a folder that is removed afterwards.
    """
    if flags.dry_run:
        return show_dry_run(experiment, options, machine, as_json=flags.as_json)
    torchrun = Torchrun.from_environment()
    if torchrun is not None and torchrun.rank > 0:
        return serve_hub(torchrun, machine)
    home_folder()
    plan = RunPlan(
        experiment=experiment.name,
        options=options.as_json(),
        seed=options.seed,
        versions=machine.versions,
        cwd=str(Path.cwd()),
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        monitor=flags.monitor,
        monitor_interval_s=flags.monitor_interval_s,
    )
    folder = RunFolder.create((flags.output_dir or Path("runs")).absolute(), plan, machine)
    remembered = keep_run and flags.history
    code = continue_run(experiment, folder, machine, as_json=flags.as_json, keep_run=keep_run, remembered=remembered)
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

    ``keep_run`` is false for a folder that is removed afterwards, ``remembered`` for a run that does not enter the
    history.
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
    if not Path(folder.plan.cwd).is_dir():
        raise MachineCannot(f"The folder {folder.plan.cwd}, from which this run was started, is gone.")
    try:
        findings = _measure(experiment, folder, machine, torchrun, keep_run=keep_run)
    except RunFolderBusy:
        raise
    except (StopRequested, EndedEarly, MachineCannot, BadInput) as error:
        not_kept = f"{str(error).rstrip('.')}; nothing is kept."
        raise (_error_with_resume_hint(error, folder) if keep_run else type(error)(not_kept)) from error
    if not keep_run:
        show.print_result(show.result_data(findings, None), show.brief_page(findings), as_json=as_json)
        return findings.exit_code
    try:
        return show.show_result(findings, folder.path, as_json=as_json)
    finally:
        if remembered:
            from assay.cli.history import import_into_history

            import_into_history(folder.path)


def _measure(
    experiment: Experiment[Any], folder: RunFolder, machine: Machine, torchrun: Torchrun | None, *, keep_run: bool
) -> RunResult:
    """Run the measuring loop with workers here or in a torchrun."""
    if keep_run and (job_folder := os.environ.get(FOLDER_VARIABLE)):
        record_run(Path(job_folder), folder.path)
    with show.progress_display() as progress, worker_starter(torchrun, folder.path, Path(folder.plan.cwd)) as starter:
        if not isinstance(starter, Hub):
            return run(experiment, folder, machine, Launcher(machine, starter), progress)
        launcher = Launcher(machine, starter, starter.machines, helpers=starter.helpers)
        findings = run(experiment, folder, machine, launcher, progress)
        starter.exit_code = findings.exit_code
        return findings


@contextmanager
def worker_starter(torchrun: Torchrun | None, run_folder: Path, cwd: Path) -> Iterator[WorkerStarter]:
    """Start workers here, or with the other ranks of the torchrun this is rank 0 of."""
    if torchrun is None:
        yield LocalStarter(run_folder, cwd)
        return
    with Hub(torchrun, run_folder=run_folder, cwd=cwd) as hub:
        yield hub


def _error_with_resume_hint(error: Ending, folder: RunFolder) -> Ending | MachineCannot:
    """Return the same error, with what is kept and how to resume."""
    if not folder.path.exists():
        return MachineCannot(f"The run folder {folder.path} is gone, and with it what was measured.")
    if isinstance(error, BadInput):
        return error
    record_count = len(folder.counting())
    trials = f"{record_count} trial{'' if record_count == 1 else 's'}"
    sentence, way_on = str(error).rstrip("."), f"`assay resume {show.short_path(folder.path)}` goes on"
    return type(error)(f"{sentence}; {trials} kept. {way_on}{_report_repeated_block(folder)}.")


def _report_repeated_block(folder: RunFolder) -> str:
    """Return which incomplete block is measured again; empty if there is none."""
    decisions = folder.decisions()
    if not decisions or folder.finished(decisions[-1].block) is not None:
        return ""
    block = decisions[-1].block
    done = sum(record.block == block.name for record in folder.counting())
    return f"; {block.name}, of which {done} of {len(block.trials)} trials were done, is measured again as a whole"


@contextmanager
def checkouts_for_resume(experiment: Experiment[Any], folder: RunFolder, machine: Machine) -> Iterator[None]:
    """Recreate the checkouts that the rest of a run is measured in, if it needs any."""
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


def show_dry_run(
    experiment: Experiment[Any],
    options: SeededOptions,
    machine: Machine,
    *,
    as_json: bool,
    extra: Mapping[str, JsonValue] | None = None,
) -> int:
    """Print the first block; nothing is written or started. ``extra`` is added to the JSON."""
    step = experiment.step(machine, options, Records([], Path()))
    if isinstance(step, Done):
        click.echo(f"Nothing to measure: {step.why}.")
        return 0
    if as_json:
        show.print_json({**_dry_run_data(step, machine), **(extra or {})})
        return 0
    count = len(step.trials)
    click.echo(f"First block: {step.name} ({step.why}), {count} trial{'' if count == 1 else 's'}")
    for trial in step.trials:
        restarts = f", up to {trial.restarts} restarts" if trial.restarts > 1 else ""
        click.echo(f"  {describe_trial(trial)}: {_timing_text(trial)}{restarts}")
        for line in _placement_lines(trial, machine):
            click.echo(f"    {line}")
    if step.left_s is None:
        click.echo("How long the whole run takes is known once something is measured; on this machine, at no cost.")
    else:
        click.echo(f"The whole run takes at most {format_duration(step.left_s)}, on this machine, at no cost.")
    return 0


def _timing_text(trial: Trial) -> str:
    """Say how long a trial is timed: given counts are obeyed, however long they take."""
    mode = trial.mode
    if not isinstance(mode, Counted):
        return f"{mode.duration_s:.3g} s"
    return f"{mode.warmup_runs or 0} calls to warm up, {mode.runs} timed"


def _placement_lines(trial: Trial, machine: Machine) -> list[str]:
    lines: list[str] = []
    placements = compute_placements(machine, trial)
    for role in trial.roles:
        for device in role.devices:
            allotment = placements[role.isolation].of(device, role.worker)
            cores = "unpinned" if allotment.cpus is None else f"cores {','.join(map(str, allotment.cpus))}"
            tuned = "" if role.tuner is None else f", tunes ({role.tuner.name}) for {role.tuner.budget_s:.2g} s"
            lines.append(f"{role.name}: {role.duty}, isolation {role.isolation}, {cores}{tuned}")
    lines += [f"note: {note.message}" for placement in placements.values() for note in placement.notes]
    return lines + [f"note: {note}" for note in _isolation_shortfalls(trial, machine)]


def _isolation_shortfalls(trial: Trial, machine: Machine) -> list[str]:
    """Return which isolation levels cannot hold, each reason once."""
    roles = {role.name: role for role in trial.roles}
    return list(
        dict.fromkeys(
            f"isolation {roles[name].isolation} cannot hold, only {held.level}: {limit.message}"
            for (name, _), held in predict_isolation(trial, TrialPlacement(trial, machine, {})).items()
            for limit in held.limits
        )
    )


def _isolation_data(trial: Trial, machine: Machine) -> list[dict[str, Any]]:
    """Return which level can hold for each worker, and what limits it."""
    return [
        {"role": role, "rank": rank, "can_hold": held.level, "limits": [limit.as_json() for limit in held.limits]}
        for (role, rank), held in predict_isolation(trial, TrialPlacement(trial, machine, {})).items()
    ]


def _dry_run_data(block: Block, machine: Machine) -> dict[str, Any]:
    return {
        "schema": SCHEMA_VERSION,
        "block": block.as_json(),
        "placements": [
            {
                "trial": trial.id,
                "levels": {level: p.as_json() for level, p in compute_placements(machine, trial).items()},
                "isolation": _isolation_data(trial, machine),
            }
            for trial in block.trials
        ],
        "at_most_s": block.left_s,
        "cost_usd": 0.0,
    }
