"""In what two results differ that are not of the same thing, as values and in words.

softmax@numpy: parameters differ (rows 256 vs 512); isolation differs (none vs full)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.values import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.store.identity import Detail

PLURAL = frozenset({"parameters", "conditions"})
UNSET = {"schedule": "alone", "beside": "nothing", "in turns": "no", "in stages": "no"}
"""What it means that a result does not have a detail; of all others, that it is not set."""
AT_MOST = 4
"""So many differing values of one aspect are named."""


class Difference(Value):
    """One thing in which two results differ. Null: the result does not have it."""

    aspect: str
    name: str
    baseline: str | None
    other: str | None


def differences(first: Sequence[Detail], second: Sequence[Detail]) -> tuple[Difference, ...]:
    """Return the details in which two results differ, in the order of the first."""
    one, other = ({(detail.aspect, detail.name): detail.value for detail in side} for side in (first, second))
    return tuple(
        Difference(aspect=aspect, name=name, baseline=one.get((aspect, name)), other=other.get((aspect, name)))
        for aspect, name in dict.fromkeys((*one, *other))
        if one.get((aspect, name)) != other.get((aspect, name))
    )


def describe(different: Sequence[Difference]) -> str:
    """Write differences aspect by aspect: "parameters differ (rows 256 vs 512)"."""
    by_aspect: dict[str, list[Difference]] = {}
    for difference in different:
        by_aspect.setdefault(difference.aspect, []).append(difference)
    return "; ".join(
        f"{aspect} {'differ' if aspect in PLURAL else 'differs'} ({_values(several)})"
        for aspect, several in by_aspect.items()
    )


def _values(several: Sequence[Difference]) -> str:
    words = [
        f"{_label(difference)}{_value(difference, difference.baseline)} vs {_value(difference, difference.other)}"
        for difference in several[:AT_MOST]
    ]
    more = [f"{len(several) - AT_MOST} more"] if len(several) > AT_MOST else []
    return ", ".join([*words, *more])


def _label(of: Difference) -> str:
    return "" if of.name == of.aspect else f"{of.name} "


def _value(of: Difference, value: str | None) -> str:
    return UNSET.get(of.name, "not set") if value is None else value
