"""Read the configuration of ``assay energy run``, apply overrides, and validate it before anything is loaded.

    file (YAML or JSON) ─► older keys translated ─► --set ─► each field ─► rules between fields ─► files it names

Paths in the file are relative to its folder (``scenario.prompts``, a folder as ``backend.model``); paths on the
command line, and output paths (``output_dir``, ``reporter.output_file``), are relative to the current directory.
``--set backend.device_ids=[0,1]`` names a field by its dotted path and gives its value in YAML; a flag such as
``--model`` sets a field with a name of its own. All errors are reported together, each with its line in the file or
the argument as typed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from assay.core.errors import BadInput, suggest_nearest
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
from assay.experiments.file_locator import SHAPE_PROBLEMS, UNKNOWN_KEY, FileLocator
from assay.workloads.generation.models import is_random, local_folder
from assay.workloads.generation.prompts import read_prompts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pydantic import BaseModel, JsonValue

    from assay.compat.energy import ConfigTranslation
    from assay.experiments.file_locator import KeyPath


@dataclass(frozen=True)
class ConfigOverride:
    """One of them: the way to the place, the value, and how it was typed: ``--set name=a``, ``--seed 7``."""

    steps: KeyPath
    value: JsonValue
    text: str

    def replaces(self, steps: KeyPath) -> bool:
        """Return whether it takes all of a place, and not only something within."""
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
            raise BadInput(f"--set {_dotted_path(override.steps)} is given more than once.")
    return overrides


def _parse_override(text: str) -> ConfigOverride:
    target, equals, value = text.partition("=")
    parts = target.strip().split(".")
    if not equals or not all(parts):
        raise BadInput(f"--set {text!r} is not PLACE=VALUE, as --set backend.device_ids=[0,1].")
    steps = tuple(int(part) if part.isdecimal() else part for part in parts)
    return ConfigOverride(steps, parse_yaml(value, f"--set {text}"), f"--set {text}")


def apply_overrides(content: dict[str, Any], overrides: Sequence[ConfigOverride]) -> dict[str, Any]:
    """Return a configuration with the overrides in their places; the one given is left as it is.

    Raises:
        BadInput: A way leads through what has no names.
    """
    for override in overrides:
        content = _set_value(content, override.steps, override)
    return content


def _set_value(node: Any, steps: KeyPath, override: ConfigOverride) -> Any:
    if not steps:
        return override.value
    step, rest = steps[0], steps[1:]
    if isinstance(node, list):
        if not isinstance(step, int) or step >= len(node):
            there = f"0 to {len(node) - 1}" if node else "none"
            raise BadInput(f"{override.text}: there stands a list, and {step} is no place in it; it has {there}.")
        return [_set_value(item, rest, override) if number == step else item for number, item in enumerate(node)]
    if not isinstance(node, dict | None):
        raise BadInput(f"{override.text}: before {step} stands the single value {node!r}, which holds no names.")
    return {**(node or {}), str(step): _set_value((node or {}).get(str(step)), rest, override)}


def _dotted_path(steps: KeyPath) -> str:
    return ".".join(map(str, steps))


SECTION_MODELS: dict[str, type[BaseModel]] = {
    "backend": EnergyBackend,
    "scenario": EnergyScenario,
    "metrics": EnergyMetrics,
    "reporter": EnergyReporter,
}
MISSING_MESSAGES = {
    ("backend",): "backend is missing: who makes the tokens, as {type: pytorch, model: random:llama-1b}",
    ("backend", "type"): "type is missing: pytorch (a model here) or openai (a server)",
    ("backend", "model"): "model is missing: the name by which the server knows it",
}


class ConfigLocations:
    """Where things were said: in a file, on the command line, or nowhere."""

    def __init__(
        self, lines: FileLocator | None, overrides: Sequence[ConfigOverride], moved: Mapping[KeyPath, KeyPath]
    ) -> None:
        self._lines = lines
        self._overrides = overrides
        self._moved = moved

    def override(self, steps: KeyPath) -> ConfigOverride | None:
        """Return what set a place on the command line; null: nothing did."""
        stood = _step_names(self._original(steps))
        matches = (override for override in self._overrides if _is_prefix(_step_names(override.steps), stood))
        return next(matches, None)

    def order(self, steps: KeyPath) -> int:
        """Return a number that grows with the line; the command line comes last."""
        if self._lines is None or self.override(steps) is not None:
            return 1 << 30
        return self._lines.line(self._original(steps))

    def describe(self, steps: KeyPath) -> str:
        """Return the place in words, with a colon behind it; nothing where there is none."""
        override = self.override(steps)
        if override is not None:
            return f"{override.text}: "
        return "" if self._lines is None else f"line {self._lines.line(self._original(steps))}: "

    def _original(self, steps: KeyPath) -> KeyPath:
        """Return where something stood before it was moved."""
        for length in range(len(steps), 0, -1):
            if steps[:length] in self._moved:
                return (*self._moved[steps[:length]], *steps[length:])
        return steps


def _step_names(steps: KeyPath) -> tuple[str, ...]:
    """Return a way as names; that a lone reporter is the first of one counts not."""
    words = tuple(map(str, steps))
    return (words[0], *words[2:]) if words[:2] == ("reporter", "0") else words


def _is_prefix(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Return whether one of two ways is the beginning of the other."""
    short = min(len(one), len(other))
    return one[:short] == other[:short]


