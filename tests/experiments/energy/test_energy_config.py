"""The configuration of ``assay energy run``: read whole, with places; ``--set``; what must not be together."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from ruamel.yaml import YAML

from assay.core.errors import BadInput
from assay.experiments.energy.config import EnergyConfig, find_contradictions
from assay.experiments.energy.config_file import ConfigOverride, read_config

if TYPE_CHECKING:
    from pathlib import Path


PYTORCH = "backend: {type: pytorch, model: 'random:llama-tiny'}\n"
SERVER = "backend: {type: openai, model: m, endpoint: 'http://127.0.0.1:8000/v1'}\n"


def read(folder: Path, text: str, *sets: str) -> EnergyConfig:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return read_config(path, sets)[0]


def refused(folder: Path, text: str, *sets: str) -> str:
    with pytest.raises(BadInput) as error:
        read(folder, text, *sets)
    return str(error.value).replace(str(folder), "")


def test_a_configuration_is_read_with_all_it_says(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        name: two GPUs
        backend:
          type: pytorch
          model: random:llama-1b
          device_ids: [2, 3]
          device_map: {model.layers.0: 2, lm_head: cpu}
          max_memory: {2: 20GB, 3: 1000000000, cpu: 64GiB}
          torch_dtype: bfloat16
        scenario: {batch_sizes: [1, 8], input_tokens: 64, output_tokens: 16, modes: graphs, compile: no}
        metrics: {carbon_g_per_kwh: 380}
        reporter: {type: html, output_file: out.html}
        """,
    )
    assert found.backend.device_ids == (2, 3)
    assert found.backend.device_map == {"model.layers.0": 2, "lm_head": "cpu"}
    assert found.backend.max_memory == {2: "20GB", 3: 1000000000, "cpu": "64GiB"}
    assert (found.scenario.batch_sizes, found.scenario.input_tokens) == ((1, 8), (64,))
    assert found.scenario.modes == ("graphs",)
    assert not found.scenario.compile
    assert [reporter.type for reporter in found.reporter] == ["html"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty: it must hold at least `backend`"),
        ("# nothing\n", "is empty"),
        ("- backend\n", "must map backend, scenario, metrics and reporter"),
        ("backend: [", "not valid YAML"),
        ("backend: {type: pytorch}\nbackend: {type: openai}\n", "duplicate key"),
        ("name: x\n", "backend is missing: who makes the tokens"),
        ("backend: {model: x}\n", "config.yaml, line 1: type is missing: pytorch (a model here) or openai"),
        (f"{PYTORCH}scenrio: {{}}\n", "line 2: 'scenrio' is not known at the top. Did you mean scenario?"),
        (f"{PYTORCH}scenario:\n  batch_size: 8\n", "line 3: 'batch_size' is not known in scenario. Did you mean batch"),
        (f"{PYTORCH}device_ids: [0]\n", "line 2: 'device_ids' is not known at the top. Did you mean backend.device_id"),
        ("backend:\n  type: torch\n  model: x\n", "line 2: type should be 'pytorch' or 'openai', and is 'torch'."),
        (f"{PYTORCH}scenario: {{batch_sizes: [8, 0]}}\n", "batch_sizes should be greater than or equal to 1, and is 0"),
        (f"{PYTORCH}scenario: {{batch_sizes: [8, 8]}}\n", "batch_sizes has 8 more than once"),
        (f"{PYTORCH}scenario: {{output_tokens: []}}\n", "output_tokens holds nothing"),
        (f"{PYTORCH}scenario: {{modes: [eager, eager]}}\n", "modes has eager more than once"),
        (f"{PYTORCH}scenario: {{precision: 3}}\n", "precision should be less than 1, and is 3"),
        (f"{PYTORCH}scenario: {{window_s: .inf}}\n", "window_s should be a finite number"),
        (f"{PYTORCH}reporter: [{{type: csv}}]\n", "line 2: output_file is missing"),
        (f"{PYTORCH}reporter:\n- {{output_file: a}}\n- {{output_file: a}}\n", "line 4: a is written by two reporters"),
        ("backend: {type: pytorch, model: m, device_ids: [true]}\n", "device_ids should be a whole number"),
        ("backend: {type: pytorch, model: m, device_map: best}\n", "device_map must be auto, balanced"),
        ("backend: {type: pytorch, model: m, device_map: {a: gpu}}\n", "by GPU number, cpu or disk, and not 'gpu'"),
        ("backend: {type: pytorch, model: m, max_memory: 20GB}\n", "max_memory must map GPU numbers or cpu"),
        ("backend: {type: pytorch, model: m, max_memory: {0: many}}\n", "write bytes, or text as 20GB or 18GiB"),
        ("backend: {type: pytorch, model: 'random:llama-tny'}\n", "no random model 'llama-tny'. Did you mean llama-t"),
        ("backend: {type: pytorch, model: ./none}\n", "does not exist"),
        (
            f"{PYTORCH}scenario: {{input_tokens: 2000, output_tokens: 200}}\n",
            "context of random:llama-tiny is 2048",
        ),
        (f"{PYTORCH}scenario: {{prompts: empty.txt}}\n", "line 2: The prompt file"),
        (f"{PYTORCH}scenario: {{prompts: broken.jsonl}}\n", "broken.jsonl is not valid JSON"),
        (f"{SERVER}scenario: {{prompts: org/texts}}\n", "line 2: there is no file or folder org/texts"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_sentence_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "broken.jsonl").write_text('{"text": "a"}\n{"text"\n')
    sentence = refused(tmp_path, text)
    assert said in sentence
    assert sentence.count("\n") == 0
    assert sentence.endswith((".", "?"))


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("scenario.batch_sizes=99999999999999999999", "batch_sizes should be less than or equal to 65536, and is 9"),
        (f"scenario.batch_sizes='{'9' * 5000}'", "batch_sizes should be a smaller integer, and is '999"),
        ("scenario.input_tokens=[8, 10000001]", "should be less than or equal to 10000000, and is 10000001"),
        ("scenario.concurrency=65537", "concurrency should be less than or equal to 65536"),
        ("scenario.window_s=1e300", "window_s should be less than or equal to 86400"),
        ("scenario.window_s=.nan", "window_s should be a finite number"),
        ("scenario.repeats=5000000", "repeats should be less than or equal to 1000"),
        ("scenario.warmup=5000000", "warmup should be less than or equal to 1000"),
        ("scenario.seed=-1", "seed should be greater than or equal to 0"),
        ("scenario.seed=100000000000000000000000000", "seed should be"),
        ("backend.request_timeout_s=1e9", "request_timeout_s should be less than or equal to 86400"),
        ("backend.model=''", "model is empty"),
        ("backend.model=' '", "model is empty"),
    ],
)
def test_what_nobody_can_mean_is_refused_before_anything_is_computed(tmp_path: Path, place: str, said: str) -> None:
    assert said in refused(tmp_path, SERVER, place)


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = "scenario:\n  warmup: -1\n  num_samples: many\nbackend:\n  type: pytorch\n  modl: x\n"
    lines = refused(tmp_path, text, "metrics.gpu=[0]").splitlines()
    assert lines[0].endswith("config.yaml has 4 mistakes:")
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["line 2", "line 3", "line 6", "--set metrics.gpu=[0]"]
    assert "Did you mean gpus?" in lines[-1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{PYTORCH}scenario: {{concurrency: [1, 4]}}\n", "for a server, type openai; here there are batch_sizes"),
        (f"{SERVER}scenario: {{batch_sizes: 8}}\n", "a server batches by itself: use concurrency"),
        (f"{SERVER}scenario: {{modes: graphs}}\n", "modes is about a model of type pytorch"),
        ("backend: {type: openai, model: m}\n", "endpoint is missing: the server's address"),
        ("backend: {type: openai, model: m, endpoint: '127.0.0.1:8000'}\n", "is no address, as http://"),
        ("backend: {type: openai, model: m, endpoint: 'http://me:secret@host/v1'}\n", "put the key into"),
        (
            "backend: {type: openai, model: m, endpoint: 'http://a/v1', torch_dtype: float16}\n",
            "torch_dtype is dec",
        ),
        ("backend: {type: pytorch, model: m, api_key_env: K}\n", "api_key_env is about a server"),
        ("backend: {type: pytorch, model: m, device: cpu, device_ids: [0]}\n", "only metered are metrics.gpus"),
        ("backend: {type: pytorch, model: m, device: cpu, device_map: balanced}\n", "and device is cpu"),
        ("backend: {type: pytorch, model: m, device_ids: [1], max_memory: {0: 1GB}}\n", "GPU 0, and device_ids are 1"),
        ("backend: {type: pytorch, model: m, device_map: {'': 1}}\n", "on GPU 1, and device_ids are 0"),
        ("backend: {type: pytorch, model: m, tp_plan: auto}\n", "needs device_ids with at least two"),
        ("backend: {type: pytorch, model: m, tp_plan: auto, device: cpu}\n", "tp_plan on a CPU needs tp_ranks"),
        ("backend: {type: pytorch, model: m, tp_ranks: 2, device: cpu}\n", "those of a tp_plan, and there is none"),
        ("backend: {type: pytorch, model: m, tp_plan: auto, device_ids: [0, 1], tp_ranks: 2}\n", "are for device cpu"),
        ("backend: {type: pytorch, model: m, tp_plan: auto, device_ids: [0, 1], device_map: balanced}\n", "keep one"),
        (
            "backend: {type: pytorch, model: m, device_ids: [0]}\nmetrics: {gpus: [1]}\n",
            "counted on the GPUs th",
        ),
        ("backend: {type: pytorch, model: m}\nscenario: {reasoning: true}\n", "it needs a file of prompts"),
        (f"{PYTORCH}scenario: {{compile: false}}\n", "compile is about graphs"),
        (f"{PYTORCH}scenario: {{generate_kwargs: {{max_length: 9}}}}\n", "length of an answer is scenario.out"),
    ],
)
def test_what_cannot_be_together_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert said in refused(tmp_path, text)


