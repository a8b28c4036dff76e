"""Numbers that are kept, and held against those that come out now."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from pathlib import Path

WORDS = frozenset(
    {"answer", "caveat", "code", "decisive", "headline", "kind", "outcome", "quantity", "shape", "status", "stopped"}
    | {"unsteady", "verdict", "winner"}
)
"""What is told in words and is no sentence; other words may change."""


SENTENCES = ("method", "reason")
"""Fields whose words may change."""


def told(value: Any) -> Any:
    """Return a result as JSON has it; words, and numbers that are not finite, as codes that are kept."""
    found: Any = value
    if is_dataclass(value) and not isinstance(value, type):
        found = {each.name: getattr(value, each.name) for each in fields(value)}
    elif hasattr(value, "model_dump"):
        found = value.model_dump(mode="json")
    elif isinstance(value, np.ndarray | np.generic):
        found = value.tolist()
    if isinstance(found, Mapping):
        return {str(name): told(each) for name, each in found.items() if name not in SENTENCES}
    if isinstance(found, list | tuple):
        return [told(each) for each in found]
    if isinstance(found, str) or (isinstance(found, float) and not math.isfinite(found)):
        return {"code": str(found)}
    return found


def plain(value: Any) -> Any:
    """Return numbers, and words that are codes, as JSON has them."""
    return _kept(json.loads(json.dumps(value)))


def _kept(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _kept(v) for k, v in value.items() if not isinstance(v, str) or k in WORDS}
    if isinstance(value, list):
        return [_kept(each) for each in value if not isinstance(each, str)]
    return value


def keep(numbers: dict[str, Any], path: Path) -> None:
    """Write numbers down."""
    path.write_text(json.dumps(plain(numbers), indent=1) + "\n", encoding="utf-8")


def differences(numbers: dict[str, Any], path: Path) -> dict[str, tuple[Any, Any]]:
    """Return what is not as it was kept, to the fifth digit: what it is now, and what it was."""
    now, kept = _flat(plain(numbers)), _flat(json.loads(path.read_text(encoding="utf-8")))
    return {
        place: (now.get(place, "missing"), kept.get(place, "missing"))
        for place in dict.fromkeys((*now, *kept))
        if place not in now or place not in kept or not _same(now[place], kept[place])
    }


def _same(now: Any, kept: Any) -> bool:
    if isinstance(kept, float) and isinstance(now, float):
        return bool(now == pytest.approx(kept, rel=1e-5, abs=1e-9))
    return bool(now == kept)


def _flat(value: Any, at: str = "") -> dict[str, Any]:
    """Return everything by its place."""
    if isinstance(value, dict):
        return {k: v for name, each in value.items() for k, v in _flat(each, f"{at}/{name}").items()}
    if isinstance(value, list):
        return {k: v for n, each in enumerate(value) for k, v in _flat(each, f"{at}/{n}").items()}
    return {at: value}
