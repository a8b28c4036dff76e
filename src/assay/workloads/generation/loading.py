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
from assay.workloads.torch_device import free_bytes, import_torch, open_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from assay.core.results import Note
    from assay.workloads.generation.params import Generation
    from assay.workloads.generation.placement import ModelSizes, PlacementPlan


def check_kv_cache(loaded: LoadedModel, generation: Generation) -> None:
    """Refuse a batch whose KV cache alone exceeds the free memory; a batch that might fit is tried.

    Raises:
        MachineCannot: The KV cache does not fit.
    """
    load = BatchLoad(generation.batch, generation.input_tokens, generation.output_tokens)
    main = loaded.visible_devices.machine_name(str(loaded.device))
    for device, size in kv_cache_by_device(loaded.sizes, loaded.placement, main, load).items():
        where = loaded.visible_devices.local_names.get(device, str(loaded.device))
        needed, free = size // loaded.ranks, free_bytes(where)
        if needed > free:
            raise MachineCannot(
                f"{load.description.capitalize()} keeps {format_bytes(needed)} of keys and values on "
                f"{describe_device(device)}, which has "
                f"{format_bytes(free)} free beside the model: give a smaller batch or shorter texts."
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
        return next(
            (machine_name for machine_name, local_name in self.local_names.items() if local_name == where), where
        )


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
    """Return the devices of this process, and make the worker's own device the current one.

    Raises:
        MachineCannot: Some of the named GPUs are not visible.
    """
    if not device_ids:
        return VisibleDevices(device, (), {CPU: open_device(device), DISK: DISK})
    if len(device_ids) == 1:
        return VisibleDevices(
            device, tuple(device_ids), {gpu_device(device_ids[0]): open_device(device), CPU: CPU, DISK: DISK}
        )
    torch = import_torch()
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if not torch.cuda.is_available():
        raise MachineCannot("PyTorch here sees no CUDA GPU.")
    indices = local_indices(device_ids, torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    torch.cuda.set_device(indices[0])
    names = {gpu_device(number): f"cuda:{local}" for number, local in zip(device_ids, indices, strict=True)}
    return VisibleDevices(device, tuple(device_ids), {**names, CPU: CPU, DISK: DISK})


def local_indices(device_ids: Sequence[int], count: int, visible: str | None) -> tuple[int, ...]:
    """Return the CUDA indices of GPUs in this process: by position if exactly these are visible.

    Raises:
        MachineCannot: Not all are visible, or their order is ambiguous.
    """
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
    """A loaded model.

    Attributes:
        model: The model in evaluation mode, without gradients.
        tokenizer: Null where it has none: random models use token ids.
        device: PyTorch's name of the device of its inputs.
        dtype: Dtype of its weights.
        placement: Actual device of each part, by the machine's names: ``{"model.layers.0": "cuda:2"}``.
        notes: What the user should know about its placement.
        load_s: Seconds to load the weights, without the import of libraries.
        config: Its transformers configuration.
        context_tokens: The most tokens of a prompt and its answer together.
        vocabulary: Number of token ids.
        sizes: Its sizes, as computed before it was loaded.
        rank: This process's tensor-parallel rank.
        ranks: Number of tensor-parallel ranks.
        agree_to_stop: Whether any rank would stop; a collective call.
        visible_devices: Its devices, by the machine's names and PyTorch's names in this process.
        offloaded: Whether parts are in host memory or on disk, and are copied when they are used.
    """

    model: Any
    tokenizer: Any
    device: Any
    dtype: Any
    placement: Mapping[str, str]
    notes: tuple[Note, ...]
    load_s: float
    config: Any
    context_tokens: int
    vocabulary: int
    sizes: ModelSizes
    visible_devices: VisibleDevices
    rank: int = 0
    ranks: int = 1
    agree_to_stop: Callable[[bool], bool] = bool
    offloaded: bool = False
    closing: list[Callable[[], None]] = field(default_factory=list)

    @property
    def parameters(self) -> int:
        """Number of parameters over all ranks; tied ones count once."""
        return self.sizes.parameters

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights over all devices."""
        return self.sizes.weights_bytes

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
    check_tp_plan(generation.tp_plan)
    empty, sizes, devices = load_empty_model(generation, device)
    start_s = time.perf_counter()
    if generation.tp_plan:
        return _load_in_ranks(generation, empty, sizes, devices, seed=seed, start_s=start_s)
    planned = plan_for_free_memory(generation, empty, sizes, devices)
    with _explain_out_of_memory(sizes, devices):
        model, closing = place_weights(generation, empty, planned, devices, seed)
    return _finish_loading(
        generation,
        model,
        sizes,
        start_s,
        visible_devices=devices,
        device=devices.local_names[planned.main_device],
        placement={
            part: devices.display_name(location) for part, location in verify_placement(model, planned, devices).items()
        },
        notes=planned.notes,
        offloaded=planned.offloaded,
        closing=closing,
    )


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
    return plan_placement(
        empty,
        sizes,
        device_ids=devices.device_ids,
        free_bytes={name: free_bytes(where) for name, where in devices.local_names.items() if name != DISK},
        device_map=generation.device_map
        if generation.device_map in DEVICE_MAPS
        else _parse_mapping(generation.device_map),
        max_memory=_parse_mapping(generation.max_memory) if generation.max_memory else None,
        load=BatchLoad(generation.batch, generation.input_tokens, generation.output_tokens),
    )


def _load_in_ranks(
    generation: Generation, empty: Any, sizes: ModelSizes, devices: VisibleDevices, *, seed: int, start_s: float
) -> LoadedModel:
    """Return this rank's shard of a tensor-parallel model."""
    check_share_fits(sizes, free_bytes(devices.worker_device))
    with _explain_out_of_memory(sizes, devices):
        shared = load_share(generation, empty, devices.worker_device, seed)
    return _finish_loading(
        generation,
        shared.model,
        sizes,
        start_s,
        visible_devices=devices,
        device=devices.worker_device,
        placement={"": devices.device},
        notes=shared.notes,
        rank=shared.ranks.rank,
        ranks=shared.ranks.size,
        agree_to_stop=agree_to_stop,
        closing=[shared.leave],
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
