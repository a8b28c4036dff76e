"""Configurations of the older tool load, each of its keys with a note on what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.core.errors import BadInput
from assay.experiments.energy.config_file import read_config

if TYPE_CHECKING:
    from pathlib import Path

    from assay.experiments.energy.config import EnergyConfig

SEEDS_EXAMPLE = """\
backend:
  type: pytorch
  device_ids: [0, 1, 2, 3]  # Multiple GPUs
  device_map: auto          # Automatic distribution
  max_memory:               # Optional per-GPU limits
    0: "20GB"
    1: "20GB"
    2: "20GB"
    3: "20GB"
"""

ALL_OF_IT = """\
name: my_benchmark

backend:
  type: vllm
  device: cuda
  device_ids: [0]
  model: openai/gpt-oss-20b
  task: text-generation
  endpoint: "http://localhost:8000/v1"

scenario:
  dataset_name: questions.txt
  text_column_name: text
  num_samples: 10
  truncation: true
  reasoning: true
  reasoning_params:
    reasoning_effort: high
  input_shapes:
    batch_size: 1
    sequence_length: 256
  generate_kwargs:
    max_new_tokens: 100
    min_new_tokens: 50
    temperature: 0.7
    do_sample: true

metrics:
  type: codecarbon
  enabled: true
  project_name: "my_project"
  output_dir: "./emissions"
  country_iso_code: "USA"
  region: null

reporter:
  type: csv
  output_file: "./results/benchmark_results.csv"

output_dir: ./benchmark_output
"""


def read(folder: Path, text: str, *sets: str) -> tuple[EnergyConfig, list[str]]:
    (folder / "questions.txt").write_text("Why is the sky blue?\n")
    path = folder / "older.yaml"
    path.write_text(text)
    config, notes = read_config(path, sets)
    return config, list(notes)


def test_the_documented_example_for_four_gpus_loads_unchanged(tmp_path: Path) -> None:
    config, notes = read(tmp_path, SEEDS_EXAMPLE)
    assert config.backend.device_ids == (0, 1, 2, 3)
    assert config.backend.device_map == "auto"
    assert config.backend.max_memory == dict.fromkeys(range(4), "20GB")
    assert notes == ["backend.model is not named, and random:llama-1b stands in: its shape, with random weights"]


def test_every_key_of_the_older_tool_becomes_one_of_ours_or_is_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config, notes = read(tmp_path, ALL_OF_IT)
    assert (config.name, config.output_dir) == ("my_benchmark", "./benchmark_output")
    assert (config.backend.type, config.backend.endpoint) == ("openai", "http://localhost:8000/v1")
    assert config.backend.device_ids == (0,)
    scenario = config.scenario
    assert (scenario.prompts, scenario.num_samples, scenario.truncation) == ("questions.txt", 10, True)
    assert (scenario.batch_sizes, scenario.input_tokens, scenario.output_tokens) == ((1,), (256,), (100,))
    assert scenario.generate_kwargs == {"temperature": 0.7, "do_sample": True}
    assert scenario.reasoning_settings == {"reasoning_effort": "high"}
    assert config.metrics.country_iso_code == "USA"
    assert config.reporter[0].output_file == "./results/benchmark_results.csv"
    for key in (
        "backend.type vllm is openai", "backend.device cuda is left out", "backend.device_ids", "backend.task",
        "scenario.dataset_name is scenario.prompts", "scenario.num_samples", "input_shapes.batch_size is scenario.ba",
        "input_shapes.sequence_length is scenario.input_tokens", "exactly 100 tokens, not 50 to 100",
        "scenario.generate_kwargs are all obeyed", "metrics.type codecarbon", "metrics.project_name my_project",
        "metrics.output_dir ./emissions", "carbon is reported: that of USA", "output_dir: every run",
    ):  # fmt: skip
        assert len([note for note in notes if key in note]) == 1, key
    assert len(notes) == 15


def test_a_model_and_a_project_under_their_older_names_are_taken(tmp_path: Path) -> None:
    config, _ = read(
        tmp_path,
        "backend: {type: pytorch, model_name: 'random:llama-tiny', endpoint: 'http://localhost:8000/v1'}\n"
        "metrics: {project_name: mine}\nscenario: {generate_kwargs: {min_new_tokens: 7}}\n",
    )
    assert (config.backend.model, config.name, config.scenario.output_tokens) == ("random:llama-tiny", "mine", (7,))
    assert config.backend.endpoint is None


def test_what_is_set_takes_the_place_of_the_older_key_and_of_ours(tmp_path: Path) -> None:
    sets = ("scenario.prompts=random", "scenario.input_shapes.sequence_length=64", "scenario.num_samples=5")
    config, notes = read(tmp_path, ALL_OF_IT, *sets)
    assert (config.scenario.prompts, config.scenario.input_tokens) == ("random", (64,))
    assert len(notes) == len(set(notes))
    assert not any("dataset_name" in note for note in notes)
    for key in ("sequence_length", "scenario.num_samples", "generate_kwargs are all", "output_dir: every run"):
        assert len([note for note in notes if key in note]) == 1, key
    assert [note for note in notes if "input_tokens now: 64" in note or "num_samples: 5 prompts" in note][1:]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("backend: {type: pytorch, task: image-classification}\n", "task 'image-classification' cannot be measured"),
        ("backend: {type: pytorch}\nmetrics: {type: zeus}\n", "line 2: metrics.type 'zeus' is not known"),
        (
            "backend: {type: pytorch}\nscenario:\n  batch_sizes: 8\n  input_shapes: {batch_size: 8}\n",
            "line 4: scenario.input_shapes.batch_size and scenario.batch_sizes say the same; keep scenario.batch_sizes",
        ),
        ("backend: {type: pytorch}\nscenario: {input_shapes: {batchsize: 8}}\n", "Did you mean batch_size?"),
        (
            "backend: {type: pytorch, model: m}\nscenario:\n  truncation: true\n  dataset_name: AIEnergyScore/texts\n",
            "line 4: there is no file or folder AIEnergyScore/texts",
        ),
        (
            "backend: {type: vllm, model: m, endpoint: 'http://a'}\nscenario: {input_shapes: {batch_size: 8}}\n",
            "batches",
        ),
    ],
)
def test_what_of_it_cannot_be_done_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadInput) as error:
        read(tmp_path, text)
    assert said in str(error.value)
