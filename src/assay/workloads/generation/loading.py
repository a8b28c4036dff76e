"""A model in place: planned, loaded once per process, and looked at, whatever of it is asked for afterwards."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput, MachineCannot
from assay.workloads.generation.dtypes import dtype_name, usable
from assay.workloads.generation.fitting import Load, gib, named
from assay.workloads.generation.hub import config_of, tokenizer_of
from assay.workloads.generation.limits import DISK
from assay.workloads.generation.models import import_transformers
from assay.workloads.generation.placed import as_planned
from assay.workloads.generation.placement import NAMES, plan
from assay.workloads.generation.random_weights import empty_model
from assay.workloads.generation.ranks import agreed, refuse_large_share, refuse_ranks_without_plan, share_out
from assay.workloads.generation.room import check_room
from assay.workloads.generation.seen import device_ids_of, see
from assay.workloads.generation.sizes import context_of, sizes_of
from assay.workloads.generation.weights import put_in_place
from assay.workloads.torch_device import import_torch
from assay.workloads.torch_memory import free_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from assay.workloads.generation.params import Generation
    from assay.workloads.generation.placement import Plan
    from assay.workloads.generation.seen import Seen
    from assay.workloads.generation.sizes import Predicted


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
        load_s: Seconds until its weights were in place, without the import of libraries.
        config: Its configuration, as transformers has it.
        context_tokens: The most tokens of a prompt and its answer together.
        vocabulary: Token ids go from 0 to one less.
        sizes: What it takes, as it was told before it was loaded.
        rank: This process among those that compute the model together.
        ranks: How many those are.
        agree: Whether any rank would stop, asked by all of them.
        seen: Its places, by the machine's names and as PyTorch names them here.
        offloaded: Parts lie in the host's memory or on disk, and are copied when their turn comes.
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
    sizes: Predicted
    seen: Seen
    rank: int = 0
    ranks: int = 1
    agree: Callable[[bool], bool] = bool
    offloaded: bool = False
    closing: list[Callable[[], None]] = field(default_factory=list)

    @property
    def parameters(self) -> int:
        """How many numbers its weights are, over all ranks, each tied one once."""
        return self.sizes.parameters

    @property
    def weights_bytes(self) -> int:
        """What they take, over all devices."""
        return self.sizes.weights_bytes

    def release(self) -> None:
        """Forget the model and give its memory back."""
        for key in [key for key, one in _LOADED.items() if one is self]:
            del _LOADED[key]
        self.model = self.tokenizer = None
        while self.closing:
            self.closing.pop()()
        torch = import_torch()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


_LOADED: dict[str, Loaded] = {}
_MATTERS = (
    "model",
    "revision",
    "trust_remote_code",
    "torch_dtype",
    "attn_implementation",
    "device_map",
    "max_memory",
    "device_ids",
    "tp_plan",
)
"""What a loaded model depends on; the rest is asked of it."""


def loaded(generation: Generation, device: str, seed: int) -> Loaded:
    """Return the model of a generation in place on a device of ours (``cpu:0``, ``cuda:3``), loaded now or before.

    One model is kept at a time. Where it is loaded now, room is left for what this generation asks; where it was
    loaded before, there must still be room for it.

    Raises:
        BadInput: What is asked for makes no sense.
        MachineCannot: The model is not to be had, or does not fit, or the device cannot compute in its type.
        TrialFailed: It was not placed as planned.
    """
    key = json.dumps([device, seed, *(getattr(generation, name) for name in _MATTERS)])
    if key not in _LOADED:
        release_all()
        _LOADED[key] = _load(generation, device, seed)
    if generation.phase != "idle":
        check_room(_LOADED[key], generation)
    return _LOADED[key]


def release_all() -> None:
    """Forget every model of this process."""
    for one in list(_LOADED.values()):
        one.release()


def _load(generation: Generation, device: str, seed: int) -> Loaded:
    refuse_ranks_without_plan(generation.tp_plan)
    empty, sizes, devices = emptied(generation, device)
    begun = time.perf_counter()
    if generation.tp_plan:
        return _in_ranks(generation, empty, sizes, devices, seed=seed, begun=begun)
    planned = planned_for(generation, empty, sizes, devices)
    with _enough_memory(sizes, devices):
        model, closing = put_in_place(generation, empty, planned, devices, seed)
    return _ready(
        generation,
        model,
        sizes,
        begun,
        seen=devices,
        device=devices.here[planned.main],
        placement={part: devices.told(location) for part, location in as_planned(model, planned, devices).items()},
        notes=planned.notes,
        offloaded=planned.offloaded,
        closing=closing,
    )


def emptied(generation: Generation, device: str) -> tuple[Any, Predicted, Seen]:
    """Return a generation's model without its weights, what it takes, and the places it may have in this process."""
    import_transformers()
    trusted = generation.trust_remote_code
    devices = see(device, device_ids_of(generation, device))
    config = config_of(generation.model, generation.revision, trust_remote_code=trusted)
    name = dtype_name(generation.torch_dtype, config, devices.first.partition(":")[0])
    dtype = usable(name, devices.first)
    empty = empty_model(config, dtype, generation.attn_implementation, trust_remote_code=trusted)
    return empty, sizes_of(generation.model, empty, name), devices


