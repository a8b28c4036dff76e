"""One decoding step with fixed work at fixed addresses, which a CUDA graph can capture, and the sampling of its token.

``prefill`` processes prompts and generates the first token; ``step`` generates the next token; ``rewind`` restores the
state after the prefill. Nothing in a step synchronizes with the host, so that it can be captured; without a graph it
works the same on a CPU.

Tokens are chosen greedily or by temperature, top-k and top-p, as in ``generate``. ``torch.multinomial`` synchronizes
with the host, so tokens are sampled by dividing probabilities by exponential noise.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import Cache, StaticCache, StaticLayer

from assay.core.errors import BadInput, TrialFailed
from assay.workloads.torch_device import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.workloads.generation.prompts import PromptBatch

COLUMN_STEP = 64  # the cache length is rounded up to a multiple of this, which suits attention kernels

GROUPED_ATTENTION = "assay_grouped"
REPLACEABLE_ATTENTION = ("sdpa", "eager")


class DecodeStep:
    """A model with its own cache that generates one token per sequence and step.

    Attributes:
        token: The last token ids, one column; a step reads and replaces them.
        slot: The column of the cache that the next step writes.
    """

    def __init__(self, model: Any, device: Any, *, batch: int, columns: int, choose: Sampler) -> None:
        length = -(-columns // COLUMN_STEP) * COLUMN_STEP
        layers = StaticCache(config=model.config, max_cache_len=length).layers
        if any(type(layer) is not StaticLayer for layer in layers):
            raise TrialFailed("graphs need a cache that keeps every token; this model's has sliding windows or states")
        attention = model.config._attn_implementation  # noqa: SLF001 - there is no public name
        if attention not in REPLACEABLE_ATTENTION:
            raise TrialFailed(f"graphs need sdpa or eager attention, and this model has {attention}")
        self.model = model
        self.slot = torch.zeros(1, dtype=torch.long, device=device)
        self.cache = Cache(layers=[ColumnCacheLayer(length, self.slot) for _ in layers])
        self.token = torch.zeros((batch, 1), dtype=torch.long, device=device)
        self._choose = choose
        self._position = torch.zeros_like(self.token)
        self._columns = torch.arange(length, device=device)
        shape = (batch, 1, 1, length)
        self._attended = torch.ones(shape, dtype=torch.bool, device=device)
        self._masked_bias = torch.full(shape, torch.finfo(model.dtype).min, dtype=model.dtype, device=device)
        self._start: tuple[Tensor, Tensor, Tensor] | None = None
        takes = inspect.signature(model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    def prefill(self, prompts: PromptBatch) -> Tensor:
        """Process prompts as a plain ``generate`` does, and return the first tokens; steps continue from there."""
        length = prompts.ids.shape[1]
        with torch.no_grad():
            self.slot.zero_()
            positions = (prompts.mask.cumsum(-1) - 1).clamp_(min=0)
            first = self._choose(self._last_logits(prompts.ids, prompts.mask, positions, **self._last_only))
            self._attended.fill_(True)
            self._attended[:, 0, 0, :length] = prompts.mask.bool()
            self._start = first, prompts.mask.sum(-1, keepdim=True), torch.full_like(self.slot, length)
        self.rewind()
        return self.token

    def rewind(self) -> None:
        """Restore the state after the prefill and the first token."""
        if self._start is None:
            raise TrialFailed("no prompt was processed yet")
        for current, saved in zip((self.token, self._position, self.slot), self._start, strict=True):
            current.copy_(saved)

    def step(self) -> None:
        """Generate the next token of every sequence, in place."""
        with torch.no_grad():
            self.token.copy_(self._choose(self.logits()))
            self._position.add_(1)
            self.slot.add_(1)

    def logits(self) -> Tensor:
        """Return the logits of the next token, after writing the last one into the cache."""
        open_columns = self._attended & (self._columns <= self.slot)
        return self._last_logits(self.token, self._masked_bias.masked_fill(open_columns, 0.0), self._position)

    def _last_logits(self, ids: Tensor, mask: Tensor, positions: Tensor, **more: Any) -> Tensor:
        """Run the model on its cache; return the logits of the last position."""
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        return self.model(**inputs, past_key_values=self.cache, use_cache=True, **more).logits[:, -1]


@contextmanager
def step_implementations(model: Any, *, on_gpu: bool) -> Iterator[None]:
    """Select implementations of attention and experts for one token per sequence, while steps run or are captured."""
    config = model.config
    previous = config._attn_implementation  # noqa: SLF001 - there is no public name
    with ExitStack() as stack:
        stack.enter_context(getattr(model, "_optimize_model_for_decode", nullcontext)())
        if on_gpu:
            stack.enter_context(sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]))
        stack.enter_context(torch.no_grad())
        if previous == "sdpa":
            AttentionInterface.register(GROUPED_ATTENTION, grouped_attention)
            config._attn_implementation = GROUPED_ATTENTION  # noqa: SLF001
            stack.callback(setattr, config, "_attn_implementation", previous)
        yield


Sampler = Callable[[Tensor], Tensor]
"""Maps the logits of the last position, one row per sequence, to token ids, one column."""

UNSUPPORTED_SETTINGS: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("bad_words_ids", "begin_suppress_tokens", "dola_layers", "exponential_decay_length_penalty", "top_h",
         "forced_bos_token_id", "forced_eos_token_id", "sequence_bias", "suppress_tokens", "watermarking_config"),
        (),
    ),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "min_p", "penalty_alpha"), (0.0,)),
    **dict.fromkeys(("guidance_scale", "repetition_penalty", "typical_p"), (1.0,)),
    "no_repeat_ngram_size": (0,),
}  # fmt: skip
"""Sampling settings that graphs do not support, and their values without effect."""


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are sampled; ``suppressed`` ones never are, so that an answer has its full length."""

    sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    suppressed: tuple[int, ...] = ()

    def make_sampler(self, vocabulary: int, device: Any) -> Sampler:
        """Return the sampler for a device."""
        bias = torch.zeros(vocabulary, dtype=torch.float32, device=device)
        bias[list(self.suppressed)] = -math.inf

        def greedy(logits: Tensor) -> Tensor:
            return (logits.float() + bias).argmax(-1, keepdim=True)

        def sampled(logits: Tensor) -> Tensor:
            scores = (logits.float() + bias) / self.temperature
            top_k = min(self.top_k, vocabulary) if self.top_k else vocabulary
            best, ids = scores.topk(top_k) if top_k < vocabulary else scores.sort(descending=True)
            probabilities = best.softmax(-1)
            if self.top_p < 1:
                preceding = probabilities.cumsum(-1) - probabilities
                probabilities = probabilities.masked_fill(preceding >= self.top_p, 0.0)
            noise = torch.empty_like(probabilities).exponential_()
            return ids.gather(-1, (probabilities / noise).argmax(-1, keepdim=True))

        return sampled if self.sample else greedy


