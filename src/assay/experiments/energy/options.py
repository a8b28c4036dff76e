"""The meaning of an energy configuration on this machine: available GPUs, devices, metered GPUs, stage length."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pydantic import Field

from assay.core.errors import BadInput, MachineCannot
from assay.core.format import format_percent
from assay.core.values import InterferencePolicy, Isolation, Value
from assay.experiments.energy.config import EnergyConfig
from assay.experiments.energy.plan import list_cell_phases
from assay.joules.sensor_model import load_sensor_model
from assay.machine.devices import choose_devices
from assay.workloads.generation.placement import link_notes, order_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.joules.sensor_model import SensorModel
    from assay.machine.model import Gpu, Machine


NO_GPU_STAGE_S = 1.0
UNKNOWN_SENSOR_S = 4.0
"""For a sensor that ticks ten times a second and was not probed."""
MIN_STAGE_S, MAX_STAGE_S = 2.0, 60.0
"""Power varies with clocks and temperature: a window averages that out, however fast the sensor ticks."""
SENSOR_SHARE = 0.5
"""Share of the requested precision that the sensor may take in one window; the rest is for processes."""
PERIODS_OVER_PRECISION = 0.5
"""Number of sensor periods, divided by the precision: fifty for ±1 %."""
EDGES_OVER_PRECISION = 2.8
"""Number of lag errors at two edges, divided by the precision: 1.96 standard deviations times the root of two."""


def choose_stage_length(
    requested_s: float | None, gpus: Sequence[Gpu], driver: str | None, precision: float
) -> tuple[float, str]:
    """Return how long a stage is measured, in seconds, and why.

    Args:
        requested_s: From the scenario; null: as the sensors need.
        gpus: The metered GPUs.
        driver: Sensors are known by GPU and driver.
        precision: Requested precision of joules per token, as a share.
    """
    if requested_s is not None:
        return requested_s, "as scenario.window_s says"
    if not gpus:
        return NO_GPU_STAGE_S, "no GPU is metered, and times alone need no longer"
    models = {gpu.index: load_sensor_model(gpu.uuid, driver or "unknown") for gpu in gpus}
    required = {index: _required_window_s(model, precision) for index, model in models.items() if model is not None}
    needed = {index: window_s for index, window_s in required.items() if window_s is not None}
    unknown = [index for index in models if index not in needed]
    if unknown:
        names = f"GPU{'s' if len(unknown) > 1 else ''} {_join(unknown)}"
        return max([UNKNOWN_SENSOR_S, *needed.values()]), f"the sensor of {names} was not probed"
    slowest = max(needed, key=lambda index: needed[index])
    return needed[slowest], f"as the sensor of GPU {slowest} needs for ±{100 * precision:.3g} %"


def _required_window_s(model: SensorModel, precision: float) -> float | None:
    """Return how long a window a sensor needs; null where none of its readings is understood."""
    counter, power = model.counter, model.instant or model.usage or model.average
    if counter is not None:
        period_s, settle_s, error_s = counter.period_s, max(0.0, counter.lag_s), counter.lag_error_s
    elif power is not None:
        period_s, settle_s, error_s = power.period_s, max(0.0, power.lag_s) + power.window_s, power.lag_error_s
    else:
        return None
    share = SENSOR_SHARE * precision
    needed_s = settle_s + max(PERIODS_OVER_PRECISION * period_s, EDGES_OVER_PRECISION * error_s) / share
    return round(min(max(needed_s, MIN_STAGE_S), MAX_STAGE_S), 1)


TIMEOUT_S = 600.0
"""A worker loads a model, and may compile it, before it answers."""
CPU_RANKS = 2
"""Default number of ranks of tensor parallelism over groups of cores."""
ONE_CPU_GROUP = ("cpu:0",)


class EnergyOptions(Value):
    """A configuration, and its devices, metered GPUs and stage length on this machine."""

    config: EnergyConfig
    devices: tuple[str, ...] = Field(min_length=1, description="Of the worker; of several ranks, one for each.")
    metered: tuple[str, ...] = Field(default=(), description="Further GPUs whose watts count.")
    ranks: int = Field(default=1, ge=1)
    cpu_groups: int | None = Field(default=None, ge=1)
    isolation: Isolation = "gpu"
    restarts: int = Field(default=3, ge=1)
    stage_s: float = Field(gt=0, description="Minimum duration of each phase of each cell.")
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
    nodes: int = 1,
    notes: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    **settings: Any,
) -> EnergyOptions:
    """Return the options of a configuration, whose parts do not contradict each other, on a machine.

    Args:
        config: As it was read.
        machine: Where it will run.
        isolation: Null: a GPU's worker sees its GPUs only, a CPU's is left as it is.
        nodes: Machines that this run is spread over.
        notes: Earlier notes: missing GPUs, names of the older tool.
        environment: Where CUDA_VISIBLE_DEVICES is looked up; by default this process's own.
        **settings: Other fields of the options, such as ``budget_s``.

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
    gpus = [gpu for gpu in machine.gpus if f"cuda:{gpu.index}" in (*devices, *metered) and config.metrics.enabled]
    stage_s, why = choose_stage_length(config.scenario.window_s, gpus, machine.driver, config.scenario.precision)
    stages, budget_s = len(list_cell_phases(config)), settings.get("budget_s")
    budget_notes = []
    if budget_s is not None and budget_s < stages * stage_s:
        short = f"a budget of {budget_s:g} s is shorter than the {stages} stages of {stage_s:g} s of one process"
        budget_notes.append(f"{short}: it starts all the same, takes longer, and skips what does not fit")
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
        seed=config.scenario.seed,
        notes=(*notes, *device_notes, *budget_notes),
        **settings,
    )


