"""Roofline of a generation: its minimum work, the device's measured peaks, and how busy the GPU was.

A decoding step reads every weight that it uses once, whatever the batch size, and the keys and values of every earlier
token of every sequence. Of the input embedding it reads only the rows of its tokens.

Profiling does not slow kernels, but it slows their launches: kernel time comes from a profiled call, and the call's
duration from one that is not.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from assay.core.processes import temporary_variable
from assay.workloads.torch_device import free_bytes, import_torch, kernel_spans, synchronizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from assay.workloads.generation.cuda_graphs import GraphLoop
    from assay.workloads.generation.eager import TokenExtras


@dataclass(frozen=True)
class ModelCost:
    """A model's sizes."""

    layers: int  # layers that keep keys and values
    heads: int  # query heads
    kv_heads: int  # key-value heads
    head_dim: int  # elements per head
    hidden: int  # size of the hidden state
    shared_parameters: int  # parameters used by every token, without the input embedding and the output projection
    embedding_parameters: int  # parameters of the input embedding
    output_parameters: int  # parameters of the output projection, its own or tied to the input embedding
    element_bytes: float  # bytes per parameter
    cached_bytes: float  # bytes per element of keys and values
    expert_parameters: int = 0  # parameters of all experts
    expert_share: float = 1.0  # share of the experts that a token uses
    windowed_layers: int = 0  # number of layers with sliding-window attention over ``window`` tokens
    window: int = 0

    @property
    def kv_bytes(self) -> float:
        """Bytes of the keys and values of one token in one layer."""
        return 2.0 * self.kv_heads * self.head_dim * self.cached_bytes

    @property
    def per_token(self) -> float:
        """Parameters used per token, without the output projection."""
        return self.shared_parameters + self.expert_parameters * self.expert_share

    def weights_read(self, tokens: float) -> float:
        """Return the least bytes of weights that a forward pass over this many tokens reads."""
        return (self.per_token + self.output_parameters + tokens * self.hidden) * self.element_bytes

    def attended_tokens(self, length: float) -> float:
        """Return the number of tokens that the last of ``length`` tokens attends to, summed over all layers."""
        return (self.layers - self.windowed_layers) * length + self.windowed_layers * min(length, self.window)

    def step_read_bytes(self, batch: int, length: float) -> float:
        """Return the least bytes that a decoding step reads, with ``length`` cached tokens per sequence."""
        return self.weights_read(batch) + batch * self.attended_tokens(length) * self.kv_bytes

    def step_flop(self, batch: int, length: float) -> float:
        """Return the FLOP of a decoding step: products with weights, with keys, and with values."""
        attention = 4.0 * self.heads * self.head_dim * self.attended_tokens(length)
        return batch * (2.0 * (self.per_token + self.output_parameters) + attention)

    def prefill_flop(self, batch: int, length: float) -> float:
        """Return the FLOP of a prefill; only the last token of each prompt goes through the output projection."""
        attention = 4.0 * self.heads * self.head_dim * self.attended_tokens((length + 1) / 2) * length
        return batch * (2.0 * self.per_token * length + 2.0 * self.output_parameters + attention)


def mean_context(input_tokens: float, output_tokens: int) -> float:
    """Return the mean number of tokens that a decoding step attends to, its own included."""
    return input_tokens + output_tokens / 2


def model_cost(model: Any) -> ModelCost | None:
    """Return the sizes of a transformers model; null for one without attention layers."""
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_attention_heads", None)
    if not heads:
        return None
    kinds, window = getattr(config, "layer_types", None) or (), getattr(config, "sliding_window", None) or 0
    table, last = model.get_input_embeddings().weight, model.get_output_embeddings()
    ends = table if last is None else last.weight
    weights = {name: weight for name, weight in model.named_parameters() if weight is not table and weight is not ends}
    experts = sum(weight.numel() for name, weight in weights.items() if ".experts." in name)
    return ModelCost(
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        hidden=config.hidden_size,
        shared_parameters=sum(weight.numel() for weight in weights.values()) - experts,
        embedding_parameters=table.numel(),
        output_parameters=0 if last is None else ends.numel(),
        element_bytes=float(table.element_size()),
        cached_bytes=float(table.element_size()),
        expert_parameters=experts,
        expert_share=_expert_share(config) if experts else 1.0,
        windowed_layers=sum("sliding" in kind for kind in kinds) if window else 0,
        window=window,
    )


