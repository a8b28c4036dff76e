"""Tokens by a plain ``generate`` loop: a cache that grows, every kernel launched by the host as it comes to it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

from assay.core.errors import BadInput, TrialFailed
from assay.workloads.generation.stamps import Extras, Stamps, of_decode, of_prefill, of_whole
from assay.workloads.torch_device import Tensor, import_torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.workloads.generation.batches import Batch, Batches
    from assay.workloads.generation.loading import Loaded


class EagerLoop:
    """The phases of a generation, each a call of ``generate``; ``last`` are the tokens of the latest."""

    mode = "eager"
    compile_s: float | None = None

    def __init__(self, loaded: Loaded, batches: Batches, output_tokens: int, settings: Mapping[str, Any]) -> None:
        self._model = loaded.model
        self._batches = batches
        self._output_tokens = output_tokens
        self._settings = dict(settings)
        self._read: _Read | None = None
        self.last: Tensor = None
        self.notes: tuple[str, ...] = ()

    def prefill(self) -> Extras:
        """Read a batch of prompts and make the first token of each."""
        batch, stamps = self._batches.next(), Stamps()
        begin_ns = time.perf_counter_ns()
        self._generate(batch.ids, batch.mask, 1, stamps)
        return of_prefill(begin_ns, stamps.at_ns[1], batch.tokens)

    def whole(self) -> Extras:
        """Answer a batch of prompts."""
        batch, stamps = self._batches.next(), Stamps()
        begin_ns = time.perf_counter_ns()
        self._generate(batch.ids, batch.mask, self._output_tokens, stamps)
        return of_whole(begin_ns, stamps.at_ns[1:], len(batch.ids), batch.tokens)

    def read(self) -> None:
        """Read the first batch of prompts, to decode from there again and again.

        Raises:
            TrialFailed: What the model keeps of a prompt cannot be gone back to.
        """
        if self._settings.get("use_cache") is False:
            raise BadInput("Without a cache (generate_kwargs.use_cache) there is no decoding without reading again.")
        self._read = _Read.of(self._batches.pool[0], self._generate, self._output_tokens)

    @property
    def _reading(self) -> _Read:
        if self._read is None:
            self.read()
        return cast("_Read", self._read)

    def decode(self, steps: int | None = None) -> Extras:
        """Make all tokens after the first, or so many, without reading the prompts again."""
        read, count, stamps = self._reading, steps or self._output_tokens - 1, Stamps()
        read.rewind()
        self._generate(read.ids, read.mask, count, stamps, past_key_values=read.cache)
        return of_decode(stamps.at_ns, len(read.ids))

    def close(self) -> None:
        """Forget the cache."""
        self._read = None
        self.last = None

    def _generate(self, ids: Tensor, mask: Tensor, tokens: int, stamps: Stamps | None, **more: Any) -> Any:
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


class _Read:
    """Prompts that were read, their first tokens, and the cache as it was then."""

    def __init__(self, ids: Tensor, mask: Tensor, cache: Any, length: int) -> None:
        self.ids = ids
        self.mask = mask
        self.cache = cache
        self._length = length

    @classmethod
    def of(cls, batch: Batch, generate: Any, output_tokens: int) -> _Read:
        """Read a batch."""
        output = generate(batch.ids, batch.mask, 1, None, return_dict_in_generate=True)
        cache, length = getattr(output, "past_key_values", None), int(batch.ids.shape[1])
        if cache is None or not _goes_back(cache, length + output_tokens):
            raise TrialFailed(
                "what this model keeps of a prompt cannot be gone back to, so that decoding is not measured by itself"
            )
        return cls(output.sequences, import_torch().nn.functional.pad(batch.mask, (0, 1), value=1), cache, length)

    def rewind(self) -> None:
        """Have the cache hold the prompts alone."""
        more = int(self.cache.get_seq_length()) - self._length
        if more > 0:
            self.cache.crop(-more)


def _goes_back(cache: Any, length: int) -> bool:
    """Return whether a cache that has grown to a length can be cut back to what it was."""
    layers = getattr(cache, "layers", ())
    windows = [getattr(layer, "sliding_window", None) for layer in layers if getattr(layer, "is_sliding", False)]
    plain = bool(layers) and all(hasattr(layer, "crop") and hasattr(layer, "keys") for layer in layers)
    states = any(hasattr(layer, "conv_states") or hasattr(layer, "recurrent_states") for layer in layers)
    return plain and not states and all(window is not None and length < window for window in windows)
