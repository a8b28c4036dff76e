"""The parameters of a generation, and its ``generate_kwargs``: known names, types, bounds, and conflicts.

Parameters are complete and plain values, so that a subject has an identity. Common settings are checked without
transformers.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from assay.core.errors import BadInput, suggest_nearest
from assay.core.values import Params, Value
from assay.workloads.generation.models import import_transformers

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Phase = Literal["idle", "prefill", "decode", "whole", "served"]
"""idle: loaded, without work. prefill: process a prompt and generate its first token. decode: all tokens after that,
without another prefill. whole: both, as a user sees it. served: whole requests to a server, under load."""


class Generation(Value):
    """Parameters of ``generate@pytorch`` and ``generate@openai``; lists and maps are JSON text, as params are plain."""

    model: str = "random:llama-tiny"
    phase: Phase = "whole"
    mode: Literal["eager", "graphs"] = "eager"
    compile: bool = True
    batch: int = Field(default=1, ge=1)
    input_tokens: int = Field(default=64, ge=1)
    output_tokens: int = Field(default=32, ge=1)
    prompts: str = Field(default="random", description="random, or a file as in scenario.prompts.")
    text_column_name: str = "text"
    num_samples: int = Field(default=0, ge=0, description="0: all.")
    truncation: bool = False
    generate_kwargs: str = "{}"
    reasoning: str = Field(default="{}", description="Settings for a chat template or a request, as JSON.")
    revision: str = ""
    trust_remote_code: bool = False
    torch_dtype: str = "auto"
    attn_implementation: str = ""
    device_map: str = Field(default="auto", description="A name, or JSON of an explicit map.")
    max_memory: str = Field(default="", description="JSON, by GPU number, cpu or disk; empty: all free memory.")
    device_ids: str = Field(default="", description="JSON: GPU numbers in pipeline order; empty: one GPU.")
    tp_plan: str = ""
    endpoint: str = ""
    api_key_env: str = ""
    request_timeout_s: float = 120.0
    concurrency: int = Field(default=1, ge=1)
    warmup: int = Field(default=1, ge=0)

    def as_params(self) -> Params:
        """Return it as a subject's parameters."""
        return self.model_dump()


@dataclass(frozen=True)
class SettingBounds:
    """Bounds of a numeric setting; ``above`` excludes the lower one."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    integer: bool = False

    @property
    def description(self) -> str:
        """The bounds as text."""
        kind = "a whole number" if self.integer else "a number"
        if math.isfinite(self.high):
            begin = f"above {self.low:g}, and at most" if self.above else f"from {self.low:g} to"
            return f"{kind} {begin} {self.high:g}"
        least = f" above {self.low:g}" if self.above else f" of at least {self.low:g}"
        return f"{kind}{least if math.isfinite(self.low) else ''}"

    def contains(self, value: Any) -> bool:
        """Return whether a value is within the bounds."""
        if isinstance(value, bool) or not isinstance(value, int if self.integer else int | float):
            return False
        return math.isfinite(value) and self.low <= value <= self.high and not (self.above and value == self.low)


NUMERIC_SETTINGS: Mapping[str, SettingBounds] = {
    "temperature": SettingBounds(0),
    **dict.fromkeys(("top_p", "min_p", "epsilon_cutoff", "eta_cutoff"), SettingBounds(0, 1)),
    **dict.fromkeys(("top_h", "typical_p"), SettingBounds(0, 1, above=True)),
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty"), SettingBounds(0, above=True)),
    **dict.fromkeys(("length_penalty", "diversity_penalty", "guidance_scale"), SettingBounds()),
    **dict.fromkeys(
        (
            "top_k", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "pad_token_id", "bos_token_id",
            "num_beams", "num_return_sequences", "num_beam_groups",
        ),
        SettingBounds(0, integer=True),
    ),
}  # fmt: skip
BOOLEAN_SETTINGS = frozenset(
    {
        "do_sample", "use_cache", "renormalize_logits", "remove_invalid_values", "disable_compile", "low_memory",
        "output_attentions", "output_hidden_states", "output_scores", "output_logits",
    }
)  # fmt: skip
OTHER_SETTINGS = frozenset(
    {"eos_token_id", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias", "early_stopping"}
)
"""Settings of which only the name is checked; their values depend on the model."""


def normalize_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with integers converted to floats where transformers requires floats; refuse invalid values."""
    normalized = dict(settings)
    for name, value in settings.items():
        bounds = NUMERIC_SETTINGS.get(name)
        if value is None:
            continue
        if name in BOOLEAN_SETTINGS and not isinstance(value, bool):
            raise BadInput(f"generate_kwargs.{name} is true or false, not {value!r}.")
        if bounds is not None:
            if not bounds.contains(value):
                raise BadInput(f"generate_kwargs.{name} is {bounds.description}, not {value!r}.")
            normalized[name] = value if bounds.integer else float(value)
    if settings.get("do_sample") is True and settings.get("temperature") == 0:
        raise BadInput("generate_kwargs.temperature is 0, and tokens are drawn; use do_sample: false.")
    return normalized


