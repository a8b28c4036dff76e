"""Which part of a model lies where, decided before anything is loaded; accelerate places, this checks and explains.

    embed  layer 0 … 15 │ layer 16 … 31  norm  head      a naive pipeline: one GPU works at a time
    ───── cuda:2 ────── │ ───────── cuda:0 ────────

Nothing lies outside of ``device_ids``. Parts go to the host's memory or to disk only where ``max_memory`` or a map in
full says so: their weights would be copied over PCIe for every token, and that would be what is measured.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from pydantic import Field

from assay.core.errors import BadInput, nearest
from assay.core.values import Value
from assay.workloads.generation.explicit import WHOLE, checked, place_of
from assay.workloads.generation.fitting import Load, Room, does_not_fit, too_much
from assay.workloads.generation.limits import CPU, DISK, ELSEWHERE, gpu_place, limits_of
from assay.workloads.generation.remarks import remarks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.workloads.generation.sizes import Predicted

AUTO, SEQUENTIAL, LOW_0 = "auto", "sequential", "balanced_low_0"
NAMES = (AUTO, "balanced", LOW_0, SEQUENTIAL)
"""As accelerate has them: auto is balanced; sequential fills one GPU after another."""


class Plan(Value):
    """Where the parts of a model are to lie, by the machine's names of places: ``cuda:2``, ``cpu``, ``disk``."""

    places: dict[str, str] = Field(description="By part, from inputs to outputs; the one named '' is all of it.")
    weights_bytes: dict[str, int] = Field(description="By place.")
    main: str = Field(description="Where inputs go, and where parts compute that lie on no GPU.")
    notes: tuple[str, ...] = ()

    @property
    def offloaded(self) -> bool:
        """Whether parts lie elsewhere than they compute."""
        return any(device in ELSEWHERE and device != self.main for device in self.places.values())

    @property
    def split(self) -> bool:
        """Whether it lies on more than one place."""
        return len(set(self.places.values())) > 1


def plan(
    empty: Any,
    sizes: Predicted,
    *,
    device_ids: Sequence[int],
    free_bytes: Mapping[str, int],
    device_map: str | Mapping[str, int | str] = AUTO,
    max_memory: Mapping[int | str, int | str] | None = None,
    load: Load | None = None,
) -> Plan:
    """Return where the parts of a model are to lie.

    Args:
        empty: The model without its weights.
        sizes: What it takes.
        device_ids: GPUs by their number, in the order that layers go over them; none: the CPU.
        free_bytes: What is free, by the machine's name of each place.
        device_map: A name, or where each part is to lie: a GPU's number, cpu or disk.
        max_memory: The most bytes of weights by GPU number, cpu or disk; places that are no GPU are used where named.
        load: What will be asked of it; room is left for that.

    Raises:
        BadInput: The map or the limits make no sense for this model.
        MachineCannot: It does not fit; the sentence says what would.
    """
    limits = limits_of(max_memory, device_ids)
    gpus = [gpu_place(number) for number in device_ids]
    room = Room(sizes, gpus, free_bytes, limits, load or Load())
    if isinstance(device_map, str):
        if device_map not in NAMES:
            raise BadInput(
                f"device_map is {', '.join(NAMES)} or a map, not {device_map!r}.{nearest(device_map, NAMES)}"
            )
        devices, notes = _inferred(empty, room, device_map)
    else:
        devices, notes = checked(empty, device_map, device_ids), ()
    weights = weights_by_place(sizes, devices)
    over = too_much(room, weights)
    if over is not None:
        raise over
    main = main_place(devices, gpus)
    more_notes = remarks(sizes, weights, gpus, main)
    return Plan(places=devices, weights_bytes=weights, main=main, notes=(*notes, *more_notes))


def weights_by_place(sizes: Predicted, places: Mapping[str, str]) -> dict[str, int]:
    """Return the bytes of weights on each place of a map."""
    weights = dict.fromkeys(places.values(), 0)
    for name, size in sizes.parts_bytes.items():
        weights[place_of(name, places) or ""] += size
    return weights


def main_place(places: Mapping[str, str], gpus: Sequence[str]) -> str:
    """Return where inputs go: to the first part's GPU, or to the first GPU where that part lies on none."""
    first = next(iter(places.values()))
    if first in gpus:
        return first
    return next((gpu for gpu in gpus if gpu in places.values()), gpus[0] if gpus else CPU)


def _inferred(empty: Any, room: Room, name: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the map that accelerate makes, with room for the load where there is, and what is to be said of it."""
    for loaded in (True, False):
        for strategy in dict.fromkeys((name, SEQUENTIAL)):
            devices = _placed(empty, room, strategy, loaded=loaded)
            if devices is None:
                continue
            notes = []
            if strategy != name:
                notes.append(f"{name} does not fit into what is free, so GPUs are filled one after another")
            if not loaded:
                notes.append(f"the weights fit, and little is left beside them: {room.load.words} may not")
            return devices, tuple(notes)
    raise does_not_fit(room)


def _placed(empty: Any, room: Room, way: str, *, loaded: bool) -> dict[str, str] | None:
    """Return one map, or null where parts would lie on a place that is not for them, or has no room."""
    budgets = {device: room.for_weights(device, loaded=loaded) for device in room.places}
    only = room.places[0]
    if len(room.places) == 1:
        return {WHOLE: only} if room.sizes.weights_bytes <= budgets[only] else None
    named = {_for_accelerate(device, number): device for number, device in enumerate(room.places)}
    most = {key: budgets[device] for key, device in named.items()}
    inferred = _accelerates(empty, most, way)
    if not set(inferred.values()) <= set(named):
        return None
    order = {part: number for number, (part, _) in enumerate(empty.named_modules())}
    devices = {part: named[inferred[part]] for part in sorted(inferred, key=lambda part: order.get(part, len(order)))}
    held = weights_by_place(room.sizes, devices)
    return devices if all(size <= budgets[device] for device, size in held.items()) else None


def _for_accelerate(place: str, number: int) -> int | str:
    return place if place in ELSEWHERE else number


def _accelerates(empty: Any, most: dict[int | str, int], way: str) -> dict[str, int | str]:
    """Return accelerate's map; what fits nowhere it puts on disk, whether that was named or not."""
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    never_split = list(getattr(empty, "_no_split_modules", None) or ())
    limited = {key: size for key, size in most.items() if key != DISK}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if way != SEQUENTIAL:
            limited = get_balanced_memory(empty, limited, no_split_module_classes=never_split, low_zero=way == LOW_0)
        return dict(infer_auto_device_map(empty, limited, no_split_module_classes=never_split))
