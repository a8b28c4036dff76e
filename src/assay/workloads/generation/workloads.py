"""``generate@pytorch``: LLM inference by transformers in this process; ``generate@openai``: by a server.

Servers are vLLM, SGLang, ``transformers serve`` and others with OpenAI's API. Beside its times a generation reports its
minimum work, the peaks of its device, and how busy the GPU was.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pydantic import ValidationError

from assay.core.errors import BadInput
from assay.core.results import Note
from assay.core.values import first_problem
from assay.workloads.base import PreparedWorkload, UntunedWorkload
from assay.workloads.generation import params as settings
from assay.workloads.generation import prompts
from assay.workloads.generation import roofline as busy
from assay.workloads.generation.eager import EagerLoop
from assay.workloads.generation.loading import load_model
from assay.workloads.generation.models import is_random, model_shape
from assay.workloads.generation.params import Generation
from assay.workloads.generation.prompts import check_context, make_batches
from assay.workloads.generation.roofline import (
    mean_context,
    measure_compute_flop_per_s,
    measure_memory_bytes_per_s,
    model_cost,
)
from assay.workloads.generation.server.protocol import candidate_urls, initial_format
from assay.workloads.torch_device import import_torch, synchronizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.values import Params
    from assay.workloads.base import Workload
    from assay.workloads.generation.cuda_graphs import GraphLoop
    from assay.workloads.generation.loading import LoadedModel
    from assay.workloads.generation.prompts import PromptBatches

OPENAI_PHASES = ("idle", "served")
OPENAI_PARAMS = (
    "model", "phase", "input_tokens", "output_tokens", "concurrency", "prompts", "text_column_name", "truncation",
    "generate_kwargs", "reasoning", "endpoint", "api_key_env", "request_timeout_s",
)  # fmt: skip
"""Parameters of a generation for a server, without those that may be 0, which workload parameters may not be."""


class GenerateOpenai(UntunedWorkload):
    """``generate@openai``: the worker is a client, so its device is a CPU; the server's GPUs are metered."""

    name = "generate"
    impl = "openai"
    device_kinds = frozenset({"cpu"})
    summary = "Sends concurrent requests to an OpenAI-compatible server and counts the tokens that arrive"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the default parameters of a generation by a server."""
        params = Generation(model="default", phase="served", endpoint="http://127.0.0.1:8000/v1").as_params()
        return {name: params[name] for name in OPENAI_PARAMS}

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse parameters that no server supports."""
        parse_generation(params)

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Probe the server; unless it is to be idle, start the load and wait until it is steady."""
        from assay.workloads.generation.server.load import prepare_idle, prepare_load

        generation = parse_generation(params)
        return prepare_idle(generation, seed) if generation.phase == "idle" else prepare_load(generation, seed)


def parse_generation(params: Params) -> Generation:
    """Parse the parameters, and check them as far as possible without the server."""
    try:
        generation = Generation.model_validate(params)
    except ValidationError as error:
        raise BadInput(f"generate@openai: {first_problem(error)}.") from None
    if generation.phase not in OPENAI_PHASES:
        raise BadInput(
            f"generate@openai has no phase {generation.phase!r}: a server is not taken apart. Its phases are idle and "
            "served; prefill and decode show as the time to the first token and the gaps after it."
        )
    candidate_urls(generation.endpoint)
    initial_format(generation)
    return generation


GENERATE_OPENAI: Workload = GenerateOpenai()


def model_facts(loaded: LoadedModel) -> dict[str, float]:
    """Return the facts of a loaded model."""
    return {
        "load_s": loaded.load_s,
        "parameters_count": float(loaded.sizes.parameters),
        "weights_bytes": float(loaded.sizes.weights_bytes),
        "devices_count": float(loaded.ranks if loaded.ranks > 1 else len(set(loaded.placement.values()))),
    }


def phase_facts(
    loaded: LoadedModel, generation: Generation, batches: PromptBatches, loop: EagerLoop | GraphLoop
) -> dict[str, float]:
    """Make a few calls of a phase, and return the facts of it.

    The measured peaks are those of the devices that work at the same time: of all ranks, or of one device.
    """
    where, cuda = str(loaded.device), import_torch().cuda
    busy_facts = _busy_facts(where, generation, loop, ranks=loaded.ranks)
    peaks = {
        "memory_bytes_per_s": measure_memory_bytes_per_s(where),
        "compute_flop_per_s": measure_compute_flop_per_s(where, loaded.dtype),
    }
    facts = {**model_facts(loaded), **work_facts(loaded, generation, batches), **busy_facts}
    facts |= {name: value * loaded.ranks for name, value in peaks.items() if value is not None}
    if loop.compile_s is not None:
        facts["compile_s"] = loop.compile_s
    if loaded.device.type == "cuda":
        used = [int(cuda.max_memory_allocated(index)) for index in range(cuda.device_count())]
        facts["peak_memory_mib"] = max(used) / 2**20
    return facts


def work_facts(loaded: LoadedModel, generation: Generation, batches: PromptBatches) -> dict[str, float]:
    """Return the minimum work of a decoding step, or of a prefill."""
    cost, batch, length = model_cost(loaded.model), generation.batch, batches.tokens
    if cost is None:
        return {}
    if generation.phase == "prefill":
        return {"call_flop": cost.prefill_flop(batch, length), "call_read_bytes": cost.weights_read(batch * length)}
    context = mean_context(length, generation.output_tokens)
    return {"step_flop": cost.step_flop(batch, context), "step_read_bytes": cost.step_read_bytes(batch, context)}


def _busy_facts(where: str, generation: Generation, loop: EagerLoop | GraphLoop, *, ranks: int) -> dict[str, float]:
    """Return how busy the GPU was; empty for several ranks, which wait for each other and cannot be profiled alone."""
    if where == "cpu" or ranks > 1 or generation.phase == "whole":
        return {}
    if generation.phase == "prefill":
        return busy.profile_busy(loop.prefill, where)
    steps = min(busy.PROFILED_STEPS, generation.output_tokens - 1)
    if loop.mode == "graphs":
        return busy.replay_busy(loop, steps)
    return busy.profile_busy(lambda: loop.decode(steps), where)


IDLE_S = 0.1
PYTORCH_PHASES = ("idle", "prefill", "decode", "whole")
SERVER_PARAMS = ("endpoint", "api_key_env", "request_timeout_s", "concurrency", "num_samples", "warmup")
"""Parameters for a server, or that may be 0, which workload parameters may not be."""


class GeneratePytorch(UntunedWorkload):
    """``generate@pytorch``: one phase of a generation, by a plain loop or CUDA graphs."""

    name = "generate"
    impl = "pytorch"
    device_kinds = frozenset({"cpu", "cuda"})
    choices: Mapping[str, tuple[str, ...]] = {"phase": PYTORCH_PHASES, "mode": ("eager", "graphs")}
    summary = "Tokens of a language model by transformers: prefill, decode, or whole answers"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return a generation with the smallest model, or on a GPU with a small one."""
        plain = {name: value for name, value in Generation().as_params().items() if name not in SERVER_PARAMS}
        return {**plain, "model": "random:llama-1b" if device_kind == "cuda" else "random:llama-tiny"}

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse invalid parameters, as far as they can be checked without the model."""
        generation = Generation.model_validate(params)
        settings.parse_settings(generation.generate_kwargs)
        if generation.phase == "decode" and generation.output_tokens == 1:
            raise BadInput("One output token has no decoding: it is made when the prompt is read.")
        if generation.prompts != prompts.RANDOM:
            prompts.read_prompts(generation.prompts, generation.text_column_name, generation.num_samples)
        elif is_random(generation.model):
            check_context(generation, model_shape(generation.model).context)

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Load the model, unless it is loaded already, and prepare one phase of a generation."""
        self.check_params(params, device.partition(":")[0])
        generation = Generation.model_validate(params)
        generate_kwargs = settings.parse_settings(generation.generate_kwargs)
        if generate_kwargs:
            settings.check_supported_settings(generate_kwargs)
        model = load_model(generation, device, seed)
        idle = PreparedWorkload(
            call=partial(time.sleep, IDLE_S),
            measured=lambda: model_facts(model),
            synchronizes_itself=True,
            agree_to_stop=model.agree_to_stop if model.ranks > 1 else None,
            placement=model.placement,
            dtype=str(model.dtype).removeprefix("torch."),
            notes=model.notes,
        )
        return idle if generation.phase == "idle" else _prepare_phase(idle, generation, generate_kwargs, model, seed)


