"""One decoding step that is the same work at the same addresses every time: what a CUDA graph is made of.

``prefill`` reads prompts and makes the first token; ``step`` makes the next one from what the last one left; ``rewind``
goes back to where the prompts were read. Nothing in a step asks the host, so that it can be captured; uncaptured it is
the same on a CPU.
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from assay.core.errors import TrialFailed
from assay.workloads.torch_device import Tensor, import_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.workloads.generation.batches import Batch
    from assay.workloads.generation.choosing import Choose

GRAIN = 64
"""Columns of the cache come in multiples of this, which suits the kernels of attention."""

GROUPED = "assay_grouped"
KNOWN_ATTENTION = ("sdpa", "eager")


class Stepper:
    """A model with a cache of its own, one token a step.

    Attributes:
        token: The ids that were made last, one column; a step reads and replaces them.
        slot: The column of the cache that the next step writes.
    """

    def __init__(self, model: Any, device: Any, *, batch: int, columns: int, choose: Choose) -> None:
        torch = import_torch()
        from assay.workloads.generation.static_cache import fixed_cache

        length = -(-columns // GRAIN) * GRAIN
        static = fixed_cache(model.config, length, device)
        if static is None:
            raise TrialFailed(
                "graphs need a cache that keeps every token, and this model's has sliding windows or states of its own"
            )
        if model.config._attn_implementation not in KNOWN_ATTENTION:  # noqa: SLF001 - it has no other name
            raise TrialFailed(
                f"graphs need attention by {' or '.join(KNOWN_ATTENTION)}, "
                f"and this model has {model.config._attn_implementation}"  # noqa: SLF001
            )
        self.model = model
        self.cache, self.slot = static
        self.token = torch.zeros((batch, 1), dtype=torch.long, device=device)
        self._choose = choose
        self._position = torch.zeros_like(self.token)
        self._columns = torch.arange(length, device=device)
        self._kept = torch.ones((batch, 1, 1, length), dtype=torch.bool, device=device)
        self._closed = torch.full((batch, 1, 1, length), torch.finfo(model.dtype).min, dtype=model.dtype, device=device)
        self._start: tuple[Tensor, Tensor, Tensor] | None = None
        takes = inspect.signature(model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    def prefill(self, prompts: Batch) -> Tensor:
        """Read prompts, as a plain ``generate`` does, and return the first tokens; steps go on from there."""
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
            self._kept.fill_(True)
            self._kept[:, 0, 0, :length] = prompts.mask.bool()
            self._start = first, prompts.mask.sum(-1, keepdim=True), torch.full_like(self.slot, length)
        self.rewind()
        return self.token

    def rewind(self) -> None:
        """Go back to where the prompts were read and the first token was made."""
        if self._start is None:
            raise TrialFailed("no prompt was read yet")
        for now, then in zip((self.token, self._position, self.slot), self._start, strict=True):
            now.copy_(then)

    def step(self) -> None:
        """Make the next token of every sequence, in place."""
        with import_torch().no_grad():
            self.token.copy_(self._choose(self.logits()))
            self._position.add_(1)
            self.slot.add_(1)

    def logits(self) -> Tensor:
        """Return what the model says of the next token, having written the last one into the cache."""
        open_columns = self._kept & (self._columns <= self.slot)
        output = self.model(
            input_ids=self.token,
            attention_mask=self._closed.masked_fill(open_columns, 0.0),
            position_ids=self._position,
            past_key_values=self.cache,
            use_cache=True,
        )
        return output.logits[:, -1]


@contextmanager
def as_in_steps(model: Any, *, on_gpu: bool) -> Iterator[None]:
    """Have a model's attention and experts work as suits one token a sequence, while steps are made or captured."""
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
            stack.enter_context(_grouped(model.config))
        yield


@contextmanager
def _grouped(config: Any) -> Iterator[None]:
    from transformers import AttentionInterface

    from assay.workloads.generation.grouped import grouped_attention

    AttentionInterface.register(GROUPED, grouped_attention)
    before = config._attn_implementation  # noqa: SLF001 - it has no other name
    config._attn_implementation = GROUPED  # noqa: SLF001
    try:
        yield
    finally:
        config._attn_implementation = before  # noqa: SLF001
