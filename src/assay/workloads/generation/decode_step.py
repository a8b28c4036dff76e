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
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput, TrialFailed
from assay.workloads.torch_device import Tensor, import_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.workloads.generation.prompts import PromptBatch


COLUMN_STEP = 64
"""The cache length is rounded up to a multiple of this, which suits attention kernels."""

GROUPED_ATTENTION = "assay_grouped"
REPLACEABLE_ATTENTION = ("sdpa", "eager")


class DecodeStep:
    """A model with its own cache that generates one token per sequence and step.

    Attributes:
        token: The last token ids, one column; a step reads and replaces them.
        slot: The column of the cache that the next step writes.
    """

    def __init__(self, model: Any, device: Any, *, batch: int, columns: int, choose: Sampler) -> None:
        torch = import_torch()
        from assay.workloads.generation.static_cache import make_static_cache

        length = -(-columns // COLUMN_STEP) * COLUMN_STEP
        static = make_static_cache(model.config, length, device)
        if static is None:
            raise TrialFailed(
                "graphs need a cache that keeps every token, and this model's has sliding windows or states of its own"
            )
        if model.config._attn_implementation not in REPLACEABLE_ATTENTION:  # noqa: SLF001 - there is no public name
            raise TrialFailed(
                f"graphs need attention by {' or '.join(REPLACEABLE_ATTENTION)}, "
                f"and this model has {model.config._attn_implementation}"  # noqa: SLF001
            )
        self.model = model
        self.cache, self.slot = static
        self.token = torch.zeros((batch, 1), dtype=torch.long, device=device)
        self._choose = choose
        self._position = torch.zeros_like(self.token)
        self._columns = torch.arange(length, device=device)
        self._attended = torch.ones((batch, 1, 1, length), dtype=torch.bool, device=device)
        self._masked_bias = torch.full(
            (batch, 1, 1, length), torch.finfo(model.dtype).min, dtype=model.dtype, device=device
        )
        self._start: tuple[Tensor, Tensor, Tensor] | None = None
        takes = inspect.signature(model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    def prefill(self, prompts: PromptBatch) -> Tensor:
        """Process prompts as a plain ``generate`` does, and return the first tokens; steps continue from there."""
        torch = import_torch()
        length = prompts.ids.shape[1]
        with torch.no_grad():
            self.slot.zero_()
            positions = (prompts.mask.cumsum(-1) - 1).clamp_(min=0)
            output = self.model(
                input_ids=prompts.ids,
                attention_mask=prompts.mask,
                position_ids=positions,
                past_key_values=self.cache,
                use_cache=True,
                **self._last_only,
            )
            first = self._choose(output.logits[:, -1])
            self._attended.fill_(True)
            self._attended[:, 0, 0, :length] = prompts.mask.bool()
            self._start = first, prompts.mask.sum(-1, keepdim=True), torch.full_like(self.slot, length)
        self.rewind()
        return self.token

    def rewind(self) -> None:
        """Restore the state after the prefill and the first token."""
        if self._start is None:
            raise TrialFailed("no prompt was read yet")
        for current, saved in zip((self.token, self._position, self.slot), self._start, strict=True):
            current.copy_(saved)

    def step(self) -> None:
        """Generate the next token of every sequence, in place."""
        with import_torch().no_grad():
            self.token.copy_(self._choose(self.logits()))
            self._position.add_(1)
            self.slot.add_(1)

    def logits(self) -> Tensor:
        """Return the logits of the next token, after writing the last one into the cache."""
        open_columns = self._attended & (self._columns <= self.slot)
        output = self.model(
            input_ids=self.token,
            attention_mask=self._masked_bias.masked_fill(open_columns, 0.0),
            position_ids=self._position,
            past_key_values=self.cache,
            use_cache=True,
        )
        return output.logits[:, -1]


@contextmanager
def step_implementations(model: Any, *, on_gpu: bool) -> Iterator[None]:
    """Select implementations of attention and experts for one token per sequence, while steps run or are captured."""
    torch = import_torch()
    with ExitStack() as stack:
        decoding: Any = getattr(model, "_optimize_model_for_decode", nullcontext)
        entered: AbstractContextManager[Any] = decoding()
        stack.enter_context(entered)
        if on_gpu:
            from torch.nn.attention import SDPBackend, sdpa_kernel

            stack.enter_context(sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]))
        stack.enter_context(torch.no_grad())
        if model.config._attn_implementation == "sdpa":  # noqa: SLF001 - it has no other name
            stack.enter_context(_can_group(model.config))
        yield


@contextmanager
def _can_group(config: Any) -> Iterator[None]:
    from transformers import AttentionInterface

    from assay.workloads.generation.static_cache import grouped_attention

    AttentionInterface.register(GROUPED_ATTENTION, grouped_attention)
    previous = config._attn_implementation  # noqa: SLF001 - there is no public name
    config._attn_implementation = GROUPED_ATTENTION  # noqa: SLF001
    try:
        yield
    finally:
        config._attn_implementation = previous  # noqa: SLF001


Sampler = Callable[[Tensor], Tensor]
"""Maps the logits of the last position, one row per sequence, to token ids, one column."""

UNSUPPORTED_SETTINGS: Mapping[str, tuple[Any, ...]] = {
    "bad_words_ids": (),
    "begin_suppress_tokens": (),
    "dola_layers": (),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "exponential_decay_length_penalty": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1.0,),
    "min_p": (0.0,),
    "no_repeat_ngram_size": (0,),
    "penalty_alpha": (0.0,),
    "repetition_penalty": (1.0,),
    "sequence_bias": (),
    "suppress_tokens": (),
    "top_h": (),
    "typical_p": (1.0,),
    "watermarking_config": (),
}
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
        torch = import_torch()
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
    """Merge a model's own sampling settings with the given ones, which take precedence.

    Raises:
        BadInput: One of them is not supported by graphs.
    """
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
