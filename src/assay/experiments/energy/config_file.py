"""Read the configuration of ``assay energy run``, apply overrides, and validate it before anything is loaded.

    file (YAML or JSON) ─► older keys translated ─► --set ─► each field ─► rules between fields ─► files it names

Paths in the file are relative to its folder (``scenario.prompts``, a folder as ``backend.model``); paths on the
command line, and output paths (``output_dir``, ``reporter.output_file``), are relative to the current directory.
``--set backend.device_ids=[0,1]`` names a field by its dotted path and gives its value in YAML; a flag such as
``--model`` sets a field with a name of its own. All errors are reported together, each with its line in the file or
the argument as typed.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from assay.core.errors import BadInput, suggest_nearest
from assay.core.values import explain_problem
from assay.core.yaml_input import parse_yaml, read_settings
from assay.experiments.energy.config import (
    RANDOM_PROMPTS,
    EnergyBackend,
    EnergyConfig,
    EnergyMetrics,
    EnergyReporter,
    EnergyScenario,
    find_contradictions,
    find_ineffective_settings,
)
from assay.experiments.file_locator import UNKNOWN_KEY, FileLocator
from assay.workloads.generation.models import is_random, local_folder
from assay.workloads.generation.prompts import read_prompts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pydantic import BaseModel, JsonValue
    from pydantic_core import ErrorDetails

    from assay.experiments.file_locator import KeyPath


@dataclass(frozen=True)
class ConfigOverride:
    """A key, its value, and how it was typed: ``--set name=a``, ``--seed 7``."""

    steps: KeyPath
    value: JsonValue
    text: str

    def replaces(self, steps: KeyPath) -> bool:
        """Return whether it sets all of a key, and not only something within."""
        return self.steps == steps[: len(self.steps)]


def parse_overrides(texts: Sequence[str], flags: Sequence[ConfigOverride] = ()) -> tuple[ConfigOverride, ...]:
    """Return overrides as they are written on a command line, those of flags last.

    Raises:
        BadInput: One has no ``=`` or no place, its value is not YAML, or a place is given twice.
    """
    overrides = (*map(_parse_override, texts), *flags)
    for number, override in enumerate(overrides):
        before = next((other for other in overrides[:number] if other.steps == override.steps), None)
        if before is not None and override in flags:
            raise BadInput(f"{before.text} and {override.text} say the same; keep one of them.")
        if before is not None:
            raise BadInput(f"--set {'.'.join(map(str, override.steps))} is given more than once.")
    return overrides


def _parse_override(text: str) -> ConfigOverride:
    target, equals, value = text.partition("=")
    parts = target.strip().split(".")
    if not equals or not all(parts):
        raise BadInput(f"--set {text!r} is not PLACE=VALUE, as --set backend.device_ids=[0,1].")
    steps = tuple(int(part) if part.isdecimal() else part for part in parts)
    return ConfigOverride(steps, parse_yaml(value, f"--set {text}"), f"--set {text}")


def _set_value(node: Any, steps: KeyPath, override: ConfigOverride) -> Any:
    """Return a configuration, or a part of it, with a value set at a place; the one given is left as it is.

    Raises:
        BadInput: The place is within a single value.
    """
    if not steps:
        return override.value
    step, rest = steps[0], steps[1:]
    if isinstance(node, list):
        if not isinstance(step, int) or step >= len(node):
            there = f"0 to {len(node) - 1}" if node else "none"
            raise BadInput(f"{override.text}: this is a list, and {step} is not an index of it; it has {there}.")
        return [_set_value(item, rest, override) if number == step else item for number, item in enumerate(node)]
    if not isinstance(node, dict | None):
        raise BadInput(f"{override.text}: before {step} stands the single value {node!r}, which holds no names.")
    return {**(node or {}), str(step): _set_value((node or {}).get(str(step)), rest, override)}


SECTION_MODELS: dict[str, type[BaseModel]] = {
    "backend": EnergyBackend,
    "scenario": EnergyScenario,
    "metrics": EnergyMetrics,
    "reporter": EnergyReporter,
}
FORM_PROBLEMS = frozenset(
    {"missing", "value_error", "too_short", "string_too_short", "tuple_type", "model_type", "dict_type"}
)
"""Errors whose message needs no value."""
MAX_SHOWN = 100
"""Characters of a wrong value that are repeated."""
MISSING_MESSAGES: dict[KeyPath, str] = {
    ("backend",): "backend is missing: who makes the tokens, as {type: pytorch, model: random:llama-1b}",
    ("backend", "type"): "type is missing: pytorch (a model here) or openai (a server)",
    ("backend", "model"): "model is missing: the name by which the server knows it",
}


class ConfigLocations:
    """Where a key was set: in a file, on the command line, or nowhere."""

    def __init__(
        self, lines: FileLocator | None, overrides: Sequence[ConfigOverride], moved: Mapping[KeyPath, KeyPath]
    ) -> None:
        self._lines = lines
        self._overrides = overrides
        self._moved = moved

    def override(self, steps: KeyPath) -> ConfigOverride | None:
        """Return what set a key on the command line; null: nothing did."""
        names = _step_names(self._original(steps))
        for override in self._overrides:
            if all(one == other for one, other in zip(_step_names(override.steps), names, strict=False)):
                return override
        return None

    def line(self, steps: KeyPath) -> int | None:
        """Return the line of a key in the file; null where it is not from there."""
        if self._lines is None or self.override(steps) is not None:
            return None
        return self._lines.line(self._original(steps))

    def _original(self, steps: KeyPath) -> KeyPath:
        """Return where something was before it was moved."""
        for length in range(len(steps), 0, -1):
            if steps[:length] in self._moved:
                return (*self._moved[steps[:length]], *steps[length:])
        return steps


def _step_names(steps: KeyPath) -> tuple[str, ...]:
    """Return the steps as text; a lone reporter is the first of a list of them."""
    words = tuple(map(str, steps))
    return (words[0], *words[2:]) if words[:2] == ("reporter", "0") else words


def build_config_error(problems: Iterable[tuple[KeyPath, str]], locations: ConfigLocations, name: str) -> BadInput:
    """Return all problems as one error: a sentence, or a list in the order of the file, the command line last."""
    located = [(locations.line(steps), locations.override(steps), message) for steps, message in problems]
    located.sort(key=lambda problem: math.inf if problem[0] is None else problem[0])
    sentences: dict[str, bool] = {}
    for line, override, message in located:
        location = f"{override.text}: " if override is not None else "" if line is None else f"line {line}: "
        sentences[f"{location}{message}{'' if message.endswith(('.', '?')) else '.'}"] = line is not None
    if len(sentences) > 1:
        listed = "\n".join(f"  {sentence}" for sentence in sentences)
        return BadInput(f"{name} has {len(sentences)} mistakes:\n{listed}")
    ((sentence, is_in_file),) = sentences.items()
    return BadInput(f"{name}, {sentence}" if is_in_file else sentence)


def translate_validation_errors(error: ValidationError) -> list[tuple[KeyPath, str]]:
    """Return the place and the message of everything that the models refuse."""
    return [(problem["loc"], _describe_error(problem)) for problem in error.errors()]


def _describe_error(problem: ErrorDetails) -> str:
    steps, kind, value = problem["loc"], problem["type"], problem["input"]
    name = next((step for step in reversed(steps) if isinstance(step, str)), "it")
    if kind == UNKNOWN_KEY:
        return _unknown_key_message(steps)
    if kind == "missing" and steps in MISSING_MESSAGES:
        return MISSING_MESSAGES[steps]
    text = f"{name} {explain_problem(problem)}"
    if kind in FORM_PROBLEMS:
        return text
    choices = problem["ctx"]["expected"].split("'")[1::2] if kind == "literal_error" else ()
    near = suggest_nearest(value, choices) if isinstance(value, str) else ""
    shown = repr(value) if len(repr(value)) <= MAX_SHOWN else f"{repr(value)[:MAX_SHOWN]}…"
    return f"{text}, and is {shown}{f'.{near}' if near else ''}"


def _unknown_key_message(steps: KeyPath) -> str:
    """Say that a key is not known, and which is near: here, or anywhere else."""
    from assay.compat.energy import OLDER_KEYS

    name = str(steps[-1])
    section = next((str(step) for step in steps[:-1] if isinstance(step, str)), "")
    there = _field_names(section)
    where = f"in {section}" if section else "at the top"
    elsewhere = [f"{other}.{key}" for other in SECTION_MODELS for key in _field_names(other) if other != section]
    same = [dotted for dotted in elsewhere if dotted.partition(".")[2] == name]
    near = (
        f" Did you mean {' or '.join(same)}?"
        if same
        else suggest_nearest(name, there) or suggest_nearest(name, OLDER_KEYS.get(section, ()))
    )
    return f"{name!r} is not known {where}.{near}" if near else f"{name!r} is not known {where}: {', '.join(there)}"


def _field_names(section: str) -> tuple[str, ...]:
    return tuple((SECTION_MODELS[section] if section else EnergyConfig).model_fields)


DEFAULT_CPU_MODEL, DEFAULT_GPU_MODEL = "random:llama-tiny", "random:llama-1b"
"""Models that are taken where none is named."""
SECTIONS = ("backend", "scenario", "metrics")


def read_config(
    path: Path | None,
    sets: Sequence[str] = (),
    *,
    flags: Sequence[ConfigOverride] = (),
    defaults: Mapping[str, Any] | None = None,
) -> tuple[EnergyConfig, tuple[str, ...]]:
    """Return a configuration, and notes on how it was understood.

    Args:
        path: The file; null: none.
        sets: ``backend.device_ids=[0,1]`` and the like, which override the file.
        flags: Overrides from flags with names of their own.
        defaults: Values of keys that are set nowhere, by section.

    Raises:
        BadInput: It cannot be read, or is invalid; all errors are listed with their lines.
    """
    from assay.compat.energy import translate_config

    overrides = parse_overrides(sets, flags)
    content = _read_content(path)
    translated_file = translate_config(content)
    overridden = translated_file.content
    for override in overrides:
        overridden = _set_value(overridden, override.steps, override)
    translated_all = translate_config(overridden, wins=True, is_older=translated_file.is_older)
    moved = {**translated_file.moved, **translated_all.moved}
    locations = ConfigLocations(None if path is None else FileLocator(path), overrides, moved)
    file_notes = {
        steps: note
        for steps, note in translated_file.notes.items()
        if not any(override.replaces(steps) for override in overrides)
    }
    notes = list({**file_notes, **translated_all.notes}.values())
    full = _apply_defaults(_drop_nulls(translated_all.content), defaults or {}, notes)
    name = str(path) if path is not None else "The command line"
    problems = [*translated_file.problems, *translated_all.problems]
    try:
        config = EnergyConfig.model_validate(full)
    except ValidationError as error:
        raise build_config_error([*problems, *translate_validation_errors(error)], locations, name) from None
    config = _drop_unused_limits(config, locations, notes)
    placed = _resolve_paths(config, locations, path)
    problems += [*find_contradictions(config), *_find_missing_files(config, placed)]
    if problems:
        raise build_config_error(problems, locations, name)
    return placed, (*notes, *find_ineffective_settings(config))


def _read_content(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {"backend": {"type": "pytorch"}}
    content = read_settings(path)
    if content is None:
        raise BadInput(f"{path} is empty: it must hold at least `backend`, who makes the tokens.")
    if not isinstance(content, dict):
        raise BadInput(f"{path} must map backend, scenario, metrics and reporter to what they are, and holds no names.")
    return content


def _drop_nulls(content: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what says nothing: a section that is empty, a key with null."""
    filled = {key: value for key, value in content.items() if value is not None}
    for section in SECTIONS:
        if isinstance(filled.get(section), dict):
            filled[section] = {key: value for key, value in filled[section].items() if value is not None}
    return filled


