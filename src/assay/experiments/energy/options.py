"""The options of ``assay energy run``: the configuration, and its devices, metered GPUs and stage length here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pydantic import Field

from assay.core.errors import BadInput, MachineCannot
from assay.core.values import InterferencePolicy, Isolation, Value
from assay.experiments.energy.config import EnergyConfig
from assay.experiments.energy.plan import list_cell_phases
from assay.isolation.devices import choose_devices
from assay.joules.sensor_model import load_sensor_model
from assay.workloads.generation.placement import link_notes, order_gpus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.joules.sensor_model import SensorModel
    from assay.machine.model import Gpu, Machine


NO_GPU_STAGE_S = 1.0
UNKNOWN_SENSOR_S = 4.0
"""For a sensor that ticks ten times a second and was not looked at."""
MIN_STAGE_S, MAX_STAGE_S = 2.0, 60.0
"""Power moves by itself, as clocks and heat do: a window evens that out, however fast the sensor ticks."""
SENSOR_SHARE = 0.5
"""Of the precision that is wanted: what the sensor may take of it in one window; the rest is the processes'."""
PERIODS_OVER_PRECISION = 0.5
"""Over the precision: so many periods of the sensor; for ±1 % fifty."""
EDGES_OVER_PRECISION = 2.8
"""Over the precision: so many errors of the lag, at two edges; 1.96 standard deviations, times the root of two."""


def choose_stage_length(
    requested_s: float | None, gpus: Sequence[Gpu], driver: str | None, precision: float
) -> tuple[float, str]:
    """Return how long a stage is measured, in seconds, and why.

    Args:
        requested_s: What the scenario says; null: as the sensors need.
        gpus: Whose energy is metered.
        driver: Sensors are known by GPU and driver.
        precision: A share: how well joules per token are wanted.
    """
    if requested_s is not None:
        return requested_s, "as scenario.window_s says"
    if not gpus:
        return NO_GPU_STAGE_S, "no GPU is metered, and times alone need no longer"
    models = {gpu.index: load_sensor_model(gpu.uuid, driver or "unknown") for gpu in gpus}
    modelled = {number: _required_window_s(model, precision) for number, model in models.items() if model is not None}
    needed = {number: needed_s for number, needed_s in modelled.items() if needed_s is not None}
    unknown = [number for number in models if number not in needed]
    if unknown:
        names = f"GPU {unknown[0]}" if len(unknown) == 1 else f"GPUs {', '.join(map(str, unknown))}"
        return max([UNKNOWN_SENSOR_S, *needed.values()]), f"how the sensor of {names} sees was not looked at"
    slowest = max(needed, key=lambda number: needed[number])
    return needed[slowest], f"as the sensor of GPU {slowest} needs for ±{100 * precision:.3g} %"


def _required_window_s(model: SensorModel, precision: float) -> float | None:
    """Return how long a window a sensor needs; null where it shows nothing that is understood."""
    share = SENSOR_SHARE * precision
    if model.counter is not None:
        period_s, settle_s, error_s = model.counter.period_s, max(0.0, model.counter.lag_s), model.counter.lag_error_s
    else:
        power = model.instant or model.usage or model.average
        if power is None:
            return None
        period_s, settle_s, error_s = power.period_s, max(0.0, power.lag_s) + power.window_s, power.lag_error_s
    needed_s = settle_s + max(PERIODS_OVER_PRECISION * period_s, EDGES_OVER_PRECISION * error_s) / share
    return round(min(max(needed_s, MIN_STAGE_S), MAX_STAGE_S), 1)


TIMEOUT_S = 600.0
"""A worker loads a model, and may compile it, before it answers."""
CPU_RANKS = 2
"""Ranks of tensor parallelism over groups of cores, where nobody says how many."""
ONE_CPU_GROUP = ("cpu:0",)


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
    on_interference: InterferencePolicy = "warn"
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


