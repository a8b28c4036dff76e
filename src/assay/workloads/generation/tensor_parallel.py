"""Tensor parallelism: several processes compute a model together, by transformers' plan for each model.

Every rank has a shard of each layer's weights and adds its partial result to the others'. Layers placed one after
another on GPUs (``device_map``) are different: there one GPU works at a time, in one process.
"""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput, MachineCannot
from assay.core.format import format_bytes
from assay.core.processes import temporary_variable
from assay.core.results import Note
from assay.workloads import torch_ranks
from assay.workloads.generation.memory import USABLE_SHARE
from assay.workloads.generation.models import is_random
from assay.workloads.generation.weights import draw_weight, put_weight, read_checkpoint, weight_std
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.workloads.generation.memory import ModelSizes
    from assay.workloads.generation.params import Generation
    from assay.workloads.torch_ranks import Ranks


@dataclass(frozen=True)
class RankShare:
    """This rank's shard of a model, and its process group."""

    model: Any
    ranks: Ranks
    leave: Callable[[], None]
    notes: tuple[Note, ...] = ()


def check_tp_plan(tp_plan: str, environment: Mapping[str, str] | None = None) -> None:
    """Refuse several ranks without a plan, where each would load the whole model, and a plan with a single rank.

    Raises:
        BadInput: The number of ranks and the plan are inconsistent.
    """
    size = _world_size(environment)
    if size > 1 and not tp_plan:
        raise BadInput(
            f"This is one of {size} ranks, and without tp_plan each would load all of the model; "
            "device_map needs one process that sees all GPUs."
        )
    if size == 1 and tp_plan:
        raise BadInput("tp_plan needs two ranks or more, each with a device of its own.")


def check_share_fits(sizes: ModelSizes, free: int, environment: Mapping[str, str] | None = None) -> None:
    """Refuse a model whose equal shard is larger than this rank's free memory.

    Raises:
        MachineCannot: It does not fit.
    """
    size = _world_size(environment)
    if sizes.weights_bytes / size > free * USABLE_SHARE:
        raise MachineCannot(
            f"{sizes.model} in {sizes.dtype} does not fit: of {format_bytes(sizes.weights_bytes)} each of "
            f"{size} ranks holds "
            f"{format_bytes(sizes.weights_bytes / size)} at least, and {format_bytes(free)} are free. More "
            "GPUs may do: see device_ids."
        )


def load_share(generation: Generation, empty: Any, where: str, seed: int) -> RankShare:
    """Join the other ranks and return this rank's shard of a model, with its weights.

    Raises:
        MachineCannot: Transformers has no plan for such a model, or its heads cannot be divided evenly.
    """
    ranks = torch_ranks.join_ranks(where)
    try:
        check_divisible(empty, ranks.size)
        mesh = _device_mesh(ranks, where)
        if is_random(generation.model):
            model = _random_share(empty, mesh, ranks.size, where, seed)
        else:
            model = _read_share(generation, empty.dtype, mesh, ranks.size, where)
    except BaseException:
        torch_ranks.leave_ranks()
        raise
    message = f"tensor parallel: {ranks.size} ranks compute each layer together, and wait for each other twice in it"
    note = Note(code="tensor_parallel", message=message, params={"ranks": ranks.size})
    return RankShare(model, ranks, torch_ranks.leave_ranks, (note,))


def check_divisible(empty: Any, size: int) -> None:
    """Refuse a model without a plan, or whose heads cannot be divided by the number of ranks.

    Raises:
        MachineCannot: Either is the case.
    """
    config = empty.config.get_text_config()
    if not getattr(empty, "tp_plan", None):
        raise MachineCannot(f"Transformers has no tp_plan for {type(empty).__name__}: place its layers by device_map.")
    heads = config.num_attention_heads
    for name, count in (("heads", heads), ("key-value heads", getattr(config, "num_key_value_heads", None) or heads)):
        if count % size:
            raise MachineCannot(f"{count} {name} cannot be shared out evenly to {size} ranks.")


def _world_size(environment: Mapping[str, str] | None) -> int:
    return int((os.environ if environment is None else environment).get("WORLD_SIZE", "1"))


def agree_to_stop(stop: int) -> bool:
    """Return whether any rank would stop; a collective call, with the same result on all ranks."""
    torch = import_torch()
    vote = torch.tensor([int(stop)])
    torch.distributed.all_reduce(vote, op=torch.distributed.ReduceOp.MAX)
    return bool(vote.item())


def _device_mesh(ranks: Ranks, where: str) -> Any:
    """Return the ranks as PyTorch's device mesh: over NCCL where each has its own GPU, over gloo otherwise."""
    from torch.distributed.device_mesh import DeviceMesh

    kind = where.partition(":")[0]
    if ranks.group is not None:
        return DeviceMesh.from_group(ranks.group, kind, mesh_dim_names=("tp",))
    return DeviceMesh(kind, list(range(ranks.size)), mesh_dim_names=("tp",))


class _MeshManager:
    """A mesh manager for later versions of transformers, with one mesh for every kind of parallelism."""

    def __init__(self, mesh: Any) -> None:
        self._mesh = mesh

    def get_mesh(self, _kinds: object) -> Any:
        """Return the mesh, whatever kinds of parallelism are requested."""
        return self._mesh


def _manages_meshes() -> bool:
    """Return whether this version of transformers takes a mesh manager."""
    from transformers import PreTrainedModel

    return "mesh_manager" in inspect.signature(PreTrainedModel.maybe_distribute_model).parameters


def _random_share(model: Any, mesh: Any, size: int, where: str, seed: int) -> Any:
    """Let transformers shard an empty model, then draw each whole weight on every rank and keep this rank's shard."""
    from accelerate.utils import find_tied_parameters
    from torch.distributed.tensor import DTensor, distribute_tensor
    from transformers.distributed.configuration_utils import DistributedConfig

    own = {name for name, _ in model.named_parameters()}
    first = {name: min(own & set(group)) for group in find_tied_parameters(model) for name in group}
    std = weight_std(model)
    mesh_argument = _MeshManager(mesh) if _manages_meshes() else mesh
    model = type(model).maybe_distribute_model(model, DistributedConfig(tp_size=size, tp_plan="auto"), mesh_argument)
    for name, weight in list(model.named_parameters(remove_duplicate=False)):
        values = draw_weight(first.get(name, name), weight, std, seed, where)
        if isinstance(weight, DTensor):
            values = distribute_tensor(values, mesh, weight.placements, src_data_rank=None)
        put_weight(model, name, values)
    for name, buffer in list(model.named_buffers()):
        put_weight(model, name, buffer.to(where))
    return model


def _read_share(generation: Generation, dtype: Any, mesh: Any, size: int, where: str) -> Any:
    """Read this rank's shard of a checkpoint; transformers takes this rank's GPU from ``LOCAL_RANK``."""
    from transformers.distributed.configuration_utils import DistributedConfig

    with temporary_variable("LOCAL_RANK", where.partition(":")[2] or "0"):
        plan = DistributedConfig(tp_size=size, tp_plan="auto")
        mesh_argument = {} if _manages_meshes() else {"device_mesh": mesh}
        return read_checkpoint(generation, dtype, distributed_config=plan, **mesh_argument)
