"""Device placement: which part of a model is on which device; planned before loading, verified after.

    embed  layer 0 … 15 │ layer 16 … 31  norm  head      a naive pipeline: one GPU works at a time
    ───── cuda:2 ────── │ ───────── cuda:0 ────────

accelerate places the parts; this module checks and explains. Nothing is placed outside of ``device_ids``. Parts go to
host memory or to disk only by ``max_memory`` or a full ``device_map``: their weights are copied over PCIe for every
token, which would then dominate the measurement. GPUs are ordered so that neighbours in the pipeline have the best
links.
"""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass, field
from itertools import pairwise, permutations, product
from statistics import median
from typing import TYPE_CHECKING, Any, get_args

from pydantic import Field

from assay.core.errors import BadInput, MachineCannot, TrialFailed, suggest_nearest
from assay.core.format import format_bytes, format_list
from assay.core.results import Note
from assay.core.values import Value
from assay.machine.model import LinkPath
from assay.workloads.generation.models import DTYPE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from assay.core.values import Scalar
    from assay.machine.model import GpuLink
    from assay.workloads.generation.loading import VisibleDevices
    from assay.workloads.generation.models import ModelConfig


def check_device_map(empty: Any, device_map: Mapping[str, int | str], device_ids: Sequence[int]) -> dict[str, str]:
    """Return a device map with the machine's names of devices; refuse unknown, double and missing parts."""
    part_names = {name for name, _ in empty.named_modules()}
    for name in device_map:
        if name not in part_names:
            near = suggest_nearest(name, part_names - {WHOLE_MODEL})
            raise BadInput(f"device_map: the model has no part {name!r}.{near}")
    _check_nesting(empty, device_map)
    devices = {name: parse_device(device, device_ids, f"device_map of {name!r}") for name, device in device_map.items()}
    if device_ids and all(device in OFFLOAD_DEVICES for device in devices.values()):
        raise BadInput("device_map puts nothing on a GPU; for a model on the CPU say backend.device: cpu.")
    missing = [
        name
        for name, part in model_parts(empty)
        if next(part.parameters(), None) is not None and device_of(name, devices) is None
    ]
    if missing:
        raise BadInput(f"device_map gives no place to {format_list(missing, 3)}.")
    _check_tied_weights(empty, devices)
    return devices


def device_of(name: str, devices: Mapping[str, str]) -> str | None:
    """Return the device of a part or a weight, from a map with it or a part that contains it; null: in neither."""
    while name not in devices:
        if not name:
            return None
        name = name.rpartition(".")[0]
    return devices[name]


def _check_nesting(empty: Any, device_map: Mapping[str, int | str]) -> None:
    for name in device_map:
        outer = device_of(name.rpartition(".")[0], dict.fromkeys(device_map, "")) if name else None
        if outer is not None:
            raise BadInput(f"device_map: {name} lies within another part that is named too; name each part once.")
    never_split = [name for name, part in model_parts(empty) if list(part.children())]
    for name in device_map:
        layer = next((part for part in never_split if name.startswith(f"{part}.")), None)
        if layer is not None:
            raise BadInput(f"device_map: {name} is within {layer}, which is not split: place {layer} as a whole.")


def _check_tied_weights(empty: Any, devices: Mapping[str, str]) -> None:
    from accelerate.utils import find_tied_parameters

    for group in find_tied_parameters(empty):
        if len({device_of(name, devices) for name in group}) > 1:
            raise BadInput(f"device_map: {' and '.join(sorted(group))} are one and the same, so they lie in one place.")


UNEVEN_RATIO = 1.3  # a note reports a GPU with this multiple of its even share of the weights


