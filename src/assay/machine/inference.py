"""A ready configuration for inference over several GPUs, from what is really there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.machine.model import Gpu

MEMORY_SHARE = 0.9
"""The share of a GPU's memory that a model may take; the rest is for activations and the context."""

FIRST_BFLOAT16 = (8, 0)


def inference_yaml(gpus: tuple[Gpu, ...]) -> str:
    """Return a ``backend`` section for these GPUs, with 90 % of each one's memory as its limit."""
    ids = [gpu.index for gpu in gpus]
    modern = all(gpu.compute_capability is not None and gpu.compute_capability >= FIRST_BFLOAT16 for gpu in gpus)
    lines = [
        "backend:",
        "  type: pytorch",
        "  device: cuda",
        f"  device_ids: [{', '.join(map(str, ids))}]",
        "  device_map: auto",
        f"  torch_dtype: {'bfloat16' if modern else 'float16'}",
    ]
    with_memory = [gpu for gpu in gpus if gpu.memory_mib is not None]
    if with_memory:
        lines.append("  max_memory:  # 90 % of what each GPU has")
        lines += [f'    {gpu.index}: "{int((gpu.memory_mib or 0) * MEMORY_SHARE)}MiB"' for gpu in with_memory]
    return "\n".join(lines) + "\n"