def _prepare_phase(
    idle: PreparedWorkload, generation: Generation, generate_kwargs: Mapping[str, object], model: LoadedModel, seed: int
) -> PreparedWorkload:
    """Return a phase of a generation from the workload of its idle model."""
    batches, loop = _make_loop(generation, generate_kwargs, model, seed)
    try:
        if generation.phase == "decode" or (generation.phase == "whole" and generation.mode == "graphs"):
            loop.read()
    except BaseException:
        loop.close()
        raise
    tokens = generation.output_tokens
    message = f"every answer has exactly {tokens} tokens: a token that ends a text does not end it"
    exact_length = Note(code="exact_length", message=message, params={"tokens": tokens})
    return replace(
        idle,
        call={"prefill": loop.prefill, "decode": loop.decode, "whole": loop.whole}[generation.phase],
        measured=lambda: phase_facts(model, generation, batches, loop),
        synchronize=synchronizer(str(model.device)),
        close=loop.close,
        notes=(*model.notes, *((exact_length,) if generation.phase != "prefill" else ()), *batches.notes, *loop.notes),
    )


def _make_loop(
    generation: Generation, generate_kwargs: Mapping[str, object], model: LoadedModel, seed: int
) -> tuple[PromptBatches, EagerLoop | GraphLoop]:
    """Return the batches of prompts, and the loop over them."""
    torch = import_torch()
    if generation.mode == "graphs":
        from assay.workloads.generation import cuda_graphs

        cuda_graphs.check_graph_support(model)
    torch.manual_seed(seed)
    if model.device.type == "cuda":
        torch.cuda.set_device(model.device)
        for index in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(index)
    batches, tokens = make_batches(model, generation, seed), generation.output_tokens
    if generation.mode == "eager":
        return batches, EagerLoop(model, batches, tokens, generate_kwargs)
    return batches, cuda_graphs.GraphLoop(model, batches, tokens, generate_kwargs, compile=generation.compile)


GENERATE_PYTORCH: Workload = GeneratePytorch()