def placement_notes(sizes: ModelSizes, weights: Mapping[str, int], gpus: Sequence[str], main: str) -> tuple[Note, ...]:
    """Return what the user should know of a map, by the weights on each device."""
    notes: list[Note] = []

    def warn(code: str, message: str, **params: Scalar) -> None:
        notes.append(Note(code=code, message=message, severity="warning", params=params))

    used = [gpu for gpu in gpus if weights.get(gpu)]
    if len(used) > 1:
        numbers = ", ".join(gpu.removeprefix("cuda:") for gpu in used)
        message = f"layers are placed one after another on GPU {numbers}, a naive pipeline: one GPU works at a time"
        notes.append(Note(code="pipeline", message=message, params={"gpus": len(used)}))
        most = max(used, key=lambda gpu: weights[gpu])
        share = weights[most] / sum(weights[gpu] for gpu in used)
        if share * len(used) >= UNEVEN_RATIO:
            held = f"{describe_device(most)} holds {100 * share:.0f} % of the weights of {len(used)} GPUs"
            warn("unbalanced", f"unbalanced: {held}", device=most, share=share, gpus=len(used))
    idle = [gpu.removeprefix("cuda:") for gpu in gpus if gpu not in used]
    if idle:
        message = f"nothing of the model is on GPU {', '.join(idle)}, whose joules count all the same"
        warn("unused_gpu", message, gpus=",".join(idle))
    over = "over PCIe " if main != CPU else ""
    for device in (CPU, DISK):
        share = weights.get(device, 0) / sizes.weights_bytes
        if share and device != main:
            message = f"{describe_device(device)} holds {100 * share:.0f} % of the weights: they are copied {over}for "
            warn("offloaded", f"{message}every token, which is then what is measured", device=device, share=share)
    return tuple(notes)


WHOLE_MODEL = ""  # the name of the whole model

AUTO_MAP, SEQUENTIAL, BALANCED_LOW_0 = "auto", "sequential", "balanced_low_0"
DEVICE_MAPS = (AUTO_MAP, "balanced", BALANCED_LOW_0, SEQUENTIAL)
"""The names of accelerate: auto is balanced; sequential fills one GPU after another."""


class PlacementPlan(Value):
    """The planned device of each part of a model, by the machine's names: ``cuda:2``, ``cpu``, ``disk``."""

    devices: dict[str, str] = Field(description="By part, from inputs to outputs; the one named '' is all of it.")
    weights_bytes: dict[str, int] = Field(description="By place.")
    main_device: str = Field(description="Where inputs go, and where parts compute that lie on no GPU.")
    notes: tuple[Note, ...] = ()

    @property
    def offloaded(self) -> bool:
        """Whether parts are stored on another device than they compute on."""
        return any(device in OFFLOAD_DEVICES and device != self.main_device for device in self.devices.values())

    @property
    def is_split(self) -> bool:
        """Whether the model is on more than one device."""
        return len(set(self.devices.values())) > 1


def plan_placement(
    empty: Any,
    sizes: ModelSizes,
    *,
    device_ids: Sequence[int],
    free_bytes: Mapping[str, int],
    device_map: str | Mapping[str, int | str] = AUTO_MAP,
    max_memory: Mapping[int | str, int | str] | None = None,
    load: BatchLoad | None = None,
) -> PlacementPlan:
    """Plan the device of each part of a model.

    Args:
        empty: The model without its weights.
        sizes: Its sizes.
        device_ids: GPU numbers in pipeline order; none: the CPU.
        free_bytes: Free memory by the machine's name of each device.
        device_map: A name, or the device of each part: a GPU number, cpu or disk.
        max_memory: Limits of bytes of weights by GPU number, cpu or disk; cpu and disk are used only where named.
        load: The batch to leave memory for.

    Raises:
        BadInput: The map or the limits are not valid for this model.
        MachineCannot: The model does not fit; the message suggests what would.
    """
    gpus = [gpu_device(number) for number in device_ids]
    notes: list[Note] = []
    room = MemoryBudget(sizes, gpus, free_bytes, parse_limits(max_memory, device_ids), load or BatchLoad())
    if not isinstance(device_map, str):
        devices = check_device_map(empty, device_map, device_ids)
    elif device_map in DEVICE_MAPS:
        devices, notes = _infer_map(empty, room, device_map)
    else:
        near = suggest_nearest(device_map, DEVICE_MAPS)
        raise BadInput(f"device_map is {', '.join(DEVICE_MAPS)} or a map, not {device_map!r}.{near}")
    weights = weights_by_device(sizes, devices)
    _check_room(room, weights)
    first = next(iter(devices.values()))
    on_gpus = (gpu for gpu in gpus if gpu in devices.values())
    main = first if first in gpus else next(on_gpus, gpus[0] if gpus else CPU)
    notes += placement_notes(sizes, weights, gpus, main)
    return PlacementPlan(devices=devices, weights_bytes=weights, main_device=main, notes=tuple(notes))


def weights_by_device(sizes: ModelSizes, devices: Mapping[str, str]) -> dict[str, int]:
    """Return the bytes of weights on each device of a map."""
    weights = dict.fromkeys(devices.values(), 0)
    for name, size in sizes.parts_bytes.items():
        weights[device_of(name, devices) or ""] += size
    return weights


