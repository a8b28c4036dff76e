"""``assay power characterize``: kernels, watts, clocks and heat of every GPU, case by case."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.params import COUNT, PROCESSES, Duration, Fraction, Listed, minding_strangers, retaking, verb, watching
from assay.cli.power_fleet import fleeted, sent
from assay.cli.run import DEVICE, GPU
from assay.core.errors import BadInput, nearest

if TYPE_CHECKING:
    from assay.experiments.power.cases import Wanted
    from assay.experiments.power.characterize.options import CharacterizeOptions
    from assay.machine.model import Machine

QUICK_DURATION_S, QUICK_SETTLE_S = 2.0, 10.0


@verb("characterize")
@click.argument("cases", metavar="[CASES.yaml]", required=False, type=click.Path(path_type=Path))
@click.option("--case", "names", multiple=True, metavar="NAME", help="Only these of its cases; * stands for anything.")
@click.option("--gpus", cls=Listed, item=GPU, metavar="0,1", help="Which GPUs, by number or UUID.  [default: all]")
@click.option("--device", "devices", cls=Listed, item=DEVICE, metavar="cpu", help="cpu, cpu:0, cuda:1.")
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
@minding_strangers
@retaking
@watching
@click.option("--timeout", type=Duration(), default="120", show_default=True, help="For a worker to answer.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--quick", is_flag=True, help="A first look: once, 2 s a trial, 10 s to settle, no turns.")
@click.option("--options", "file", type=click.Path(path_type=Path), help="Options from a YAML or JSON file.")
@click.option("--output-dir", type=click.Path(path_type=Path), default="runs", show_default=True)
@click.option("--name-host", is_flag=True, help="Write the host's name into machine.json.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured, and measure nothing.")
@fleeted
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> int:
    """Time kernels under continuous sampling, case by case: alone, at once, beside noise, near and far.

    Without a file the cases are idleness, sgemm on 1 to 4 GPUs, and sgemm beside training, copying and all of it.

    \b
    assay power characterize
    assay power characterize --quick --device cpu
    assay power characterize my_cases.yaml --case 'sgemm*' --gpus 0,1 --repeat 5
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    if (code := sent(ctx, given)) is not None:
        return code
    from assay.cli import dry_run, measure, options_file
    from assay.experiments.power.characterize import EXPERIMENT
    from assay.experiments.power.characterize.fitting import reasons
    from assay.machine.detect import detect

    if given["file"] is not None:
        given = options_file.merged(ctx, given, given["file"], EXPERIMENT)
    machine = detect(name_host=given["name_host"])
    options = given["options"] if "options" in given else build(given, machine)
    if given["dry_run"]:
        dry_run.show(EXPERIMENT, options, machine, as_json=given["as_json"])
        if not given["as_json"]:
            for name, reason in reasons(machine, options).items():
                click.echo(f"Skipped: {name}: {reason}.")
        return 0
    return measure.as_told(EXPERIMENT, options, machine, options.seed, given)


def build(given: dict[str, Any], machine: Machine) -> CharacterizeOptions:
    """Return the options that file and flags mean on this machine; anything that makes no sense is said here."""
    from assay.core.units import format_span
    from assay.experiments.power.cases import read_cases
    from assay.experiments.power.characterize.fitting import optioned, within_budget
    from assay.isolation.allot import parse_level
    from assay.isolation.devices import choose, kind_of

    if given["settle"] is not None and given["no_settle"]:
        raise BadInput("Say either --settle or --no-settle, not both.")
    devices = choose(machine, gpus=given["gpus"], devices=given["devices"], cpu_groups=given["cpu_groups"])
    cases = named(read_cases(given["cases"] or packaged()), given["names"])
    options = optioned(
        machine,
        [as_told(case, given, kind_of(devices[0])) for case in cases],
        devices=devices,
        source=str(given["cases"]) if given["cases"] is not None else None,
        isolation=parse_level(given["isolation"]),
        minimum_effect=given["minimum_effect"],
        budget_s=given["budget"],
        strangers=given["strangers"],
        timeout_s=given["timeout"],
        cpu_groups=given["cpu_groups"],
        retakes=given["retakes"],
        seed=given["seed"],
    )
    fitting, share = within_budget(machine, options)
    if share < 1:
        message = f"Timing and settling are shortened to {share:.0%}, so that one repeat fits"
        click.echo(f"{message} --budget {format_span(given['budget'])}.", err=True)
    return fitting


def packaged() -> Path:
    """Return the case file that comes with Assay."""
    import assay.experiments.power as room

    return Path(str(room.__file__)).with_name("cases.yaml")


def named(cases: tuple[Wanted, ...], names: tuple[str, ...]) -> list[Wanted]:
    """Return the cases that are asked for by name or pattern; all where none is."""
    from fnmatch import fnmatchcase

    for name in names:
        if not any(fnmatchcase(case.name.lower(), name.lower()) for case in cases):
            case_names = [case.name for case in cases]
            raise BadInput(f"There is no case {name!r}; there are {', '.join(case_names)}.{nearest(name, case_names)}")
    return [c for c in cases if not names or any(fnmatchcase(c.name.lower(), name.lower()) for name in names)]


def as_told(wanted: Wanted, given: dict[str, Any], kind: str) -> Wanted:
    """Return a case as the flags change it; groups of cores have nothing that could be seen to be steady."""
    quick = given["quick"]
    settle_s = 0.0 if kind == "cpu" or given["no_settle"] else QUICK_SETTLE_S if quick else wanted.settle_s
    changes = {
        "repeats": given["repeat"] or (1 if quick else wanted.repeats),
        "duration_s": given["duration"] or (QUICK_DURATION_S if quick else wanted.duration_s),
        "settle_s": given["settle"] if given["settle"] is not None else settle_s,
        "restarts": given["restarts"] or wanted.restarts,
        "rotate": given["rotate"] if given["rotate"] is not None else wanted.rotate and not quick,
    }
    return wanted.model_copy(update=changes)
