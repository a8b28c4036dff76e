from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from assay.core.errors import BadInput, MachineCannot, TrialFailed
from assay.worker.probes import validate_settings
from assay.workloads.generation import workloads
from assay.workloads.generation.cuda_graphs import GraphLoop, fuse_layers
from assay.workloads.generation.decode_step import DecodeStep, SamplingSettings, step_implementations
from assay.workloads.generation.eager import EagerLoop
from assay.workloads.generation.loading import load_model
from assay.workloads.generation.models import model_shape
from assay.workloads.generation.params import Generation
from assay.workloads.generation.prompts import PromptBatch, PromptBatches
from assay.workloads.generation.roofline import model_cost
from assay.workloads.generation.weights import make_empty_model
from assay.workloads.generation.workloads import GENERATE_PYTORCH
from tests.needing import need_modules

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from assay.workloads.base import PreparedWorkload
    from assay.workloads.generation.loading import LoadedModel

need_modules("transformers", "accelerate")

IN, OUT = 12, 9
MODEL = "random:llama-tiny"


@pytest.fixture(scope="module")
def here() -> Iterator[LoadedModel]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        found = load_model(Generation(model=MODEL), "cpu:0", 0)
        yield found
        found.release()


@pytest.fixture
def asked() -> PromptBatches:
    """Two prompts, the first of them shorter."""
    import torch

    ids = torch.randint(0, 256, (2, IN), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    return PromptBatches([PromptBatch(ids, mask, 2 * IN - 5)])


def prepared(device: str = "cpu:0", **params: Any) -> PreparedWorkload:
    told = {"model": MODEL, "input_tokens": IN, "output_tokens": OUT, **params}
    return GENERATE_PYTORCH.prepare(Generation(**told).as_params(), None, device=device, seed=0)


def called(subject: PreparedWorkload) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", subject.call())


def answers(loop: EagerLoop) -> list[list[int]]:
    return cast("list[list[int]]", loop.last[:, IN:].tolist())


def step_on_cpu(loop: GraphLoop) -> None:
    assert loop.stepper is not None
    with step_implementations(loop.stepper.model, on_gpu=False):
        loop.stepper.step()


@pytest.mark.full
def test_decoding_goes_on_where_the_prompts_were_read(here: LoadedModel, asked: PromptBatches) -> None:
    loop = EagerLoop(here, asked, OUT, {})
    loop.whole()
    whole = answers(loop)
    assert len(whole[0]) == OUT
    for _ in range(2):
        loop.decode()
        assert answers(loop) == whole
    loop.decode(3)
    assert answers(loop) == [row[:4] for row in whole]
    loop.prefill()
    assert answers(loop) == [row[:1] for row in whole]
    loop.close()


def test_steps_over_a_fixed_cache_make_the_tokens_of_a_plain_loop(here: LoadedModel, asked: PromptBatches) -> None:
    plain = EagerLoop(here, asked, OUT, {})
    plain.whole()
    loop = GraphLoop(here, asked, OUT, {})
    loop._player = partial(step_on_cpu, loop)
    said = loop.whole()
    whole = loop.last.tolist()
    again = loop.decode()
    assert whole == answers(plain)
    assert loop.last[:, 1:].tolist() == [row[1:] for row in whole]
    assert len(cast("list[float]", said["gap_us"])) == len(cast("list[float]", again["gap_us"])) == OUT - 1
    assert again["output_tokens"] == 2 * (OUT - 1)
    assert here.model.config._attn_implementation == "sdpa"
    loop.close()
    with pytest.raises(TrialFailed, match="given back"):
        loop.prefill()


@pytest.mark.full
def test_one_compiled_layer_serves_all_and_none_is_left_behind(here: LoadedModel, asked: PromptBatches) -> None:
    from torch._dynamo.utils import counters

    choose = SamplingSettings().make_sampler(here.vocabulary, here.device)
    stepper = DecodeStep(here.model, here.device, batch=2, columns=IN + OUT, choose=choose)
    tokens = []
    counters.clear()
    for way in ("plain", "fused"):
        stepper.prefill(asked.pool[0])
        with step_implementations(here.model, on_gpu=False):
            if way == "plain":
                stepper.step()
            else:
                with fuse_layers(here.model, stepper.cache, backend="eager"):
                    stepper.step()
        tokens.append(stepper.token.tolist())
    assert tokens[0] == tokens[1]
    assert counters["stats"]["unique_graphs"] == 1
    layers = here.model.model.layers
    assert [layer.self_attn.layer_idx for layer in layers] == list(range(len(layers)))
    assert not any("forward" in vars(layer) for layer in layers)


@pytest.mark.parametrize(
    "drawn",
    [
        SamplingSettings(suppressed=(3,)),
        SamplingSettings(sample=True, top_p=0.9),
        SamplingSettings(sample=True, top_k=0),
    ],
)
def test_a_step_asks_nothing_of_the_host_so_that_it_can_be_captured(here: LoadedModel, drawn: SamplingSettings) -> None:
    """On the device without data, whatever needs a number raises an error."""
    import torch

    nowhere = torch.device("meta")
    model = make_empty_model(here.config, torch.bfloat16).to(nowhere)
    stepper = DecodeStep(model, nowhere, batch=2, columns=IN + OUT, choose=drawn.make_sampler(here.vocabulary, nowhere))
    with step_implementations(model, on_gpu=False):
        stepper.step()
        kept = [stepper.cache.layers[0].keys, stepper.token, stepper.slot]
        stepper.step()
    now = [stepper.cache.layers[0].keys, stepper.token, stepper.slot]
    assert all(one is another for one, another in zip(kept, now, strict=True))
    assert {str(one.device) for one in kept} == {"meta"}


def test_a_call_says_when_its_tokens_came(here: LoadedModel) -> None:
    whole = called(prepared(phase="whole", batch=3))
    assert len(whole["first_token_us"]) == 1
    assert len(whole["gap_us"]) == OUT - 1
    assert all(gap > 0 for gap in whole["gap_us"])
    assert whole["first_token_us"][0] > 0
    assert (whole["input_tokens"], whole["output_tokens"], whole["requests"]) == (3 * IN, 3 * OUT, 3)
    decode = called(prepared(phase="decode", batch=3))
    assert len(decode["gap_us"]) == OUT - 1
    assert decode["output_tokens"] == 3 * (OUT - 1)
    prefill = called(prepared(phase="prefill", batch=3))
    assert set(prefill) == {"first_token_us", "input_tokens"}
    assert prepared(phase="idle").call() is None


def test_what_is_known_of_a_phase_has_the_names_of_the_analysis(here: LoadedModel) -> None:
    subject = prepared(phase="decode", batch=2)
    assert subject.measured is not None
    known = subject.measured()
    size = model_cost(here.model)
    assert size is not None
    assert (
        size.shared_parameters + size.embedding_parameters + size.output_parameters
        == known["parameters_count"]
        == here.sizes.parameters
    )
    assert known["step_read_bytes"] == size.step_read_bytes(2, IN + OUT / 2)
    assert known["memory_bytes_per_s"] > 0
    assert known["compute_flop_per_s"] > 0
    assert "busy_us" not in known
    assert {"tokens": OUT} in [note.params for note in subject.notes if note.code == "exact_length"]
    assert set(workloads.model_facts(here)) <= set(known)


def test_settings_are_honoured_and_unknown_ones_refused(here: LoadedModel, asked: PromptBatches) -> None:
    import torch

    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        loop = EagerLoop(here, asked, OUT, {"do_sample": True, "temperature": 5.0})
        loop.whole()
        drawn.append(answers(loop))
    assert drawn[0] == drawn[1] != drawn[2]
    with pytest.raises(BadInput, match=r"temperatures is not a setting of a generation\. Did you mean temperature"):
        prepared(generate_kwargs='{"temperatures": 1.0}')
    with pytest.raises(BadInput, match="no decoding without reading again"):
        prepared(phase="decode", generate_kwargs='{"use_cache": false}')
    with pytest.raises(BadInput, match="assistant_ensemble_weight"):
        prepared(generate_kwargs='{"assistant_ensemble_weight": 3.0}')
    assert validate_settings({"foo": 1})["refused"].startswith("generate_kwargs.foo is not a setting of a generation.")
    assert validate_settings({"prefill_chunk_size": 4}) == {}


def test_the_type_of_the_weights_is_told_as_loaded_and_shapes_are_as_published() -> None:
    assert prepared(phase="idle").dtype == "float32"
    assert model_shape("random:mistral-7b").config().sliding_window is None


def test_graphs_draw_only_among_the_best(here: LoadedModel) -> None:
    import torch

    logits = torch.tensor([[0.0, 5.0, 4.9, 4.8, -1.0]]).repeat(200, 1)
    choose = SamplingSettings(sample=True, top_k=3, suppressed=(1,)).make_sampler(5, "cpu")
    assert set(choose(logits).flatten().tolist()) == {0, 2, 3}
    narrow = SamplingSettings(sample=True, top_k=0, top_p=0.3).make_sampler(5, "cpu")
    assert set(narrow(logits).flatten().tolist()) == {1}
    assert SamplingSettings().make_sampler(5, "cpu")(logits).tolist() == [[1]] * 200


def test_prompts_of_a_file_are_read_byte_by_byte_and_padded(here: LoadedModel, tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    file.write_text("Who is it?\nWhy?\n", encoding="utf-8")
    subject = prepared(phase="whole", batch=2, prompts=str(file))
    assert called(subject)["input_tokens"] == len("Who is it?Why?")
    assert "no_tokenizer" in {note.code for note in subject.notes}
    with pytest.raises(BadInput, match="has 10 tokens, more than the 4"):
        prepared(phase="whole", prompts=str(file), input_tokens=4)


def test_what_cannot_be_is_refused_in_a_sentence(here: LoadedModel) -> None:
    with pytest.raises(MachineCannot, match="CUDA graphs need a GPU"):
        prepared(mode="graphs")
    with pytest.raises(BadInput, match="One output token has no decoding"):
        prepared(phase="decode", output_tokens=1)
    with pytest.raises(BadInput, match="2000 tokens in and 100 out are 2100, more than the 2048"):
        prepared(input_tokens=2000, output_tokens=100)
    assert called(prepared(phase="whole", output_tokens=1))["gap_us"] == []


@pytest.mark.gpu
@pytest.mark.parametrize("fuse", [False, True])
def test_a_captured_step_makes_the_tokens_of_a_plain_loop(cuda: str, fuse: bool) -> None:
    import torch

    found = load_model(Generation(model=MODEL, torch_dtype="float32"), cuda, 0)
    ids = torch.randint(0, 256, (2, IN), device=found.device)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    asked = PromptBatches([PromptBatch(ids, mask, 2 * IN - 5)])
    plain = EagerLoop(found, asked, OUT, {})
    plain.whole()
    loop = GraphLoop(found, asked, OUT, {}, compile=fuse)
    loop.read()
    assert not loop.notes
    assert (loop.compile_s is not None) == fuse
    for _ in range(2):
        loop.whole()
        assert loop.last.tolist() == answers(plain)
        loop.decode()
        assert loop.last[:, 1:].tolist() == [row[1:] for row in answers(plain)]
    loop.close()
    found.release()


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["eager", "graphs"])
@pytest.mark.parametrize("phase", ["prefill", "decode", "whole"])
def test_a_phase_on_a_gpu_says_how_busy_it_was_and_gives_its_memory_back(cuda: str, mode: str, phase: str) -> None:
    import torch

    allocated = []
    for _ in range(2):  # what is taken once for all is taken at the first
        subject = prepared(cuda, torch_dtype="bfloat16", batch=2, mode=mode, phase=phase, compile=False)
        assert subject.measured is not None
        known = subject.measured()
        assert called(subject)
        subject.close()
        del subject
        torch.cuda.empty_cache()
        allocated.append(torch.cuda.memory_allocated())
    assert phase == "whole" or 0 < known["busy_us"] <= 2 * known["traced_us"]
    assert known["peak_memory_mib"] > 0
    assert allocated[1] - allocated[0] < 2**20


@pytest.mark.gpu
def test_sampling_inside_a_graph_draws_anew_each_time(cuda: str) -> None:
    settings = '{"do_sample": true, "temperature": 5.0, "top_p": 0.95}'
    subject = prepared(cuda, phase="decode", mode="graphs", compile=False, batch=4, generate_kwargs=settings)
    subject.call()
    loop = cast("GraphLoop", subject.call.__self__)  # type: ignore[attr-defined]
    first = loop.last.tolist()
    subject.call()
    assert loop.last.tolist() != first
    subject.close()
