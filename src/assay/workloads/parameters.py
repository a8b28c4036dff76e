"""Read the parameters of a problem and the settings of a configuration, or say in one sentence what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.errors import BadInput, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.core.values import Params, Scalar


def one_of(name: str, value: Scalar, known: Iterable[str]) -> str:
    """Return a value that is among the known ones."""
    known = tuple(known)
    if isinstance(value, str) and value in known:
        return value
    raise BadInput(f"{name} is one of {', '.join(known)}, not {value!r}.{nearest(str(value), known)}")


def size(values: Params, name: str) -> int:
    """Return a size: a whole number of at least 1."""
    value = values[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadInput(f"{name} is a whole number of at least 1, not {value!r}.")
    return value


def flag(values: Params, name: str) -> bool:
    """Return a yes or no."""
    value = values[name]
    if not isinstance(value, bool):
        raise BadInput(f"{name} is true or false, not {value!r}.")
    return value


def block_sizes(candidates: Iterable[int], limit: int) -> tuple[int, ...]:
    """Return the candidates in their order, none larger than the problem and none twice."""
    return tuple(dict.fromkeys(min(candidate, limit) for candidate in candidates))


def complete(config: Params | None, default: Params) -> Params:
    """Return the configuration with what it leaves out taken from the default."""
    for key in config or {}:
        if key not in default:
            raise BadInput(f"{key!r} is not a setting here; there are {', '.join(default)}.{nearest(key, default)}")
    return {**default, **(config or {})}
