"""``assay run``: time workloads, functions or commands on devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from assay.cli import flags as cli
from assay.cli.host_flags import DurationEstimate, HostFlags, dispatch_remote
from assay.core.errors import BadInput
from assay.core.format import MAX_CALLS, MAX_PROCESSES, MAX_REPEATS, format_duration
from assay.experiments.run.plan import START_UP_S, RunOptions

if TYPE_CHECKING:
    from assay.core.values import Subject, Trial
    from assay.machine.model import Machine

QUICK = {"duration_s": 2.0, "restarts": 2}
SHORTEST_TRIAL_S = 0.1


class RunFlags(cli.CacheFlags, cli.IsolationFlags, cli.MeasureFlags, HostFlags):
    """What `assay run` can be asked for."""

    workloads: tuple[str, ...] = cli.argument("[WORKLOAD]... [-- COMMAND...]", default=())
    benchmarks: tuple[str, ...] = cli.what_flag(
        "--benchmark", aliases="--kernel", default=(), metavar="NAME", help="Another workload to time."
    )
    params: tuple[str, ...] = cli.param_flag()
    metrics: tuple[str, ...] = cli.metric_flag()
    ranks: int | None = cli.what_flag(ge=1, le=MAX_PROCESSES, shown="1", help="Processes per worker group.")
    references: bool = cli.what_flag(default=True, help="Also measure the GPU's peak rates.")
    mode: Literal["sequential", "concurrent"] = cli.how_option(
        RunOptions, "mode", metavar="MODE", help="sequential or concurrent."
    )
    duration_s: float | None = cli.how_option(RunOptions, "duration_s", optional=True, help="Time per trial.")
    budget_s: float | None = cli.how_flag(gt=0, help="Total time; trials are shortened to fit.")
    cooldown_s: float = cli.cooldown_flag()
    repeat: int = cli.how_option(RunOptions, "repeat", le=MAX_REPEATS, help="Repetitions of everything.")
    restarts: int | None = cli.how_option(
        RunOptions, "restarts", optional=True, le=MAX_REPEATS, help="Fresh processes per trial."
    )
    warmup_runs: int | None = cli.how_option(
        RunOptions, "warmup_runs", le=MAX_CALLS, help="Make exactly this many warm-up calls."
    )
    benchmark_runs: int | None = cli.how_option(
        RunOptions, "benchmark_runs", le=MAX_CALLS, help="Time exactly this many calls."
    )
    precision: float = cli.how_option(RunOptions, "precision", help="Stop a trial at this precision.")
    quick: bool = cli.how_flag(default=False, help="Quick first look: 2s per trial, 2 restarts.")

    def estimate_duration(self) -> DurationEstimate:
        """Return the time of all trials, each with its starts."""
        if self.budget_s is not None:
            return super().estimate_duration()
        count = max(1, len(self.named_workloads())) * self.repeat
        fields = RunOptions.model_fields
        usual = QUICK if self.quick else {name: fields[name].default for name in QUICK}
        restarts, duration_s = self.restarts or usual["restarts"], self.duration_s or usual["duration_s"]
        trial_s = duration_s + restarts * START_UP_S["torch"]
        source = f"{count} trial{'' if count == 1 else 's'} of {format_duration(trial_s)}"
        return DurationEstimate(count * trial_s, f"{source}{' with --quick' if self.quick else ''}")

    def named_workloads(self) -> tuple[str, ...]:
        """Return all of them."""
        return (*self.workloads, *self.benchmarks)


@cli.verb("run", RunFlags)
def run_workloads(flags: RunFlags) -> int:
    """Time workloads, your own functions or any command.

    assay run softmax gemm
    assay run softmax --device cpu --mode concurrent --isolation full
    assay run path/to/file.py:function
    assay run --metric 'loss=loss ([0-9.]+)' -- python train.py
    """
    if (code := dispatch_remote(flags)) is not None:
        return code
    from assay.cli import measuring
    from assay.experiments.run import EXPERIMENT

    flags, options, machine = measuring.plan_run(flags, EXPERIMENT, build_options)
    return measuring.start_run(EXPERIMENT, options, machine, flags)


def build_options(flags: RunFlags, machine: Machine) -> RunOptions:
    """Return the options that the flags mean on this machine."""
    from assay.experiments.run.plan import reference_subjects, repeat_trials
    from assay.machine.devices import kind_of
    from assay.worker.rendezvous import Torchrun, devices_of_ranks

    devices, ranks = flags.choose_devices(machine), rank_count(flags.ranks)
    if ranks > 1:
        devices = devices_of_ranks(devices, Torchrun.from_environment())
    kind = kind_of(devices[0])
    flags.refuse_cold_cache(kind)
    chosen = build_subjects(flags, kind, ranks)
    exact = {} if flags.benchmark_runs is None else {"restarts": 1}
    options = flags.fill(
        RunOptions,
        {**(QUICK if flags.quick else {}), **exact},
        subjects=chosen,
        references=reference_subjects(chosen, kind) if flags.references else (),
        devices=devices,
        ranks=ranks,
    )
    return fit_to_budget(options, flags.budget_s, repeat_trials(options, "repeat-1", 1) * options.repeat)


def rank_count(requested: int | None) -> int:
    """Return how many ranks: as asked, else as many as the torchrun around us has, else one."""
    from assay.worker.rendezvous import Torchrun

    torchrun = Torchrun.from_environment()
    if torchrun is None:
        return requested or 1
    if requested is not None and requested > torchrun.world_size:
        raise BadInput(f"--ranks {requested} is more than the {torchrun.world_size} processes that torchrun started.")
    return requested or torchrun.world_size


def fit_to_budget(options: RunOptions, budget_s: float | None, trials: tuple[Trial, ...]) -> RunOptions:
    """Shorten the trials until all of them fit the budget."""
    from assay.experiments.run.plan import max_start_up_s

    if budget_s is None:
        return options
    beside_s = sum(max_start_up_s(trial) + trial.cooldown_s for trial in trials)
    each_s = (budget_s - beside_s) / len(trials)
    if each_s < SHORTEST_TRIAL_S:
        least = beside_s + len(trials) * SHORTEST_TRIAL_S
        raise BadInput(
            f"--budget {budget_s:g} s is too short: {len(trials)} trials need at least {least:.1f} s, startup included."
        )
    return options.model_copy(update={"duration_s": min(options.duration_s, each_s)})


def build_subjects(flags: RunFlags, device_kind: str, ranks: int = 1) -> tuple[Subject, ...]:
    """Return what is to be timed: named workloads, or the command behind ``--``."""
    from assay.workloads import registry

    names, command_line = flags.named_workloads(), flags.line.after_dashes
    if command_line:
        if names or flags.params:
            raise BadInput("Name either workloads or a command after --, not both.")
        return (checked_command_subject(command_line, flags.metrics),)
    if not names:
        raise BadInput("Nothing to run: name a workload (`assay list` shows them), a file.py:function, or -- COMMAND.")
    if flags.metrics:
        raise BadInput("--metric needs a command: add -- COMMAND.")
    params = cli.parse_assignments(flags.params)
    chosen = [registry.resolve_subject(name, device_kind=device_kind, explicit=params, ranks=ranks) for name in names]
    return tuple({(s.workload, s.impl): s for s in chosen}.values())


def checked_command_subject(command_line: tuple[str, ...], metrics: tuple[str, ...]) -> Subject:
    """Return a command as a subject, having made sure that it can be started and its metrics read."""
    import shutil

    if shutil.which(command_line[0]) is None:
        raise BadInput(f"Command {command_line[0]!r} not found; check its name and PATH.")
    return subject_from_command(command_line, metrics)


def subject_from_command(command_line: tuple[str, ...], metrics: tuple[str, ...]) -> Subject:
    """Return a command as a subject, having made sure that its metrics can be read."""
    import shlex

    from assay.core.values import Command, Metric, Subject
    from assay.workloads.command import read_metric

    read = [read_metric(text) for text in metrics]
    twice = {name for name, _ in read if [n for n, _ in read].count(name) > 1}
    if twice:
        raise BadInput(f"--metric {', '.join(sorted(twice))} is given more than once; use each name once.")
    return Subject(
        workload=shlex.join(command_line),
        impl="command",
        command=Command(argv=command_line, metrics=tuple(Metric(name=name, pattern=p) for name, p in read)),
    )
