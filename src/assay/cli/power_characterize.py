"""``assay power characterize``: kernels, power, clocks and temperature of every GPU, case by case."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.fleet import dispatch_fleet, fleet_options
from assay.cli.params import (
    COUNT,
    PROCESSES,
    Duration,
    Fraction,
    ListOption,
    interference_option,
    monitor_options,
    retake_option,
    verb,
)
from assay.cli.run import DEVICE, GPU
from assay.core.errors import BadInput, suggest_nearest

if TYPE_CHECKING:
    from assay.experiments.power.cases import CaseSpec
    from assay.experiments.power.characterize.options import CharacterizeOptions
    from assay.machine.model import Machine

QUICK_DURATION_S, QUICK_SETTLE_S = 2.0, 10.0


@verb("characterize")
@click.argument("cases", metavar="[CASES.yaml]", required=False, type=click.Path(path_type=Path))
@click.option("--case", "names", multiple=True, metavar="NAME", help="Only these of its cases; * stands for anything.")
@click.option("--gpus", cls=ListOption, item=GPU, metavar="0,1", help="Which GPUs, by number or UUID.  [default: all]")
@click.option("--device", "devices", cls=ListOption, item=DEVICE, metavar="cpu", help="cpu, cpu:0, cuda:1.")
@click.option("--cpu-groups", type=PROCESSES, help="Groups the cores are parted into.  [default: 2]")
@click.option("--repeat", type=COUNT, help="How often all cases.  [default: as the file says, or 3]")
@click.option("--duration", type=Duration(), help="Timed per trial.  [default: as the file says, or 20 s]")
@click.option("--settle", type=Duration(), help="At most, until steady.  [default: as the file says, or 2 min]")
@click.option("--no-settle", is_flag=True, help="Do not wait until clocks and heat are steady.")
@click.option("--restarts", type=COUNT, help="Fresh workers per trial.  [default: as the file says, or 1]")
@click.option("--rotate/--no-rotate", default=None, help="Every GPU has its turn to be timed.  [default: it has]")
@click.option("--budget", type=Duration(), help="For the whole run: shortens trials, and ends between repeats.")
@click.option("--minimum-effect", type=Fraction(), default="1%", show_default=True, help="What is smaller counts not.")
@click.option("--isolation", default="full", show_default=True, help="none, gpu, cpu, numa or full.")
@interference_option
@retake_option
@monitor_options
@click.option("--timeout", type=Duration(), default="120", show_default=True, help="For a worker to answer.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--quick", is_flag=True, help="A first look: once, 2 s a trial, 10 s to settle, no turns.")
@click.option("--options", "file", type=click.Path(path_type=Path), help="Options from a YAML or JSON file.")
@click.option("--output-dir", type=click.Path(path_type=Path), default="runs", show_default=True)
@click.option("--name-host", is_flag=True, help="Write the host's name into machine.json.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured, and measure nothing.")
@fleet_options
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> int:
    """Time kernels under continuous sampling, case by case: alone, at once, beside noise, near and far.

    Without a file the cases are idleness, sgemm on 1 to 4 GPUs, and sgemm beside training, copying and all of it.

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
    from assay.core.units import format_duration
    from assay.experiments.power.cases import read_cases
    from assay.experiments.power.characterize.options import fit_budget, resolve_options
    from assay.isolation.devices import choose_devices, kind_of
    from assay.isolation.placement import parse_level

    if flags["settle"] is not None and flags["no_settle"]:
        raise BadInput("Say either --settle or --no-settle, not both.")
    devices = choose_devices(machine, gpus=flags["gpus"], devices=flags["devices"], cpu_groups=flags["cpu_groups"])
    cases = select_cases(read_cases(flags["cases"] or packaged_cases()), flags["names"])
    options = resolve_options(
        machine,
        [apply_flags(case, flags, kind_of(devices[0])) for case in cases],
        devices=devices,
        source=str(flags["cases"]) if flags["cases"] is not None else None,
        isolation=parse_level(flags["isolation"]),
        minimum_effect=flags["minimum_effect"],
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
    from assay.experiments import power as room

    return Path(str(room.__file__)).with_name("cases.yaml")


def select_cases(cases: tuple[CaseSpec, ...], names: tuple[str, ...]) -> list[CaseSpec]:
    """Return the cases that are asked for by name or pattern; all where none is."""
    from fnmatch import fnmatchcase

    for name in names:
        if not any(fnmatchcase(case.name.lower(), name.lower()) for case in cases):
            case_names = [case.name for case in cases]
            raise BadInput(
                f"There is no case {name!r}; there are {', '.join(case_names)}.{suggest_nearest(name, case_names)}"
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