def planned_for(generation: Generation, empty: Any, sizes: Predicted, seen: Seen) -> Plan:
    """Return where the parts of a model are to lie, from what is free now."""
    return plan(
        empty,
        sizes,
        device_ids=seen.device_ids,
        free_bytes={name: free_bytes(where) for name, where in seen.here.items() if name != DISK},
        device_map=generation.device_map if generation.device_map in NAMES else _mapping(generation.device_map),
        max_memory=_mapping(generation.max_memory) if generation.max_memory else None,
        load=Load(generation.batch, generation.input_tokens, generation.output_tokens),
    )


def _in_ranks(generation: Generation, empty: Any, sizes: Predicted, seen: Seen, *, seed: int, begun: float) -> Loaded:
    """Return this rank's share of a model that several compute together."""
    refuse_large_share(sizes, free_bytes(seen.first))
    with _enough_memory(sizes, seen):
        shared = share_out(generation, empty, seen.first, seed)
    return _ready(
        generation,
        shared.model,
        sizes,
        begun,
        seen=seen,
        device=seen.first,
        placement={"": seen.device},
        notes=shared.notes,
        rank=shared.ranks.rank,
        ranks=shared.ranks.size,
        agree=agreed,
        closing=[shared.leave],
    )


def _ready(generation: Generation, model: Any, sizes: Predicted, begun: float, *, device: str, **more: Any) -> Loaded:
    """Return a model that is in place, settled and told of."""
    torch = import_torch()
    model.eval().requires_grad_(False)
    model.generation_config.pad_token_id = _padding(model)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    load_s = time.perf_counter() - begun
    return Loaded(
        model=model,
        tokenizer=tokenizer_of(generation.model, generation.revision, trust_remote_code=generation.trust_remote_code),
        device=torch.device(device),
        dtype=getattr(torch, sizes.dtype),
        load_s=load_s,
        config=model.config,
        context_tokens=context_of(model.config),
        vocabulary=sizes.vocabulary,
        sizes=sizes,
        **more,
    )


def _padding(model: Any) -> int:
    """Return the token that fills up short prompts: the model's own, or one that ends a text, or the first."""
    for source in (model.generation_config, model.config.get_text_config()):
        for name in ("pad_token_id", "eos_token_id"):
            value = getattr(source, name, None)
            token = value[0] if isinstance(value, list) and value else value
            if isinstance(token, int) and token >= 0:
                return token
    return 0


def _mapping(text: str) -> Any:
    """Return a map from its JSON, or the text that is none: what is wrong with it is said where it is used."""
    try:
        mapping = json.loads(text)
    except ValueError:
        return text
    if not isinstance(mapping, dict):
        raise BadInput(f"{text} maps nothing; write names and values.")
    return mapping


@contextmanager
def _enough_memory(sizes: Predicted, seen: Seen) -> Iterator[None]:
    """Say in one sentence that memory ran out while a model was loaded, how much it needs and how much is free."""
    torch = import_torch()
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        free = ", ".join(
            f"{gib(free_bytes(where))} of {named(name)}" for name, where in seen.here.items() if name != DISK
        )
        raise MachineCannot(
            f"Memory ran out while {sizes.model} was loaded: its weights take {gib(sizes.weights_bytes)} in "
            f"{sizes.dtype}, and free are {free}. Somebody else may have taken what was free before."
        ) from error
