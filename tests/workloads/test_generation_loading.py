from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput, MachineCannot, TrialFailed
from assay.workloads.generation import loading, models
from assay.workloads.generation.loading import check_kv_cache, kv_cache_by_device, load_model
from assay.workloads.generation.models import load_config
from assay.workloads.generation.params import Generation
from assay.workloads.generation.placement import (
    DEVICE_MAPS,
    BatchLoad,
    ModelSizes,
    PlacementPlan,
    model_sizes,
    plan_placement,
    verify_placement,
)
from assay.workloads.generation.weights import make_empty_model
from tests.needing import need_modules

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.conftest import StartPython

need_modules("transformers", "accelerate")

TINY = "random:llama-tiny"
GB = 10**9


@cache
def predicted(model: str, dtype: str = models.AUTO_DTYPE) -> ModelSizes:
    """Return what a model would take on a GPU."""
    import torch

    config = load_config(model)
    name = models.resolve_dtype(dtype, config, "cuda")
    return model_sizes(model, make_empty_model(config, getattr(torch, name)), name)


@pytest.fixture(scope="module", autouse=True)
def offline() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield
        loading.release_models()


@pytest.fixture(scope="module")
def tokens() -> Any:
    import torch

    return torch.randint(0, 256, (2, 7), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def whole(tokens: Any) -> Any:
    """The scores of the tiny model, nowhere split."""
    return scores(load_model(Generation(model=TINY), "cpu:0", 3), tokens)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's weights in a folder."""
    folder = tmp_path_factory.mktemp("checkpoint")
    load_model(Generation(model=TINY), "cpu:0", 3).model.save_pretrained(folder)
    return folder


def scores(here: loading.LoadedModel, tokens: Any) -> Any:
    import torch

    with torch.inference_mode():
        return here.model(tokens.to(here.device)).logits.float().cpu()


@cache
def of(model: str, dtype: str = "bfloat16") -> tuple[Any, ModelSizes]:
    import torch

    empty = make_empty_model(load_config(model), getattr(torch, dtype))
    return empty, model_sizes(model, empty, dtype)


def placed(model: str, free: Mapping[int, float], *, dtype: str = "bfloat16", **told: Any) -> PlacementPlan:
    empty, sizes = of(model, dtype)
    places = {**{f"cuda:{gpu}": int(size * GB) for gpu, size in free.items()}, "cpu": 200 * GB}
    return plan_placement(empty, sizes, device_ids=tuple(free), free_bytes=places, **told)


# What a model takes


def test_sizes_are_those_of_the_published_models() -> None:
    eight, one = predicted("random:llama-8b"), predicted("random:llama-1b")
    assert (eight.parameters, eight.layers, eight.vocabulary, eight.context_tokens) == (8030261248, 32, 128256, 131072)
    assert eight.weights_bytes == 2 * eight.parameters
    assert eight.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2
    assert one.parameters == 1235814400, "a table that is tied is counted once"
    assert predicted("random:llama-8b", "float32").weights_bytes == 2 * eight.weights_bytes
    assert sum(eight.parts_bytes.values()) == eight.weights_bytes
    assert eight.needs_bytes(8, 512, 128) > eight.weights_bytes + eight.kv_bytes(8, 640)


# Where it lies


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_layers_are_spread_over_just_the_gpus_that_are_named(gpus: int) -> None:
    free = dict.fromkeys([7, 3, 0, 5, 1, 2, 4, 6][:gpus], 30.0)
    told = placed("random:llama-8b", free)
    assert set(told.devices.values()) == {f"cuda:{gpu}" for gpu in free}
    assert told.main_device == "cuda:7"
    assert sum(told.weights_bytes.values()) == predicted("random:llama-8b").weights_bytes
    assert ("pipeline" in {note.code for note in told.notes}) == (gpus > 1)
    if gpus > 1:
        assert told.devices["model.embed_tokens"] == "cuda:7"
        assert max(told.weights_bytes.values()) < 0.65 * sum(told.weights_bytes.values())


def test_a_map_that_is_uneven_or_leaves_a_gpu_out_is_told() -> None:
    unused = placed("random:llama-8b", {0: 30, 1: 30}, device_map="sequential")
    assert [(note.severity, note.params) for note in unused.notes if note.code == "unused_gpu"] == [
        ("warning", {"gpus": "1"})
    ]
    uneven = placed("random:llama-8b", {0: 30, 1: 30}, max_memory={0: "4GB"})
    assert [(note.severity, note.params["device"]) for note in uneven.notes if note.code == "unbalanced"] == [
        ("warning", "cuda:1")
    ]


def test_what_does_not_fit_is_told_with_what_would() -> None:
    with pytest.raises(MachineCannot) as refused:
        placed("random:llama-70b", {0: 80})
    said = str(refused.value)
    assert "its weights take 131.4 GiB, and GPU 0 has 74.5 GiB free" in said
    assert "about 2 GPUs with as much free as GPU 0" in said
    assert "backend.max_memory with cpu" in said
    placed("random:llama-70b", {0: 80, 1: 80})
    with pytest.raises(MachineCannot, match="bfloat16 or float16, which takes half"):
        placed("random:llama-8b", {0: 20}, dtype="float32")
    with pytest.raises(MachineCannot, match="more in backend"):
        placed("random:llama-8b", {0: 80}, max_memory={0: "5GB"})


def test_nothing_goes_to_the_hosts_memory_unless_it_is_named() -> None:
    with pytest.raises(MachineCannot, match="tokens are measured through PCIe"):
        placed("random:llama-8b", {0: 10})
    told = placed("random:llama-8b", {0: 10}, max_memory={"cpu": "100GB"})
    assert set(told.devices.values()) == {"cuda:0", "cpu"}
    assert told.offloaded
    assert "offloaded" in {note.code for note in told.notes}


def test_room_is_left_for_keys_and_values_where_there_is() -> None:
    load = BatchLoad(batch=32, input_tokens=2048, output_tokens=512)
    tight = placed("random:llama-8b", {0: 18, 1: 40}, load=load)
    kept = kv_cache_by_device(predicted("random:llama-8b"), tight.devices, tight.main_device, load)
    assert tight.weights_bytes["cuda:0"] + kept["cuda:0"] < 18 * GB
    too_tight = placed("random:llama-8b", {0: 18}, load=load)
    assert any("a batch of 32 with 2048 + 512 tokens" in n.message for n in too_tight.notes if n.code == "memory_tight")


@pytest.mark.parametrize(
    ("device_map", "words"),
    [
        ({"": 1}, "names GPU 1, and backend.device_ids has 2 and 0"),
        ({"": "cpu"}, "puts nothing on a GPU"),
        ({"model.layer.0": 0}, "no part 'model.layer.0'. Did you mean model.layers.0"),
        ({"model": 0}, "no place to lm_head"),
        ({"": 0, "lm_head": 2}, "name each part once"),
        ({"model.embed_tokens": 0, "model.layers.0.mlp": 2, "lm_head": 0}, "place model.layers.0 as a whole"),
        ({"model": "gpu0", "lm_head": 0}, "'gpu0' is no place"),
        ("balanzed", "Did you mean balanced"),
    ],
)
def test_a_map_that_makes_no_sense_is_refused(device_map: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        placed("random:llama-tiny", {2: 1, 0: 1}, device_map=device_map)


def test_a_map_in_full_is_kept_and_its_ties_and_sizes_are_looked_at() -> None:
    told = placed("random:llama-tiny", {2: 1, 0: 1}, device_map={"model": "cuda:2", "lm_head": "0"})
    assert told.devices == {"model": "cuda:2", "lm_head": "cuda:0"}
    with pytest.raises(BadInput, match="one and the same"):
        placed("random:llama-1b?layers=1", {0: 9, 1: 9}, device_map={"model": 0, "lm_head": 1})
    with pytest.raises(BadInput, match=r"max_memory gives 4\.7 GiB to GPU 0"):
        placed("random:llama-8b", {0: 30}, device_map={"": 0}, max_memory={0: "5GB"})
    with pytest.raises(MachineCannot, match=r"GPU 0 has 9\.3 GiB free"):
        placed("random:llama-8b", {0: 10}, device_map={"": 0})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    free=st.dictionaries(st.integers(0, 7), st.integers(1, 400), min_size=1),
    limits=st.dictionaries(st.integers(0, 7), st.integers(0, 400)),
    name=st.sampled_from(DEVICE_MAPS),
    beside=st.dictionaries(st.sampled_from(["cpu", "disk"]), st.integers(1, 900)),
)
@example(free={0: 1}, limits={}, name="auto", beside={"disk": 1})
def test_a_plan_is_never_outside_its_gpus_nor_over_a_limit(
    free: dict[int, int], limits: dict[int, int], name: str, beside: dict[str, int]
) -> None:
    empty, sizes = of("random:llama-tiny?layers=6")
    most = {f"cuda:{gpu}": 1000 * size for gpu, size in limits.items() if gpu in free}
    most |= {place: 1000 * size for place, size in beside.items()}
    there = {**{f"cuda:{gpu}": 1000 * size for gpu, size in free.items()}, "cpu": 10**9}
    given: dict[int | str, int | str] = dict(most.items())
    try:
        told = plan_placement(
            empty, sizes, device_ids=tuple(free), free_bytes=there, device_map=name, max_memory=given or None
        )
    except MachineCannot:
        return
    assert set(told.devices.values()) <= {*(f"cuda:{gpu}" for gpu in free), *beside}
    assert sum(told.weights_bytes.values()) == sizes.weights_bytes
    for place, size in told.weights_bytes.items():
        assert size <= min(there.get(place, size), most.get(place, size))


# Loading


def test_a_random_model_is_what_its_seed_says_and_computes_as_one_made_in_the_usual_way(
    tokens: Any, whole: Any
) -> None:
    from transformers import LlamaForCausalLM

    here = load_model(Generation(model=TINY), "cpu:0", 3)
    assert load_model(Generation(model=TINY, batch=4, phase="decode"), "cpu:0", 3) is here
    usual = LlamaForCausalLM(here.config).eval()
    usual.load_state_dict(here.model.state_dict())
    assert (usual(tokens).logits == whole).all(), "buffers that are in no checkpoint are right too"
    assert (here.placement, here.ranks, here.tokenizer, here.agree_to_stop(True)) == ({"": "cpu"}, 1, None, True)
    assert not (scores(load_model(Generation(model=TINY), "cpu:0", 4), tokens) == whole).all()
    assert here.model is None, "one model is kept at a time"


@pytest.mark.parametrize(
    "told",
    [
        {"max_memory": json.dumps({"cpu": 300_000, "disk": "1GB"})},
        {"device_map": json.dumps({"model": "cpu", "lm_head": "disk"})},
    ],
)
@pytest.mark.parametrize("random", [True, False])
def test_a_split_model_lies_as_planned_and_gives_the_same_scores(
    tokens: Any, whole: Any, checkpoint: Path, told: dict[str, str], random: bool
) -> None:
    model = TINY if random else str(checkpoint)
    here = load_model(Generation(model=model, **told), "cpu:0", 3)
    assert set(here.placement.values()) == {"cpu", "disk"}
    assert here.offloaded
    assert (scores(here, tokens) == whole).all()
    with pytest.raises(TrialFailed, match=r"lies on disk, and not on cpu"):
        verify_placement(
            here.model, PlacementPlan(devices={"": "cpu"}, weights_bytes={}, main_device="cpu"), here.visible_devices
        )


def test_a_checkpoint_is_read_whole_or_not_at_all(tokens: Any, whole: Any, checkpoint: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    here = load_model(Generation(model=str(checkpoint)), "cpu:0", 3)
    assert (scores(here, tokens) == whole).all()
    assert here.vocabulary == 256
    broken = tmp_path / "broken"
    shutil.copytree(checkpoint, broken)
    weights = load_file(broken / "model.safetensors")
    save_file(
        {name: weight for name, weight in weights.items() if "layers.1.mlp.up" not in name},
        broken / "model.safetensors",
        metadata={"format": "pt"},
    )
    with pytest.raises(MachineCannot, match=r"lacks weights of the model: model.layers.1.mlp.up_proj.weight"):
        load_model(Generation(model=str(broken)), "cpu:0", 3)
    (broken / "model.safetensors").unlink()
    with pytest.raises(MachineCannot, match="cannot be read: Error no file"):
        load_model(Generation(model=str(broken)), "cpu:0", 3)


def test_a_model_that_cannot_be_had_is_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for told, config, words in (
        (
            {"model": "nobody/nothing"},
            None,
            "nobody/nothing is not in the cache here, and the hub is not asked",
        ),
        ({"model": "nobody/nothing", "revision": "v2"}, None, "nothing at revision v2 is not in the cache"),
        ({"model": "no name/at all"}, None, "is neither a folder nor a name of the hub"),
        ({}, {"model_type": "unheard-of"}, "does not recognize this architecture|model type `unheard-of`"),
        ({}, {"model_type": "x", "auto_map": {"AutoConfig": "x.Y"}}, "unless backend.trust_remote_code is true"),
        ({}, None, "not a valid JSON file"),
    ):
        (tmp_path / "config.json").write_text("{" if config is None else json.dumps(config))
        with pytest.raises((MachineCannot, BadInput), match=words) as refused:
            load_model(Generation(**{"model": str(tmp_path), **told}), "cpu:0", 0)
        assert "\n" not in str(refused.value)
    assert capfd.readouterr() == ("", "")


def test_memory_that_runs_out_while_a_model_is_loaded_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def runs_out(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loading, "place_weights", runs_out)
    with pytest.raises(MachineCannot, match=r"ran out while random:llama-tiny was loaded: its weights take 0.4 MiB"):
        load_model(Generation(model=TINY), "cpu:0", 11)


def test_a_batch_whose_keys_and_values_are_more_than_all_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    generation = Generation(model=TINY)
    here = load_model(generation, "cpu:0", 3)
    check_kv_cache(here, generation)
    with pytest.raises(MachineCannot, match="give a smaller batch or shorter texts"):
        check_kv_cache(here, generation.model_copy(update={"batch": 10**9}))
    apart = replace(here, placement={"model.embed_tokens": "cpu", "model.layers": "disk", "lm_head": "cpu"})
    assert kv_cache_by_device(apart.sizes, apart.placement, "cpu", BatchLoad(2, 3, 4)) == {"cpu": 2 * 7 * 512}


def test_a_type_that_a_gpu_only_imitates_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device", lambda _: pytest.MonkeyPatch.context())
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    with pytest.raises(MachineCannot, match="Tesla T4 does not compute in bfloat16"):
        models.usable_dtype("bfloat16", "cuda:0")
    assert models.usable_dtype("bfloat16", "cpu") is torch.bfloat16


IN_RANKS = """
import json, os, sys
import torch
from assay.core.processes import die_with_parent
from assay.workloads import torch_device
from assay.workloads.generation.loading import load_model, release_models
from assay.workloads.generation.models import import_transformers
from assay.workloads.generation.params import Generation

import_transformers()
import torch.distributed.tensor, transformers.distributed.tensor_parallel, transformers.models.llama.modeling_llama
torch.set_num_threads(1)
parent = os.getpid()
child = os.fork()
if not child:
    die_with_parent(parent)
rank = "0" if child else "1"
os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
torch_device.join_ranks("cpu")
tokens = torch.arange(14).reshape(2, 7)
told = {}
with torch.inference_mode():
    for model in sys.argv[1].split():
        here = load_model(Generation(model=model, tp_plan="auto"), f"cpu:{rank}", 3)
        shares = [tuple(weight.to_local().shape) for weight in here.model.parameters() if hasattr(weight, "to_local")]
        told[model] = [here.model(tokens).logits, here.ranks, len(shares), here.agree_to_stop(rank == "1")]
        told[model].append(here.agree_to_stop(False))
    release_models()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.environ["WORLD_SIZE"] = "1"
        for model, found in told.items():
            alone = load_model(Generation(model=model), "cpu:0", 3).model(tokens).logits
            found[0] = float((found[0] - alone).abs().max() / alone.abs().max())
        print(json.dumps([code, told]), flush=True)
os._exit(0)
"""


@pytest.mark.full
def test_two_ranks_compute_the_same_together(start_python: StartPython, checkpoint: Path) -> None:
    from assay.launch.local import find_free_port

    tied = "random:llama-1b?layers=1&hidden=32&heads=2&kv_heads=2&ffn=64&vocab=96&context=64"
    process = start_python(IN_RANKS, f"{TINY} {tied} {checkpoint}", find_free_port())
    assert process.stdout is not None
    code, told = json.loads(process.stdout.read() or "[null, {}]")
    assert code == 0
    assert list(told) == [TINY, tied, str(checkpoint)]
    for difference, ranks, shares, one_stops, nobody_stops in told.values():
        assert difference < 1e-5
        assert (ranks, one_stops, nobody_stops) == (2, True, False)
        assert shares


@pytest.mark.gpu
@pytest.mark.parametrize("random", [True, False])
def test_a_model_split_between_gpu_and_host_lies_as_planned_and_gives_the_same_scores(
    cuda: str, tokens: Any, tmp_path: Path, random: bool
) -> None:
    model = "random:llama-tiny?layers=6"
    here = load_model(Generation(model=model), cuda, 3)
    assert here.placement == {"": cuda}
    whole = scores(here, tokens)
    if not random:
        here.model.save_pretrained(tmp_path)
        model = str(tmp_path)
    most = here.sizes.weights_bytes // 2
    split = load_model(Generation(model=model, max_memory=json.dumps({"0": most, "cpu": "1GB"})), cuda, 3)
    assert set(split.placement.values()) == {cuda, "cpu"}
    assert split.offloaded
    assert (scores(split, tokens) - whole).abs().max() <= 1e-2 * whole.abs().max()