def _infer_map(empty: Any, room: MemoryBudget, name: str) -> tuple[dict[str, str], list[Note]]:
    """Return the map that accelerate makes, with memory for the load where there is enough, and notes on it."""
    for loaded, strategy in product((True, False), dict.fromkeys((name, SEQUENTIAL))):
        devices = _infer_one_map(empty, room, strategy, loaded=loaded)
        if devices is None:
            continue
        notes = []
        if strategy != name:
            message = f"{name} does not fit into what is free, so GPUs are filled one after another"
            notes.append(Note(code="filled_in_order", message=message))
        if not loaded:
            message = f"the weights fit, and little is left beside them: {room.load.description} may not"
            notes.append(Note(code="memory_tight", message=message))
        return devices, notes
    raise fit_error(room)


def _infer_one_map(empty: Any, room: MemoryBudget, strategy: str, *, loaded: bool) -> dict[str, str] | None:
    """Return one map, or null where a part would be on a device that is not allowed or has no memory for it."""
    budgets = {device: room.weights_capacity(device, loaded=loaded) for device in room.devices}
    only = room.devices[0]
    if len(room.devices) == 1:
        return {WHOLE_MODEL: only} if room.sizes.weights_bytes <= budgets[only] else None
    named: dict[int | str, str] = {
        device if device in OFFLOAD_DEVICES else number: device for number, device in enumerate(room.devices)
    }
    inferred = _accelerate_map(empty, {key: budgets[device] for key, device in named.items()}, strategy)
    if not set(inferred.values()) <= set(named):
        return None
    order = {part: number for number, (part, _) in enumerate(empty.named_modules())}
    devices = {part: named[inferred[part]] for part in sorted(inferred, key=lambda part: order.get(part, len(order)))}
    held = weights_by_device(room.sizes, devices)
    return devices if all(size <= budgets[device] for device, size in held.items()) else None


def _accelerate_map(empty: Any, most: dict[int | str, int], strategy: str) -> dict[str, int | str]:
    """Return accelerate's map; it puts parts that fit nowhere on disk, whether that is allowed or not."""
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    never_split = list(getattr(empty, "_no_split_modules", None) or ())
    limited = {key: size for key, size in most.items() if key != DISK}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if strategy != SEQUENTIAL:
            limited = get_balanced_memory(
                empty, limited, no_split_module_classes=never_split, low_zero=strategy == BALANCED_LOW_0
            )
        return dict(infer_auto_device_map(empty, limited, no_split_module_classes=never_split))


UNKNOWN_DEVICE = "nowhere"


def actual_placement(model: Any, visible: VisibleDevices) -> dict[str, str]:
    """Return the actual device of each part of a model from its tensors, by the machine's names."""
    devices = {}
    for name, part in model_parts(model):
        stored = {where for module in part.modules() for where in _weight_devices(module)}
        names = {CPU if where.partition(":")[0] == CPU else visible.machine_name(where) for where in stored}
        if names:
            devices[name] = " and ".join(sorted(names))
    return devices


def verify_placement(model: Any, plan: PlacementPlan, visible: VisibleDevices) -> dict[str, str]:
    """Return the planned map of a loaded model; raise if a part is on another device than planned."""
    for name, device in actual_placement(model, visible).items():
        planned = device_of(name, plan.devices)
        if device != planned:
            raise TrialFailed(f"The model was not placed as planned: {name} lies on {device}, and not on {planned}.")
    return dict(plan.devices)


def _weight_devices(module: Any) -> Iterator[str]:
    """Yield the devices of a module's own weights; accelerate's hook knows those of offloaded ones."""
    for name, weight in module.named_parameters(recurse=False):
        yield str(weight.device) if weight.device.type != "meta" else _offload_device(module, name)


def _offload_device(module: Any, name: str) -> str:
    """Return the device of an offloaded weight, from accelerate's hook, which may be composed of several."""
    hook = getattr(module, "_hf_hook", None)
    for single in () if hook is None else getattr(hook, "hooks", (hook,)):
        weights: Any = getattr(single, "weights_map", None)
        key = f"{getattr(weights, 'prefix', '')}{name}"
        store: Any = getattr(weights, "dataset", weights)
        if key in getattr(store, "state_dict", {}):
            return str(store.state_dict[key].device)
        if key in getattr(store, "index", {}):
            return DISK
    return UNKNOWN_DEVICE


