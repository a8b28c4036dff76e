from __future__ import annotations

import pytest

from assay.core.errors import BadInput
from assay.workloads.generation import params
from assay.workloads.generation.decode_step import SamplingSettings, resolve_sampling
from assay.workloads.generation.eager import decode_extras, prefill_extras, whole_extras
from assay.workloads.generation.roofline import ModelCost, mean_context, union_us

LLAMA_8B = ModelCost(
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    hidden=4096,
    shared_parameters=32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096) + 4096,
    embedding_parameters=128256 * 4096,
    output_parameters=128256 * 4096,
    element_bytes=2,
    cached_bytes=2,
)


def test_the_bytes_of_a_step_are_those_counted_by_hand() -> None:
    assert LLAMA_8B.shared_parameters + LLAMA_8B.embedding_parameters + LLAMA_8B.output_parameters == 8_030_261_248
    assert 32 * LLAMA_8B.kv_bytes == 2 * 32 * 8 * 128 * 2 == 131072
    weights = 2 * (8_030_261_248 - 128256 * 4096)
    assert LLAMA_8B.step_read_bytes(1, 576) == weights + 2 * 4096 + 576 * 131072
    assert LLAMA_8B.step_read_bytes(32, 576) == weights + 32 * (2 * 4096 + 576 * 131072)
    assert mean_context(512, 128) == 576


def test_the_operations_of_a_step_and_of_a_prompt_are_those_counted_by_hand() -> None:
    products = 2 * (LLAMA_8B.shared_parameters + LLAMA_8B.output_parameters)
    assert LLAMA_8B.step_flop(1, 100) == products + 2 * 2 * 32 * 4096 * 100
    assert LLAMA_8B.prefill_flop(1, 1) == LLAMA_8B.step_flop(1, 1)
    two = 2 * 2 * LLAMA_8B.shared_parameters + 2 * LLAMA_8B.output_parameters + 4 * 32 * 4096 * (1 + 2)
    assert LLAMA_8B.prefill_flop(3, 2) == 3 * two


def test_of_experts_and_of_a_window_only_that_is_counted_which_a_token_uses() -> None:
    few = ModelCost(
        layers=1,
        heads=1,
        kv_heads=1,
        head_dim=1,
        hidden=1,
        shared_parameters=10,
        embedding_parameters=0,
        output_parameters=5,
        element_bytes=2,
        cached_bytes=2,
        expert_parameters=80,
        expert_share=0.25,
        windowed_layers=1,
        window=8,
    )
    assert few.weights_read(0) == 2 * (10 + 20 + 5)
    assert few.step_read_bytes(1, 100) == few.weights_read(1) + 8 * 4


def test_overlapping_kernels_are_counted_once() -> None:
    assert union_us([(5, 7), (0, 2), (1, 3), (1.5, 2), (7, 8)]) == pytest.approx(6)
    assert union_us([]) == 0


def test_times_of_tokens_become_a_first_one_and_gaps() -> None:
    assert prefill_extras(1000, 4000, 7) == {"first_token_us": [3.0], "input_tokens": 7.0}
    assert decode_extras([1000, 2000, 4000], 3) == {"gap_us": [1.0, 2.0], "output_tokens": 6.0}
    said = whole_extras(1000, [4000, 5000, 7000], 2, 10)
    assert said == {
        "first_token_us": [3.0],
        "gap_us": [1.0, 2.0],
        "input_tokens": 10.0,
        "output_tokens": 6.0,
        "requests": 2.0,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"max_new_tokens": 3}', "the length of an answer is scenario.output_tokens"),
        ('{"streamer": 1}', "streamer cannot be given"),
        ('{"past_key_values": []}', "the cache is the decode mode's"),
        ('{"num_beams": 4}', "num_beams can only be 1, not 4: tokens of a beam search have no time of arrival"),
        ('{"temperature": -1}', r"temperature is a number of at least 0, not -1\."),
        ('{"temperature": NaN}', "temperature is a number"),
        ('{"temperature": 0, "do_sample": true}', "do_sample: false"),
        ('{"top_p": 2}', r"top_p is a number from 0 to 1, not 2\."),
        ('{"top_k": 1.5}', r"top_k is a whole number of at least 0, not 1\.5\."),
        ('{"repetition_penalty": 0}', "repetition_penalty is a number above 0, not 0"),
        ('{"do_sample": "yes"}', "do_sample is true or false, not 'yes'"),
        ("[1]", "is a map of settings"),
        ("{", "is not valid JSON"),
    ],
)
def test_settings_that_cannot_be_or_contradict_the_measurement_are_refused(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        params.parse_settings(text)


def test_settings_are_taken_as_transformers_takes_them() -> None:
    told = params.parse_settings('{"temperature": 2, "top_k": 5, "do_sample": true, "typical_p": null, "foo": 1}')
    assert told == {"temperature": 2.0, "top_k": 5, "do_sample": True, "typical_p": None, "foo": 1}
    assert isinstance(told["temperature"], float)
    assert params.unusual_settings(told) == ("foo",)


def test_a_misspelt_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"generate_kwargs\.temperatures is not a setting .* Did you mean temperature"):
        params.check_known_settings({"temperatures": 1}, {"temperature", "top_k"})
    params.check_known_settings(params.parse_settings('{"num_beams": 1, "top_k": 2}'), {"num_beams", "top_k"})


def test_graphs_choose_as_the_model_and_the_settings_say_together() -> None:
    own = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [3, 4], "repetition_penalty": 1.0}
    assert resolve_sampling(own, {"top_k": 5}) == SamplingSettings(
        sample=True, temperature=0.6, top_k=5, top_p=0.9, suppressed=(3, 4)
    )
    assert resolve_sampling(own, {"do_sample": False}).sample is False
    with pytest.raises(BadInput, match=r"the model's own generation settings have repetition_penalty 1\.05"):
        resolve_sampling({"repetition_penalty": 1.05}, {})
    with pytest.raises(BadInput, match=r"generate_kwargs has min_p 0\.1"):
        resolve_sampling({}, {"min_p": 0.1})