def _resolve_devices(
    config: EnergyConfig, machine: Machine, environment: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...], list[str]]:
    """Return the devices of the worker or its ranks, further GPUs that are metered, and notes."""
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
    notes = [] if order == ids else [f"layers go over GPU {_join(order)}: linked ones follow one another"]
    devices = tuple(f"cuda:{number}" for number in order)
    return devices[:1], devices[1:], [*notes, *link_notes(order, machine.links)]


def _resolve_cpu_devices(config: EnergyConfig, machine: Machine) -> tuple[tuple[str, ...], tuple[str, ...], list[str]]:
    notes: list[str] = []
    if config.backend.device == "auto":
        notes.append(f"the model computes on the CPU: {machine.gpu_note or 'no GPU is visible'}")
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
    """Return the GPUs that are metered though no worker of ours is on them, such as those of a server."""
    ids = config.metrics.gpus if config.metrics.gpus is not None else config.backend.device_ids
    return choose_devices(machine, gpus=tuple(map(str, ids)), environment={}) if ids else ()


BUSY_SHARE = 0.1
"""If others use more than this share of a GPU's memory, a note is added."""


def resolve_available_gpus(
    config: EnergyConfig,
    machine: Machine,
    touch: Callable[[str], None],
    *,
    allow_missing: bool = False,
    environment: Mapping[str, str] | None = None,
) -> tuple[EnergyConfig, tuple[str, ...]]:
    """Return the configuration with the GPUs that are there, and notes on them.

    Args:
        config: The GPUs named.
        machine: The GPUs present.
        touch: Makes sure that the GPU of a UUID answers.
        allow_missing: Continue without missing GPUs, as long as one is present.
        environment: Where CUDA_VISIBLE_DEVICES is looked up; by default this process's own.

    Raises:
        MachineCannot: A GPU is missing; the sentence says why, and which are there.
    """
    requested = required_gpus(config)
    missing = {
        gpu: why for gpu in requested if (why := _missing_reason(gpu, config, machine, touch, environment)) is not None
    }
    present = tuple(gpu for gpu in requested if gpu not in missing)
    if missing and (not allow_missing or not present):
        hint = f" GPU {_join(present)} can be used: --allow-missing goes on with that alone." if present else ""
        raise MachineCannot(f"{_describe_missing(missing, machine)}.{hint}")
    notes = []
    if missing:
        used = f"GPU {_join(present)} of {_join(requested)} is used, with --allow-missing"
        notes.append(f"{used}: {_describe_missing(missing, machine)}")
    for gpu in machine.gpus if computes_on_gpus(config) else ():
        used_mib = None if gpu.state is None else gpu.state.memory_used_mib
        share = used_mib / gpu.memory_mib if used_mib is not None and gpu.memory_mib else 0.0
        if gpu.index in present and share > BUSY_SHARE:
            notes.append(f"{format_percent(share)} of the memory of GPU {gpu.index} is in use by others")
    return without_gpus(config, tuple(missing)), tuple(notes)


