"""Weights into a planned model: drawn at random, or read from a checkpoint; then spread over the places of the plan."""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any

from assay.core.errors import MachineCannot
from assay.workloads.generation.explicit import place_of
from assay.workloads.generation.hub import is_offline, local_folder
from assay.workloads.generation.limits import DISK, ELSEWHERE
from assay.workloads.generation.models import import_transformers, is_random
from assay.workloads.generation.random_weights import fill
from assay.workloads.generation.unreadable import not_read
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.workloads.generation.params import Generation
    from assay.workloads.generation.placement import Plan
    from assay.workloads.generation.seen import Seen

_SHOWN = 3


def put_in_place(
    generation: Generation, empty: Any, plan: Plan, seen: Seen, seed: int
) -> tuple[Any, list[Callable[[], None]]]:
    """Return a model with its weights where they were planned, and what is to be done when it is given back."""
    closing: list[Callable[[], None]] = []
    folder = None
    if DISK in plan.places.values():
        folder = tempfile.mkdtemp(prefix="assay-weights-")
        closing.append(partial(shutil.rmtree, folder, ignore_errors=True))
    try:
        if is_random(generation.model):
            return _random(empty, plan, seen, seed, folder), closing
        return _read(generation, empty.dtype, plan, seen, folder), closing
    except BaseException:
        for close in closing:
            close()
        raise


def _random(model: Any, plan: Plan, seen: Seen, seed: int, folder: str | None) -> Any:
    """Draw weights where they compute, put them where they lie, and have accelerate move what must be moved."""
    from accelerate import dispatch_model

    def device_of_weight(name: str) -> str:
        planned = place_of(name, plan.places) or plan.main
        return "cpu" if planned in ELSEWHERE else seen.here[planned]

    fill(model, seed, seen.here[plan.main], device_of_weight)
    if not plan.split and not plan.offloaded:
        return model
    device_map = {part: seen.for_accelerate(where) for part, where in plan.places.items()}
    return dispatch_model(
        model,
        device_map,
        main_device=seen.for_accelerate(plan.main),
        offload_dir=folder,
        skip_keys=getattr(model, "_skip_keys_device_placement", None),
    )


def _read(generation: Generation, dtype: Any, plan: Plan, seen: Seen, folder: str | None) -> Any:
    """Return a model read from a checkpoint straight to its places."""
    more = {"offload_folder": folder} if folder else {}
    device_map = {part: seen.for_accelerate(where) for part, where in plan.places.items()}
    return read_checkpoint(generation, dtype, device_map=device_map, **more)


def read_checkpoint(generation: Generation, dtype: Any, **more: Any) -> Any:
    """Return the model of a folder or the hub, all of whose weights were there.

    Raises:
        MachineCannot: It cannot be read, or weights are missing: they would be random, and nobody would know.
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
        raise not_read(generation.model, generation.revision, error) from error
    missing = sorted({*loading_info["missing_keys"], *(key for key, *_ in loading_info["mismatched_keys"])})
    if missing:
        beyond = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise MachineCannot(
            f"The checkpoint of {generation.model} lacks weights of the model: {', '.join(missing[:_SHOWN])}{beyond}."
        )
    return model