def unusual_settings(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the settings that only transformers can check."""
    return tuple(name for name in settings if name not in {*NUMERIC_SETTINGS, *BOOLEAN_SETTINGS, *OTHER_SETTINGS})


RESERVED_SETTINGS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "max_new_tokens", "min_new_tokens", "max_length", "min_length", "max_time", "stop_strings",
            "stopping_criteria",
        ),
        "the length of an answer is scenario.output_tokens, and every answer has it exactly",
    ),
    **dict.fromkeys(
        (
            "assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp", "speculation_type",
            "is_assistant", "continuous_batching_config",
        ),
        "tokens are made and timed one by one",
    ),
    **dict.fromkeys(
        ("past_key_values", "cache_implementation", "cache_config", "max_cache_len"),
        "the cache is the decode mode's: it grows in eager, and is fixed in graphs",
    ),
    **dict.fromkeys(("input_ids", "inputs", "inputs_embeds", "attention_mask"), "prompts come from scenario.prompts"),
    "streamer": "assay's own says when each token arrives",
    "return_dict_in_generate": "what is returned is not kept",
    "seed": "the seed is scenario.seed",
}  # fmt: skip

SINGLE_SEQUENCE_SETTINGS = {
    "num_beams": "tokens of a beam search have no time of arrival",
    "num_return_sequences": "sequences at once are scenario.batch_sizes",
    "num_beam_groups": "tokens of a beam search have no time of arrival",
}
"""Settings that may only be 1, and why."""


def parse_settings(text: str) -> dict[str, Any]:
    """Parse settings from JSON; refuse invalid ones and those that contradict what is measured."""
    try:
        settings = json.loads(text or "{}")
    except ValueError as error:
        raise BadInput(f"generate_kwargs is not valid JSON: {error}.") from error
    if not isinstance(settings, dict):
        raise BadInput(f"generate_kwargs is a map of settings, not {settings!r}.")
    for name, value in settings.items():
        if name in RESERVED_SETTINGS:
            raise BadInput(f"generate_kwargs.{name} cannot be given: {RESERVED_SETTINGS[name]}.")
        if name in SINGLE_SEQUENCE_SETTINGS and value not in (None, 1):
            raise BadInput(f"generate_kwargs.{name} can only be 1, not {value!r}: {SINGLE_SEQUENCE_SETTINGS[name]}.")
    return normalize_settings(settings)


def check_supported_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings that the installed transformers does not know or accept."""
    config_class = import_transformers().GenerationConfig
    names = (name for name in vars(config_class()) if not name.startswith("_") and name != "transformers_version")
    check_known_settings(settings, frozenset(names))
    try:
        config_class(**settings)
    except (ValueError, TypeError, AttributeError) as error:
        raise BadInput(f"generate_kwargs cannot be: {' '.join(str(error).split()).rstrip('.')}.") from None


def check_known_settings(settings: Mapping[str, Any], supported: Collection[str]) -> None:
    """Refuse settings that transformers does not know."""
    for name in settings:
        if name not in supported:
            near = suggest_nearest(name, supported)
            raise BadInput(f"generate_kwargs.{name} is not a setting of a generation.{near}")