def build_energy_options(
    config: EnergyConfig,
    machine: Machine,
    *,
    isolation: Isolation | None = None,
    longer: bool = True,
    budget_s: float | None = None,
    timeout_s: float = TIMEOUT_S,
    retakes: int = 0,
    on_interference: InterferencePolicy = "warn",
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
        on_interference: What is done when others are busy.
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
    devices, metered, device_notes = _resolve_devices(config, machine, variables)
    on_gpu = devices[0].startswith("cuda")
    if on_gpu and isolation == "none":
        raise BadInput("Without isolation a process sees every GPU, so that device_ids restrict nothing; leave it out.")
    gpus = _gpus_of_devices(machine, (*devices, *metered)) if config.metrics.enabled else ()
    stage_s, why = choose_stage_length(config.scenario.window_s, gpus, machine.driver, config.scenario.precision)
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
        on_interference=on_interference,
        seed=config.scenario.seed,
        notes=(*notes, *device_notes, *_warn_short_budget(budget_s, stage_s, config)),
    )


def _warn_short_budget(budget_s: float | None, stage_s: float, config: EnergyConfig) -> tuple[str, ...]:
    """Say that a budget is too short for one process to come through, if it is."""
    stages = len(list_cell_phases(config))
    if budget_s is None or budget_s >= stages * stage_s:
        return ()
    text = f"a budget of {budget_s:g} s is shorter than the {stages} stages of {stage_s:g} s of one process"
    return (f"{text}: it is begun all the same, takes longer, and what it does not come to is left out",)


def _resolve_devices(
    config: EnergyConfig, machine: Machine, environment: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...], list[str]]:
    """Return the devices of the worker or its ranks, further GPUs that are metered, and what is to be said of it."""
    backend = config.backend
    if backend.type == "openai":
        return ONE_CPU_GROUP, _metered_devices(config, machine), []
    if backend.device == "cpu" or (backend.device == "auto" and backend.device_ids is None and not machine.gpus):
        return _resolve_cpu_devices(config, machine)
    ids = backend.device_ids or (0,)
    devices = choose_devices(machine, gpus=tuple(map(str, ids)), environment=environment)
    if backend.tp_plan is not None:
        return devices, (), []
    order = order_gpus(ids, machine.links) if isinstance(backend.device_map, str) else ids
    notes = [] if order == ids else [f"layers go over GPU {', '.join(map(str, order))}: linked ones follow one another"]
    devices = tuple(f"cuda:{number}" for number in order)
    return devices[:1], devices[1:], [*notes, *link_notes(order, machine.links)]


def _resolve_cpu_devices(config: EnergyConfig, machine: Machine) -> tuple[tuple[str, ...], tuple[str, ...], list[str]]:
    notes: list[str] = []
    if config.backend.device == "auto":
        notes.append(f"the model computes on the CPU: {machine.gpu_note or 'no GPU is to be seen'}")
    metered = _metered_devices(config, machine)
    if metered:
        names = ", ".join(device.removeprefix("cuda:") for device in metered)
        notes.append(f"the model computes on the CPU, and does not use what is metered: GPU {names}")
    if config.backend.tp_plan is None:
        return ONE_CPU_GROUP, metered, notes
    ranks = config.backend.tp_ranks or CPU_RANKS
    if ranks > len(machine.cores):
        raise MachineCannot(f"{ranks} ranks of tensor parallelism need {ranks} cores; here are {len(machine.cores)}.")
    notes.append(f"{ranks} ranks on groups of cores: a trial of tensor parallelism, and none of its speed")
    return tuple(f"cpu:{rank}" for rank in range(ranks)), metered, notes


def _metered_devices(config: EnergyConfig, machine: Machine) -> tuple[str, ...]:
    """Return the GPUs that are metered though no worker of ours is on them: those of a server, say."""
    ids = config.metrics.gpus if config.metrics.gpus is not None else config.backend.device_ids
    return choose_devices(machine, gpus=tuple(map(str, ids)), environment={}) if ids else ()


def _gpus_of_devices(machine: Machine, devices: tuple[str, ...]) -> tuple[Gpu, ...]:
    return tuple(gpu for gpu in machine.gpus if f"cuda:{gpu.index}" in devices)