def test_set_changes_places_by_their_names(tmp_path: Path) -> None:
    text = f"{PYTORCH}reporter:\n- {{output_file: a.csv}}\n- {{output_file: b.csv}}\n"
    found = read(
        tmp_path,
        text,
        "backend.device_ids=[0,1]",
        "backend.max_memory.1=9GB",
        "scenario.batch_sizes=1,8",
        "scenario.generate_kwargs.temperature=0.5",
        "reporter.1.type=html",
        "name=",
    )
    assert found.backend.device_ids == (0, 1)
    assert found.backend.max_memory == {1: "9GB"}
    assert found.scenario.batch_sizes == (1, 8)
    assert found.scenario.generate_kwargs == {"temperature": 0.5}
    assert [reporter.type for reporter in found.reporter] == ["csv", "html"]
    assert found.name is None


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("backend.device_ids",), "is not PLACE=VALUE"),
        (("backend..x=1",), "is not PLACE=VALUE"),
        (("backend.device_ids=[0",), "not valid YAML"),
        (("backend.device_id=[0]",), "'device_id' is not known in backend. Did you mean device_ids"),
        (("device_ids=0",), "Did you mean backend.device_ids?"),
        (("name=a", "name=b"), "--set name is given more than once"),
        (("backend.model.x=1",), "before x stands the single value"),
        (("scenario.repeats=0",), "--set scenario.repeats=0: repeats should be greater than or equal to 1"),
        (("reporter.type=xls",), "--set reporter.type=xls: type should be 'csv'"),
        (("backend.max_memory.0=x",), "--set backend.max_memory.0=x: max_memory gives 0 'x'"),
    ],
)
def test_a_set_that_makes_no_sense_is_named_itself(tmp_path: Path, sets: tuple[str, ...], said: str) -> None:
    assert said in refused(tmp_path, f"{PYTORCH}reporter: {{output_file: a}}\n", *sets)


