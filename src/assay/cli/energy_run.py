"""``assay energy run``: joules, watts and time per token of a model or a server, prefill and decode separately.

Its options, and its dry run.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from assay.cli import flags as cli
from assay.cli.energy_reporters import ReporterFiles, check_folder, reporter_hook
from assay.cli.host_flags import HostFlags, dispatch_remote
from assay.core.errors import BadInput, MachineCannot
from assay.core.format import MAX_REPEATS, format_bytes
from assay.core.values import Isolation

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pydantic import JsonValue

    from assay.experiments.energy.config import EnergyConfig
    from assay.experiments.energy.config_file import ConfigOverride
    from assay.experiments.energy.options import EnergyOptions
    from assay.experiments.file_locator import KeyPath
    from assay.machine.model import Machine


class EnergyRunFlags(cli.ExperimentFlags, HostFlags):
    """What `assay energy run` can be asked for."""

    config: str | None = cli.argument("[CONFIG.yaml]")
    model: str | None = cli.what_flag(metavar="NAME", help="Model: random:llama-1b, a folder, or a hub id.")
    sets: tuple[str, ...] = cli.what_flag(
        "--set", default=(), metavar="KEY=VALUE", help="Override a value: backend.device_ids=[0,1]."
    )
    gpus: tuple[str, ...] = cli.what_flag(
        default=(), item=r"\d+|GPU-\S+", metavar="0,1", help="GPUs to run on, or of the server to meter."
    )
    device: Literal["auto", "cuda", "cpu"] | None = cli.what_flag(
        shown="from the file, or auto", help="Device of the model."
    )
    allow_missing: bool = cli.what_flag(default=False, help="Continue without missing GPUs if at least one is present.")
    repeat: int | None = cli.how_flag(ge=1, le=MAX_REPEATS, shown="from the file, or 3", help="Fresh processes.")
    budget_s: float | None = cli.how_flag(gt=0, help="Total time; starts nothing that would not fit.")
    isolation: Isolation | None = cli.how_flag(
        parse=cli.parse_isolation, metavar="LEVEL", shown="gpu; none on a CPU", help="none, gpu, cpu, numa or full."
    )
    timeout_s: float = cli.timeout_flag(600.0)
    seed: int | None = cli.how_flag(shown="from the file, or 0", help="Random seed.")
    quick: bool = cli.how_flag(
        default=False, help="Quick first look: one process, windows of 2s (0.5s on a CPU), smallest sizes."
    )
    reports: bool = cli.output_flag(default=True, help="Write the reports named in the file.")
    output_dir: Path | None = cli.output_flag(shown="from the file, or runs", help="Folder for run folders.")


@cli.verb("energy run", EnergyRunFlags)
def measure_energy(flags: EnergyRunFlags) -> int:
    """Measure joules per token of a local model or of an OpenAI-compatible server.

    CONFIG.yaml describes the backend, scenario, metrics and reporter; `assay energy check` writes one that fits this
    machine. Without a file, --model is enough.

        assay energy run --quick --model random:llama-tiny
        assay energy run examples/pytorch_single.yaml
        assay energy run examples/pytorch_multigpu.yaml --set scenario.repeats=5
        assay energy run examples/openai_server.yaml --gpus 0 --dry-run
    """
    from assay.cli import measuring
    from assay.experiments.energy import EXPERIMENT

    if (code := dispatch_remote(flags, reporter_hook(reports=flags.reports))) is not None:
        return code
    flags, options, machine = measuring.plan_run(flags, EXPERIMENT, build_options)
    for note in options.notes:
        click.echo(f"Note: {note}.", err=True)
    folder = flags.output_dir or Path(options.config.output_dir or "runs")
    check_folder(folder)
    reporters = ReporterFiles.prepared(options.config.reporter if flags.reports else ())
    if flags.dry_run:
        return show_energy_dry_run(options, machine, as_json=flags.as_json)
    monitored = flags.model_copy(update={"output_dir": folder, "monitor": options.monitored})
    return measuring.start_run(EXPERIMENT, options, machine, monitored, afterwards=reporters.write)


CONFIG_PATHS = {
    "model": ("backend", "model"),
    "device": ("backend", "device"),
    "repeat": ("scenario", "repeats"),
    "seed": ("scenario", "seed"),
}
"""Flags that change a value of the configuration."""
SIZES = ("batch_sizes", "input_tokens", "output_tokens", "concurrency")
QUICK_WINDOW_S, QUICK_WINDOW_UNMETERED_S = 2.0, 0.5
CPU_DEFAULTS = {"scenario": {"input_tokens": 64, "output_tokens": 16}}
"""Without a file: as much as a processor computes while one waits."""


def build_options(flags: EnergyRunFlags, machine: Machine) -> EnergyOptions:
    """Return what file and flags mean on this machine."""
    from assay.experiments.energy.config_file import parse_overrides, read_config
    from assay.experiments.energy.options import build_energy_options, resolve_available_gpus
    from assay.machine.nvidia import smoke_test
    from assay.worker.rendezvous import Torchrun

    path, model = config_or_model(flags.config, flags.model)
    overrides = [*_flag_overrides(flags), *([] if model is None else [model])]
    on_cpu = flags.device == "cpu" or not machine.gpus
    defaults = CPU_DEFAULTS if path is None and on_cpu else None
    config, notes = read_config(path, flags.sets, flags=overrides, defaults=defaults)
    if flags.gpus:
        overrides.append(_gpu_override(config, machine, flags.gpus))
        config, notes = read_config(path, flags.sets, flags=overrides, defaults=defaults)
    if flags.quick:
        overridden = {override.steps for override in parse_overrides(flags.sets, overrides)}
        config = quick_config(config, overridden, metered=bool(config.gpus or machine.gpus))
    _validate_generate_kwargs(config)
    config, availability_notes = resolve_available_gpus(config, machine, smoke_test, allow_missing=flags.allow_missing)
    torchrun = Torchrun.from_environment()
    make_options = partial(
        build_energy_options,
        config,
        machine,
        isolation=flags.isolation,
        longer=not flags.quick,
        budget_s=flags.budget_s,
        timeout_s=flags.timeout_s,
        retakes=flags.retakes,
        on_interference=flags.on_interference,
        nodes=1 if torchrun is None else torchrun.nodes,
    )
    options = make_options(notes=(*notes, *availability_notes))
    sensor_notes = () if flags.dry_run else characterize_sensors(options, machine)
    return options if sensor_notes is None else make_options(notes=(*notes, *availability_notes, *sensor_notes))


def _validate_generate_kwargs(config: EnergyConfig) -> None:
    """Refuse settings of a generation that only transformers can tell of, before anything is loaded."""
    from assay.worker.probes import check_generate_kwargs
    from assay.workloads.generation.params import unusual_settings

    settings = config.scenario.generate_kwargs
    if (
        config.backend.type == "pytorch"
        and unusual_settings(settings)
        and (why := check_generate_kwargs(settings)) is not None
    ):
        raise BadInput(f"scenario: {why}")


def characterize_sensors(options: EnergyOptions, machine: Machine) -> tuple[str, ...] | None:
    """Fit models of sensors that have none yet; return what failed. Null: there is nothing to fit.

    A server has its GPUs in use, and a fake's sensors are what a test says they are.
    """
    from assay.worker.probes import fit_gpu_sensors, gpus_without_model

    if not options.on_gpu or not options.monitored or machine.has_fake_driver:
        return None
    new = gpus_without_model([gpu for gpu in machine.gpus if f"cuda:{gpu.index}" in options.gpus], machine.driver)
    notes = []
    for gpu in new:
        click.echo(f"Looking at how the sensors of GPU {gpu.index} see; once for each GPU and driver …", err=True)
        if (reason := fit_gpu_sensors(gpu)) is not None:
            notes.append(f"how the sensors of GPU {gpu.index} see is not known, so that intervals are wide: {reason}")
    return tuple(notes) if new else None


def config_or_model(config: str | None, model: str | None) -> tuple[Path | None, ConfigOverride | None]:
    """Return the file, and the model that stands where the file does; null: there is none such."""
    from assay.experiments.energy.config_file import ConfigOverride
    from assay.workloads.generation.models import is_random

    if config is None and model is None:
        raise BadInput(
            "Nothing to measure: name a CONFIG.yaml (`assay energy check -o energy.yaml` writes one that fits this "
            "machine), or a model, as --model random:llama-tiny."
        )
    if config is not None and not config.strip():
        raise BadInput("The name of the configuration, or of the model, is empty.")
    if config is None or not (is_random(config) or Path(config).is_dir()):
        return None if config is None else Path(config), None
    if model is not None:
        raise BadInput(f"{config} and --model {model} both name a model; give only one.")
    return None, ConfigOverride(CONFIG_PATHS["model"], config, config)


def _flag_overrides(flags: EnergyRunFlags) -> list[ConfigOverride]:
    """Return what flags say, each as it was typed."""
    from assay.experiments.energy.config_file import ConfigOverride

    values = {"model": flags.model, "device": flags.device, "repeat": flags.repeat, "seed": flags.seed}
    return [
        ConfigOverride(CONFIG_PATHS[name], value, shlex.join([f"--{name}", str(value)]))
        for name, value in values.items()
        if value is not None
    ]


def _gpu_override(config: EnergyConfig, machine: Machine, words: Sequence[str]) -> ConfigOverride:
    """Return the GPUs that --gpus names, in the place that it means: to compute on, or a server's, to meter."""
    from assay.experiments.energy.config_file import ConfigOverride
    from assay.experiments.energy.options import computes_on_gpus

    named_there = config.backend.device_ids is not None and config.metrics.gpus is None
    config_path = ("backend", "device_ids") if computes_on_gpus(config) or named_there else ("metrics", "gpus")
    return ConfigOverride(config_path, list(gpu_indices(machine, words)), f"--gpus {','.join(words)}")


