"""Settings of a generation: which are known, which would contradict what is measured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput, nearest
from assay.workloads.generation import usual
from assay.workloads.generation.models import import_transformers

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_LENGTH = "the length of an answer is scenario.output_tokens, and every answer has it exactly"
_ONE_BY_ONE = "tokens are made and timed one by one"
_CACHE = "the cache is the decode mode's: it grows in eager, and is fixed in graphs"
_INPUT = "prompts come from scenario.prompts"
OURS: Mapping[str, str] = {
    "max_new_tokens": _LENGTH,
    "min_new_tokens": _LENGTH,
    "max_length": _LENGTH,
    "min_length": _LENGTH,
    "max_time": _LENGTH,
    "stop_strings": _LENGTH,
    "stopping_criteria": _LENGTH,
    "streamer": "assay's own says when each token arrives",
    "past_key_values": _CACHE,
    "cache_implementation": _CACHE,
    "cache_config": _CACHE,
    "max_cache_len": _CACHE,
    "input_ids": _INPUT,
    "inputs": _INPUT,
    "inputs_embeds": _INPUT,
    "attention_mask": _INPUT,
    "assistant_model": _ONE_BY_ONE,
    "prompt_lookup_num_tokens": _ONE_BY_ONE,
    "assistant_early_exit": _ONE_BY_ONE,
    "use_mtp": _ONE_BY_ONE,
    "speculation_type": _ONE_BY_ONE,
    "is_assistant": _ONE_BY_ONE,
    "continuous_batching_config": _ONE_BY_ONE,
    "return_dict_in_generate": "what is returned is not kept",
    "seed": "the seed is scenario.seed",
}
"""Settings that are not the user's here, and why."""

ONE = {
    "num_beams": "tokens of a beam search have no time of arrival",
    "num_return_sequences": "sequences at once are scenario.batch_sizes",
    "num_beam_groups": "tokens of a beam search have no time of arrival",
}
"""Settings that may only be 1, and why."""


def parsed(text: str) -> dict[str, Any]:
    """Return settings from JSON; those that cannot be, or would contradict what is measured, are refused."""
    try:
        settings = json.loads(text or "{}")
    except ValueError as error:
        raise BadInput(f"generate_kwargs is not valid JSON: {error}.") from error
    if not isinstance(settings, dict):
        raise BadInput(f"generate_kwargs is a map of settings, not {settings!r}.")
    for name, value in settings.items():
        if name in OURS:
            raise BadInput(f"generate_kwargs.{name} cannot be given: {OURS[name]}.")
        if name in ONE and value not in (None, 1):
            raise BadInput(f"generate_kwargs.{name} can only be 1, not {value!r}: {ONE[name]}.")
    return usual.checked(settings)


def check_known(settings: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse settings that transformers does not know."""
    for name in settings:
        if name not in known:
            raise BadInput(f"generate_kwargs.{name} is not a setting of a generation.{nearest(name, known)}")


def check_understood(settings: Mapping[str, Any]) -> None:
    """Refuse settings that transformers, as it is here, does not know or cannot take.

    Raises:
        BadInput: There is such a setting.
        MachineCannot: transformers is not here.
    """
    check_known(settings, known_settings())
    try:
        import_transformers().GenerationConfig(**settings)
    except (ValueError, TypeError, AttributeError) as error:
        raise BadInput(f"generate_kwargs cannot be: {' '.join(str(error).split()).rstrip('.')}.") from None


def known_settings() -> frozenset[str]:
    """Return the settings that this transformers knows."""
    config = import_transformers().GenerationConfig()
    return frozenset(name for name in vars(config) if not name.startswith("_") and name != "transformers_version")
