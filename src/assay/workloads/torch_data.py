"""Seeded tensors of a stated distribution, the same in every precision.

Up to ``MOST_FROM_NUMPY`` elements they are those of ``data.py``, so the same in every implementation too. Larger ones
are drawn on the device, in float64 as well, by PyTorch's generator for it: the same for one seed, one version of
PyTorch and one model of GPU, but not those of a CPU.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import BadInput
from assay.workloads import data
from assay.workloads.parameters import one_of
from assay.workloads.sharing import shared
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from assay.core.values import Scalar
    from assay.workloads.torch_device import Tensor

MOST_FROM_NUMPY = 2**22
"""Elements; numpy draws so many in about a tenth of a second."""

_DRAWN_AT_ONCE = 2**24
"""Elements; 128 MiB of float64 are held beside the tensor while it is filled."""


def draw(distribution: Scalar, shape: data.Shape, dtype: str, seed: int, *, where: str, stream: int = 0) -> Tensor:
    """Return a tensor on a device; the inputs of one call each take a stream of their own."""
    make = partial(_drawn, distribution, shape, dtype, seed, where=where, stream=stream)
    return shared(("torch", distribution, shape, dtype, seed, where, stream), make)


def kept_output(like: Tensor, shape: data.Shape) -> Tensor:
    """Return a tensor to write into, of the device and dtype of another."""
    return shared(("output", shape, like.dtype, like.device), lambda: like.new_empty(shape))


def _drawn(distribution: Scalar, shape: data.Shape, dtype: str, seed: int, *, where: str, stream: int) -> Tensor:
    torch = import_torch()
    if math.prod(shape) <= MOST_FROM_NUMPY:
        values = data.draw(distribution, shape, "float64", seed, stream=stream)
        return torch.from_numpy(values).to(where, getattr(torch, dtype))
    name = one_of("distribution", distribution, data.DISTRIBUTIONS)
    out = torch.zeros(shape, dtype=getattr(torch, dtype), device=where)
    if name != "zeros":
        _fill(out, name, seed, stream)
    return out


def _fill(out: Tensor, name: str, seed: int, stream: int) -> None:
    if seed < 0:
        raise BadInput(f"The seed is zero or more, not {seed}.")
    torch = import_torch()
    generator = torch.Generator(device=out.device)
    generator.manual_seed(int(np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0]))
    for part in out.view(-1).split(_DRAWN_AT_ONCE):
        wide = torch.empty_like(part, dtype=torch.float64)
        part.copy_(wide.normal_(generator=generator) if name == "normal" else wide.uniform_(-1, 1, generator=generator))
