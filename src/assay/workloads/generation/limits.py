"""How much of a model's weights may lie where: ``max_memory`` as users write it, in the machine's names of places."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CPU, DISK = "cpu", "disk"
ELSEWHERE = (CPU, DISK)
"""Places that are no GPU: parts there are copied to one when their turn comes."""

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def gpu_place(number: int) -> str:
    """Return the machine's name of a GPU."""
    return f"cuda:{number}"


def bytes_of(said: int | str, what: str = "max_memory") -> int:
    """Return bytes, from a number of them or text such as 20GB, 18GiB or 500 MB."""
    if isinstance(said, int) and not isinstance(said, bool):
        size = said
    elif isinstance(said, str) and said.strip().isdecimal():
        size = int(said)
    else:
        match = _SIZE.fullmatch(said) if isinstance(said, str) else None
        if match is None:
            raise BadInput(f"{what}: {said!r} is not a size; write bytes, or text as 20GB or 18GiB.")
        size = int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].lower()])
    if size < 0:
        raise BadInput(f"{what}: a size is not less than 0, as {said!r} is.")
    return size


def place_of_key(key: int | str, device_ids: Sequence[int], what: str) -> str:
    """Return the place that a key or value names: a GPU of ``device_ids`` by its number, ``cpu`` or ``disk``."""
    text = str(key).strip().removeprefix("cuda:")
    if text in ELSEWHERE:
        return text
    if not text.isdecimal():
        raise BadInput(f"{what}: {key!r} is no place; name a GPU by its number, or cpu or disk.")
    if int(text) not in device_ids:
        there = f"backend.device_ids has {_listed(device_ids)}" if device_ids else "the model is not on GPUs"
        raise BadInput(f"{what} names GPU {text}, and {there}.")
    return gpu_place(int(text))


def limits_of(max_memory: Mapping[int | str, int | str] | None, device_ids: Sequence[int]) -> dict[str, int]:
    """Return the most bytes of weights by place: ``{"cuda:2": 20000000000, "cpu": …}``; what is not named is not in it.

    Raises:
        BadInput: A size cannot be read, or a place is not one of the model's.
    """
    limits: dict[str, int] = {}
    for key, value in (max_memory or {}).items():
        device = place_of_key(key, device_ids, "max_memory")
        if device in limits:
            raise BadInput(f"max_memory names {device} twice.")
        limits[device] = bytes_of(value, f"max_memory of {key}")
    return limits


def _listed(numbers: Sequence[int]) -> str:
    return " and ".join(filter(None, (", ".join(map(str, numbers[:-1])), str(numbers[-1]))))
