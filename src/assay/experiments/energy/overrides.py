"""What the command line says instead of the file.

``--set backend.device_ids=[0,1]`` is a place in the configuration, by names with dots, and its value, in YAML; a flag,
as ``--model``, is a place that has a name of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.core.durable import parse_yaml
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import JsonValue

    from assay.experiments.file_lines import Steps


@dataclass(frozen=True)
class Override:
    """One of them: the way to the place, the value, and how it was typed: ``--set name=a``, ``--seed 7``."""

    steps: Steps
    value: JsonValue
    text: str

    def replaces(self, place: Steps) -> bool:
        """Return whether it takes all of a place, and not only something within."""
        return self.steps == place[: len(self.steps)]


def parsed(texts: Sequence[str], flags: Sequence[Override] = ()) -> tuple[Override, ...]:
    """Return overrides as they are written on a command line, those of flags last.

    Raises:
        BadInput: One has no ``=`` or no place, its value is not YAML, or a place is given twice.
    """
    overrides = (*map(_parsed, texts), *flags)
    for number, override in enumerate(overrides):
        before = next((other for other in overrides[:number] if other.steps == override.steps), None)
        if before is not None and override in flags:
            raise BadInput(f"{before.text} and {override.text} say the same; keep one of them.")
        if before is not None:
            raise BadInput(f"--set {_dotted(override.steps)} is given more than once.")
    return overrides


def _parsed(text: str) -> Override:
    target, equals, value = text.partition("=")
    parts = target.strip().split(".")
    if not equals or not all(parts):
        raise BadInput(f"--set {text!r} is not PLACE=VALUE, as --set backend.device_ids=[0,1].")
    steps = tuple(int(part) if part.isdecimal() else part for part in parts)
    return Override(steps, parse_yaml(value, f"--set {text}"), f"--set {text}")


def applied(content: dict[str, Any], overrides: Sequence[Override]) -> dict[str, Any]:
    """Return a configuration with the overrides in their places; the one given is left as it is.

    Raises:
        BadInput: A way leads through what has no names.
    """
    for override in overrides:
        content = _with(content, override.steps, override)
    return content


def _with(node: Any, steps: Steps, override: Override) -> Any:
    if not steps:
        return override.value
    step, rest = steps[0], steps[1:]
    if isinstance(node, list):
        if not isinstance(step, int) or step >= len(node):
            there = f"0 to {len(node) - 1}" if node else "none"
            raise BadInput(f"{override.text}: there stands a list, and {step} is no place in it; it has {there}.")
        return [_with(item, rest, override) if number == step else item for number, item in enumerate(node)]
    if not isinstance(node, dict | None):
        raise BadInput(f"{override.text}: before {step} stands the single value {node!r}, which holds no names.")
    return {**(node or {}), str(step): _with((node or {}).get(str(step)), rest, override)}


def _dotted(steps: Steps) -> str:
    return ".".join(map(str, steps))