def test_files_to_read_are_meant_from_the_configurations_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("configs", "configs/model", "here"):
        (tmp_path / folder).mkdir()
    (tmp_path / "configs" / "texts.txt").write_text("Why?\n")
    (tmp_path / "configs" / "model" / "config.json").write_text("{}")
    (tmp_path / "here" / "mine.txt").write_text("How?\n")
    monkeypatch.chdir(tmp_path / "here")
    text = "backend: {type: pytorch, model: model}\nscenario: {prompts: texts.txt}\n"
    found = read(tmp_path / "configs", text)
    assert (found.backend.model, found.scenario.prompts) == ("../configs/model", "../configs/texts.txt")
    assert read(tmp_path / "configs", text, "scenario.prompts=mine.txt").scenario.prompts == "mine.txt"
    assert "config.json" in refused(tmp_path / "configs", text, "backend.model=.")


def test_nothing_is_left_out_without_a_word(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        f"{SERVER}scenario: {{reasoning: false, reasoning_params: {{reasoning_effort: low}}, truncation: true}}\n"
        "metrics: {enabled: false, gpus: [0], country_iso_code: DEU}\n"
    )
    notes = "\n".join(read_config(path)[1])
    for word in ("reasoning_params are left out", "truncation", "gpus says nothing", "of DEU is not guessed"):
        assert word in notes


def test_what_could_not_be_measured_or_written_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    tiny = "backend: {type: pytorch, model: 'random:llama-tiny'}\n"
    without = f"{tiny}scenario: {{generate_kwargs: {{use_cache: false}}}}\n"
    assert "decoding is nothing apart" in refused(tmp_path, without)
    assert read(tmp_path, without, "scenario.output_tokens=1").scenario.generate_kwargs == {"use_cache": False}
    assert "name" in refused(tmp_path, f"name: {101 * 'x'}\n{tiny}")