def gpu_indices(machine: Machine, words: Sequence[str]) -> list[int]:
    """Return GPUs by their numbers, which may be named by their UUIDs."""
    from assay.machine.devices import choose_devices

    if all(word.isdecimal() for word in words):
        return [int(word) for word in words]
    return [int(device.removeprefix("cuda:")) for device in choose_devices(machine, gpus=tuple(words), environment={})]


def quick_config(config: EnergyConfig, overridden: Collection[KeyPath], *, metered: bool) -> EnergyConfig:
    """Return a configuration for a quick first look, metered or not; overridden values stay."""
    changes: dict[str, Any] = {
        "repeats": 1,
        "window_s": QUICK_WINDOW_S if metered and config.metrics.enabled else QUICK_WINDOW_UNMETERED_S,
        **{name: (min(getattr(config.scenario, name)),) for name in SIZES},
    }
    changes = {name: value for name, value in changes.items() if ("scenario", name) not in overridden}
    return config.model_copy(update={"scenario": config.scenario.model_copy(update=changes)})


def show_energy_dry_run(options: EnergyOptions, machine: Machine, *, as_json: bool) -> int:
    """Show the first block; return 3 if the model cannot be loaded here or every cell is skipped, 2 for bad input."""
    from assay.cli import measuring
    from assay.experiments.energy import EXPERIMENT

    fit = model_fit(options, machine)
    missing = skipped_cells(options, fit)
    extra: dict[str, JsonValue] = {"foreseen": fit or None, "left_out": dict.fromkeys(missing.cells, missing.why)}
    measuring.show_dry_run(EXPERIMENT, options, machine, as_json=as_json, extra=extra)
    if not as_json:
        for line in (*model_fit_lines(fit), *missing.in_words()):
            click.echo(line)
    return int(fit.get("exit_code", 0)) or (MachineCannot.exit_code if missing.everything else 0)


