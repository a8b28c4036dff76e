"""The configuration of ``assay energy run``: read and looked at as a whole, before anything is loaded.

    file (YAML or JSON) ─► older keys as ours ─► --set ─► each field ─► rules between them ─► files that it names

Paths in the file are meant from its folder (``scenario.prompts``, a folder as ``backend.model``); those on the command
line, and those that are written (``output_dir``, ``reporter.output_file``), from where the command is started.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from assay.core.durable import read_settings
from assay.core.errors import BadInput
from assay.experiments.energy.complaints import Places, complaint, problems_of
from assay.experiments.energy.config import RANDOM_PROMPTS, EnergyConfig
from assay.experiments.energy.older import translated
from assay.experiments.energy.overrides import applied, parsed
from assay.experiments.energy.rules import contradictions, remarks
from assay.experiments.file_lines import Lines
from assay.workloads.generation.hub import local_folder
from assay.workloads.generation.models import is_random
from assay.workloads.generation.prompts import read

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from assay.experiments.energy.config import Scenario
    from assay.experiments.energy.older import Translation
    from assay.experiments.energy.overrides import Override
    from assay.experiments.file_lines import Steps

STAND_IN, STAND_IN_ON_GPUS = "random:llama-tiny", "random:llama-1b"
"""Models that are taken where none is named."""
SECTIONS = ("backend", "scenario", "metrics")


def read_config(
    path: Path | None,
    sets: Sequence[str] = (),
    *,
    flags: Sequence[Override] = (),
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
    overrides = parsed(sets, flags)
    content = _content(path)
    translated_file = translated(content)
    translated_all = translated(applied(translated_file.content, overrides), wins=True, found=translated_file.found)
    moved = {**translated_file.moved, **translated_all.moved}
    locations = Places(None if path is None else Lines(path), overrides, moved)
    notes = _noted(translated_file, translated_all, overrides)
    full = _filled(_without_nulls(translated_all.content), defaults or {}, notes)
    name = str(path) if path is not None else "What is said"
    problems = [*translated_file.problems, *translated_all.problems]
    try:
        config = EnergyConfig.model_validate(full)
    except ValidationError as error:
        raise complaint([*problems, *problems_of(error)], locations, name) from None
    config = _limited(config, locations, notes)
    placed = _placed(config, locations, path)
    problems += [*contradictions(config), *_missing_files(config, placed)]
    if problems:
        raise complaint(problems, locations, name)
    return placed, (*notes, *remarks(config))


def _noted(file: Translation, both: Translation, overrides: Sequence[Override]) -> list[str]:
    """Return what is to be said of older keys: of each place once, and nothing of what the command line replaces."""
    notes = {
        steps: note for steps, note in file.notes.items() if not any(override.replaces(steps) for override in overrides)
    }
    return list({**notes, **both.notes}.values())


def _content(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {"backend": {"type": "pytorch"}}
    content = read_settings(path)
    if content is None:
        raise BadInput(f"{path} is empty: it must hold at least `backend`, who makes the tokens.")
    if not isinstance(content, dict):
        raise BadInput(f"{path} must map backend, scenario, metrics and reporter to what they are, and holds no names.")
    return content


def _without_nulls(content: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what says nothing: a section that is empty, a key with null."""
    filled = {key: value for key, value in content.items() if value is not None}
    for section in SECTIONS:
        if isinstance(filled.get(section), dict):
            filled[section] = {key: value for key, value in filled[section].items() if value is not None}
    return filled


def _filled(content: dict[str, Any], defaults: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Fill in what is not said, and name a model where none is, with a note."""
    for section, values in defaults.items():
        given_values = content.get(section, {})
        if isinstance(given_values, dict):
            content[section] = {**values, **given_values}
    backend = content.get("backend")
    if isinstance(backend, dict) and backend.get("type") == "pytorch" and "model" not in backend:
        on_gpus = backend.get("device") == "cuda" or "device_ids" in backend
        model = STAND_IN_ON_GPUS if on_gpus else STAND_IN
        content["backend"] = {**backend, "model": model}
        notes.append(f"backend.model is not named, and {model} stands in: its shape, with random weights")
    return content


def _limited(config: EnergyConfig, places: Places, notes: list[str]) -> EnergyConfig:
    """Leave out limits of GPUs that the command line takes out of the file's ``device_ids``, with a note."""
    backend = config.backend
    if backend.max_memory is None or backend.device_ids is None or places.override(("backend", "device_ids")) is None:
        return config
    others = [key for key in backend.max_memory if isinstance(key, int) and key not in backend.device_ids]
    if not others or places.override(("backend", "max_memory")) is not None:
        return config
    limits = {key: room for key, room in backend.max_memory.items() if key not in others}
    notes.append(f"backend.max_memory of GPU {', '.join(map(str, others))} is left out, as device_ids are others")
    return config.model_copy(update={"backend": backend.model_copy(update={"max_memory": limits or None})})


def _placed(config: EnergyConfig, places: Places, path: Path | None) -> EnergyConfig:
    """Return the configuration with the files that it reads as they are named from here."""
    backend, scenario = config.backend, config.scenario
    folder = Path() if path is None else path.parent
    prompts, model = scenario.prompts, backend.model
    if prompts != RANDOM_PROMPTS:
        prompts = _from_here(prompts, Path() if places.override(("scenario", "prompts")) is not None else folder)
    if backend.type == "pytorch" and not is_random(model):
        base = Path() if places.override(("backend", "model")) is not None else folder
        if model.startswith((".", "/", "~")) or (base / model).is_dir():
            model = (
                f"{os.curdir}/{relative}"
                if not (relative := _from_here(model, base)).startswith((".", "/"))
                else relative
            )
    return config.model_copy(
        update={
            "backend": backend.model_copy(update={"model": model}),
            "scenario": scenario.model_copy(update={"prompts": prompts}),
        }
    )


def _missing_files(config: EnergyConfig, placed: EnergyConfig) -> Iterator[tuple[Steps, str]]:
    prompts, model = placed.scenario.prompts, placed.backend.model
    if prompts != RANDOM_PROMPTS:
        try:
            _look_at(config.scenario, prompts)
        except BadInput as error:
            yield ("scenario", "prompts"), str(error)
    if config.backend.type == "pytorch" and not is_random(model):
        try:
            local_folder(model)
        except BadInput as error:
            yield ("backend", "model"), str(error)


def _look_at(asked: Scenario, prompts: str) -> None:
    """Make sure that prompts are there, and that all that will be used can be read."""
    if not Path(prompts).exists():
        name = asked.prompts
        here = f"there is no file or folder {name}{'' if name == prompts else f' ({prompts})'}"
        instead = "name a file (.txt, .jsonl, .csv) or a data set's folder, or take random tokens: prompts: random"
        raise BadInput(f"{here}, and nothing is downloaded; {instead}.")
    read(prompts, asked.text_column_name, asked.num_samples or 0)


def _from_here(text: str, folder: Path) -> str:
    """Return a path as it is written from the current folder."""
    path = Path(text).expanduser()
    return str(path) if path.is_absolute() else os.path.relpath(folder / path)
