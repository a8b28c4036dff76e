"""Configurations of the older tool: its keys as ours, each with a note on what changed.

What kept its name and its meaning is not touched. Nothing is left out without a word.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from assay.core.errors import nearest

if TYPE_CHECKING:
    from assay.experiments.file_lines import Steps

KEYS: dict[str, tuple[str, ...]] = {
    "backend": ("model_name", "task"),
    "scenario": ("dataset_name", "input_shapes"),
    "metrics": ("type", "project_name", "output_dir"),
}
"""Keys of the older tool that are not ours, by their section."""

TASKS = ("text-generation", "text_generation")
METER = "codecarbon"
SERVED = ("device", "device_map", "max_memory", "torch_dtype")
"""What the older tool took for a server too, and never told it."""
SHAPES = {"batch_size": "batch_sizes", "sequence_length": "input_tokens"}
MOST, LEAST = "max_new_tokens", "min_new_tokens"


@dataclass
class Translation:
    """A configuration on its way into our words.

    Attributes:
        content: The configuration, a copy of what was given.
        wins: Whether an older key takes the place of ours; where it does not, having both is a problem.
        notes: What changed, in sentences, by the place that it is about now.
        problems: What cannot be: its place, and why.
        moved: Of what stands elsewhere now: where it stood.
        found: Whether anything of the older tool's was there.
    """

    content: dict[str, Any]
    wins: bool = False
    notes: dict[Steps, str] = field(default_factory=dict)
    problems: list[tuple[Steps, str]] = field(default_factory=list)
    moved: dict[Steps, Steps] = field(default_factory=dict)
    found: bool = False

    def section(self, name: str) -> dict[str, Any]:
        """Return a section to read and to change; an empty one that nobody sees, where there is none."""
        there = self.content.get(name)
        return there if isinstance(there, dict) else {}

    def take(self, section: str, key: str) -> Any:
        """Return the value of an older key, which is there no more; null where it is not there or says nothing."""
        holder = self.section(section)
        if key not in holder:
            return None
        self.found = True
        return holder.pop(key)

    def put(self, section: str, key: str, value: Any, stood: Steps) -> bool:
        """Put a value where it belongs now; return whether it is there."""
        holder = self.section(section) if section else self.content
        target: Steps = (section, key) if section else (key,)
        if holder.get(key) is not None and not self.wins:
            self.problems.append(
                (stood, f"{_dotted(stood)} and {_dotted(target)} say the same; keep {_dotted(target)}")
            )
            return False
        holder[key] = value
        self.moved[target] = stood
        return True


def translated(content: dict[str, Any], *, wins: bool = False, found: bool = False) -> Translation:
    """Return a configuration in our words; with ``wins`` its older keys take the place of ours.

    ``found`` says that it is the older tool's, though none of its keys should be left.
    """
    translation = Translation(copy.deepcopy(content), wins=wins, found=found)
    for translate in (_backend, _prompts, _shapes, _lengths, _metrics):
        translate(translation)
    if translation.found:
        _same_names(translation)
    return translation


def _backend(told: Translation) -> None:
    backend = told.section("backend")
    model = told.take("backend", "model_name")
    if model is not None and told.put("backend", "model", model, ("backend", "model_name")):
        told.notes["backend", "model"] = f"backend.model_name is backend.model now: {model}"
    task = told.take("backend", "task")
    if task in TASKS:
        told.notes["backend", "task"] = f"backend.task {task} is left out: text is all that is generated"
    elif task is not None:
        told.problems.append((("backend", "task"), f"backend.task {task!r} cannot be measured; {TASKS[0]} can"))
    if backend.get("type") == "vllm":
        told.found = True
        backend["type"] = "openai"
        told.notes["backend", "type"] = "backend.type vllm is openai now: any server that speaks its protocol"
        for key in SERVED:
            if backend.get(key) is not None:
                told.notes["backend", key] = f"backend.{key} {backend.pop(key)} is left out: that is the server's own"
        if backend.get("device_ids") is not None:
            told.notes["backend", "device_ids"] = (
                "backend.device_ids of a server are the GPUs that are metered, here on this machine"
            )
    elif backend.get("type") == "pytorch" and backend.get("endpoint") is not None:
        told.notes["backend", "endpoint"] = (
            f"backend.endpoint {backend.pop('endpoint')} is left out: pytorch computes here"
        )


def _prompts(told: Translation) -> None:
    name = told.take("scenario", "dataset_name")
    if name is not None and told.put("scenario", "prompts", name, ("scenario", "dataset_name")):
        told.notes["scenario", "prompts"] = (
            f"scenario.dataset_name is scenario.prompts now: {name}; nothing is downloaded"
        )


def _shapes(told: Translation) -> None:
    shapes = told.take("scenario", "input_shapes")
    if shapes is None:
        return
    stood: Steps = ("scenario", "input_shapes")
    if not isinstance(shapes, dict):
        told.problems.append((stood, f"input_shapes must map batch_size and sequence_length, and is {shapes!r}"))
        return
    for key, value in shapes.items():
        if key not in SHAPES:
            told.problems.append(((*stood, key), f"{key!r} is not known in input_shapes.{nearest(key, SHAPES)}"))
        elif told.put("scenario", SHAPES[key], value, (*stood, key)):
            told.notes["scenario", SHAPES[key]] = f"scenario.input_shapes.{key} is scenario.{SHAPES[key]} now: {value}"


def _lengths(told: Translation) -> None:
    """Make the new tokens of a generation its length: as many are made in every request."""
    settings = told.section("scenario").get("generate_kwargs")
    if not isinstance(settings, dict) or not {MOST, LEAST} & set(settings):
        return
    told.found = True
    most, least = settings.pop(MOST, None), settings.pop(LEAST, None)
    tokens = least if most is None else most
    name = LEAST if most is None else MOST
    if tokens is None or not told.put("scenario", "output_tokens", tokens, ("scenario", "generate_kwargs", name)):
        return
    between = f", not {least} to {most}" if most is not None and least not in (None, most) else ""
    now = f"every answer has exactly {tokens} tokens{between}"
    told.notes["scenario", "output_tokens"] = f"scenario.generate_kwargs.{name} is scenario.output_tokens now: {now}"


def _metrics(told: Translation) -> None:
    meter = told.take("metrics", "type")
    if meter == METER:
        told.notes["metrics", "type"] = (
            "metrics.type codecarbon is left out: joules are read from the GPUs' own counters, and RAPL"
        )
    elif meter is not None:
        told.problems.append((("metrics", "type"), f"metrics.type {meter!r} is not known; leave it out"))
    project = told.take("metrics", "project_name")
    if project is not None and told.content.get("name") is None:
        told.put("", "name", project, ("metrics", "project_name"))
        told.notes["name",] = f"metrics.project_name is the run's name now: {project}"
    elif project is not None:
        told.notes["metrics", "project_name"] = (
            f"metrics.project_name {project} is left out: the run is called {told.content['name']}"
        )
    folder = told.take("metrics", "output_dir")
    if folder is not None:
        told.notes["metrics", "output_dir"] = (
            f"metrics.output_dir {folder} is left out: energy is in the run folder and its reports"
        )


def _same_names(told: Translation) -> None:
    """Say what is done differently under the same name."""
    scenario = told.section("scenario")
    if scenario.get("num_samples") is not None:
        told.notes["scenario", "num_samples"] = (
            f"scenario.num_samples: {scenario['num_samples']} prompts are asked again and again, until energy is known"
        )
    if told.content.get("output_dir") is not None:
        told.notes["output_dir",] = f"output_dir: every run has a folder of its own in {told.content['output_dir']}"
    if isinstance(scenario.get("generate_kwargs"), dict) and scenario["generate_kwargs"]:
        told.notes["scenario", "generate_kwargs"] = (
            "scenario.generate_kwargs are all obeyed; the older tool took none but max_new_tokens"
        )


def _dotted(steps: Steps) -> str:
    return ".".join(map(str, steps))