def test_a_temperature_at_which_nothing_is_drawn_is_told_of() -> None:
    tiny, hub = "backend.model=random:llama-tiny", "backend.model=someone/model"
    for asked, model, told in (
        ("{temperature: 0.7}", tiny, True),
        ("{temperature: 0.7, do_sample: false}", hub, True),
        ("{temperature: 0.7}", hub, False),
        ("{temperature: 0.7, do_sample: true}", tiny, False),
    ):
        notes = read_config(None, [model, f"scenario.generate_kwargs={asked}"])[1]
        assert any("generate_kwargs.temperature changes nothing" in note for note in notes) == told


def test_without_a_file_a_model_is_enough() -> None:
    config, notes = read_config(
        None, ["backend.model=random:llama-tiny", "scenario.input_tokens=9"], defaults={"scenario": {"repeats": 1}}
    )
    assert (config.backend.type, config.scenario.repeats, config.scenario.input_tokens) == ("pytorch", 1, (9,))
    assert notes == ()
    with pytest.raises(BadInput, match=r"^--set backend.model=random:x: There is no random model"):
        read_config(None, ["backend.model=random:x"])
    flag = ConfigOverride(("backend", "model"), "random:x", "--model random:x")
    with pytest.raises(BadInput, match=r"^--model random:x: There is no random model"):
        read_config(None, flags=[flag])
    with pytest.raises(BadInput, match=r"^--set backend.model=m and --model random:x say the same; keep one of them.$"):
        read_config(None, ["backend.model=m"], flags=[flag])


def test_reasoning_is_told_to_the_template_unless_it_is_off() -> None:
    def settings_of(**scenario: object) -> dict[str, Any]:
        given = {"backend": {"type": "pytorch", "model": "m"}, "scenario": scenario}
        return EnergyConfig.model_validate(given).scenario.reasoning_settings

    assert settings_of() == settings_of(reasoning=False, reasoning_params={"a": 1}) == {}
    assert settings_of(reasoning=True) == {"enable_thinking": True}
    assert settings_of(reasoning_params={"reasoning_effort": "high"}) == {"reasoning_effort": "high"}


sizes = some.lists(some.integers(1, 64), min_size=1, max_size=3, unique=True).map(tuple)
gpus = some.none() | some.lists(some.integers(0, 7), min_size=1, max_size=4, unique=True).map(tuple)
backends = some.fixed_dictionaries(
    {"type": some.sampled_from(["pytorch", "openai"]), "model": some.sampled_from(["random:llama-tiny", "org/m"])},
    optional={
        "device": some.sampled_from(["auto", "cuda", "cpu"]),
        "device_ids": gpus,
        "device_map": some.sampled_from(["auto", "sequential", {"": 0}, {"model.layers.0": 1, "lm_head": "cpu"}]),
        "max_memory": some.sampled_from([None, {0: "20GB"}, {0: "1.5GiB", 1: 12345, "cpu": "9MB"}]),
        "torch_dtype": some.sampled_from(["auto", "float16"]),
        "tp_plan": some.sampled_from([None, "auto"]),
        "tp_ranks": some.sampled_from([None, 2]),
        "endpoint": some.sampled_from([None, "http://127.0.0.1:8000/v1"]),
        "trust_remote_code": some.booleans(),
        "request_timeout_s": some.floats(1, 9),
    },
).filter(lambda said: said["type"] == "openai" or said.get("endpoint") is None)
scenarios = some.fixed_dictionaries(
    {},
    optional={
        "batch_sizes": sizes,
        "input_tokens": sizes,
        "concurrency": sizes,
        "modes": some.sampled_from([("eager",), ("graphs", "eager")]),
        "compile": some.booleans(),
        "window_s": some.none() | some.floats(0.1, 10),
        "generate_kwargs": some.sampled_from([{}, {"temperature": 0.5, "stop": ["a", None]}]),
        "reasoning": some.none() | some.booleans(),
        "reasoning_params": some.sampled_from([{}, {"reasoning_effort": "no"}]),
        "num_samples": some.none() | some.integers(1, 9),
    },
)
configs = some.fixed_dictionaries(
    {"backend": backends},
    optional={
        "name": some.text(some.characters(categories=["L", "N", "Zs", "P"]), min_size=1, max_size=9),
        "scenario": scenarios,
        "metrics": some.fixed_dictionaries({}, optional={"gpus": gpus, "carbon_g_per_kwh": some.floats(0, 900)}),
        "reporter": some.sampled_from([(), ({"output_file": "a"}, {"type": "html", "output_file": "yes"})]),
    },
)


@pytest.mark.full
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given=configs)
def test_what_is_written_as_yaml_is_read_back_the_same_or_refused_for_a_rule(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    config = EnergyConfig.model_validate(given)
    text = io.StringIO()
    YAML(typ="safe").dump(config.as_json(), text)
    if any(find_contradictions(config)):
        assert "config.yaml" in refused(tmp_path, text.getvalue())
    else:
        assert read(tmp_path, text.getvalue()) == config