def resolve_sampling(defaults: Mapping[str, Any], settings: Mapping[str, Any]) -> SamplingSettings:
    """Merge a model's own sampling settings with the given ones, which take precedence; refuse unsupported ones."""
    merged = {**{name: value for name, value in defaults.items() if value is not None}, **settings}
    for name, neutral in UNSUPPORTED_SETTINGS.items():
        value = merged.get(name)
        if value is not None and value not in neutral and value != []:
            whose = "generate_kwargs has" if name in settings else "the model's own generation settings have"
            raise BadInput(
                "In graphs tokens are chosen greedily or by temperature, top_k and top_p, "
                f"and {whose} {name} {value!r}."
            )
    ends = merged.get("eos_token_id")
    return SamplingSettings(
        sample=bool(merged.get("do_sample", False)),
        temperature=float(merged.get("temperature", 1.0)),
        top_k=int(merged.get("top_k", 50)),
        top_p=float(merged.get("top_p", 1.0)),
        suppressed=() if ends is None else tuple(ends) if isinstance(ends, list | tuple) else (int(ends),),
    )


class ColumnCacheLayer(StaticLayer):  # type: ignore[misc]  # the type checker does not see transformers
    """One layer's keys and values; the column to write is a tensor shared by all layers.

    The prefill works as with a growing cache: attention gets the prompt's own keys and values, and no empty columns.
    """

    def __init__(self, length: int, slot: Tensor) -> None:
        super().__init__(max_cache_len=length)
        self.slot = slot

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the memory from the shape of the first keys and values."""
        batch, heads = key_states.shape[:2]
        self.dtype, self.device = key_states.dtype, key_states.device
        self.batch_size, self.num_heads = batch, heads
        self.k_head_dim, self.v_head_dim = key_states.shape[-1], value_states.shape[-1]
        self.keys = key_states.new_zeros((batch, heads, self.max_cache_len, self.k_head_dim))
        self.values = value_states.new_zeros((batch, heads, self.max_cache_len, self.v_head_dim))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write a prompt from the first column on, or one token at the slot; return the keys and values to attend."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        count = key_states.shape[-2]
        if count > 1:
            self.keys[:, :, :count].copy_(key_states)
            self.values[:, :, :count].copy_(value_states)
            return key_states, value_states
        self.keys.index_copy_(2, self.slot, key_states)
        self.values.index_copy_(2, self.slot, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of columns that attention sees, and the first of them."""
        return (query_length if query_length > 1 else self.max_cache_len), 0

    def get_seq_length(self) -> int:
        """Return 0, the number of tokens before the prompt, which always comes first."""
        return 0


def grouped_attention(
    _module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    *,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return the attention of one token per sequence: heads that share keys are the rows of one small product.

    With a mask, transformers copies shared keys and values for each of their heads before PyTorch's attention, which
    for a large batch moves more bytes than the weights have.
    """
    batch, heads, _one, width = query.shape
    shared = key.shape[1]
    rows = query.reshape(batch, shared, heads // shared, width)
    output = scaled_dot_product_attention(rows, key, value, attn_mask=attention_mask, scale=scaling)
    return output.reshape(batch, 1, heads, value.shape[-1]), None
