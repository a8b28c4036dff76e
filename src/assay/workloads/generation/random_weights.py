"""Models with random weights, made where they are to lie: no copy of them in the host's memory, no float32 before.

A weight depends on the seed, its name and the kind of device that draws it, not on where the model is placed, so that
a model that is split is the same as one that is not.
"""

from __future__ import annotations

import copy
import hashlib
from typing import TYPE_CHECKING, Any

from assay.core.errors import MachineCannot
from assay.workloads.generation.models import Config, import_transformers
from assay.workloads.torch_device import Tensor, import_torch

if TYPE_CHECKING:
    from collections.abc import Callable

STD = 0.02
"""How far weights are from zero, where a configuration does not say."""


def empty_model(config: Config, dtype: Any, attention: str = "", *, trust_remote_code: bool = False) -> Any:
    """Return a model whose parameters take no memory; its buffers are there, in the host's memory, and right."""
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


def fill(model: Any, seed: int, where: str, place: Callable[[str], str]) -> None:
    """Draw all weights of an empty model on the device ``where``, and put each, and each buffer, in its place."""
    std = std_of(model)
    for name, weight in list(model.named_parameters()):
        put(model, name, drawn(name, weight, std, seed, where).to(place(name)))
    for name, buffer in list(model.named_buffers()):
        put(model, name, buffer.to(place(name)))
    model.tie_weights()


def put(model: Any, name: str, values: Tensor) -> None:
    """Make values those of a weight or a buffer of a model."""
    owner, _, short = name.rpartition(".")
    module = model.get_submodule(owner)
    if short in dict(module.named_parameters(recurse=False)):
        values = import_torch().nn.Parameter(values, requires_grad=False)
    setattr(module, short, values)


def std_of(model: Any) -> float:
    """Return how far weights are from zero."""
    return float(getattr(model.config, "initializer_range", None) or STD)


def drawn(name: str, weight: Tensor, std: float, seed: int, where: str) -> Tensor:
    """Return the values of one weight: scales of norms are 1, biases 0, all others normal."""
    torch = import_torch()
    if name.endswith(".bias"):
        return torch.zeros(weight.shape, dtype=weight.dtype, device=where)
    if weight.dim() == 1:
        return torch.ones(weight.shape, dtype=weight.dtype, device=where)
    own = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "big") >> 1
    generator = torch.Generator(device=where).manual_seed(own)
    return torch.empty(weight.shape, dtype=weight.dtype, device=where).normal_(0.0, std, generator=generator)
