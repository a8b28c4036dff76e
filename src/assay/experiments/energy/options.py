"""What ``assay energy run`` will measure: the configuration, and what it means on this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pydantic import Field

from assay.core.errors import BadInput, MachineCannot
from assay.core.plan import Isolation, StrangerPolicy
from assay.core.values import Value
from assay.experiments.energy.config import EnergyConfig
from assay.experiments.energy.phases import places_of
from assay.experiments.energy.windows import stage_length
from assay.isolation.devices import choose
from assay.workloads.generation.links import link_notes, ordered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.machine.model import Gpu, Machine

TIMEOUT_S = 600.0
"""A worker loads a model, and may compile it, before it answers."""
CPU_RANKS = 2
"""Ranks of tensor parallelism over groups of cores, where nobody says how many."""
ONE_GROUP = ("cpu:0",)


class EnergyOptions(Value):
    """A configuration, and what it means here: which devices, whose watts, how long."""

    config: EnergyConfig
    devices: tuple[str, ...] = Field(min_length=1, description="Of the worker; of several ranks, one for each.")
    metered: tuple[str, ...] = Field(default=(), description="Further GPUs whose watts count.")
    ranks: int = Field(default=1, ge=1)
    cpu_groups: int | None = Field(default=None, ge=1)
    isolation: Isolation = "gpu"
    restarts: int = Field(default=3, ge=1)
    stage_s: float = Field(gt=0, description="Each phase of each cell is measured for so long at least.")
    stage_why: str = ""
    stage_calls: int = Field(default=1, ge=1)
    longer: bool = Field(default=True, description="What is not known well enough is measured again, for longer.")
    budget_s: float | None = Field(default=None, gt=0, description="No block begins that would not fit any more.")
    timeout_s: float = Field(default=TIMEOUT_S, gt=0)
    retakes: int = Field(default=0, ge=0)
    strangers: StrangerPolicy = "warn"
    seed: int = 0
    notes: tuple[str, ...] = Field(default=(), description="What the user should know before anything is measured.")

    @property
    def is_server(self) -> bool:
        """Whether a server makes the tokens."""
        return self.config.backend.type == "openai"

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs whose watts count."""
        return tuple(device for device in (*self.devices, *self.metered) if device.startswith("cuda"))

    @property
    def monitored(self) -> bool:
        """Whether a monitor has to watch: energy is asked for."""
        return self.config.metrics.enabled

    @property
    def on_gpu(self) -> bool:
        """Whether the worker computes on a GPU."""
        return self.devices[0].startswith("cuda")