ALL_ORDERS_UP_TO = 8  # up to this many GPUs every order is evaluated; with more, a greedy search is used

_LINK_PATHS: tuple[str, ...] = get_args(LinkPath)
_NVLINK_WORTH = 1000
"""A pair with NVLink ranks above any without; of two such pairs, the one with more links ranks higher."""


def order_gpus(device_ids: Sequence[int], links: Iterable[GpuLink]) -> tuple[int, ...]:
    """Return the GPUs in the order with the best links between neighbours; of equal ones, the closest to the given."""
    worth = {link.gpus: _link_worth(link) for link in links}

    def total_worth(order: Sequence[int]) -> int:
        return sum(worth.get(_pair(one, other), 0) for one, other in pairwise(order))

    if len(device_ids) <= ALL_ORDERS_UP_TO:
        return max(permutations(device_ids), key=total_worth) if device_ids else ()
    order, remaining = [device_ids[0]], list(device_ids[1:])
    while remaining:
        best = max(remaining, key=lambda gpu: worth.get(_pair(order[-1], gpu), 0))
        remaining.remove(best)
        order.append(best)
    return tuple(order)


def link_notes(device_ids: Sequence[int], links: Iterable[GpuLink]) -> tuple[str, ...]:
    """Return notes on neighbours in a pipeline without NVLink; none where links are not known."""
    without = {link.gpus for link in links if not link.nvlinks}
    return tuple(
        f"GPU {one} and GPU {other} are not linked by NVLink: activations go over PCIe"
        for one, other in pairwise(device_ids)
        if _pair(one, other) in without
    )


def _link_worth(link: GpuLink) -> int:
    """Return the rank of a link: by its number of NVLinks, and without any by its PCIe path."""
    near = len(_LINK_PATHS) - _LINK_PATHS.index(link.path) if link.path is not None else 0
    return near + (_NVLINK_WORTH + link.nvlinks if link.nvlinks else 0)


def _pair(one: int, other: int) -> tuple[int, int]:
    return min(one, other), max(one, other)


class ModelSizes(Value):
    """The memory that a model needs, in bytes.

    Weights are exact, and so is the KV cache where every layer keeps all tokens. The working memory of a call is an
    estimate: the widest layer's activations, and the logits in float32.
    """

    model: str
    dtype: str
    parameters: int = Field(description="Number of parameters; tied ones count once.")
    weights_bytes: int
    parts_bytes: dict[str, int] = Field(description="Bytes of weights, by layer and other parts that are never split.")
    layers: int
    kv_bytes_per_token: int = Field(description="Keys and values of one token of one sequence, over all layers.")
    hidden: int
    widest: int = Field(description="Most elements per token inside a layer.")
    context_tokens: int
    vocabulary: int

    def kv_bytes(self, batch: int, tokens: int) -> int:
        """Return the bytes of the KV cache of ``batch`` sequences of ``tokens`` tokens."""
        return self.kv_bytes_per_token * batch * tokens

    def working_bytes(self, batch: int, input_tokens: int) -> int:
        """Return the approximate working memory of a prefill, in bytes: activations, and logits in float32."""
        activations = batch * input_tokens * (6 * self.hidden + 3 * self.widest) * DTYPE_BYTES[self.dtype]
        return activations + 2 * batch * self.vocabulary * 4

    def needs_bytes(self, batch: int, input_tokens: int, output_tokens: int) -> int:
        """Return the approximate total memory to answer a batch on one device, in bytes."""
        return (
            self.weights_bytes
            + self.kv_bytes(batch, input_tokens + output_tokens)
            + self.working_bytes(batch, input_tokens)
        )


def model_sizes(model: str, empty: Any, dtype: str) -> ModelSizes:
    """Return the sizes of a model whose parameters are not in memory."""
    config = empty.config.get_text_config()
    parts = _part_bytes(empty)
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    return ModelSizes(
        model=model,
        dtype=dtype,
        parameters=sum(weight.numel() for weight in empty.parameters()),
        weights_bytes=sum(parts.values()),
        parts_bytes={name: size for name, size in parts.items() if size},
        layers=config.num_hidden_layers,
        kv_bytes_per_token=2 * config.num_hidden_layers * kv_heads * head * DTYPE_BYTES[dtype],
        hidden=config.hidden_size,
        widest=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        context_tokens=context_tokens_of(config),
        vocabulary=config.vocab_size,
    )


