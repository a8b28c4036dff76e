"""Tokens of a language model by PyTorch and transformers, in this process."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.workloads.base import Prepared
from assay.workloads.generation import facts, graphs, prompts, settings
from assay.workloads.generation.batches import batches, check_context
from assay.workloads.generation.eager import EagerLoop
from assay.workloads.generation.loading import loaded
from assay.workloads.generation.models import is_random, shape_of
from assay.workloads.generation.params import Generation
from assay.workloads.torch_device import import_torch, synchronizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.values import Params
    from assay.workloads.base import Workload
    from assay.workloads.generation.loading import Loaded

IDLE_S = 0.1
PHASES = ("idle", "prefill", "decode", "whole")
EXACT = "every answer has exactly {tokens} tokens: a token that ends a text does not end it"
NOT_OURS = ("endpoint", "api_key_env", "request_timeout_s", "concurrency", "num_samples", "warmup")
"""Parameters of a generation that are a server's, or may be 0, which no parameter by itself may."""


class GeneratePytorch:
    """``generate@pytorch``: one phase of a generation, by a plain loop or by CUDA graphs."""

    name = "generate"
    impl = "pytorch"
    device_kinds = frozenset({"cpu", "cuda"})
    choices: Mapping[str, tuple[str, ...]] = {"phase": PHASES, "mode": ("eager", "graphs")}
    summary = "Tokens of a language model by transformers: prefill, decode, or whole answers"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return a generation of the tiniest model, or on a GPU of a small one."""
        plain = {name: value for name, value in Generation().as_params().items() if name not in NOT_OURS}
        return {**plain, "model": "random:llama-1b" if device_kind == "cuda" else "random:llama-tiny"}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return nothing: there is nothing to tune."""
        return ()

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse what cannot be, as far as it is seen without the model."""
        generation = Generation.of(params)
        settings.parsed(generation.generate_kwargs)
        if generation.phase == "decode" and generation.output_tokens == 1:
            raise BadInput("One output token has no decoding: it is made when the prompt is read.")
        if generation.prompts != prompts.RANDOM:
            prompts.read(generation.prompts, generation.text_column_name, generation.num_samples)
        elif is_random(generation.model):
            check_context(generation, shape_of(generation.model).context)

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Load the model, unless it is here, and put one phase of a generation in place."""
        self.check_params(params, device.partition(":")[0])
        generation = Generation.of(params)
        generate_kwargs = settings.parsed(generation.generate_kwargs)
        if generate_kwargs:
            settings.check_understood(generate_kwargs)
        model = loaded(generation, device, seed)
        if generation.phase == "idle":
            return Prepared(
                call=partial(time.sleep, IDLE_S),
                measured=lambda: facts.of_model(model),
                waits_itself=True,
                agree=model.agree if model.ranks > 1 else None,
                placement=model.placement,
                dtype=_dtype(model),
                notes=model.notes,
            )
        return _phase(generation, generate_kwargs, model, seed)


def _phase(generation: Generation, told: Mapping[str, object], here: Loaded, seed: int) -> Prepared:
    torch = import_torch()
    if generation.mode == "graphs":
        graphs.refuse(here)
    torch.manual_seed(seed)
    if here.device.type == "cuda":
        torch.cuda.set_device(here.device)
        for index in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(index)
    prompt_batches = batches(here, generation, seed)
    loop: EagerLoop | graphs.GraphLoop
    if generation.mode == "graphs":
        loop = graphs.GraphLoop(here, prompt_batches, generation.output_tokens, told, compile=generation.compile)
    else:
        loop = EagerLoop(here, prompt_batches, generation.output_tokens, told)
    try:
        if generation.phase == "decode" or (generation.phase == "whole" and generation.mode == "graphs"):
            loop.read()
    except BaseException:
        loop.close()
        raise
    calls = {"prefill": loop.prefill, "decode": loop.decode, "whole": loop.whole}
    exact = () if generation.phase == "prefill" else (EXACT.format(tokens=generation.output_tokens),)
    return Prepared(
        call=calls[generation.phase],
        measured=lambda: facts.of_phase(here, generation, prompt_batches, loop),
        synchronize=synchronizer(str(here.device)),
        close=loop.close,
        waits_itself=True,
        agree=here.agree if here.ranks > 1 else None,
        placement=here.placement,
        dtype=_dtype(here),
        notes=(*here.notes, *exact, *prompt_batches.notes, *loop.notes),
    )


def _dtype(here: Loaded) -> str:
    """Return the type of the weights, as they were loaded."""
    return str(here.dtype).removeprefix("torch.")


WORKLOAD: Workload = GeneratePytorch()
