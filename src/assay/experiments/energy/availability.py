"""Whether the GPUs that a configuration names are there and answer, before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot
from assay.isolation.devices import choose

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.experiments.energy.config import EnergyConfig
    from assay.machine.model import Gpu, Machine

BUSY_SHARE = 0.1
"""More of a GPU's memory than this in use by others is told."""


def available(
    config: EnergyConfig,
    machine: Machine,
    touch: Callable[[str], None],
    *,
    allow_missing: bool = False,
    environment: Mapping[str, str] | None = None,
) -> tuple[EnergyConfig, tuple[str, ...]]:
    """Return the configuration with the GPUs that are there, and notes on them.

    Args:
        config: Which GPUs are named.
        machine: What is here.
        touch: Makes sure that the GPU of a UUID answers.
        allow_missing: Go on without GPUs that are missing, as long as one is there.
        environment: Where CUDA_VISIBLE_DEVICES is looked up; by default this process's own.

    Raises:
        MachineCannot: A GPU is missing; the sentence says why, and which are there.
    """
    requested = needed(config)
    missing = {gpu: why for gpu in requested if (why := _missing(gpu, config, machine, touch, environment)) is not None}
    present = tuple(gpu for gpu in requested if gpu not in missing)
    if missing and (not allow_missing or not present):
        hint = f" GPU {_listed(present)} can be used: --allow-missing goes on with that alone." if present else ""
        raise MachineCannot(f"{_told(missing)}.{hint}")
    used = [gpu for gpu in machine.gpus if gpu.index in present and computes(config) and _used(gpu) > BUSY_SHARE]
    notes = tuple(f"{_used(gpu):.0%} of the memory of GPU {gpu.index} is in use by others" for gpu in used)
    if missing:
        notes = (
            f"GPU {_listed(present)} of {_listed(requested)} is used, with --allow-missing: {_told(missing)}",
            *notes,
        )
    return without(config, tuple(missing)), notes


def computes(config: EnergyConfig) -> bool:
    """Return whether GPUs that are named are computed on, and not only metered."""
    return config.backend.type == "pytorch" and config.backend.device != "cpu"


def needed(config: EnergyConfig) -> tuple[int, ...]:
    """Return the GPUs that a configuration cannot do without; none where it takes what is there."""
    if not config.gpus and config.backend.type == "pytorch" and config.backend.device == "cuda":
        return (0,)
    return config.gpus


def without(config: EnergyConfig, missing: tuple[int, ...]) -> EnergyConfig:
    """Return a configuration that does without some GPUs.

    Raises:
        MachineCannot: It needs one of them.
    """
    if not missing:
        return config
    backend, metrics = config.backend, config.metrics
    if isinstance(backend.device_map, dict):
        in_map = [gpu for gpu in missing if gpu in backend.device_map.values()]
        if in_map:
            raise MachineCannot(f"backend.device_map places parts on GPU {_listed(tuple(in_map))}, which is missing.")
    ids = None if backend.device_ids is None else tuple(gpu for gpu in backend.device_ids if gpu not in missing)
    if backend.tp_plan is not None and ids is not None and len(ids) < 2:
        raise MachineCannot(f"backend.tp_plan needs two GPUs at least, and {_listed(ids)} alone is there.")
    limits = None if backend.max_memory is None else {k: v for k, v in backend.max_memory.items() if k not in missing}
    gpus = None if metrics.gpus is None else tuple(gpu for gpu in metrics.gpus if gpu not in missing)
    return config.model_copy(
        update={
            "backend": backend.model_copy(update={"device_ids": ids, "max_memory": limits or None}),
            "metrics": metrics.model_copy(update={"gpus": gpus}),
        }
    )


def _missing(
    gpu: int,
    config: EnergyConfig,
    machine: Machine,
    touch: Callable[[str], None],
    environment: Mapping[str, str] | None,
) -> str | None:
    """Return why a GPU cannot be used; null: it can. What is only metered may be hidden from CUDA."""
    lost = [candidate.index for candidate in machine.lost]
    if gpu not in lost and gpu not in [candidate.index for candidate in machine.gpus]:
        here = _listed(tuple(candidate.index for candidate in machine.gpus))
        return f"; here is GPU {here}" if machine.gpus else f": {machine.gpu_note or 'no GPU is to be seen'}"
    try:
        choose(machine, gpus=(str(gpu),), environment=environment if computes(config) else {})
        touch(next(candidate.uuid for candidate in machine.gpus if candidate.index == gpu))
    except MachineCannot as error:
        return str(error).rstrip(".")
    return None


def _told(missing: Mapping[int, str]) -> str:
    """Say which are missing and why, those that never were there in one."""
    absent = {gpu: why for gpu, why in missing.items() if why.startswith((";", ":"))}
    never = [f"There is no GPU {_listed(tuple(absent))} here{next(iter(absent.values()))}"] if absent else []
    return "; ".join([*never, *(why for gpu, why in missing.items() if gpu not in absent)])


def _used(gpu: Gpu) -> float:
    """Return the share of a GPU's memory that is in use; 0 where it does not say."""
    used = None if gpu.state is None else gpu.state.memory_used_mib
    return used / gpu.memory_mib if used is not None and gpu.memory_mib else 0.0


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers)) or "none"