def _apply_defaults(content: dict[str, Any], defaults: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Fill in defaults, and choose a model where none is named, with a note."""
    for section, values in defaults.items():
        given_values = content.get(section, {})
        if isinstance(given_values, dict):
            content[section] = {**values, **given_values}
    backend = content.get("backend")
    if isinstance(backend, dict) and backend.get("type") == "pytorch" and "model" not in backend:
        on_gpus = backend.get("device") == "cuda" or "device_ids" in backend
        model = DEFAULT_GPU_MODEL if on_gpus else DEFAULT_CPU_MODEL
        content["backend"] = {**backend, "model": model}
        notes.append(f"backend.model is not named, and {model} stands in: its shape, with random weights")
    return content


def _drop_unused_limits(config: EnergyConfig, locations: ConfigLocations, notes: list[str]) -> EnergyConfig:
    """Leave out limits of GPUs that the command line takes out of the file's ``device_ids``, with a note."""
    backend = config.backend
    ids, limits = backend.device_ids, backend.max_memory
    is_overridden = [locations.override(("backend", name)) is not None for name in ("device_ids", "max_memory")]
    if ids is None or limits is None or is_overridden != [True, False]:
        return config
    others = [key for key in limits if isinstance(key, int) and key not in ids]
    if not others:
        return config
    notes.append(f"backend.max_memory of GPU {', '.join(map(str, others))} is left out, as device_ids are others")
    used_limits = {key: room for key, room in limits.items() if key not in others}
    return config.model_copy(update={"backend": backend.model_copy(update={"max_memory": used_limits or None})})


def _resolve_paths(config: EnergyConfig, locations: ConfigLocations, path: Path | None) -> EnergyConfig:
    """Return the configuration with the files that it reads as paths from the current folder."""

    def base(*steps: str) -> Path:
        return Path() if path is None or locations.override(steps) is not None else path.parent

    backend, scenario = config.backend, config.scenario
    prompts, model = scenario.prompts, backend.model
    if prompts != RANDOM_PROMPTS:
        prompts = _relative_to_cwd(prompts, base("scenario", "prompts"))
    if backend.type == "pytorch" and not is_random(model):
        folder = base("backend", "model")
        if model.startswith((".", "/", "~")) or (folder / model).is_dir():
            model = _relative_to_cwd(model, folder)
            model = model if model.startswith((".", "/")) else f"./{model}"
    return config.model_copy(
        update={
            "backend": backend.model_copy(update={"model": model}),
            "scenario": scenario.model_copy(update={"prompts": prompts}),
        }
    )


def _relative_to_cwd(text: str, folder: Path) -> str:
    """Return a path as it is written from the current folder."""
    path = Path(text).expanduser()
    return str(path) if path.is_absolute() else os.path.relpath(folder / path)


def _find_missing_files(config: EnergyConfig, placed: EnergyConfig) -> Iterator[tuple[KeyPath, str]]:
    """Give what is wrong with the files that will be read: prompts, and a model's folder."""
    scenario, prompts, model = config.scenario, placed.scenario.prompts, placed.backend.model
    if prompts != RANDOM_PROMPTS and not Path(prompts).exists():
        here = f"there is no file or folder {scenario.prompts}{'' if scenario.prompts == prompts else f' ({prompts})'}"
        instead = "name a file (.txt, .jsonl, .csv) or a data set's folder, or take random tokens: prompts: random"
        yield ("scenario", "prompts"), f"{here}, and nothing is downloaded; {instead}"
    elif prompts != RANDOM_PROMPTS:
        try:
            read_prompts(prompts, scenario.text_column_name, scenario.num_samples or 0)
        except BadInput as error:
            yield ("scenario", "prompts"), str(error)
    if config.backend.type == "pytorch" and not is_random(model):
        try:
            local_folder(model)
        except BadInput as error:
            yield ("backend", "model"), str(error)