def options_of(
    config: EnergyConfig,
    machine: Machine,
    *,
    isolation: Isolation | None = None,
    longer: bool = True,
    budget_s: float | None = None,
    timeout_s: float = TIMEOUT_S,
    retakes: int = 0,
    strangers: StrangerPolicy = "warn",
    stage_calls: int = 1,
    nodes: int = 1,
    notes: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> EnergyOptions:
    """Return what a configuration, whose parts do not contradict each other, means on a machine.

    Args:
        config: As it was read.
        machine: Where it will run.
        isolation: Null: a GPU's worker sees its GPUs only, a CPU's is left as it is.
        longer: Measure again, for longer, what is not known well enough.
        budget_s: Of the whole run; null: as long as it takes.
        timeout_s: For a worker to answer.
        retakes: A disturbed trial is measured again at most so often.
        strangers: What is done when others are busy.
        stage_calls: At least so many calls of each phase.
        nodes: Machines that this run is spread over.
        notes: What was noticed before: GPUs that are missing, names of the older tool.
        environment: Where CUDA_VISIBLE_DEVICES is looked up; by default this process's own.

    Raises:
        BadInput: An isolation under which a process would see GPUs that it may not use.
        MachineCannot: What it asks for is not here.
    """
    if nodes > 1:
        raise MachineCannot(
            f"A model is not spread over {nodes} machines: layers placed one after another (device_map) would send "
            "every token over the network while all GPUs but one wait, and sensors are read on one machine only. Use "
            "one machine, tp_plan: auto over its GPUs, or a server (backend.type: openai) that is spread out itself."
        )
    variables = os.environ if environment is None else environment
    devices, metered, device_notes = _places(config, machine, variables)
    on_gpu = devices[0].startswith("cuda")
    if on_gpu and isolation == "none":
        raise BadInput("Without isolation a process sees every GPU, so that device_ids restrict nothing; leave it out.")
    gpus = _gpus(machine, (*devices, *metered)) if config.metrics.enabled else ()
    stage_s, why = stage_length(config.scenario.window_s, gpus, machine.driver, config.scenario.precision)
    return EnergyOptions(
        config=config,
        devices=devices,
        metered=metered,
        ranks=len(devices),
        cpu_groups=None if on_gpu else len(devices),
        isolation=isolation or ("gpu" if on_gpu else "none"),
        restarts=config.scenario.repeats,
        stage_s=stage_s,
        stage_why=why,
        stage_calls=stage_calls,
        longer=longer,
        budget_s=budget_s,
        timeout_s=timeout_s,
        retakes=retakes,
        strangers=strangers,
        seed=config.scenario.seed,
        notes=(*notes, *device_notes, *_short(budget_s, stage_s, config)),
    )


def _short(budget_s: float | None, stage_s: float, config: EnergyConfig) -> tuple[str, ...]:
    """Say that a budget is too short for one process to come through, if it is."""
    stages = len(places_of(config))
    if budget_s is None or budget_s >= stages * stage_s:
        return ()
    text = f"a budget of {budget_s:g} s is shorter than the {stages} stages of {stage_s:g} s of one process"
    return (f"{text}: it is begun all the same, takes longer, and what it does not come to is left out",)


def _places(
    config: EnergyConfig, machine: Machine, environment: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...], list[str]]:
    """Return the devices of the worker or its ranks, further GPUs that are metered, and what is to be said of it."""
    backend = config.backend
    if backend.type == "openai":
        return ONE_GROUP, _metered(config, machine), []
    if backend.device == "cpu" or (backend.device == "auto" and backend.device_ids is None and not machine.gpus):
        return _on_cpu(config, machine)
    ids = backend.device_ids or (0,)
    devices = choose(machine, gpus=tuple(map(str, ids)), environment=environment)
    if backend.tp_plan is not None:
        return devices, (), []
    order = ordered(ids, machine.links) if isinstance(backend.device_map, str) else ids
    notes = [] if order == ids else [f"layers go over GPU {', '.join(map(str, order))}: linked ones follow one another"]
    devices = tuple(f"cuda:{number}" for number in order)
    return devices[:1], devices[1:], [*notes, *link_notes(order, machine.links)]


def _on_cpu(config: EnergyConfig, machine: Machine) -> tuple[tuple[str, ...], tuple[str, ...], list[str]]:
    notes: list[str] = []
    if config.backend.device == "auto":
        notes.append(f"the model computes on the CPU: {machine.gpu_note or 'no GPU is to be seen'}")
    metered = _metered(config, machine)
    if metered:
        names = ", ".join(device.removeprefix("cuda:") for device in metered)
        notes.append(f"the model computes on the CPU, and does not use what is metered: GPU {names}")
    if config.backend.tp_plan is None:
        return ONE_GROUP, metered, notes
    ranks = config.backend.tp_ranks or CPU_RANKS
    if ranks > len(machine.cores):
        raise MachineCannot(f"{ranks} ranks of tensor parallelism need {ranks} cores; here are {len(machine.cores)}.")
    notes.append(f"{ranks} ranks on groups of cores: a trial of tensor parallelism, and none of its speed")
    return tuple(f"cpu:{rank}" for rank in range(ranks)), metered, notes


def _metered(config: EnergyConfig, machine: Machine) -> tuple[str, ...]:
    """Return the GPUs that are metered though no worker of ours is on them: those of a server, say."""
    ids = config.metrics.gpus if config.metrics.gpus is not None else config.backend.device_ids
    return choose(machine, gpus=tuple(map(str, ids)), environment={}) if ids else ()


def _gpus(machine: Machine, devices: tuple[str, ...]) -> tuple[Gpu, ...]:
    return tuple(gpu for gpu in machine.gpus if f"cuda:{gpu.index}" in devices)
