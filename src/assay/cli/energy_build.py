"""From the words of ``assay energy run`` to what is measured here; anything that makes no sense is said here."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.experiments.energy.config import EnergyConfig
    from assay.experiments.energy.options import EnergyOptions
    from assay.machine.model import Machine

FLAGS = {"model": "backend.model", "device": "backend.device", "repeat": "scenario.repeats", "seed": "scenario.seed"}
"""Flags that change a place of the configuration."""
SIZES = ("batch_sizes", "input_tokens", "output_tokens", "concurrency")
QUICK_WINDOW_S, QUICK_WINDOW_UNMETERED_S = 2.0, 0.5
ON_A_CPU = {"scenario": {"input_tokens": 64, "output_tokens": 16}}
"""Without a file: as much as a processor computes while one waits."""


def build(given: Mapping[str, Any], machine: Machine) -> EnergyOptions:
    """Return what file and flags mean on this machine."""
    from assay.experiments.energy.availability import available
    from assay.experiments.energy.options import options_of
    from assay.experiments.energy.reading import read_config
    from assay.isolation.allot import parse_level
    from assay.machine.nvidia import touch
    from assay.worker.rendezvous import Torchrun

    path, model = named(given["config"], given["model"])
    sets = [*given["sets"], *_flags({**given, "model": model})]
    on_cpu = given["device"] == "cpu" or not machine.gpus
    defaults = ON_A_CPU if path is None and on_cpu else None
    config, notes = read_config(path, sets, defaults=defaults)
    if given["gpus"]:
        sets.append(f"{_which(config)}=[{','.join(map(str, numbers(machine, given['gpus'])))}]")
        config, notes = read_config(path, sets, defaults=defaults)
    if given["quick"]:
        config = quickly(config, sets, metered=bool(config.gpus or machine.gpus))
    config, seen = available(config, machine, touch, allow_missing=given["allow_missing"])
    place = Torchrun.found()
    planned = partial(
        options_of,
        config,
        machine,
        isolation=None if given["isolation"] is None else parse_level(given["isolation"]),
        longer=not given["quick"],
        budget_s=given["budget"],
        timeout_s=given["timeout"],
        retakes=given["retakes"],
        strangers=given["strangers"],
        nodes=1 if place is None else place.nodes,
    )
    options = planned(notes=(*notes, *seen))
    said = () if given.get("dry_run") else sensed(options, machine)
    return options if said is None else planned(notes=(*notes, *seen, *said))


def sensed(options: EnergyOptions, machine: Machine) -> tuple[str, ...] | None:
    """Look at sensors that nobody has looked at yet; return what did not work. Null: there is nothing to look at.

    A server has its GPUs in use, and a fake's sensors are what a test says they are.
    """
    from assay.worker.sensing import look_at, unseen

    if not options.on_gpu or not options.monitored or machine.has_fake_driver:
        return None
    new = unseen([gpu for gpu in machine.gpus if f"cuda:{gpu.index}" in options.gpus], machine.driver)
    said = []
    for gpu in new:
        click.echo(f"Looking at how the sensors of GPU {gpu.index} see; once for each GPU and driver …", err=True)
        if (why := look_at(gpu)) is not None:
            said.append(f"how the sensors of GPU {gpu.index} see is not known, so that intervals are wide: {why}")
    return tuple(said) if new else None


def named(config: str | None, model: str | None) -> tuple[Path | None, str | None]:
    """Return the file and the model: a model may stand where the file does."""
    from assay.workloads.generation.models import is_random

    if config is None and model is None:
        raise BadInput(
            "Nothing to measure: name a CONFIG.yaml (`assay energy check -o energy.yaml` writes one that fits this "
            "machine), or a model, as --model random:llama-tiny."
        )
    if config is None or not (is_random(config) or Path(config).is_dir()):
        return None if config is None else Path(config), model
    if model is not None:
        raise BadInput(f"{config} and --model {model} are two models; name one.")
    return None, config


def _flags(given: Mapping[str, Any]) -> list[str]:
    return [f"{place}={given[flag]}" for flag, place in FLAGS.items() if given[flag] is not None]


def _which(config: EnergyConfig) -> str:
    """Return the place of the GPUs that --gpus means."""
    from assay.experiments.energy.availability import computes

    return "backend.device_ids" if computes(config) else "metrics.gpus"


def numbers(machine: Machine, words: Sequence[str]) -> list[int]:
    """Return GPUs by their numbers, which may be named by their UUIDs."""
    from assay.isolation.devices import choose

    if all(word.isdecimal() for word in words):
        return [int(word) for word in words]
    return [int(device.removeprefix("cuda:")) for device in choose(machine, gpus=tuple(words), environment={})]


def quickly(config: EnergyConfig, sets: Sequence[str], *, metered: bool) -> EnergyConfig:
    """Return a configuration for a first look, on GPUs that are metered or without; what was said by ``sets`` stays."""
    said = {text.partition("=")[0].strip() for text in sets}
    changes: dict[str, Any] = {
        "repeats": 1,
        "window_s": QUICK_WINDOW_S if metered and config.metrics.enabled else QUICK_WINDOW_UNMETERED_S,
        **{name: (min(getattr(config.scenario, name)),) for name in SIZES},
    }
    changes = {name: value for name, value in changes.items() if f"scenario.{name}" not in said}
    return config.model_copy(update={"scenario": config.scenario.model_copy(update=changes)})
