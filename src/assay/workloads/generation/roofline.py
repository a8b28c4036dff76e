"""Bounds of a generation's speed: its least work, the device's measured peaks, and how busy the GPU was.

A decoding step reads every weight that it uses once, however many sequences it has, and the keys and values of every
earlier token of every sequence. Of an input embedding only the rows of its tokens are read.

Kernels take the same time whether they are profiled or not, but their launches do not: kernel time comes from a
profiled call, and the call's length from one that is not.
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
    """A model's sizes.

    Attributes:
        layers: Layers that keep keys and values.
        heads: Of queries.
        kv_heads: Of keys and values.
        head_dim: Elements of a head.
        hidden: Elements of a token's state.
        shared_parameters: Parameters that every token goes through, without the first and last table.
        expert_parameters: Parameters of experts, of which a token uses a share.
        expert_share: That share.
        embedding_parameters: Parameters of the input embedding.
        output_parameters: Parameters of the output projection, a table of its own or the input embedding again.
        element_bytes: Of one parameter.
        cached_bytes: Of one element of keys and values.
        windowed_layers: How many of the layers look back no further than ``window`` tokens.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    shared_parameters: int
    embedding_parameters: int
    output_parameters: int
    element_bytes: float
    cached_bytes: float
    expert_parameters: int = 0
    expert_share: float = 1.0
    windowed_layers: int = 0
    window: int = 0

    @property
    def kv_bytes(self) -> float:
        """Bytes of the keys and values of one token in one layer."""
        return 2.0 * self.kv_heads * self.head_dim * self.cached_bytes

    @property
    def per_token(self) -> float:
        """Parameters that a token is multiplied with, before the last table."""
        return self.shared_parameters + self.expert_parameters * self.expert_share

    def weights_read(self, tokens: float) -> float:
        """Return the least bytes of weights that one pass over so many tokens reads."""
        return (self.per_token + self.output_parameters + tokens * self.hidden) * self.element_bytes

    def attended_tokens(self, length: float) -> float:
        """Return how many tokens the last of so many looks at, all layers together."""
        return (self.layers - self.windowed_layers) * length + self.windowed_layers * min(length, self.window)

    def step_read_bytes(self, batch: int, length: float) -> float:
        """Return the least bytes that a decoding step reads, each sequence with so many tokens in the cache."""
        return self.weights_read(batch) + batch * self.attended_tokens(length) * self.kv_bytes

    def step_flop(self, batch: int, length: float) -> float:
        """Return the operations of a decoding step: products with weights, with keys, and of weights with values."""
        attention = 4.0 * self.heads * self.head_dim * self.attended_tokens(length)
        return batch * (2.0 * (self.per_token + self.output_parameters) + attention)

    def prefill_flop(self, batch: int, length: float) -> float:
        """Return the operations of reading prompts of a length; only the last token of each goes to the last table."""
        attention = 4.0 * self.heads * self.head_dim * self.attended_tokens((length + 1) / 2) * length
        return batch * (2.0 * self.per_token * length + 2.0 * self.output_parameters + attention)


def mean_context(input_tokens: float, output_tokens: int) -> float:
    """Return how many tokens a decoding step sees on average, its own among them."""
    return input_tokens + output_tokens / 2


def model_cost(model: Any) -> ModelCost | None:
    """Return the sizes of a model of transformers; null for one that is not made of layers of attention."""
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
    """Return the share of its experts that a token uses."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    count = next((getattr(config, name) for name in names if getattr(config, name, None)), None)
    chosen = getattr(config, "num_experts_per_tok", None)
    return min(1.0, chosen / count) if count and chosen else 1.0


GIB, MIB = 2**30, 2**20
COPY_BYTES = {"cuda": 2 * GIB, "cpu": 32 * MIB}
"""Bytes of the original; its copy takes as many."""

MATMUL_SIDE = {"cuda": 8192, "cpu": 384}
"""Of the square matrices."""

TRIES = {"cuda": 8, "cpu": 3}
MIN_COPY_BYTES = 64 * MIB


@cache
def measure_memory_bytes_per_s(where: str) -> float | None:
    """Return the bytes a second that a large copy reads and writes, the best of several; null where none has room."""
    torch = import_torch()
    kind = where.partition(":")[0]
    size = min(COPY_BYTES[kind], free_bytes(where) // 4)
    if kind == "cuda" and size < MIN_COPY_BYTES:
        return None
    try:
        original = torch.zeros(size, dtype=torch.uint8, device=where)
        copy = torch.empty_like(original)
        best_s = _best_s(lambda: copy.copy_(original), where, TRIES[kind])
    except torch.OutOfMemoryError:
        return None
    finally:
        original = copy = None
        _release_cached(kind)
    return 2 * size / best_s


@cache
def measure_compute_flop_per_s(where: str, dtype: Any) -> float | None:
    """Return the operations a second of a large product in a model's dtype, the best of several."""
    torch = import_torch()
    kind = where.partition(":")[0]
    side = MATMUL_SIDE[kind]
    left = right = out = None
    try:
        left, right = (torch.randn((side, side), device=where, dtype=torch.float32).to(dtype) for _ in range(2))
        out = torch.empty_like(left)
        best_s = _best_s(lambda: torch.mm(left, right, out=out), where, TRIES[kind])
    except torch.OutOfMemoryError:
        return None
    finally:
        left = right = out = None
        _release_cached(kind)
    return 2 * side**3 / best_s


def _best_s(call: Callable[[], object], where: str, tries: int) -> float:
    """Return the shortest of several calls, in seconds; events time it on a GPU."""
    synchronize = synchronizer(where)
    call()
    synchronize()
    if where == "cpu":
        return min(_wall_s(call) for _ in range(tries))
    torch = import_torch()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(tries)]
    for begin, end in pairs:
        begin.record()
        call()
        end.record()
    synchronize()
    return min(float(begin.elapsed_time(end)) for begin, end in pairs) / 1e3


def _wall_s(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _release_cached(kind: str) -> None:
    if kind == "cuda":
        import_torch().cuda.empty_cache()


PROFILED_STEPS = 8
"""Decoding steps that are looked at."""


def union_us(spans: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one of several spans lasted; they may overlap."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def profile_busy(call: Callable[[], TokenExtras], where: str) -> dict[str, float]:
    """Make a call unwatched, watched, and unwatched again; say how long kernels ran, and how long each call took.

    The profiler is asked to let go of the driver afterwards: what stays attached slows every launch that follows, and
    ``untraced_after_us`` shows whether something did. Nothing is said where it sees nothing, as on a CPU.
    """
    if where == "cpu":
        return {}
    call()
    before = tokens_us(call())
    lengths: list[float] = []
    with temporary_variable("TEARDOWN_CUPTI", "1"):
        spans = kernel_spans(lambda: lengths.append(tokens_us(call())), where)
    call()
    after = tokens_us(call())
    if not spans:
        return {}
    return {
        "busy_us": union_us(spans),
        "traced_us": lengths[-1],
        "untraced_us": before,
        "untraced_after_us": after,
    }


def replay_busy(loop: GraphLoop, steps: int) -> dict[str, float]:
    """Say the same of replays, by events between them: no profiler has to look into a graph."""
    loop.decode(steps)
    untraced = tokens_us(loop.decode(steps))
    busy = loop.occupied_us(steps)
    return {"busy_us": busy, "traced_us": tokens_us(loop.decode(steps)), "untraced_us": untraced}


def tokens_us(extras: TokenExtras) -> float:
    """Return how long the tokens of a call took: until the first one, or from the first to the last."""
    return sum(cast("list[float]", extras.get("gap_us") or extras["first_token_us"]))
