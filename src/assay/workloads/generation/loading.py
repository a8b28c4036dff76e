"""A model in place: loaded once per process, whatever of it is asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from assay.core.errors import MachineCannot
from assay.workloads.generation.models import is_random, shape_of
from assay.workloads.generation.random_weights import random_model
from assay.workloads.torch_device import import_torch, open_device

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.workloads.generation.params import Generation


def _alone(stop: bool) -> bool:  # noqa: FBT001
    return stop


@dataclass
class Loaded:
    """A model ready to be asked.

    Attributes:
        model: In evaluation mode, its weights fixed.
        tokenizer: Null where it has none: random models speak in token ids.
        device: Where its inputs go, as PyTorch names it here.
        dtype: Of its weights.
        placement: Which part really lies on which device, in the machine's names: ``{"model.layers.0": "cuda:2"}``.
        notes: What its user should know about how it was put in place.
        load_s: Seconds from nothing to in place.
        config: Its configuration, as transformers has it.
        context_tokens: The most tokens of a prompt and its answer together.
        vocabulary: Token ids go from 0 to one less.
        rank: This process among those that compute the model together.
        ranks: How many those are.
        agree: Whether any rank would stop, asked by all of them.
        parameters: How many numbers its weights are, each tied one once.
        weights_bytes: What they take, over all devices.
        offloaded: Parts of it lie in the host's memory or on disk, and are copied to a GPU when their turn comes.
    """

    model: Any
    tokenizer: Any
    device: Any
    dtype: Any
    placement: Mapping[str, str]
    notes: tuple[str, ...]
    load_s: float
    config: Any
    context_tokens: int
    vocabulary: int
    rank: int = 0
    ranks: int = 1
    agree: Callable[[bool], bool] = _alone
    parameters: int = 0
    weights_bytes: int = 0
    offloaded: bool = False
    key: str = ""
    closing: list[Callable[[], None]] = field(default_factory=list)

    def release(self) -> None:
        """Forget the model and give its memory back."""
        _LOADED.pop(self.key, None)
        self.model = self.tokenizer = None
        for close in reversed(self.closing):
            close()
        self.closing.clear()
        torch = import_torch()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


_LOADED: dict[str, Loaded] = {}


def loaded(generation: Generation, device: str, seed: int) -> Loaded:
    """Return the model of a generation in place on a device of ours (``cpu:0``, ``cuda:3``), loaded now or before."""
    key = f"{generation.model} {generation.torch_dtype} {generation.attn_implementation} {device} {seed}"
    if key not in _LOADED:
        for other in list(_LOADED.values()):
            other.release()
        _LOADED[key] = _load(generation, device, seed, key)
    return _LOADED[key]


def _load(generation: Generation, device: str, seed: int, key: str) -> Loaded:
    torch = import_torch()
    where = open_device(device)
    if not is_random(generation.model):
        raise MachineCannot(f"{generation.model} cannot be loaded yet.")
    begun = time.perf_counter()
    name = generation.torch_dtype
    if name == "auto":
        name = "float32" if where == "cpu" else "bfloat16"
    dtype = getattr(torch, name)
    config = shape_of(generation.model).config()
    model = random_model(config, dtype, where, seed, generation.attn_implementation or None)
    if where != "cpu":
        torch.cuda.synchronize(where)
    return Loaded(
        model=model,
        tokenizer=None,
        device=torch.device(where),
        dtype=dtype,
        placement={"": device},
        notes=(),
        load_s=time.perf_counter() - begun,
        config=config,
        context_tokens=config.max_position_embeddings,
        vocabulary=config.vocab_size,
        parameters=sum(weight.numel() for weight in model.parameters()),
        weights_bytes=sum(weight.numel() * weight.element_size() for weight in model.parameters()),
        key=key,
    )
