"""The type of a model's weights: as asked for, or as the model has them, where the device can compute in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput, MachineCannot, nearest
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from assay.workloads.generation.models import Config

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
AUTO = "auto"


def dtype_name(asked: str, config: Config, kind: str) -> str:
    """Return the name of the type that weights have on a kind of device, ``cpu`` or ``cuda``.

    ``auto`` is that of the checkpoint; random weights are bfloat16 on a GPU and float32 on a CPU.
    """
    if asked == AUTO:
        own = getattr(config, "dtype", None)
        if own is None:
            return "float32" if kind == "cpu" else "bfloat16"
        name = str(own).removeprefix("torch.")
        if name not in BYTES:
            raise BadInput(f"The model's own type is {name}; give backend.torch_dtype as one of {', '.join(BYTES)}.")
        return name
    if asked not in BYTES:
        raise BadInput(f"{asked!r} is no type of weights: {', '.join((AUTO, *BYTES))}.{nearest(asked, BYTES)}")
    return asked


def usable(name: str, where: str) -> Any:
    """Return PyTorch's type of that name, having seen that a device, by PyTorch's name, multiplies and attends in it.

    Raises:
        MachineCannot: It does not, or only by computing in another type.
    """
    torch = import_torch()
    dtype = getattr(torch, name)
    if where != "cpu" and name == "bfloat16":
        with torch.cuda.device(where):
            if not torch.cuda.is_bf16_supported(including_emulation=False):
                gpu = torch.cuda.get_device_name(where)
                raise MachineCannot(f"{gpu} does not compute in bfloat16; give backend.torch_dtype as float16.")
    try:
        one = torch.ones(1, 1, 8, 8, dtype=dtype, device=where)
        torch.nn.functional.scaled_dot_product_attention(one @ one, one, one).softmax(-1).sum().item()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise MachineCannot(
            f"{where} does not compute in {name} ({reason}); give another backend.torch_dtype."
        ) from error
    return dtype
