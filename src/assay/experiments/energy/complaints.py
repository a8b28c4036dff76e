"""Everything that is wrong with a configuration, each with its place: a line of the file, or what was typed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput, nearest
from assay.experiments.energy.config import Backend, EnergyConfig, Metrics, Reporter, Scenario
from assay.experiments.energy.older import KEYS
from assay.experiments.file_lines import SHAPES, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydantic import BaseModel, ValidationError

    from assay.experiments.energy.overrides import Override
    from assay.experiments.file_lines import Lines, Steps

MODELS: dict[str, type[BaseModel]] = {
    "backend": Backend,
    "scenario": Scenario,
    "metrics": Metrics,
    "reporter": Reporter,
}
MISSING = {
    ("backend",): "backend is missing: who makes the tokens, as {type: pytorch, model: random:llama-1b}",
    ("backend", "type"): "type is missing: pytorch (a model here) or openai (a server)",
    ("backend", "model"): "model is missing: the name by which the server knows it",
}


class Places:
    """Where things were said: in a file, on the command line, or nowhere."""

    def __init__(self, lines: Lines | None, overrides: Sequence[Override], moved: Mapping[Steps, Steps]) -> None:
        self._lines = lines
        self._overrides = overrides
        self._moved = moved

    def override(self, steps: Steps) -> Override | None:
        """Return what set a place on the command line; null: nothing did."""
        stood = _words(self._stood(steps))
        matches = (override for override in self._overrides if _leads(_words(override.steps), stood))
        return next(matches, None)

    def order(self, steps: Steps) -> int:
        """Return a number that grows with the line; the command line comes last."""
        if self._lines is None or self.override(steps) is not None:
            return 1 << 30
        return self._lines.line(self._stood(steps))

    def said_at(self, steps: Steps) -> str:
        """Return the place in words, with a colon behind it; nothing where there is none."""
        override = self.override(steps)
        if override is not None:
            return f"{override.text}: "
        return "" if self._lines is None else f"line {self._lines.line(self._stood(steps))}: "

    def _stood(self, steps: Steps) -> Steps:
        """Return where something stood before it was moved."""
        for length in range(len(steps), 0, -1):
            if steps[:length] in self._moved:
                return (*self._moved[steps[:length]], *steps[length:])
        return steps


def _words(steps: Steps) -> tuple[str, ...]:
    """Return a way as names; that a lone reporter is the first of one counts not."""
    words = tuple(map(str, steps))
    return (words[0], *words[2:]) if words[:2] == ("reporter", "0") else words


def _leads(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Return whether one of two ways is the beginning of the other."""
    short = min(len(one), len(other))
    return one[:short] == other[:short]


def complaint(problems: Iterable[tuple[Steps, str]], places: Places, name: str) -> BadInput:
    """Return all problems as one error: a sentence, or a list in the order of the file."""
    ordered = sorted(problems, key=lambda problem: places.order(problem[0]))
    sentences = list(dict.fromkeys(f"{places.said_at(steps)}{_ended(message)}" for steps, message in ordered))
    if len(sentences) == 1:
        return BadInput(f"{name}, {sentences[0]}" if sentences[0].startswith("line ") else sentences[0])
    listed = "\n".join(f"  {sentence}" for sentence in sentences)
    return BadInput(f"{name} has {len(sentences)} mistakes:\n{listed}")


def problems_of(error: ValidationError) -> list[tuple[Steps, str]]:
    """Return what the models complain about, in our words."""
    return [
        _problem(problem["loc"], problem["type"], str(problem["msg"]), problem["input"]) for problem in error.errors()
    ]


def _problem(steps: Steps, kind: str, said: str, value: Any) -> tuple[Steps, str]:
    name = next((step for step in reversed(steps) if isinstance(step, str)), "it")
    if kind == UNKNOWN:
        return steps, _unknown(steps)
    if kind == "missing":
        return steps, MISSING.get(tuple(map(str, steps)), f"{name} is missing")
    if kind in SHAPES:
        return steps, f"{name} {SHAPES[kind]}"
    if said.startswith("Input should "):
        near = nearest(value, _choices(said)) if isinstance(value, str) else ""
        expected = said.removeprefix("Input ").partition(", unable")[0]
        return steps, f"{name} {expected}, and is {value!r}{f'.{near}' if near else ''}"
    return steps, f"{name} {said.removeprefix('Value error, ')}"


def _choices(said: str) -> list[str]:
    """Return what stands in quotes."""
    return said.split("'")[1::2]


def _unknown(steps: Steps) -> str:
    """Say that a key is not known, and which is near: here, or anywhere else."""
    name = str(steps[-1])
    section = next((str(step) for step in steps[:-1] if isinstance(step, str)), "")
    there = _fields(section)
    where = f"in {section}" if section else "at the top"
    elsewhere = [f"{other}.{key}" for other in MODELS for key in _fields(other) if other != section]
    same = [dotted for dotted in elsewhere if dotted.partition(".")[2] == name]
    near = (
        f" Did you mean {' or '.join(same)}?" if same else nearest(name, there) or nearest(name, KEYS.get(section, ()))
    )
    return f"{name!r} is not known {where}.{near}" if near else f"{name!r} is not known {where}: {', '.join(there)}"


def _fields(section: str) -> tuple[str, ...]:
    return tuple((MODELS[section] if section else EnergyConfig).model_fields)


def _ended(said: str) -> str:
    return said if said.endswith((".", "?")) else f"{said}."
