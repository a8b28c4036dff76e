"""How much memory a model takes, whether it fits, and what would make it fit, before anything is loaded.

Sizes come from a copy of the model that has shapes and no weights. ``max_memory`` limits the bytes of weights on each
device.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from pydantic import Field

from assay.core.errors import AssayError, BadInput, MachineCannot
from assay.core.format import format_bytes, format_list
from assay.core.values import Value
from assay.workloads.generation.models import DTYPE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from assay.workloads.generation.models import ModelConfig


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
        """Return the approximate working memory of a prefill, in bytes."""
        item_bytes = DTYPE_BYTES[self.dtype]
        activations = batch * input_tokens * (6 * self.hidden + 3 * self.widest) * item_bytes
        scores = 2 * batch * self.vocabulary * 4
        return activations + scores

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
    parts = {name: sum(map(_weight_bytes, weights)) for name, weights in _weights_by_part(empty).items()}
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
    yield from _walk_parts("", model, whole)


def _walk_parts(name: str, module: Any, whole: set[str]) -> Iterator[tuple[str, Any]]:
    children = list(module.named_children())
    if not children or type(module).__name__ in whole or list(module.named_parameters(recurse=False)):
        yield name, module
        return
    for child, part in children:
        yield from _walk_parts(f"{name}.{child}" if name else child, part, whole)


def _weights_by_part(model: Any) -> dict[str, list[Any]]:
    """Return the weights of each part; tied ones belong to the first."""
    counted: set[int] = set()
    weights: dict[str, list[Any]] = {}
    for name, part in model_parts(model):
        new = [weight for weight in part.parameters() if id(weight) not in counted]
        counted.update(map(id, new))
        weights[name] = new
    return weights


def _weight_bytes(weight: Any) -> int:
    return int(weight.numel()) * int(weight.element_size())


CPU, DISK = "cpu", "disk"
OFFLOAD_DEVICES = (CPU, DISK)
"""Devices other than GPUs: parts there are copied to a GPU when they are used."""

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
        there = (
            f"backend.device_ids has {format_list([*map(str, device_ids)])}"
            if device_ids
            else "the model is not on GPUs"
        )
        raise BadInput(f"{what} names GPU {text}, and {there}.")
    return gpu_device(int(text))


def parse_limits(max_memory: Mapping[int | str, int | str] | None, device_ids: Sequence[int]) -> dict[str, int]:
    """Return the limits of bytes of weights by device, ``{"cuda:2": 20000000000, "cpu": …}``, of the named ones only.

    Raises:
        BadInput: A size is not valid, or a device is not one of the model's.
    """
    limits: dict[str, int] = {}
    for key, value in (max_memory or {}).items():
        device = parse_device(key, device_ids, "max_memory")
        if device in limits:
            raise BadInput(f"max_memory names {device} twice.")
        limits[device] = parse_bytes(value, f"max_memory of {key}")
    return limits


GIB = 2**30
USABLE_SHARE = 0.95
"""Usable share of free memory: libraries need some, and the allocator fragments."""


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
        """Return the bytes of weights that fit on a device, with or without memory for the batch."""
        most = self.limits.get(device)
        if device == DISK:
            return 2**62 if most is None else most
        free = int(self.free_bytes[device] * USABLE_SHARE)
        if loaded and (device in self.gpus or not self.gpus):
            free = int(max(0, free - self._working()) * self._share_of_weights())
        return free if most is None else min(free, most)

    def _working(self) -> int:
        return self.sizes.working_bytes(self.load.batch, self.load.input_tokens)

    def _share_of_weights(self) -> float:
        """Return the share of weights in a layer's memory; the rest is its KV cache."""
        layer = median(self.sizes.parts_bytes.values())
        cache = self.sizes.kv_bytes(self.load.batch, self.load.tokens) / self.sizes.layers
        return layer / (layer + cache)


def overfull_error(room: MemoryBudget, weights: Mapping[str, int]) -> AssayError | None:
    """Return an error for a device that gets more weights than fit, by a map; null where none does."""
    for device, size in weights.items():
        if size > room.weights_capacity(device, loaded=False):
            error = BadInput if size > room.limits.get(device, size) else MachineCannot
            return error(
                f"By device_map {describe_device(device)} holds {format_bytes(size)} of the weights of "
                f"{room.sizes.model}, "
                f"and {_free_memory_text(room, device)}."
            )
    return None


def fit_error(room: MemoryBudget) -> MachineCannot:
    """Return the error that a model does not fit, with suggestions."""
    sizes = room.sizes
    there = " and ".join(_free_memory_text(room, device) for device in room.devices)
    suggestions = [
        suggestion
        for suggestion in (_suggest_gpus(room), _suggest_dtype(room), _suggest_host_memory(room))
        if suggestion
    ]
    return MachineCannot(
        f"{sizes.model} in {sizes.dtype} does not fit: its weights take {format_bytes(sizes.weights_bytes)}, "
        f"and {there}. "
        f"{_suggestions_text(suggestions) if suggestions else 'A smaller model would.'}"
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


def _suggestions_text(suggestions: Sequence[str]) -> str:
    return f"What would do: {'; or '.join(suggestions)}."
