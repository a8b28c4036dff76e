"""``assay power characterize``: kernels, power, clocks and temperature of every GPU, case by case."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.fleet import dispatch_fleet, fleet_options
from assay.cli.params import (
    COUNT,
    Duration,
    device_options,
    how_to_measure,
    min_effect_option,
    run_options,
    verb,
    what_to_measure,
    worker_options,
)
from assay.core.errors import BadInput, suggest_nearest

if TYPE_CHECKING:
    from assay.experiments.power.characterize.options import CaseSpec, CharacterizeOptions
    from assay.machine.model import Machine

QUICK_DURATION_S, QUICK_SETTLE_S = 2.0, 10.0


@verb("characterize")
@click.argument("cases", metavar="[CASES.yaml]", required=False, type=click.Path(path_type=Path))
@what_to_measure
@click.option("--case", "names", multiple=True, metavar="NAME", help="Only these cases; * is a wildcard.")
@device_options()
@how_to_measure
@click.option("--repeat", type=COUNT, help="Repetitions.  [default: from the file, or 3]")
@click.option("--duration", type=Duration(), help="Time per trial.  [default: from the file, or 20s]")
@click.option("--settle", type=Duration(), help="Settle at most this long.  [default: from the file, or 2m]")
@click.option("--no-settle", is_flag=True, help="Do not wait for steady clocks and temperature.")
@click.option("--restarts", type=COUNT, help="Fresh processes.  [default: from the file, or 1]")
@click.option("--rotate/--no-rotate", default=None, help="Time every GPU in turn.  [default: rotate]")
@click.option("--budget", type=Duration(), help="Total time; shortens trials, drops repeats.")
@min_effect_option("1%")
@click.option("--quick", is_flag=True, help="Quick first look: once, 2s per trial, 10s to settle, no rotation.")
@worker_options()
@run_options
@fleet_options
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> int:
    """Sample power, clocks and temperature while kernels run: alone, concurrently, and under contention.

    Without a file the cases are idle, sgemm on 1 to 4 GPUs, and sgemm concurrently with training, copies and both.

    \b
    assay power characterize
    assay power characterize --quick --device cpu
    assay power characterize my_cases.yaml --case 'sgemm*' --gpus 0,1 --repeat 5
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    if (code := dispatch_fleet(ctx, flags)) is not None:
        return code
    from assay.cli import dry_run, measuring, options_file
    from assay.experiments.power.characterize import EXPERIMENT
    from assay.experiments.power.characterize.options import skipped_reasons
    from assay.machine.detect import detect

    if flags["file"] is not None:
        flags = options_file.merge_options_file(ctx, flags, flags["file"], EXPERIMENT)
    machine = detect(name_host=flags["name_host"])
    options = flags["options"] if "options" in flags else build_options(flags, machine)
    if flags["dry_run"]:
        dry_run.show_dry_run(EXPERIMENT, options, machine, as_json=flags["as_json"])
        if not flags["as_json"]:
            for name, reason in skipped_reasons(machine, options).items():
                click.echo(f"Skipped: {name}: {reason}.")
        return 0
    return measuring.start_run(EXPERIMENT, options, machine, options.seed, flags)


def build_options(flags: dict[str, Any], machine: Machine) -> CharacterizeOptions:
    """Return the options that file and flags mean on this machine; anything that makes no sense is said here."""
    from assay.core.format import format_duration
    from assay.experiments.power.characterize.options import fit_budget, read_cases, resolve_options
    from assay.isolation.devices import choose_devices, kind_of
    from assay.isolation.placement import parse_level

    if flags["settle"] is not None and flags["no_settle"]:
        raise BadInput("--settle and --no-settle exclude each other; give one.")
    devices = choose_devices(machine, gpus=flags["gpus"], devices=flags["devices"], cpu_groups=flags["cpu_groups"])
    cases = select_cases(read_cases(flags["cases"] or packaged_cases()), flags["names"])
    options = resolve_options(
        machine,
        [apply_flags(case, flags, kind_of(devices[0])) for case in cases],
        devices=devices,
        source=str(flags["cases"]) if flags["cases"] is not None else None,
        isolation=parse_level(flags["isolation"]),
        minimum_effect=flags["min_effect"],
        budget_s=flags["budget"],
        on_interference=flags["on_interference"],
        timeout_s=flags["timeout"],
        cpu_groups=flags["cpu_groups"],
        retakes=flags["retakes"],
        seed=flags["seed"],
    )
    fitting, share = fit_budget(machine, options)
    if share < 1:
        message = f"Timing and settling are shortened to {share:.0%}, so that one repeat fits"
        click.echo(f"{message} --budget {format_duration(flags['budget'])}.", err=True)
    return fitting


def packaged_cases() -> Path:
    """Return the case file that comes with Assay."""
    from assay.experiments import power

    return Path(str(power.__file__)).with_name("cases.yaml")


def select_cases(cases: tuple[CaseSpec, ...], names: tuple[str, ...]) -> list[CaseSpec]:
    """Return the cases that are asked for by name or pattern; all where none is."""
    from fnmatch import fnmatchcase

    for name in names:
        if not any(fnmatchcase(case.name.lower(), name.lower()) for case in cases):
            case_names = [case.name for case in cases]
            raise BadInput(
                f"--case {name!r} does not exist; there are {', '.join(case_names)}.{suggest_nearest(name, case_names)}"
            )
    return [c for c in cases if not names or any(fnmatchcase(c.name.lower(), name.lower()) for name in names)]


def apply_flags(case: CaseSpec, flags: dict[str, Any], kind: str) -> CaseSpec:
    """Return a case as the flags change it; groups of cores have nothing that could be seen to be steady."""
    quick = flags["quick"]
    settle_s = 0.0 if kind == "cpu" or flags["no_settle"] else QUICK_SETTLE_S if quick else case.settle_s
    changes = {
        "repeats": flags["repeat"] or (1 if quick else case.repeats),
        "duration_s": flags["duration"] or (QUICK_DURATION_S if quick else case.duration_s),
        "settle_s": flags["settle"] if flags["settle"] is not None else settle_s,
        "restarts": flags["restarts"] or case.restarts,
        "rotate": flags["rotate"] if flags["rotate"] is not None else case.rotate and not quick,
    }
    return case.model_copy(update=changes)
