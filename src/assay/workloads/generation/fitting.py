"""Whether a model fits, and if not, what would: told before anything is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from assay.core.errors import AssayError, BadInput, MachineCannot
from assay.workloads.generation.dtypes import BYTES
from assay.workloads.generation.limits import CPU, DISK, ELSEWHERE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.workloads.generation.sizes import Predicted

GIB = 2**30
USABLE = 0.95
"""Of what is free: libraries take their share, and a store of tensors has holes."""


@dataclass(frozen=True)
class Load:
    """What is asked of a model at once."""

    batch: int = 1
    input_tokens: int = 1
    output_tokens: int = 1

    @property
    def tokens(self) -> int:
        """Of one sequence, at its end."""
        return self.input_tokens + self.output_tokens

    @property
    def words(self) -> str:
        """It, for people."""
        return f"a batch of {self.batch} with {self.input_tokens} + {self.output_tokens} tokens"


@dataclass(frozen=True)
class Room:
    """What is free where, and what is to go there."""

    sizes: Predicted
    gpus: Sequence[str]
    free_bytes: Mapping[str, int]
    limits: Mapping[str, int]
    load: Load = field(default_factory=Load)

    @property
    def places(self) -> tuple[str, ...]:
        """Where parts may lie: GPUs in order, then what was named besides; without GPUs, the CPU."""
        offload = [device for device in ELSEWHERE if device in self.limits]
        return (*self.gpus, *offload) if self.gpus else (CPU, *(device for device in offload if device != CPU))

    def for_weights(self, place: str, *, loaded: bool) -> int:
        """Return the bytes of weights that a place takes, with room for the load beside them or without it."""
        most = self.limits.get(place)
        if place == DISK:
            return 2**62 if most is None else most
        free = int(self.free_bytes[place] * USABLE)
        if loaded and (place in self.gpus or not self.gpus):
            free = int(max(0, free - self._working()) * self._share_of_weights())
        return free if most is None else min(free, most)

    def _working(self) -> int:
        return self.sizes.working_bytes(self.load.batch, self.load.input_tokens)

    def _share_of_weights(self) -> float:
        """Return the share of weights in what a layer takes, the other part being its keys and values."""
        layer = median(self.sizes.parts_bytes.values())
        cache = self.sizes.kv_bytes(self.load.batch, self.load.tokens) / self.sizes.layers
        return layer / (layer + cache)


def too_much(room: Room, weights: Mapping[str, int]) -> AssayError | None:
    """Return which place gets more than it takes, by a map; null where none does."""
    for device, size in weights.items():
        if size > room.for_weights(device, loaded=False):
            error = BadInput if size > room.limits.get(device, size) else MachineCannot
            return error(
                f"By device_map {named(device)} holds {gib(size)} of the weights of {room.sizes.model}, "
                f"and {_why(room, device)}."
            )
    return None


def does_not_fit(room: Room) -> MachineCannot:
    """Return that a model does not fit, and what would."""
    sizes = room.sizes
    there = " and ".join(_why(room, device) for device in room.places)
    suggestions = [suggestion for suggestion in (_more_gpus(room), _smaller_type(room), _beside(room)) if suggestion]
    return MachineCannot(
        f"{sizes.model} in {sizes.dtype} does not fit: its weights take {gib(sizes.weights_bytes)}, and {there}. "
        f"{_sentence(suggestions) if suggestions else 'A smaller model would.'}"
    )


def named(place: str) -> str:
    """Return a place for people."""
    if place.startswith("cuda:"):
        return f"GPU {place.removeprefix('cuda:')}"
    return "the host's memory" if place == CPU else "the disk"


def gib(size: float) -> str:
    """Return bytes for people."""
    return f"{size / GIB:.1f} GiB" if size >= GIB / 10 else f"{size / 2**20:.1f} MiB"


def _why(room: Room, place: str) -> str:
    free, most = room.free_bytes.get(place), room.limits.get(place)
    if most is not None and (free is None or most < free * USABLE):
        return f"max_memory gives {gib(most)} to {named(place)}"
    return f"{named(place)} has {gib(free or 0)} free"


def _more_gpus(room: Room) -> str | None:
    """Return how many GPUs like the best of these would do, the largest part being one that is not split."""
    if not room.gpus:
        return None
    if any(gpu in room.limits for gpu in room.gpus):
        return "more in backend.max_memory"
    rooms = {gpu: room.for_weights(gpu, loaded=True) for gpu in room.gpus}
    best = max(rooms, key=lambda gpu: rooms[gpu])
    per_gpu = rooms[best] - max(room.sizes.parts_bytes.values())
    if per_gpu <= 0:
        return None
    alike = min(rooms.values()) > rooms[best] * USABLE
    count = max(len(room.gpus) + 1 if alike else 1, math.ceil(room.sizes.weights_bytes / per_gpu))
    return f"about {count} GPUs with as much free as {named(best)} (backend.device_ids)"


def _smaller_type(room: Room) -> str | None:
    """Return that a smaller type would do, where it would."""
    there = sum(room.for_weights(device, loaded=True) for device in room.places)
    if BYTES[room.sizes.dtype] <= 2 or room.sizes.weights_bytes / 2 > there:
        return None
    return "bfloat16 or float16, which takes half (backend.torch_dtype)"


def _beside(room: Room) -> str | None:
    """Return that the host's memory would do, where it would, and what that costs."""
    if not room.gpus or CPU in room.limits:
        return None
    host = room.for_weights(CPU, loaded=False) if CPU in room.free_bytes else 0
    if host + sum(room.for_weights(gpu, loaded=True) for gpu in room.gpus) < room.sizes.weights_bytes:
        return None
    return "backend.max_memory with cpu: parts then lie in the host's memory, and tokens are measured through PCIe"


def _sentence(ways: Sequence[str]) -> str:
    return f"What would do: {'; or '.join(ways)}."
