"""The older energy tool: its configuration files translated into ours, and its table of results.

Keys of a configuration whose name and meaning did not change are left alone. Nothing is dropped without a note.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from assay.core.errors import suggest_nearest
from assay.experiments.energy.result import config_columns, gpu_columns, rows_to_csv, total_columns

if TYPE_CHECKING:
    from assay.core.values import Scalar
    from assay.experiments.energy.result import EnergyResult, EnergyRow
    from assay.experiments.file_locator import KeyPath

OLDER_KEYS: dict[str, tuple[str, ...]] = {
    "backend": ("model_name", "task"),
    "scenario": ("dataset_name", "input_shapes"),
    "metrics": ("type", "project_name", "output_dir"),
}
"""Keys of the older tool that are not ours, by their section."""

TASKS = ("text-generation", "text_generation")
OLDER_METER = "codecarbon"
SERVER_IGNORED_KEYS = ("device", "device_map", "max_memory", "torch_dtype")
"""What the older tool accepted for a server, and ignored."""
SHAPE_KEYS = {"batch_size": "batch_sizes", "sequence_length": "input_tokens"}
MAX_NEW_TOKENS, MIN_NEW_TOKENS = "max_new_tokens", "min_new_tokens"


@dataclass
class ConfigTranslation:
    """A configuration on its way into our words.

    Attributes:
        content: The configuration, a copy of what was given.
        wins: Whether an older key takes the place of ours; where it does not, having both is a problem.
        notes: What changed, in sentences, by the place that it is about now.
        problems: What cannot be: its place, and why.
        moved: Of what stands elsewhere now: where it stood.
        is_older: Whether anything of the older tool's was there.
    """

    content: dict[str, Any]
    wins: bool = False
    notes: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[tuple[KeyPath, str]] = field(default_factory=list)
    moved: dict[KeyPath, KeyPath] = field(default_factory=dict)
    is_older: bool = False

    def section(self, name: str) -> dict[str, Any]:
        """Return a section to read and to change; an empty one that nobody sees, where there is none."""
        there = self.content.get(name)
        return there if isinstance(there, dict) else {}

    def pop_value(self, section: str, key: str) -> Any:
        """Return the value of an older key, which is there no more; null where it is not there or says nothing."""
        holder = self.section(section)
        if key not in holder:
            return None
        self.is_older = True
        return holder.pop(key)

    def move_value(self, section: str, key: str, value: Any, stood: KeyPath) -> bool:
        """Put a value where it belongs now; return whether it is there."""
        holder = self.section(section) if section else self.content
        target: KeyPath = (section, key) if section else (key,)
        if holder.get(key) is not None and not self.wins:
            keep = _dotted_path(target)
            self.problems.append((stood, f"{_dotted_path(stood)} and {keep} say the same; keep {keep}"))
            return False
        holder[key] = value
        self.moved[target] = stood
        return True

    def rename(self, section: str, old: str, new: str, remark: str = "") -> None:
        """Move the value of an older key to another key of its section."""
        value = self.pop_value(section, old)
        if value is not None and self.move_value(section, new, value, (section, old)):
            self.notes[section, new] = f"{section}.{old} is {section}.{new} now: {value}{remark}"


def translate_config(content: dict[str, Any], *, wins: bool = False, is_older: bool = False) -> ConfigTranslation:
    """Return a configuration in our words; with ``wins`` its older keys take the place of ours.

    ``is_older`` says that it is the older tool's, though none of its keys should be left.
    """
    translation = ConfigTranslation(copy.deepcopy(content), wins=wins, is_older=is_older)
    _translate_backend(translation)
    translation.rename("scenario", "dataset_name", "prompts", "; nothing is downloaded")
    _translate_shapes(translation)
    _translate_lengths(translation)
    _translate_metrics(translation)
    if translation.is_older:
        _note_changed_meanings(translation)
    return translation


def _translate_backend(translation: ConfigTranslation) -> None:
    backend, notes = translation.section("backend"), translation.notes
    translation.rename("backend", "model_name", "model")
    task = translation.pop_value("backend", "task")
    if task in TASKS:
        notes["backend", "task"] = f"backend.task {task} is left out: text is all that is generated"
    elif task is not None:
        translation.problems.append((("backend", "task"), f"backend.task {task!r} cannot be measured; {TASKS[0]} can"))
    if backend.get("type") == "vllm":
        translation.is_older = True
        backend["type"] = "openai"
        notes["backend", "type"] = "backend.type vllm is openai now: any server that speaks its protocol"
        for key in SERVER_IGNORED_KEYS:
            if backend.get(key) is not None:
                notes["backend", key] = f"backend.{key} {backend.pop(key)} is left out: that is the server's own"
        if backend.get("device_ids") is not None:
            metered = "backend.device_ids of a server are the GPUs that are metered, here on this machine"
            notes["backend", "device_ids"] = metered
    elif backend.get("type") == "pytorch" and backend.get("endpoint") is not None:
        endpoint = backend.pop("endpoint")
        notes["backend", "endpoint"] = f"backend.endpoint {endpoint} is left out: pytorch computes here"


def _translate_shapes(translation: ConfigTranslation) -> None:
    shapes = translation.pop_value("scenario", "input_shapes")
    if shapes is None:
        return
    stood: KeyPath = ("scenario", "input_shapes")
    if not isinstance(shapes, dict):
        translation.problems.append((stood, f"input_shapes must map batch_size and sequence_length, and is {shapes!r}"))
        return
    for key, value in shapes.items():
        if key not in SHAPE_KEYS:
            unknown = f"{key!r} is not known in input_shapes.{suggest_nearest(key, SHAPE_KEYS)}"
            translation.problems.append(((*stood, key), unknown))
        elif translation.move_value("scenario", SHAPE_KEYS[key], value, (*stood, key)):
            new = SHAPE_KEYS[key]
            translation.notes["scenario", new] = f"scenario.input_shapes.{key} is scenario.{new} now: {value}"


def _translate_lengths(translation: ConfigTranslation) -> None:
    """Make the new tokens of a generation its length: as many are made in every request."""
    settings = translation.section("scenario").get("generate_kwargs")
    if not isinstance(settings, dict) or not {MAX_NEW_TOKENS, MIN_NEW_TOKENS} & set(settings):
        return
    translation.is_older = True
    most, least = settings.pop(MAX_NEW_TOKENS, None), settings.pop(MIN_NEW_TOKENS, None)
    tokens = least if most is None else most
    name = MIN_NEW_TOKENS if most is None else MAX_NEW_TOKENS
    stood: KeyPath = ("scenario", "generate_kwargs", name)
    if tokens is not None and translation.move_value("scenario", "output_tokens", tokens, stood):
        between = f", not {least} to {most}" if most is not None and least not in (None, most) else ""
        now = f"{_dotted_path(stood)} is scenario.output_tokens now"
        translation.notes["scenario", "output_tokens"] = f"{now}: every answer has exactly {tokens} tokens{between}"


def _translate_metrics(translation: ConfigTranslation) -> None:
    notes, meter = translation.notes, translation.pop_value("metrics", "type")
    if meter == OLDER_METER:
        counters = "joules are read from the GPUs' own counters, and RAPL"
        notes["metrics", "type"] = f"metrics.type {meter} is left out: {counters}"
    elif meter is not None:
        translation.problems.append((("metrics", "type"), f"metrics.type {meter!r} is not known; leave it out"))
    project = translation.pop_value("metrics", "project_name")
    name = translation.content.get("name")
    if project is not None and name is None:
        translation.move_value("", "name", project, ("metrics", "project_name"))
        notes["name",] = f"metrics.project_name is the run's name now: {project}"
    elif project is not None:
        notes["metrics", "project_name"] = f"metrics.project_name {project} is left out: the run is called {name}"
    folder = translation.pop_value("metrics", "output_dir")
    if folder is not None:
        instead = "energy is in the run folder and its reports"
        notes["metrics", "output_dir"] = f"metrics.output_dir {folder} is left out: {instead}"


def _note_changed_meanings(translation: ConfigTranslation) -> None:
    """Say what is done differently under the same name."""
    scenario, notes = translation.section("scenario"), translation.notes
    samples, folder = scenario.get("num_samples"), translation.content.get("output_dir")
    if samples is not None:
        again = f"{samples} prompts are asked again and again, until energy is known"
        notes["scenario", "num_samples"] = f"scenario.num_samples: {again}"
    if folder is not None:
        notes["output_dir",] = f"output_dir: every run has a folder of its own in {folder}"
    if isinstance(scenario.get("generate_kwargs"), dict) and scenario["generate_kwargs"]:
        obeyed = "scenario.generate_kwargs are all obeyed; the older tool took none but max_new_tokens"
        notes["scenario", "generate_kwargs"] = obeyed


def _dotted_path(steps: KeyPath) -> str:
    return ".".join(map(str, steps))


OLDER_CONFIG_KEYS = ("name", "backend", "model", "dataset", "num_samples", "device_ids")
"""The keys of a configuration that its table has."""


def build_files(result: EnergyResult) -> dict[str, str]:
    """Return the table of a run by its path within the run folder; nothing where there is no row."""
    if not result.rows:
        return {}
    safe = re.sub(r"[^\w.-]+", "_", result.name).strip("._") or "energy"
    return {f"older/results/{safe}_results.csv": rows_to_csv([older_row(result, row) for row in result.rows])}


def older_row(result: EnergyResult, row: EnergyRow) -> dict[str, Scalar]:
    """Return a row as the older tool wrote one, under its names alone."""
    counted = row.tokens
    read, made = counted.get("input_tokens"), counted.get("output_tokens")
    both = None if read is None or made is None else read + made
    carbon, joules = row.figures.get("carbon_g_per_1000_requests"), row.energy_j
    requests = counted.get("requests")
    config = {**config_columns(result), "config_dataset": result.config.get("prompts")}
    return {
        **{f"config_{name}": config.get(f"config_{name}") for name in OLDER_CONFIG_KEYS},
        "summary_total_prompts": requests,
        "summary_total_duration_seconds": row.measured_s,
        "summary_total_tokens": both,
        "summary_total_prompt_tokens": read,
        "summary_total_completion_tokens": made,
        "summary_throughput_tokens_per_second": both / row.measured_s if both and row.measured_s else None,
        "energy_energy_wh": joules.value / 3600 if joules else None,
        "energy_emissions_g_co2eq": carbon.value * requests / 1000 if carbon and requests is not None else None,
        **total_columns(row),
        **gpu_columns(row.gpus),
        "timestamp": result.started_at,
    }
