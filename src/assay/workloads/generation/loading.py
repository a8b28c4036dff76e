"""Load a model once per process: plan its placement, load its weights, verify the placement.

Before a batch runs, its KV cache is checked against free memory. CUDA numbers the visible GPUs of a process from 0:

    device_ids [2, 0]     CUDA_VISIBLE_DEVICES=GPU-of-2,GPU-of-0     in this process
    cuda:2, cuda:0        ──────────────────────────────────────▶    cuda:0, cuda:1
"""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput, MachineCannot
from assay.core.format import format_bytes
from assay.workloads.generation.models import (
    import_transformers,
    load_config,
    load_tokenizer,
    resolve_dtype,
    usable_dtype,
)
from assay.workloads.generation.placement import (
    CPU,
    DEVICE_MAPS,
    DISK,
    OFFLOAD_DEVICES,
    BatchLoad,
    context_tokens_of,
    describe_device,
    device_of,
    gpu_device,
    model_sizes,
    plan_placement,
    verify_placement,
)
from assay.workloads.generation.weights import (
    agree_to_stop,
    check_share_fits,
    check_tp_plan,
    load_share,
    make_empty_model,
    place_weights,
)
from assay.workloads.torch_device import free_bytes, import_torch, leave_ranks, open_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from assay.core.results import Note
    from assay.workloads.generation.params import Generation
    from assay.workloads.generation.placement import ModelSizes, PlacementPlan


def check_kv_cache(loaded: LoadedModel, generation: Generation) -> None:
    """Refuse a batch whose KV cache alone exceeds the free memory; a batch that might fit is tried."""
    load = BatchLoad(generation.batch, generation.input_tokens, generation.output_tokens)
    main = loaded.visible_devices.machine_name(str(loaded.device))
    for device, size in kv_cache_by_device(loaded.sizes, loaded.placement, main, load).items():
        where = loaded.visible_devices.local_names.get(device, str(loaded.device))
        needed, free = size // loaded.ranks, free_bytes(where)
        if needed > free:
            raise MachineCannot(
                f"{load.description.capitalize()} keeps {format_bytes(needed)} of keys and values on "
                f"{describe_device(device)}, which has {format_bytes(free)} free beside the model: "
                "give a smaller batch or shorter texts."
            )


def kv_cache_by_device(sizes: ModelSizes, placement: Mapping[str, str], main: str, load: BatchLoad) -> dict[str, int]:
    """Return the bytes of the KV cache by device: that of its layer, or where an offloaded layer computes."""
    layers = [name for name in sizes.parts_bytes if name.rpartition(".")[2].isdecimal()]
    if len(layers) != sizes.layers:
        return {main: sizes.kv_bytes(load.batch, load.tokens)} if len(set(placement.values())) == 1 else {}
    bytes_per_layer = sizes.kv_bytes(load.batch, load.tokens) // sizes.layers
    cache_bytes: dict[str, int] = {}
    for name in layers:
        device = device_of(name, placement) or main
        computes = main if device in OFFLOAD_DEVICES else device
        cache_bytes[computes] = cache_bytes.get(computes, 0) + bytes_per_layer
    return cache_bytes


@dataclass(frozen=True)
class VisibleDevices:
    """The devices of a model, by the machine's names in pipeline order, and their PyTorch names in this process."""

    device: str
    device_ids: tuple[int, ...]
    local_names: Mapping[str, str]

    @property
    def worker_device(self) -> str:
        """PyTorch's name of this worker's device."""
        return next(iter(self.local_names.values()))

    def accelerate_key(self, name: str) -> int | str:
        """Return accelerate's key of a device: for a GPU its index in this process."""
        return int(self.local_names[name].removeprefix("cuda:")) if name.startswith("cuda") else name

    def display_name(self, name: str) -> str:
        """Return a device's display name: the worker's own GPU may be a MIG instance."""
        return self.device if "/" in self.device and name == next(iter(self.local_names)) else name

    def machine_name(self, where: str) -> str:
        """Return the machine's name for PyTorch's name of a device."""
        return next((name for name, local_name in self.local_names.items() if local_name == where), where)


def device_ids_of(generation: Generation, device: str) -> tuple[int, ...]:
    """Return the GPU numbers of a generation in order, the worker's own first; none for a CPU."""
    if not device.startswith("cuda"):
        return ()
    own = int(device.removeprefix("cuda:").partition("/")[0])
    if not generation.device_ids or generation.tp_plan:
        return (own,)
    numbers = tuple(int(number) for number in json.loads(generation.device_ids))
    if not numbers or numbers[0] != own or len(set(numbers)) < len(numbers):
        raise BadInput(f"device_ids {list(numbers)} begin with the GPU of their process, which is {own}, and differ.")
    return numbers