def build_config_error(problems: Iterable[tuple[KeyPath, str]], locations: ConfigLocations, name: str) -> BadInput:
    """Return all problems as one error: a sentence, or a list in the order of the file."""
    ordered = sorted(problems, key=lambda problem: locations.order(problem[0]))
    sentences = list(
        dict.fromkeys(f"{locations.describe(steps)}{_end_sentence(message)}" for steps, message in ordered)
    )
    if len(sentences) == 1:
        return BadInput(f"{name}, {sentences[0]}" if sentences[0].startswith("line ") else sentences[0])
    listed = "\n".join(f"  {sentence}" for sentence in sentences)
    return BadInput(f"{name} has {len(sentences)} mistakes:\n{listed}")


def translate_validation_errors(error: ValidationError) -> list[tuple[KeyPath, str]]:
    """Return what the models complain about, in our words."""
    return [
        _translate_error(problem["loc"], problem["type"], str(problem["msg"]), problem["input"])
        for problem in error.errors()
    ]


def _translate_error(steps: KeyPath, kind: str, message: str, value: Any) -> tuple[KeyPath, str]:
    name = next((step for step in reversed(steps) if isinstance(step, str)), "it")
    if kind == UNKNOWN_KEY:
        return steps, _unknown_key_message(steps)
    if kind == "missing":
        return steps, MISSING_MESSAGES.get(tuple(map(str, steps)), f"{name} is missing")
    if kind in SHAPE_PROBLEMS:
        return steps, f"{name} {SHAPE_PROBLEMS[kind]}"
    if message.startswith("Input should "):
        near = suggest_nearest(value, _quoted_choices(message)) if isinstance(value, str) else ""
        expected = message.removeprefix("Input ").partition(", unable")[0]
        return steps, f"{name} {expected}, and is {value!r}{f'.{near}' if near else ''}"
    return steps, f"{name} {message.removeprefix('Value error, ')}"


def _quoted_choices(message: str) -> list[str]:
    """Return what stands in quotes."""
    return message.split("'")[1::2]


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


def _end_sentence(message: str) -> str:
    return message if message.endswith((".", "?")) else f"{message}."


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
    """Return a configuration, and notes on what the user should know of how it was understood.

    Args:
        path: The file; null: there is none, and all is said by the rest.
        sets: ``backend.device_ids=[0,1]`` and the like, which take the place of what the file says.
        flags: Likewise, of flags that have names of their own.
        defaults: What holds where neither says anything, by sections.

    Raises:
        BadInput: It cannot be read, or does not make sense; all that does not is told, with its places.
    """
    from assay.compat.energy import translate_config

    overrides = parse_overrides(sets, flags)
    content = _read_content(path)
    translated_file = translate_config(content)
    translated_all = translate_config(
        apply_overrides(translated_file.content, overrides), wins=True, is_older=translated_file.is_older
    )
    moved = {**translated_file.moved, **translated_all.moved}
    locations = ConfigLocations(None if path is None else FileLocator(path), overrides, moved)
    notes = _translation_notes(translated_file, translated_all, overrides)
    full = _apply_defaults(_drop_nulls(translated_all.content), defaults or {}, notes)
    name = str(path) if path is not None else "What is said"
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