def context_tokens_of(config: ModelConfig) -> int:
    """Return the context length of a configuration: the most tokens of a prompt and its answer together."""
    text = config.get_text_config()
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        if isinstance(getattr(text, name, None), int):
            return int(getattr(text, name))
    return 2**31 - 1


def model_parts(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a model that are never split, from its inputs to its outputs: layers, embeddings, norms."""
    whole = set(getattr(model, "_no_split_modules", None) or ())

    def walk(name: str, module: Any) -> Iterator[tuple[str, Any]]:
        children = list(module.named_children())
        if not children or type(module).__name__ in whole or list(module.named_parameters(recurse=False)):
            yield name, module
            return
        for child, part in children:
            yield from walk(f"{name}.{child}" if name else child, part)

    yield from walk("", model)


def _part_bytes(model: Any) -> dict[str, int]:
    """Return the bytes of the weights of each part; tied ones belong to the first."""
    counted: set[int] = set()
    sizes: dict[str, int] = {}
    for name, part in model_parts(model):
        new = [weight for weight in part.parameters() if id(weight) not in counted]
        counted.update(map(id, new))
        sizes[name] = sum(weight.numel() * weight.element_size() for weight in new)
    return sizes


CPU, DISK = "cpu", "disk"
OFFLOAD_DEVICES = (CPU, DISK)  # devices other than GPUs: parts there are copied to a GPU when they are used

_SIZE_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def gpu_device(number: int) -> str:
    """Return the machine's name of a GPU."""
    return f"cuda:{number}"


def parse_bytes(value: int | str, what: str = "max_memory") -> int:
    """Parse a size in bytes, from a number or text such as 20GB, 18GiB or 500 MB."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str) and value.strip().isdecimal():
        size = int(value)
    else:
        match = _SIZE_TEXT.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise BadInput(f"{what}: {value!r} is not a size; write bytes, or text as 20GB or 18GiB.")
        size = int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].lower()])
    if size < 0:
        raise BadInput(f"{what}: a size is not less than 0, as {value!r} is.")
    return size


def parse_device(key: int | str, device_ids: Sequence[int], what: str) -> str:
    """Return the device of a key or value: a GPU of ``device_ids`` by its number, ``cpu`` or ``disk``."""
    text = str(key).strip().removeprefix("cuda:")
    if text in OFFLOAD_DEVICES:
        return text
    if not text.isdecimal():
        raise BadInput(f"{what}: {key!r} is no place; name a GPU by its number, or cpu or disk.")
    if int(text) not in device_ids:
        has = f"backend.device_ids has {format_list([*map(str, device_ids)])}"
        raise BadInput(f"{what} names GPU {text}, and {has if device_ids else 'the model is not on GPUs'}.")
    return gpu_device(int(text))


def parse_limits(max_memory: Mapping[int | str, int | str] | None, device_ids: Sequence[int]) -> dict[str, int]:
    """Return the limits of bytes of weights by device, ``{"cuda:2": 20000000000, "cpu": …}``; refuse invalid ones."""
    limits: dict[str, int] = {}
    for key, value in (max_memory or {}).items():
        device = parse_device(key, device_ids, "max_memory")
        if device in limits:
            raise BadInput(f"max_memory names {device} twice.")
        limits[device] = parse_bytes(value, f"max_memory of {key}")
    return limits


USABLE_SHARE = 0.95  # usable share of free memory: libraries need some, and the allocator fragments


@dataclass(frozen=True)
class BatchLoad:
    """The batch that a model runs at once."""

    batch: int = 1
    input_tokens: int = 1
    output_tokens: int = 1

    @property
    def tokens(self) -> int:
        """Tokens of one sequence at its end."""
        return self.input_tokens + self.output_tokens

    @property
    def description(self) -> str:
        """The batch as text."""
        return f"a batch of {self.batch} with {self.input_tokens} + {self.output_tokens} tokens"


@dataclass(frozen=True)
class MemoryBudget:
    """The free memory and the limits of each device, and the model and batch to place."""

    sizes: ModelSizes
    gpus: Sequence[str]
    free_bytes: Mapping[str, int]
    limits: Mapping[str, int]
    load: BatchLoad = field(default_factory=BatchLoad)

    @property
    def devices(self) -> tuple[str, ...]:
        """Possible devices of parts: GPUs in order, then those named in the limits; without GPUs, the CPU."""
        offload = [device for device in OFFLOAD_DEVICES if device in self.limits]
        return (*self.gpus, *offload) if self.gpus else (CPU, *(device for device in offload if device != CPU))

    def weights_capacity(self, device: str, *, loaded: bool) -> int:
        """Return the bytes of weights that fit on a device, with or without memory for the batch.

        The batch takes the working memory, and of each layer's memory the share of its KV cache.
        """
        most = self.limits.get(device)
        if device == DISK:
            return 2**62 if most is None else most
        free = int(self.free_bytes[device] * USABLE_SHARE)
        if loaded and (device in self.gpus or not self.gpus):
            layer = median(self.sizes.parts_bytes.values())
            cache = self.sizes.kv_bytes(self.load.batch, self.load.tokens) / self.sizes.layers
            working = self.sizes.working_bytes(self.load.batch, self.load.input_tokens)
            free = int(max(0, free - working) * (layer / (layer + cache)))
        return free if most is None else min(free, most)


def _check_room(room: MemoryBudget, weights: Mapping[str, int]) -> None:
    """Refuse a map by which a device gets more weights than fit."""
    for device, size in weights.items():
        if size > room.weights_capacity(device, loaded=False):
            error = BadInput if size > room.limits.get(device, size) else MachineCannot
            raise error(
                f"By device_map {describe_device(device)} holds {format_bytes(size)} of the weights of "
                f"{room.sizes.model}, and {_free_memory_text(room, device)}."
            )


def fit_error(room: MemoryBudget) -> MachineCannot:
    """Return the error that a model does not fit, with suggestions."""
    sizes = room.sizes
    there = " and ".join(_free_memory_text(room, device) for device in room.devices)
    suggestions = filter(None, (_suggest_gpus(room), _suggest_dtype(room), _suggest_host_memory(room)))
    advice = "; or ".join(suggestions)
    return MachineCannot(
        f"{sizes.model} in {sizes.dtype} does not fit: its weights take {format_bytes(sizes.weights_bytes)}, "
        f"and {there}. {f'What would do: {advice}.' if advice else 'A smaller model would.'}"
    )


def describe_device(device: str) -> str:
    """Return the display name of a device."""
    if device.startswith("cuda:"):
        return f"GPU {device.removeprefix('cuda:')}"
    return "the host's memory" if device == CPU else "the disk"


def _free_memory_text(room: MemoryBudget, device: str) -> str:
    free, most = room.free_bytes.get(device), room.limits.get(device)
    if most is not None and (free is None or most < free * USABLE_SHARE):
        return f"max_memory gives {format_bytes(most)} to {describe_device(device)}"
    return f"{describe_device(device)} has {format_bytes(free or 0)} free"


def _suggest_gpus(room: MemoryBudget) -> str | None:
    """Suggest a number of GPUs like the best of these, given that the largest part is not split."""
    if not room.gpus:
        return None
    if any(gpu in room.limits for gpu in room.gpus):
        return "more in backend.max_memory"
    rooms = {gpu: room.weights_capacity(gpu, loaded=True) for gpu in room.gpus}
    best = max(rooms, key=lambda gpu: rooms[gpu])
    per_gpu = rooms[best] - max(room.sizes.parts_bytes.values())
    if per_gpu <= 0:
        return None
    alike = min(rooms.values()) > rooms[best] * USABLE_SHARE
    count = max(len(room.gpus) + 1 if alike else 1, math.ceil(room.sizes.weights_bytes / per_gpu))
    return f"about {count} GPUs with as much free as {describe_device(best)} (backend.device_ids)"


def _suggest_dtype(room: MemoryBudget) -> str | None:
    """Suggest a smaller dtype, where it would fit."""
    there = sum(room.weights_capacity(device, loaded=True) for device in room.devices)
    if DTYPE_BYTES[room.sizes.dtype] <= 2 or room.sizes.weights_bytes / 2 > there:
        return None
    return "bfloat16 or float16, which takes half (backend.torch_dtype)"


def _suggest_host_memory(room: MemoryBudget) -> str | None:
    """Suggest host memory, where it would fit, with its cost."""
    if not room.gpus or CPU in room.limits:
        return None
    host = room.weights_capacity(CPU, loaded=False) if CPU in room.free_bytes else 0
    if host + sum(room.weights_capacity(gpu, loaded=True) for gpu in room.gpus) < room.sizes.weights_bytes:
        return None
    return "backend.max_memory with cpu: parts then lie in the host's memory, and tokens are measured through PCIe"