def find_visible_devices(device: str, device_ids: Sequence[int]) -> VisibleDevices:
    """Return the devices of this process, and make the worker's own device the current one."""
    if not device_ids:
        names = {CPU: open_device(device)}
    elif len(device_ids) == 1:
        names = {gpu_device(device_ids[0]): open_device(device), CPU: CPU}
    else:
        cuda = import_torch().cuda
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        if not cuda.is_available():
            raise MachineCannot("PyTorch here sees no CUDA GPU.")
        indices = local_indices(device_ids, cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES"))
        cuda.set_device(indices[0])
        names = {gpu_device(number): f"cuda:{local}" for number, local in zip(device_ids, indices, strict=True)}
        names[CPU] = CPU
    return VisibleDevices(device, tuple(device_ids), {**names, DISK: DISK})


def local_indices(device_ids: Sequence[int], count: int, visible: str | None) -> tuple[int, ...]:
    """Return the CUDA indices of GPUs in this process: by position if exactly these are visible; refuse ambiguity."""
    named = [name for name in (visible or "").split(",") if name.strip()]
    if named and len(named) == len(device_ids) == count:
        return tuple(range(count))
    requested = ", ".join(map(str, device_ids))
    if not named and max(device_ids) < count:
        return tuple(device_ids)
    raise MachineCannot(
        f"A model over the GPUs {requested} needs a process that sees just these; PyTorch here sees {count}."
    )


@dataclass
class LoadedModel:
    """A loaded model."""

    model: Any  # the model in evaluation mode, without gradients
    tokenizer: Any  # null where it has none: random models use token ids
    device: Any  # pyTorch's name of the device of its inputs
    dtype: Any  # dtype of its weights
    placement: Mapping[str, str]  # actual device of each part, by the machine's names: ``{"model.layers.0": "cuda:2"}``
    notes: tuple[Note, ...]  # what the user should know about its placement
    load_s: float  # seconds to load the weights, without the import of libraries
    config: Any  # its transformers configuration
    context_tokens: int  # the most tokens of a prompt and its answer together
    vocabulary: int  # number of token ids
    sizes: ModelSizes  # its sizes, as computed before it was loaded
    visible_devices: VisibleDevices  # its devices, by the machine's names and PyTorch's names in this process
    rank: int = 0  # this process's tensor-parallel rank
    ranks: int = 1  # number of tensor-parallel ranks
    agree_to_stop: Callable[[bool], bool] = bool  # whether any rank would stop; a collective call
    offloaded: bool = False  # whether parts are in host memory or on disk, and are copied when they are used
    closing: list[Callable[[], None]] = field(default_factory=list)

    def release(self) -> None:
        """Release the model and its memory."""
        for key in [key for key, loaded in _LOADED_MODELS.items() if loaded is self]:
            del _LOADED_MODELS[key]
        self.model = self.tokenizer = None
        while self.closing:
            self.closing.pop()()
        torch = import_torch()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


_LOADED_MODELS: dict[str, LoadedModel] = {}
_KEY_PARAMS = (
    "model", "revision", "trust_remote_code", "torch_dtype", "attn_implementation", "device_map", "max_memory",
    "device_ids", "tp_plan",
)  # fmt: skip
"""Parameters that a loaded model depends on."""


def load_model(generation: Generation, device: str, seed: int) -> LoadedModel:
    """Return the model of a generation on an Assay device (``cpu:0``, ``cuda:3``), loaded now or before.

    One model is kept at a time. Loading reserves memory for this generation's batch; for a model that was loaded
    before, there must still be enough free memory.

    Raises:
        BadInput: The parameters are not valid.
        MachineCannot: The model is not available or does not fit, or the device does not support its dtype.
        TrialFailed: It was not placed as planned.
    """
    key = json.dumps([device, seed, *(getattr(generation, name) for name in _KEY_PARAMS)])
    if key not in _LOADED_MODELS:
        release_models()
        _LOADED_MODELS[key] = _load_new(generation, device, seed)
    if generation.phase != "idle":
        check_kv_cache(_LOADED_MODELS[key], generation)
    return _LOADED_MODELS[key]


def release_models() -> None:
    """Release every model of this process."""
    for loaded in list(_LOADED_MODELS.values()):
        loaded.release()


def _load_new(generation: Generation, device: str, seed: int) -> LoadedModel:
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    check_tp_plan(generation.tp_plan, world_size)
    empty, sizes, devices = load_empty_model(generation, device)
    start_s = time.perf_counter()
    if generation.tp_plan:
        where = devices.worker_device
        check_share_fits(sizes, free_bytes(where), world_size)
        with _explain_out_of_memory(sizes, devices):
            model, ranks, note = load_share(generation, empty, where, seed)
        more: dict[str, Any] = {"rank": ranks.rank, "ranks": ranks.size, "agree_to_stop": agree_to_stop}
        more |= {"placement": {"": devices.device}, "notes": (note,), "closing": [leave_ranks]}
    else:
        planned = plan_for_free_memory(generation, empty, sizes, devices)
        with _explain_out_of_memory(sizes, devices):
            model, closing = place_weights(generation, empty, planned, devices, seed)
        where = devices.local_names[planned.main_device]
        placement = verify_placement(model, planned, devices)
        more = {"placement": {part: devices.display_name(location) for part, location in placement.items()}}
        more |= {"notes": planned.notes, "offloaded": planned.offloaded, "closing": closing}
    return _finish_loading(generation, model, sizes, start_s, visible_devices=devices, device=where, **more)


def load_empty_model(generation: Generation, device: str) -> tuple[Any, ModelSizes, VisibleDevices]:
    """Return a generation's model without weights, its sizes, and its possible devices in this process."""
    import_transformers()
    trusted = generation.trust_remote_code
    devices = find_visible_devices(device, device_ids_of(generation, device))
    config = load_config(generation.model, generation.revision, trust_remote_code=trusted)
    name = resolve_dtype(generation.torch_dtype, config, devices.worker_device.partition(":")[0])
    dtype = usable_dtype(name, devices.worker_device)
    empty = make_empty_model(config, dtype, generation.attn_implementation, trust_remote_code=trusted)
    return empty, model_sizes(generation.model, empty, name), devices


def plan_for_free_memory(
    generation: Generation, empty: Any, sizes: ModelSizes, devices: VisibleDevices
) -> PlacementPlan:
    """Plan the placement of a model from the memory that is free now."""
    device_map = generation.device_map
    return plan_placement(
        empty,
        sizes,
        device_ids=devices.device_ids,
        free_bytes={name: free_bytes(where) for name, where in devices.local_names.items() if name != DISK},
        device_map=device_map if device_map in DEVICE_MAPS else _parse_mapping(device_map),
        max_memory=_parse_mapping(generation.max_memory) if generation.max_memory else None,
        load=BatchLoad(generation.batch, generation.input_tokens, generation.output_tokens),
    )


def _finish_loading(
    generation: Generation, model: Any, sizes: ModelSizes, start_s: float, *, device: str, **more: Any
) -> LoadedModel:
    """Return a placed model, ready for use, with its facts."""
    torch = import_torch()
    model.eval().requires_grad_(False)
    model.generation_config.pad_token_id = _padding_token(model)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    load_s = time.perf_counter() - start_s
    return LoadedModel(
        model=model,
        tokenizer=load_tokenizer(generation.model, generation.revision, trust_remote_code=generation.trust_remote_code),
        device=torch.device(device),
        dtype=getattr(torch, sizes.dtype),
        load_s=load_s,
        config=model.config,
        context_tokens=context_tokens_of(model.config),
        vocabulary=sizes.vocabulary,
        sizes=sizes,
        **more,
    )


def _padding_token(model: Any) -> int:
    """Return the padding token: the model's own, else its end token, else 0."""
    for source in (model.generation_config, model.config.get_text_config()):
        for name in ("pad_token_id", "eos_token_id"):
            value = getattr(source, name, None)
            token = value[0] if isinstance(value, list) and value else value
            if isinstance(token, int) and token >= 0:
                return token
    return 0


def _parse_mapping(text: str) -> Any:
    """Parse a JSON map; return text that is not JSON unchanged, as its user reports what is wrong with it."""
    try:
        mapping = json.loads(text)
    except ValueError:
        return text
    if not isinstance(mapping, dict):
        raise BadInput(f"{text} maps nothing; write names and values.")
    return mapping


@contextmanager
def _explain_out_of_memory(sizes: ModelSizes, devices: VisibleDevices) -> Iterator[None]:
    """Turn an out-of-memory error during loading into one that states the required and the free memory."""
    torch = import_torch()
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        free = ", ".join(
            f"{format_bytes(free_bytes(where))} of {describe_device(name)}"
            for name, where in devices.local_names.items()
            if name != DISK
        )
        raise MachineCannot(
            f"Memory ran out while {sizes.model} was loaded: its weights take {format_bytes(sizes.weights_bytes)} in "
            f"{sizes.dtype}, and free are {free}. Somebody else may have taken what was free before."
        ) from error
