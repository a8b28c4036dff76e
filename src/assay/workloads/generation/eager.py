"""Generation by a plain ``generate`` loop, with token timestamps.

The KV cache grows, and the host launches every kernel.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from assay.core.errors import BadInput, TrialFailed
from assay.workloads.torch_device import Tensor, import_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.core.results import Note
    from assay.workloads.generation.loading import LoadedModel
    from assay.workloads.generation.prompts import PromptBatches

TokenExtras = dict[str, float | list[float]]


class TokenStamps:
    """A streamer for ``generate`` that records when each token arrived in host memory.

    ``generate`` waits for each token on the host anyway, to see whether an answer has ended, so the streamer costs one
    more small copy per step and gets tokens without delay. The prompt comes first.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self.at_ns: list[int] = []

    def put(self, value: Tensor) -> None:
        """Record the time."""
        self.at_ns.append(self._clock())

    def end(self) -> None:
        """Do nothing: the last token came through `put`."""


def prefill_extras(begin_ns: int, first_ns: int, input_tokens: int) -> TokenExtras:
    """Return the extras of a prefill call."""
    return {"first_token_us": [(first_ns - begin_ns) / 1e3], "input_tokens": float(input_tokens)}


def decode_extras(at_ns: Sequence[int], batch: int) -> TokenExtras:
    """Return the extras of a decoding call from its start and the times of its tokens, in ns."""
    return {"gap_us": gaps_us(at_ns), "output_tokens": float(batch * (len(at_ns) - 1))}


def whole_extras(begin_ns: int, at_ns: Sequence[int], batch: int, input_tokens: int) -> TokenExtras:
    """Return the extras of a call for complete answers, from the times of its tokens in ns."""
    return {
        **prefill_extras(begin_ns, at_ns[0], input_tokens),
        "gap_us": gaps_us(at_ns),
        "output_tokens": float(batch * len(at_ns)),
        "requests": float(batch),
    }


def gaps_us(at_ns: Sequence[int]) -> list[float]:
    """Return the gaps between successive times, in us."""
    return [(after - before) / 1e3 for before, after in pairwise(at_ns)]


class EagerLoop:
    """The phases of a generation, each a call of ``generate``; ``last`` has the tokens of the latest call."""

    mode: Literal["eager"] = "eager"
    compile_s: float | None = None

    def __init__(
        self, loaded: LoadedModel, batches: PromptBatches, output_tokens: int, settings: Mapping[str, Any]
    ) -> None:
        self._model = loaded.model
        self._batches = batches
        self._output_tokens = output_tokens
        self._settings = dict(settings)
        self._prompts: _CachedPrompts | None = None
        self.last: Tensor = None
        self.notes: tuple[Note, ...] = ()

    def prefill(self) -> TokenExtras:
        """Process a batch of prompts and generate the first token of each."""
        batch, stamps = self._batches.next(), TokenStamps()
        begin_ns = time.perf_counter_ns()
        self._generate(batch.ids, batch.mask, 1, stamps)
        return prefill_extras(begin_ns, stamps.at_ns[1], batch.tokens)

    def whole(self) -> TokenExtras:
        """Generate complete answers for a batch of prompts."""
        batch, stamps = self._batches.next(), TokenStamps()
        begin_ns = time.perf_counter_ns()
        self._generate(batch.ids, batch.mask, self._output_tokens, stamps)
        return whole_extras(begin_ns, stamps.at_ns[1:], len(batch.ids), batch.tokens)

    def read(self) -> None:
        """Process the first batch of prompts, to decode from there repeatedly.

        Raises:
            TrialFailed: The model's cache cannot be rewound to the prompt.
        """
        if self._settings.get("use_cache") is False:
            raise BadInput("Without a cache (generate_kwargs.use_cache) there is no decoding without reading again.")
        batch = self._batches.pool[0]
        output = self._generate(batch.ids, batch.mask, 1, None, return_dict_in_generate=True)
        cache, length = getattr(output, "past_key_values", None), int(batch.ids.shape[1])
        if cache is None or not _can_rewind(cache, length + self._output_tokens):
            raise TrialFailed("this model's cache cannot be rewound, so decoding is not measured by itself")
        mask = import_torch().nn.functional.pad(batch.mask, (0, 1), value=1)
        self._prompts = _CachedPrompts(output.sequences, mask, cache, length)

    def decode(self, steps: int | None = None) -> TokenExtras:
        """Generate all tokens after the first, or ``steps`` of them, without another prefill."""
        if self._prompts is None:
            self.read()
        ids, mask, cache, length = cast("_CachedPrompts", self._prompts)
        if (more := int(cache.get_seq_length()) - length) > 0:
            cache.crop(-more)
        stamps = TokenStamps()
        self._generate(ids, mask, steps or self._output_tokens - 1, stamps, past_key_values=cache)
        return decode_extras(stamps.at_ns, len(ids))

    def close(self) -> None:
        """Release the cache."""
        self._prompts = None
        self.last = None

    def _generate(self, ids: Tensor, mask: Tensor, tokens: int, stamps: TokenStamps | None, **more: Any) -> Any:
        output = self._model.generate(
            input_ids=ids,
            attention_mask=mask,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            streamer=stamps,
            **self._settings,
            **more,
        )
        self.last = output if import_torch().is_tensor(output) else output.sequences
        return output


class _CachedPrompts(NamedTuple):
    """Prompts after the prefill: their first tokens, and the cache, which is cut back to its ``length`` to decode."""

    ids: Tensor
    mask: Tensor
    cache: Any
    length: int


def _can_rewind(cache: Any, length: int) -> bool:
    """Return whether a cache that has grown to a length can be cut back."""
    layers = getattr(cache, "layers", ())
    windows = [getattr(layer, "sliding_window", None) for layer in layers if getattr(layer, "is_sliding", False)]
    plain = bool(layers) and all(hasattr(layer, "crop") and hasattr(layer, "keys") for layer in layers)
    states = any(hasattr(layer, "conv_states") or hasattr(layer, "recurrent_states") for layer in layers)
    return plain and not states and all(window is not None and length < window for window in windows)
