"""Tokens from a server that speaks OpenAI's protocol: vLLM, SGLang, ``transformers serve`` and their like."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationError

from assay.core.errors import BadInput
from assay.core.values import first_problem
from assay.workloads.generation.params import Generation
from assay.workloads.generation.server.endpoint import addresses
from assay.workloads.generation.server.form import form_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.values import Params
    from assay.workloads.base import Prepared, Workload

PHASES = ("idle", "served")
OURS = (
    "model", "phase", "input_tokens", "output_tokens", "concurrency", "prompts", "text_column_name", "truncation",
    "generate_kwargs", "reasoning", "endpoint", "api_key_env", "request_timeout_s",
)  # fmt: skip
"""Parameters of a generation that a server knows of, but for those that may be 0, which no parameter by itself may."""


class GenerateOpenai:
    """``generate@openai``: the worker is a client, so that its device is a CPU; the server's GPUs are metered."""

    name = "generate"
    impl = "openai"
    device_kinds = frozenset({"cpu"})
    summary = "Asks an OpenAI-compatible server for tokens, so many requests at once, and counts what arrives"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the parameters of a generation, as a server is asked for it."""
        params = Generation(model="default", phase="served", endpoint="http://127.0.0.1:8000/v1").as_params()
        return {name: params[name] for name in OURS}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return nothing: there is nothing to tune."""
        return ()

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse what no server can be asked for."""
        understood(params)

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Meet the server; where it is to be under load, put it under load and wait until that is steady."""
        from assay.workloads.generation.server import served

        generation = understood(params)
        return served.idle(generation, seed) if generation.phase == "idle" else served.served(generation, seed)


def understood(params: Params) -> Generation:
    """Return what the parameters mean, looked at as far as that goes without the server."""
    try:
        generation = Generation.of(params)
    except ValidationError as error:
        raise BadInput(f"generate@openai: {first_problem(error)}.") from None
    if generation.phase not in PHASES:
        raise BadInput(
            f"generate@openai has no phase {generation.phase!r}: a server is not taken apart, and its prefill and "
            "decode are seen as the time to the first token and the gaps after it; there are idle and served."
        )
    addresses(generation.endpoint)
    form_of(generation)
    return generation


WORKLOAD: Workload = GenerateOpenai()