def computes_on_gpus(config: EnergyConfig) -> bool:
    """Return whether GPUs that are named are computed on, and not only metered."""
    return config.backend.type == "pytorch" and config.backend.device != "cpu"


def required_gpus(config: EnergyConfig) -> tuple[int, ...]:
    """Return the GPUs that a configuration cannot do without; none where it takes what is there."""
    if not config.gpus and config.backend.type == "pytorch" and config.backend.device == "cuda":
        return (0,)
    return config.gpus


def without_gpus(config: EnergyConfig, missing: tuple[int, ...]) -> EnergyConfig:
    """Return a configuration without some GPUs.

    Raises:
        MachineCannot: It needs one of them.
    """
    if not missing:
        return config
    backend, metrics = config.backend, config.metrics
    if isinstance(backend.device_map, dict):
        in_map = [gpu for gpu in missing if gpu in backend.device_map.values()]
        if in_map:
            raise MachineCannot(f"backend.device_map places parts on GPU {_join(in_map)}, which is missing.")
    ids = None if backend.device_ids is None else tuple(gpu for gpu in backend.device_ids if gpu not in missing)
    if backend.tp_plan is not None and ids is not None and len(ids) < 2:
        raise MachineCannot(f"backend.tp_plan needs two GPUs at least, and {_join(ids)} alone is there.")
    limits = None if backend.max_memory is None else {k: v for k, v in backend.max_memory.items() if k not in missing}
    gpus = None if metrics.gpus is None else tuple(gpu for gpu in metrics.gpus if gpu not in missing)
    return config.model_copy(
        update={
            "backend": backend.model_copy(update={"device_ids": ids, "max_memory": limits or None}),
            "metrics": metrics.model_copy(update={"gpus": gpus}),
        }
    )


ABSENT = ""
"""Why a GPU is missing that this machine never had."""


def _missing_reason(
    gpu: int,
    config: EnergyConfig,
    machine: Machine,
    touch: Callable[[str], None],
    environment: Mapping[str, str] | None,
) -> str | None:
    """Return why a GPU cannot be used; null: it can. One that is only metered may be hidden from CUDA."""
    uuids = {candidate.index: candidate.uuid for candidate in machine.gpus}
    if gpu not in uuids and gpu not in [candidate.index for candidate in machine.lost]:
        return ABSENT
    try:
        choose_devices(machine, gpus=(str(gpu),), environment=environment if computes_on_gpus(config) else {})
        touch(uuids[gpu])
    except MachineCannot as error:
        return str(error).rstrip(".")
    return None


def _describe_missing(missing: Mapping[int, str], machine: Machine) -> str:
    """Say which GPUs are missing and why; absent ones together."""
    absent = [gpu for gpu, why in missing.items() if why == ABSENT]
    reasons = [why for why in missing.values() if why != ABSENT]
    if absent:
        here = _join([gpu.index for gpu in machine.gpus])
        why = f"; here is GPU {here}" if machine.gpus else f": {machine.gpu_note or 'no GPU is visible'}"
        reasons.insert(0, f"There is no GPU {_join(absent)} here{why}")
    return "; ".join(reasons)


def _join(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