@dataclass(frozen=True)
class SkippedCells:
    """Cells that this machine cannot measure, and why; ``everything``: no others are asked for."""

    cells: tuple[str, ...] = ()
    why: str = ""
    everything: bool = False

    def in_words(self) -> list[str]:
        """Return it for people, in lines."""
        return [f"Left out: {cell}: {self.why}." for cell in self.cells]


def skipped_cells(options: EnergyOptions, fit: Mapping[str, Any]) -> SkippedCells:
    """Return the cells of graphs where a graph cannot be: on a CPU, or with parts of the model in several places."""
    from assay.experiments.energy.plan import list_cells

    cells = list_cells(options.config)
    graphs = tuple(cell.name for cell in cells if cell.mode == "graphs")
    if not options.on_gpu:
        why = "CUDA graphs need a GPU"
    elif options.ranks > 1 or len(fit.get("weights_bytes") or ()) > 1:
        why = "a CUDA graph is of one GPU, and the model would lie on more than that"
    else:
        return SkippedCells()
    return SkippedCells(graphs, why, len(graphs) == len(cells)) if graphs else SkippedCells()


def model_fit(options: EnergyOptions, machine: Machine) -> dict[str, Any]:
    """Return what is foreseen of the largest cell; nothing of a server, whose memory is its own affair."""
    from assay.experiments.energy.plan import build_generation, list_cells
    from assay.worker.probes import query_model_fit

    if options.is_server:
        return {}
    largest = max(list_cells(options.config), key=lambda cell: cell.batch * (cell.input_tokens + cell.output_tokens))
    uuids = {f"cuda:{gpu.index}": gpu.uuid for gpu in machine.gpus}
    gpus = [uuids[device] for device in options.gpus if device in uuids] if options.on_gpu else []
    fit = query_model_fit(build_generation(options, largest, "whole").as_params(), options.devices[0], gpus)
    return {**fit, "cell": largest.name}


def model_fit_lines(fit: Mapping[str, Any]) -> list[str]:
    """Return it for people, in lines."""
    if not fit:
        return []
    if "refused" in fit:
        return [f"It would not be loaded: {fit['refused']}"]
    if "sizes" not in fit:
        return [f"Whether it fits is not known: {fit.get('error', 'nothing was answered')}."]
    sizes = fit["sizes"]
    what = f"{_format_count(sizes['parameters'])} parameters in {sizes['dtype']}"
    takes = (
        f"{format_bytes(sizes['weights_bytes'])} of weights, about {format_bytes(fit['needs_bytes'])} for {fit['cell']}"
    )
    lines = [f"{sizes['model']}: {what}, {takes}"]
    lines += [f"  {device}: {format_bytes(size)} of weights" for device, size in (fit["weights_bytes"] or {}).items()]
    return [*lines, *(f"  note: {note}" for note in fit["notes"])]


def _format_count(count: float) -> str:
    for size, word in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if count >= size:
            return f"{count / size:.3g} {word}"
    return f"{count:g}"
