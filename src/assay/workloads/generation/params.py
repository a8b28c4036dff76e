"""The parameters of a generation: what a subject says, complete and plain, so that it has an identity."""

from __future__ import annotations

import json
from typing import Any, Literal, Self

from pydantic import Field

from assay.core.values import Params, Value

Phase = Literal["idle", "prefill", "decode", "whole", "served"]
"""idle: in place, nothing to do. prefill: a prompt is read and its first token made. decode: all tokens after that,
without reading the prompt again. whole: both, as a user sees it. served: whole requests of a server, under load."""


class Generation(Value):
    """What ``generate@pytorch`` and ``generate@openai`` are told; lists and maps are JSON text, as params are plain."""

    model: str = "random:llama-tiny"
    phase: Phase = "whole"
    mode: Literal["eager", "graphs"] = "eager"
    compile: bool = True
    batch: int = Field(default=1, ge=1)
    input_tokens: int = Field(default=64, ge=1)
    output_tokens: int = Field(default=32, ge=1)
    prompts: str = Field(default="random", description="random, or a file as scenario.prompts says.")
    text_column_name: str = "text"
    num_samples: int = Field(default=0, ge=0, description="0: all.")
    truncation: bool = False
    generate_kwargs: str = "{}"
    reasoning: str = Field(default="{}", description="What a chat template or a request is told of it, as JSON.")
    revision: str = ""
    trust_remote_code: bool = False
    torch_dtype: str = "auto"
    attn_implementation: str = ""
    device_map: str = Field(default="auto", description="A name, or JSON of an explicit map.")
    max_memory: str = Field(default="", description="JSON, by GPU number, cpu or disk; empty: what is free.")
    device_ids: str = Field(
        default="", description="JSON: the GPUs by number, in the order that layers go over them; empty: one."
    )
    tp_plan: str = ""
    endpoint: str = ""
    api_key_env: str = ""
    request_timeout_s: float = 120.0
    concurrency: int = Field(default=1, ge=1)
    warmup: int = Field(default=1, ge=0)

    @classmethod
    def of(cls, params: Params) -> Self:
        """Return them as a value, from a subject's."""
        return cls.model_validate(params)

    def as_params(self) -> Params:
        """Return them as those of a subject."""
        return self.model_dump()

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the generation, as the scenario gave them."""
        return dict(json.loads(self.generate_kwargs))