def _translation_notes(
    file: ConfigTranslation, both: ConfigTranslation, overrides: Sequence[ConfigOverride]
) -> list[str]:
    """Return what is to be said of older keys: of each place once, and nothing of what the command line replaces."""
    notes = {
        steps: note for steps, note in file.notes.items() if not any(override.replaces(steps) for override in overrides)
    }
    return list({**notes, **both.notes}.values())


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
    """Fill in what is not said, and name a model where none is, with a note."""
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
    if (
        backend.max_memory is None
        or backend.device_ids is None
        or locations.override(("backend", "device_ids")) is None
    ):
        return config
    others = [key for key in backend.max_memory if isinstance(key, int) and key not in backend.device_ids]
    if not others or locations.override(("backend", "max_memory")) is not None:
        return config
    limits = {key: room for key, room in backend.max_memory.items() if key not in others}
    notes.append(f"backend.max_memory of GPU {', '.join(map(str, others))} is left out, as device_ids are others")
    return config.model_copy(update={"backend": backend.model_copy(update={"max_memory": limits or None})})


def _resolve_paths(config: EnergyConfig, locations: ConfigLocations, path: Path | None) -> EnergyConfig:
    """Return the configuration with the files that it reads as they are named from here."""
    backend, scenario = config.backend, config.scenario
    folder = Path() if path is None else path.parent
    prompts, model = scenario.prompts, backend.model
    if prompts != RANDOM_PROMPTS:
        prompts = _relative_to_cwd(
            prompts, Path() if locations.override(("scenario", "prompts")) is not None else folder
        )
    if backend.type == "pytorch" and not is_random(model):
        base = Path() if locations.override(("backend", "model")) is not None else folder
        if model.startswith((".", "/", "~")) or (base / model).is_dir():
            model = (
                f"{os.curdir}/{relative}"
                if not (relative := _relative_to_cwd(model, base)).startswith((".", "/"))
                else relative
            )
    return config.model_copy(
        update={
            "backend": backend.model_copy(update={"model": model}),
            "scenario": scenario.model_copy(update={"prompts": prompts}),
        }
    )


def _find_missing_files(config: EnergyConfig, placed: EnergyConfig) -> Iterator[tuple[KeyPath, str]]:
    prompts, model = placed.scenario.prompts, placed.backend.model
    if prompts != RANDOM_PROMPTS:
        try:
            _check_prompts(config.scenario, prompts)
        except BadInput as error:
            yield ("scenario", "prompts"), str(error)
    if config.backend.type == "pytorch" and not is_random(model):
        try:
            local_folder(model)
        except BadInput as error:
            yield ("backend", "model"), str(error)


def _check_prompts(scenario: EnergyScenario, prompts: str) -> None:
    """Make sure that prompts are there, and that all that will be used can be read."""
    if not Path(prompts).exists():
        name = scenario.prompts
        here = f"there is no file or folder {name}{'' if name == prompts else f' ({prompts})'}"
        instead = "name a file (.txt, .jsonl, .csv) or a data set's folder, or take random tokens: prompts: random"
        raise BadInput(f"{here}, and nothing is downloaded; {instead}.")
    read_prompts(prompts, scenario.text_column_name, scenario.num_samples or 0)


def _relative_to_cwd(text: str, folder: Path) -> str:
    """Return a path as it is written from the current folder."""
    path = Path(text).expanduser()
    return str(path) if path.is_absolute() else os.path.relpath(folder / path)
