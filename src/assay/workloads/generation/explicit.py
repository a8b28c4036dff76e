"""A map of a model that its user wrote: every part is in it once, on a place that is the model's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput, nearest
from assay.workloads.generation.limits import ELSEWHERE, place_of_key
from assay.workloads.generation.sizes import parts_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WHOLE = ""
"""The name of all of a model."""
_SHOWN = 3


def checked(empty: Any, device_map: Mapping[str, int | str], device_ids: Sequence[int]) -> dict[str, str]:
    """Return a map with the machine's names of places.

    Raises:
        BadInput: It names what is no part or no place of the model, a part twice, or not every part.
    """
    _refuse_what_is_no_part(empty, device_map)
    _refuse_parts_within_parts(empty, device_map)
    devices = {name: place_of_key(device, device_ids, f"device_map of {name!r}") for name, device in device_map.items()}
    if device_ids and all(device in ELSEWHERE for device in devices.values()):
        raise BadInput("device_map puts nothing on a GPU; for a model on the CPU say backend.device: cpu.")
    missing = [name for name, part in parts_of(empty) if _has_weights(part) and place_of(name, devices) is None]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise BadInput(f"device_map gives no place to {', '.join(missing[:_SHOWN])}{more}.")
    _refuse_ties_between_places(empty, devices)
    return devices


def place_of(name: str, places: Mapping[str, str]) -> str | None:
    """Return where a part or a weight is, from a map that names it or what it lies in; null where neither is there."""
    while name not in places:
        if not name:
            return None
        name = name.rpartition(".")[0]
    return places[name]


def _refuse_what_is_no_part(empty: Any, device_map: Mapping[str, int | str]) -> None:
    part_names = {name for name, _ in empty.named_modules()}
    for name in device_map:
        if name not in part_names:
            raise BadInput(f"device_map: the model has no part {name!r}.{nearest(name, part_names - {WHOLE})}")


def _refuse_parts_within_parts(empty: Any, device_map: Mapping[str, int | str]) -> None:
    for name in device_map:
        outer = place_of(name.rpartition(".")[0], dict.fromkeys(device_map, "")) if name else None
        if outer is not None:
            raise BadInput(f"device_map: {name} lies within another part that is named too; name each part once.")
    never_split = [name for name, part in parts_of(empty) if list(part.children())]
    for name in device_map:
        layer = next((one for one in never_split if name.startswith(f"{one}.")), None)
        if layer is not None:
            raise BadInput(f"device_map: {name} is within {layer}, which is not split: place {layer} as a whole.")


def _refuse_ties_between_places(empty: Any, places: Mapping[str, str]) -> None:
    from accelerate.utils import find_tied_parameters

    for group in find_tied_parameters(empty):
        if len({place_of(name, places) for name in group}) > 1:
            raise BadInput(f"device_map: {' and '.join(sorted(group))} are one and the same, so they lie in one place.")


def _has_weights(part: Any) -> bool:
    return next(part.parameters(), None) is not None