def _expert_share(config: Any) -> float:
    """Return the share of the experts that a token uses."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    count = next((getattr(config, name) for name in names if getattr(config, name, None)), None)
    chosen = getattr(config, "num_experts_per_tok", None)
    return min(1.0, chosen / count) if count and chosen else 1.0


COPY_BYTES = {"cuda": 2 * 2**30, "cpu": 32 * 2**20}  # size of the source buffer; the copy has the same size
MATMUL_SIDE = {"cuda": 8192, "cpu": 384}  # side of the square matrices

TRIES = {"cuda": 8, "cpu": 3}
MIN_COPY_BYTES = 64 * 2**20


@cache
def measure_memory_bytes_per_s(where: str) -> float | None:
    """Return the bytes per second that a large copy reads and writes, the best of several; null without free memory."""
    torch, kind = import_torch(), where.partition(":")[0]
    size = min(COPY_BYTES[kind], free_bytes(where) // 4)
    if kind == "cuda" and size < MIN_COPY_BYTES:
        return None
    try:
        original = torch.zeros(size, dtype=torch.uint8, device=where)
        copy = torch.empty_like(original)
        return 2 * size / _best_s(lambda: copy.copy_(original), where)
    except torch.OutOfMemoryError:
        return None
    finally:
        original = copy = None
        if kind == "cuda":
            torch.cuda.empty_cache()


@cache
def measure_compute_flop_per_s(where: str, dtype: Any) -> float | None:
    """Return the FLOP/s of a large product in a model's dtype, the best of several; null without free memory."""
    torch, kind = import_torch(), where.partition(":")[0]
    side = MATMUL_SIDE[kind]
    left = right = out = None
    try:
        left, right = (torch.randn((side, side), device=where, dtype=torch.float32).to(dtype) for _ in range(2))
        out = torch.empty_like(left)
        return 2 * side**3 / _best_s(lambda: torch.mm(left, right, out=out), where)
    except torch.OutOfMemoryError:
        return None
    finally:
        left = right = out = None
        if kind == "cuda":
            torch.cuda.empty_cache()


def _best_s(call: Callable[[], object], where: str) -> float:
    """Return the shortest time of several calls, in seconds, by events on a GPU."""
    synchronize = synchronizer(where)
    call()
    synchronize()
    times_s: list[float] = []
    if where == "cpu":
        for _ in range(TRIES["cpu"]):
            start_s = time.perf_counter()
            call()
            times_s.append(time.perf_counter() - start_s)
        return min(times_s)
    torch = import_torch()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(TRIES["cuda"])]
    for begin, end in pairs:
        begin.record()
        call()
        end.record()
    synchronize()
    return min(float(begin.elapsed_time(end)) for begin, end in pairs) / 1e3


PROFILED_STEPS = 8  # number of decoding steps in a profiled call


def union_us(spans: Iterable[tuple[float, float]]) -> float:
    """Return the total time covered by at least one of several spans, which may overlap."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def profile_busy(call: Callable[[], TokenExtras], where: str) -> dict[str, float]:
    """Make a call unprofiled, profiled, and unprofiled again; return the kernel time and the time of each call, in us.

    CUPTI is torn down afterwards: attached, it slows every later launch, and ``untraced_after_us`` shows whether it
    still does. The result is empty where nothing is recorded, as on a CPU.
    """
    if where == "cpu":
        return {}
    call()
    before = _tokens_us(call())
    lengths: list[float] = []
    with temporary_variable("TEARDOWN_CUPTI", "1"):
        spans = kernel_spans(lambda: lengths.append(_tokens_us(call())), where)
    call()
    after = _tokens_us(call())
    if not spans:
        return {}
    return {"busy_us": union_us(spans), "traced_us": lengths[-1], "untraced_us": before, "untraced_after_us": after}


def replay_busy(loop: GraphLoop, steps: int) -> dict[str, float]:
    """Return the same for graph replays, from events between them instead of a profiler."""
    loop.decode(steps)
    untraced = _tokens_us(loop.decode(steps))
    busy = loop.occupied_us(steps)
    return {"busy_us": busy, "traced_us": _tokens_us(loop.decode(steps)), "untraced_us": untraced}


def _tokens_us(extras: TokenExtras) -> float:
    """Return the duration of a call's tokens in us: the sum of its gaps, else the time to the first token."""
    return sum(cast("list[float]", extras.get("gap_us") or extras["first_token_us"]))
