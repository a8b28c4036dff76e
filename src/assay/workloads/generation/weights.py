"""Weights of a planned model: random, or read from a checkpoint, placed on the devices of the plan.

Random weights are drawn in their dtype without a copy in host memory. A weight depends on the seed, its name and the
kind of device that draws it, not on the placement, so that a split model is the same as an unsplit one.
"""

from __future__ import annotations

import copy
import hashlib
import shutil
import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any

from assay.core.errors import MachineCannot
from assay.workloads.generation.memory import DISK, OFFLOAD_DEVICES
from assay.workloads.generation.models import (
    ModelConfig,
    import_transformers,
    is_offline,
    is_random,
    load_error,
    local_folder,
)
from assay.workloads.generation.placement import device_of
from assay.workloads.torch_device import Tensor, import_torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.workloads.generation.loading import VisibleDevices
    from assay.workloads.generation.params import Generation
    from assay.workloads.generation.placement import PlacementPlan


DEFAULT_STD = 0.02
"""Standard deviation of weights where the configuration has none."""


def make_empty_model(config: ModelConfig, dtype: Any, attention: str = "", *, trust_remote_code: bool = False) -> Any:
    """Return a model whose parameters take no memory; its buffers have their values, in host memory."""
    transformers = import_transformers()
    from accelerate import init_empty_weights

    more = {"attn_implementation": attention} if attention else {}
    try:
        with init_empty_weights(include_buffers=False):
            model = transformers.AutoModelForCausalLM.from_config(
                copy.deepcopy(config), dtype=dtype, trust_remote_code=trust_remote_code, **more
            )
    except (ImportError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise MachineCannot(f"A model of this configuration cannot be made here: {reason}") from error
    model.tie_weights()
    return model.eval().requires_grad_(False)


def fill_random(model: Any, seed: int, where: str, device_of_weight: Callable[[str], str]) -> None:
    """Draw all weights of an empty model on the device ``where``, and move each, and each buffer, to its device."""
    std = weight_std(model)
    for name, weight in list(model.named_parameters()):
        put_weight(model, name, draw_weight(name, weight, std, seed, where).to(device_of_weight(name)))
    for name, buffer in list(model.named_buffers()):
        put_weight(model, name, buffer.to(device_of_weight(name)))
    model.tie_weights()


def put_weight(model: Any, name: str, values: Tensor) -> None:
    """Set a weight or a buffer of a model."""
    owner, _, short = name.rpartition(".")
    module = model.get_submodule(owner)
    if short in dict(module.named_parameters(recurse=False)):
        values = import_torch().nn.Parameter(values, requires_grad=False)
    setattr(module, short, values)


def weight_std(model: Any) -> float:
    """Return the standard deviation of a model's weights."""
    return float(getattr(model.config, "initializer_range", None) or DEFAULT_STD)


def draw_weight(name: str, weight: Tensor, std: float, seed: int, where: str) -> Tensor:
    """Return the values of one weight: norm scales are 1, biases 0, all others normally distributed."""
    torch = import_torch()
    if name.endswith(".bias"):
        return torch.zeros(weight.shape, dtype=weight.dtype, device=where)
    if weight.dim() == 1:
        return torch.ones(weight.shape, dtype=weight.dtype, device=where)
    weight_seed = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "big") >> 1
    generator = torch.Generator(device=where).manual_seed(weight_seed)
    return torch.empty(weight.shape, dtype=weight.dtype, device=where).normal_(0.0, std, generator=generator)


_MAX_SHOWN = 3


def place_weights(
    generation: Generation, empty: Any, plan: PlacementPlan, devices: VisibleDevices, seed: int
) -> tuple[Any, list[Callable[[], None]]]:
    """Return a model with its weights placed as planned, and the callbacks for its release."""
    closing: list[Callable[[], None]] = []
    folder = None
    if DISK in plan.devices.values():
        folder = tempfile.mkdtemp(prefix="assay-weights-")
        closing.append(partial(shutil.rmtree, folder, ignore_errors=True))
    try:
        if is_random(generation.model):
            return _place_random(empty, plan, devices, seed, folder), closing
        return _place_checkpoint(generation, empty.dtype, plan, devices, folder), closing
    except BaseException:
        for close in closing:
            close()
        raise


def _place_random(model: Any, plan: PlacementPlan, devices: VisibleDevices, seed: int, folder: str | None) -> Any:
    """Draw weights on the main device and move them to theirs; accelerate handles split and offloaded parts."""
    from accelerate import dispatch_model

    def device_of_weight(name: str) -> str:
        planned = device_of(name, plan.devices) or plan.main_device
        return "cpu" if planned in OFFLOAD_DEVICES else devices.local_names[planned]

    fill_random(model, seed, devices.local_names[plan.main_device], device_of_weight)
    if not plan.is_split and not plan.offloaded:
        return model
    device_map = {part: devices.accelerate_key(where) for part, where in plan.devices.items()}
    return dispatch_model(
        model,
        device_map,
        main_device=devices.accelerate_key(plan.main_device),
        offload_dir=folder,
        skip_keys=getattr(model, "_skip_keys_device_placement", None),
    )


def _place_checkpoint(
    generation: Generation, dtype: Any, plan: PlacementPlan, devices: VisibleDevices, folder: str | None
) -> Any:
    """Return a model read from a checkpoint directly onto its devices."""
    more = {"offload_folder": folder} if folder else {}
    device_map = {part: devices.accelerate_key(where) for part, where in plan.devices.items()}
    return read_checkpoint(generation, dtype, device_map=device_map, **more)


def read_checkpoint(generation: Generation, dtype: Any, **more: Any) -> Any:
    """Return the model of a folder or the hub, with all of its weights.

    Raises:
        MachineCannot: It cannot be read, or weights are missing, which would silently be random.
    """
    transformers = import_transformers()
    local = local_folder(generation.model)
    if generation.attn_implementation:
        more["attn_implementation"] = generation.attn_implementation
    try:
        model, loading_info = transformers.AutoModelForCausalLM.from_pretrained(
            str(local or generation.model),
            revision=generation.revision or None,
            trust_remote_code=generation.trust_remote_code,
            local_files_only=local is not None or is_offline(),
            dtype=dtype,
            output_loading_info=True,
            **more,
        )
    except (MemoryError, import_torch().OutOfMemoryError):
        raise
    except Exception as error:
        raise load_error(generation.model, generation.revision, error) from error
    missing = sorted({*loading_info["missing_keys"], *(key for key, *_ in loading_info["mismatched_keys"])})
    if missing:
        beyond = f" and {len(missing) - _MAX_SHOWN} more" if len(missing) > _MAX_SHOWN else ""
        raise MachineCannot(
            f"The checkpoint of {generation.model} lacks weights of the model: "
            f"{', '.join(missing[:_MAX_SHOWN])}{beyond}."
        )
    return model
