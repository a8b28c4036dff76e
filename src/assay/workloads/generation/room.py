"""Whether keys and values of a batch can be kept beside a model that is in place; asked before memory runs out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot
from assay.workloads.generation.explicit import place_of
from assay.workloads.generation.fitting import Load, gib, named
from assay.workloads.generation.limits import ELSEWHERE
from assay.workloads.torch_memory import free_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.workloads.generation.loading import Loaded
    from assay.workloads.generation.params import Generation
    from assay.workloads.generation.sizes import Predicted


def check_room(loaded: Loaded, generation: Generation) -> None:
    """Refuse a batch whose keys and values alone are more than what is free; what only may not fit is tried.

    Raises:
        MachineCannot: They are.
    """
    load = Load(generation.batch, generation.input_tokens, generation.output_tokens)
    main = loaded.seen.on_machine(str(loaded.device))
    for device, size in cache_by_place(loaded.sizes, loaded.placement, main, load).items():
        where = loaded.seen.here.get(device, str(loaded.device))
        needed, free = size // loaded.ranks, free_bytes(where)
        if needed > free:
            raise MachineCannot(
                f"{load.words.capitalize()} keeps {gib(needed)} of keys and values on {named(device)}, which has "
                f"{gib(free)} free beside the model: give a smaller batch or shorter texts."
            )


def cache_by_place(sizes: Predicted, placement: Mapping[str, str], main: str, load: Load) -> dict[str, int]:
    """Return the bytes of keys and values on each place: with their layers, or where those compute."""
    layers = [name for name in sizes.parts_bytes if name.rpartition(".")[2].isdecimal()]
    if len(layers) != sizes.layers:
        return {main: sizes.kv_bytes(load.batch, load.tokens)} if len(set(placement.values())) == 1 else {}
    bytes_per_layer = sizes.kv_bytes(load.batch, load.tokens) // sizes.layers
    cache_bytes: dict[str, int] = {}
    for name in layers:
        device = place_of(name, placement) or main
        computes = main if device in ELSEWHERE else device
        cache_bytes[computes] = cache_bytes.get(computes, 0) + bytes_per_layer
    return cache_bytes
