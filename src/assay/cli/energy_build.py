"""From the words of ``assay energy run`` to what is measured here; anything that makes no sense is said here."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from assay.experiments.energy.config import EnergyConfig
    from assay.experiments.energy.options import EnergyOptions
    from assay.experiments.energy.overrides import Override
    from assay.experiments.file_lines import Steps
    from assay.machine.model import Machine

FLAGS = {
    "model": ("backend", "model"),
    "device": ("backend", "device"),
    "repeat": ("scenario", "repeats"),
    "seed": ("scenario", "seed"),
}
"""Flags that change a place of the configuration."""
SIZES = ("batch_sizes", "input_tokens", "output_tokens", "concurrency")
QUICK_WINDOW_S, QUICK_WINDOW_UNMETERED_S = 2.0, 0.5
ON_A_CPU = {"scenario": {"input_tokens": 64, "output_tokens": 16}}
"""Without a file: as much as a processor computes while one waits."""


def build(given: Mapping[str, Any], machine: Machine) -> EnergyOptions:
    """Return what file and flags mean on this machine."""
    from assay.experiments.energy.availability import available
    from assay.experiments.energy.options import options_of
    from assay.experiments.energy.overrides import parsed
    from assay.experiments.energy.reading import read_config
    from assay.isolation.allot import parse_level
    from assay.machine.nvidia import touch
    from assay.worker.rendezvous import Torchrun

    path, model = named(given["config"], given["model"])
    overrides = [*_flags(given), *([] if model is None else [model])]
    on_cpu = given["device"] == "cpu" or not machine.gpus
    defaults = ON_A_CPU if path is None and on_cpu else None
    config, notes = read_config(path, given["sets"], flags=overrides, defaults=defaults)
    if given["gpus"]:
        overrides.append(_gpus(config, machine, given["gpus"]))
        config, notes = read_config(path, given["sets"], flags=overrides, defaults=defaults)
    if given["quick"]:
        overridden = {override.steps for override in parsed(given["sets"], overrides)}
        config = quickly(config, overridden, metered=bool(config.gpus or machine.gpus))
    _understood(config)
    config, availability_notes = available(config, machine, touch, allow_missing=given["allow_missing"])
    torchrun = Torchrun.found()
    make_options = partial(
        options_of,
        config,
        machine,
        isolation=None if given["isolation"] is None else parse_level(given["isolation"]),
        longer=not given["quick"],
        budget_s=given["budget"],
        timeout_s=given["timeout"],
        retakes=given["retakes"],
        strangers=given["strangers"],
        nodes=1 if torchrun is None else torchrun.nodes,
    )
    options = make_options(notes=(*notes, *availability_notes))
    sensor_notes = () if given.get("dry_run") else sensed(options, machine)
    return options if sensor_notes is None else make_options(notes=(*notes, *availability_notes, *sensor_notes))


def _understood(config: EnergyConfig) -> None:
    """Refuse settings of a generation that only transformers can tell of, before anything is loaded."""
    from assay.worker.understand import ask
    from assay.workloads.generation.usual import unusual

    settings = config.scenario.generate_kwargs
    if config.backend.type == "pytorch" and unusual(settings) and (why := ask(settings)) is not None:
        raise BadInput(f"scenario: {why}")


def sensed(options: EnergyOptions, machine: Machine) -> tuple[str, ...] | None:
    """Look at sensors that nobody has looked at yet; return what did not work. Null: there is nothing to look at.

    A server has its GPUs in use, and a fake's sensors are what a test says they are.
    """
    from assay.worker.sensing import look_at, unseen

    if not options.on_gpu or not options.monitored or machine.has_fake_driver:
        return None
    new = unseen([gpu for gpu in machine.gpus if f"cuda:{gpu.index}" in options.gpus], machine.driver)
    notes = []
    for gpu in new:
        click.echo(f"Looking at how the sensors of GPU {gpu.index} see; once for each GPU and driver …", err=True)
        if (reason := look_at(gpu)) is not None:
            notes.append(f"how the sensors of GPU {gpu.index} see is not known, so that intervals are wide: {reason}")
    return tuple(notes) if new else None


def named(config: str | None, model: str | None) -> tuple[Path | None, Override | None]:
    """Return the file, and the model that stands where the file does; null: there is none such."""
    from assay.experiments.energy.overrides import Override
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
        raise BadInput(f"{config} and --model {model} are two models; name one.")
    return None, Override(FLAGS["model"], config, config)


def _flags(given: Mapping[str, Any]) -> list[Override]:
    """Return what flags say, each as it was typed."""
    from assay.experiments.energy.overrides import Override

    flags_used = {flag: given[flag] for flag in FLAGS if given[flag] is not None}
    return [Override(FLAGS[flag], value, shlex.join([f"--{flag}", str(value)])) for flag, value in flags_used.items()]


def _gpus(config: EnergyConfig, machine: Machine, words: Sequence[str]) -> Override:
    """Return the GPUs that --gpus names, in the place that it means: to compute on, or a server's, to meter."""
    from assay.experiments.energy.availability import computes
    from assay.experiments.energy.overrides import Override

    named_there = config.backend.device_ids is not None and config.metrics.gpus is None
    config_path = ("backend", "device_ids") if computes(config) or named_there else ("metrics", "gpus")
    return Override(config_path, list(numbers(machine, words)), f"--gpus {','.join(words)}")


def numbers(machine: Machine, words: Sequence[str]) -> list[int]:
    """Return GPUs by their numbers, which may be named by their UUIDs."""
    from assay.isolation.devices import choose

    if all(word.isdecimal() for word in words):
        return [int(word) for word in words]
    return [int(device.removeprefix("cuda:")) for device in choose(machine, gpus=tuple(words), environment={})]


def quickly(config: EnergyConfig, said: Collection[Steps], *, metered: bool) -> EnergyConfig:
    """Return a configuration for a first look, on GPUs that are metered or without; places that were said stay."""
    changes: dict[str, Any] = {
        "repeats": 1,
        "window_s": QUICK_WINDOW_S if metered and config.metrics.enabled else QUICK_WINDOW_UNMETERED_S,
        **{name: (min(getattr(config.scenario, name)),) for name in SIZES},
    }
    changes = {name: value for name, value in changes.items() if ("scenario", name) not in said}
    return config.model_copy(update={"scenario": config.scenario.model_copy(update=changes)})
