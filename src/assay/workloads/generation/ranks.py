"""A model that several processes compute together: tensor parallelism, as transformers plans it for each model.

Every rank has its share of each layer's weights and adds its part to the others'. Layers placed one after another on
GPUs (``device_map``) are no such thing: there one GPU works at a time, in one process.
"""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.core.environment import variable
from assay.core.errors import BadInput, MachineCannot
from assay.workloads import torch_ranks
from assay.workloads.generation.fitting import USABLE, gib
from assay.workloads.generation.models import is_random
from assay.workloads.generation.random_weights import drawn, put, std_of
from assay.workloads.generation.weights import read_checkpoint
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.workloads.generation.params import Generation
    from assay.workloads.generation.sizes import Predicted
    from assay.workloads.torch_ranks import Ranks


@dataclass(frozen=True)
class Shared:
    """This rank's share of a model, and how it speaks with the others."""

    model: Any
    ranks: Ranks
    leave: Callable[[], None]
    notes: tuple[str, ...] = ()


def refuse_ranks_without_plan(tp_plan: str, environment: Mapping[str, str] | None = None) -> None:
    """Refuse to load all of a model in each of several processes, and a share of it in a single one.

    Raises:
        BadInput: Ranks and plan do not go together.
    """
    size = _size(environment)
    if size > 1 and not tp_plan:
        raise BadInput(
            f"This is one of {size} ranks, and without tp_plan each would load all of the model; "
            "device_map needs one process that sees all GPUs."
        )
    if size == 1 and tp_plan:
        raise BadInput("tp_plan needs two ranks or more, each with a device of its own.")


def refuse_large_share(sizes: Predicted, free: int, environment: Mapping[str, str] | None = None) -> None:
    """Refuse a model of which even an equal share is more than what is free for this rank.

    Raises:
        MachineCannot: It is.
    """
    size = _size(environment)
    if sizes.weights_bytes / size > free * USABLE:
        raise MachineCannot(
            f"{sizes.model} in {sizes.dtype} does not fit: of {gib(sizes.weights_bytes)} each of {size} ranks holds "
            f"{gib(sizes.weights_bytes / size)} at least, and {gib(free)} are free. More GPUs may do: see device_ids."
        )


def share_out(generation: Generation, empty: Any, where: str, seed: int) -> Shared:
    """Return this rank's share of a model, with its weights, having met the other ranks.

    Raises:
        MachineCannot: Transformers has no plan for such a model, or its heads cannot be shared out evenly.
    """
    ranks = torch_ranks.join(where)
    try:
        refuse_unequal(empty, ranks.size)
        mesh = _mesh(ranks, where)
        if is_random(generation.model):
            model = _drawn_in_shares(empty, mesh, ranks.size, where, seed)
        else:
            model = _read_in_shares(generation, empty.dtype, mesh, ranks.size, where)
    except BaseException:
        torch_ranks.leave()
        raise
    note = f"tensor parallel: {ranks.size} ranks compute each layer together, and wait for each other twice in it"
    return Shared(model, ranks, torch_ranks.leave, (note,))


def refuse_unequal(empty: Any, size: int) -> None:
    """Refuse a model for which there is no plan, or whose heads so many ranks cannot share.

    Raises:
        MachineCannot: It is one.
    """
    config = empty.config.get_text_config()
    if not getattr(empty, "tp_plan", None):
        raise MachineCannot(f"Transformers has no tp_plan for {type(empty).__name__}: place its layers by device_map.")
    heads = config.num_attention_heads
    for name, count in (("heads", heads), ("key-value heads", getattr(config, "num_key_value_heads", None) or heads)):
        if count % size:
            raise MachineCannot(f"{count} {name} cannot be shared out evenly to {size} ranks.")


def _size(environment: Mapping[str, str] | None) -> int:
    return int((os.environ if environment is None else environment).get("WORLD_SIZE", "1"))


def agreed(stop: int) -> bool:
    """Return whether any rank would stop; all of them ask at once and hear the same."""
    torch = import_torch()
    vote = torch.tensor([int(stop)])
    torch.distributed.all_reduce(vote, op=torch.distributed.ReduceOp.MAX)
    return bool(vote.item())


def _mesh(ranks: Ranks, where: str) -> Any:
    """Return the ranks as PyTorch's mesh: over NCCL where each has a GPU of its own, over gloo otherwise."""
    from torch.distributed.device_mesh import DeviceMesh

    kind = where.partition(":")[0]
    if ranks.group is not None:
        return DeviceMesh.from_group(ranks.group, kind, mesh_dim_names=("tp",))
    return DeviceMesh(kind, list(range(ranks.size)), mesh_dim_names=("tp",))


class _Manager:
    """A mesh as later versions of transformers ask for it: there are no other kinds of ranks than these."""

    def __init__(self, mesh: Any) -> None:
        self._mesh = mesh

    def get_mesh(self, _kinds: object) -> Any:
        """Return the mesh, whichever kinds of ranks are asked for."""
        return self._mesh


def _manages_meshes() -> bool:
    """Return whether this version of transformers makes its meshes itself."""
    from transformers import PreTrainedModel

    return "mesh_manager" in inspect.signature(PreTrainedModel.maybe_distribute_model).parameters


def _drawn_in_shares(model: Any, mesh: Any, size: int, where: str, seed: int) -> Any:
    """Have transformers share an empty model out, then draw each weight whole on every rank, and keep a share of it."""
    from accelerate.utils import find_tied_parameters
    from torch.distributed.tensor import DTensor, distribute_tensor
    from transformers.distributed.configuration_utils import DistributedConfig

    own = {name for name, _ in model.named_parameters()}
    first = {name: min(own & set(group)) for group in find_tied_parameters(model) for name in group}
    std = std_of(model)
    mesh_argument = _Manager(mesh) if _manages_meshes() else mesh
    model = type(model).maybe_distribute_model(model, DistributedConfig(tp_size=size, tp_plan="auto"), mesh_argument)
    for name, weight in list(model.named_parameters(remove_duplicate=False)):
        values = drawn(first.get(name, name), weight, std, seed, where)
        if isinstance(weight, DTensor):
            values = distribute_tensor(values, mesh, weight.placements, src_data_rank=None)
        put(model, name, values)
    for name, buffer in list(model.named_buffers()):
        put(model, name, buffer.to(where))
    return model


def _read_in_shares(generation: Generation, dtype: Any, mesh: Any, size: int, where: str) -> Any:
    """Read this rank's share of a checkpoint; transformers takes the number of this rank's GPU from the environment."""
    from transformers.distributed.configuration_utils import DistributedConfig

    with variable("LOCAL_RANK", where.partition(":")[2] or "0"):
        plan = DistributedConfig(tp_size=size, tp_plan="auto")
        ours = {} if _manages_meshes() else {"device_mesh": mesh}
        return read_checkpoint(generation, dtype, distributed_config=plan, **ours)
