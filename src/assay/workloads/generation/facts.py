"""What is known of a generation beside its times: its least work, its device's ceilings, how busy the GPU was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.workloads.generation import busy
from assay.workloads.generation.ceilings import compute_flop_per_s, memory_bytes_per_s
from assay.workloads.generation.graphs import GraphLoop
from assay.workloads.generation.roofline import middle, size_of
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from assay.workloads.generation.batches import Batches
    from assay.workloads.generation.eager import EagerLoop
    from assay.workloads.generation.loading import Loaded
    from assay.workloads.generation.params import Generation

MIB = 2**20


def of_model(loaded: Loaded) -> dict[str, float]:
    """Return what is known of a model in place."""
    return {
        "load_s": loaded.load_s,
        "parameters_count": float(loaded.parameters),
        "weights_bytes": float(loaded.weights_bytes),
        "devices_count": float(loaded.ranks if loaded.ranks > 1 else len(set(loaded.placement.values()))),
    }


def of_phase(loaded: Loaded, generation: Generation, batches: Batches, loop: EagerLoop | GraphLoop) -> dict[str, float]:
    """Make a few calls of a phase, and return what is known of it."""
    watched = _watched(str(loaded.device), generation, loop, ranks=loaded.ranks)
    facts = {**of_model(loaded), **of_work(loaded, generation, batches), **_ceilings(loaded), **watched}
    if loop.compile_s is not None:
        facts["compile_s"] = loop.compile_s
    return {**facts, **_peak(loaded)}


def of_work(loaded: Loaded, generation: Generation, batches: Batches) -> dict[str, float]:
    """Return the least work of a decoding step, or of a call that reads prompts."""
    size, batch, length = size_of(loaded.model), generation.batch, batches.tokens
    if size is None:
        return {}
    if generation.phase == "prefill":
        return {
            "call_flop": size.prefill_flop(batch, length),
            "call_read_bytes": size.weights_read(batch * length),
        }
    context_tokens = middle(length, generation.output_tokens)
    return {
        "step_flop": size.step_flop(batch, context_tokens),
        "step_read_bytes": size.step_read_bytes(batch, context_tokens),
    }


def _ceilings(loaded: Loaded) -> dict[str, float]:
    """Return the ceilings of the devices that work at the same time: those of all ranks, or of one device."""
    where = str(loaded.device)
    both = {
        "memory_bytes_per_s": memory_bytes_per_s(where),
        "compute_flop_per_s": compute_flop_per_s(where, loaded.dtype),
    }
    return {name: value * loaded.ranks for name, value in both.items() if value is not None}


def _watched(where: str, generation: Generation, loop: EagerLoop | GraphLoop, *, ranks: int) -> dict[str, float]:
    """Return how busy the GPU was; ranks call each other, so that they are not stopped to be looked at."""
    steps = min(busy.STEPS, generation.output_tokens - 1)
    if where == "cpu" or ranks > 1 or generation.phase == "whole":
        return {}
    if generation.phase == "prefill":
        return busy.watched(loop.prefill, where)
    if isinstance(loop, GraphLoop):
        return busy.replayed(loop, steps)
    return busy.watched(lambda: loop.decode(steps), where)


def _peak(loaded: Loaded) -> dict[str, float]:
    """Return the most memory that tensors have taken of one GPU since this phase was put in place."""
    cuda = import_torch().cuda
    if loaded.device.type != "cuda":
        return {}
    used = [int(cuda.max_memory_allocated(index)) for index in range(cuda.device_count())]
    return {"peak_memory_mib": max(used) / MIB}
