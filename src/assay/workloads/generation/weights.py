"""Weights of a planned model: random, or read from a checkpoint, placed on the devices of the plan.

Random weights are drawn in their dtype without a copy in host memory. A weight depends on the seed, its name and the
kind of device that draws it, not on the placement, so that a split model is the same as an unsplit one.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import shutil
import tempfile
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput, MachineCannot
from assay.core.format import format_bytes, format_list
from assay.core.processes import temporary_variable
from assay.core.results import Note
from assay.workloads.base import one_line
from assay.workloads.generation.models import ModelConfig, import_transformers, is_random, load_error, source_arguments
from assay.workloads.generation.placement import DISK, OFFLOAD_DEVICES, USABLE_SHARE, device_of
from assay.workloads.torch_device import Tensor, import_torch, join_ranks, leave_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.workloads.generation.loading import VisibleDevices
    from assay.workloads.generation.params import Generation
    from assay.workloads.generation.placement import ModelSizes, PlacementPlan
    from assay.workloads.torch_device import Ranks

DEFAULT_STD = 0.02  # standard deviation of weights where the configuration has none


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
        raise MachineCannot(f"A model of this configuration cannot be made here: {one_line(error, 1000)}") from error
    model.tie_weights()
    return model.eval().requires_grad_(False)


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


def place_weights(
    generation: Generation, empty: Any, plan: PlacementPlan, devices: VisibleDevices, seed: int
) -> tuple[Any, list[Callable[[], None]]]:
    """Return a model with its weights placed as planned, and the callbacks for its release."""
    folder: str | None = None
    closing: list[Callable[[], None]] = []
    if DISK in plan.devices.values():
        folder = tempfile.mkdtemp(prefix="assay-weights-")
        closing = [partial(shutil.rmtree, folder, ignore_errors=True)]
    try:
        if is_random(generation.model):
            return _place_random(empty, plan, devices, seed, folder), closing
        more = {"offload_folder": folder} if folder else {}
        device_map = {part: devices.accelerate_key(where) for part, where in plan.devices.items()}
        return read_checkpoint(generation, empty.dtype, device_map=device_map, **more), closing
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

    std, where = weight_std(model), devices.local_names[plan.main_device]
    for name, weight in list(model.named_parameters()):
        put_weight(model, name, draw_weight(name, weight, std, seed, where).to(device_of_weight(name)))
    for name, buffer in list(model.named_buffers()):
        put_weight(model, name, buffer.to(device_of_weight(name)))
    model.tie_weights()
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


def read_checkpoint(generation: Generation, dtype: Any, **more: Any) -> Any:
    """Return the model of a folder or the hub; refuse missing weights, which would silently be random."""
    model, trusted = generation.model, generation.trust_remote_code
    source = source_arguments(model, generation.revision, trust_remote_code=trusted)
    if generation.attn_implementation:
        more["attn_implementation"] = generation.attn_implementation
    try:
        loaded, info = import_transformers().AutoModelForCausalLM.from_pretrained(
            **source, dtype=dtype, output_loading_info=True, **more
        )
    except (MemoryError, import_torch().OutOfMemoryError):
        raise
    except Exception as error:
        raise load_error(model, generation.revision, error) from error
    missing = sorted({*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])})
    if missing:
        raise MachineCannot(f"The checkpoint of {model} lacks weights of the model: {format_list(missing, 3)}.")
    return loaded


def check_tp_plan(tp_plan: str, ranks: int) -> None:
    """Refuse several ranks without a plan, where each would load the whole model, and a plan with a single rank."""
    if ranks > 1 and not tp_plan:
        raise BadInput(
            f"This is one of {ranks} ranks, and without tp_plan each would load all of the model; "
            "device_map needs one process that sees all GPUs."
        )
    if ranks == 1 and tp_plan:
        raise BadInput("tp_plan needs two ranks or more, each with a device of its own.")


def check_share_fits(sizes: ModelSizes, free: int, ranks: int) -> None:
    """Refuse a model whose equal shard is larger than this rank's free memory."""
    share = sizes.weights_bytes / ranks
    if share > free * USABLE_SHARE:
        raise MachineCannot(
            f"{sizes.model} in {sizes.dtype} does not fit: of {format_bytes(sizes.weights_bytes)} each of {ranks} "
            f"ranks holds {format_bytes(share)} at least, and {format_bytes(free)} are free. More GPUs may do: see "
            "device_ids."
        )


def load_share(generation: Generation, empty: Any, where: str, seed: int) -> tuple[Any, Ranks, Note]:
    """Join the other ranks; return this rank's shard of a model with its weights, the ranks, and a note.

    Afterwards, `leave_ranks` must be called to leave them.
    """
    from torch.distributed.device_mesh import DeviceMesh

    ranks = join_ranks(where)
    try:
        _check_divisible(empty, ranks.size)
        kind = where.partition(":")[0]
        if ranks.group is not None:  # NCCL, where each rank has its own GPU; gloo otherwise
            mesh = DeviceMesh.from_group(ranks.group, kind, mesh_dim_names=("tp",))
        else:
            mesh = DeviceMesh(kind, list(range(ranks.size)), mesh_dim_names=("tp",))
        if is_random(generation.model):
            model = _random_share(empty, mesh, ranks.size, where, seed)
        else:
            model = _read_share(generation, empty.dtype, mesh, ranks.size, where)
    except BaseException:
        leave_ranks()
        raise
    message = f"tensor parallel: {ranks.size} ranks compute each layer together, and wait for each other twice in it"
    return model, ranks, Note(code="tensor_parallel", message=message, params={"ranks": ranks.size})


def _check_divisible(empty: Any, size: int) -> None:
    """Refuse a model without a plan, or whose heads cannot be divided by the number of ranks."""
    config = empty.config.get_text_config()
    if not getattr(empty, "tp_plan", None):
        raise MachineCannot(f"Transformers has no tp_plan for {type(empty).__name__}: place its layers by device_map.")
    heads = config.num_attention_heads
    for name, count in (("heads", heads), ("key-value heads", getattr(config, "num_key_value_heads", None) or heads)):
        if count % size:
            raise MachineCannot(f"{count} {name} cannot be shared out evenly to {size} ranks.")


def agree_to_stop(stop: int) -> bool:
    """Return whether any rank would stop; a collective call, with the same result on all ranks."""
    torch = import_torch()
    vote = torch.tensor([int(stop)])
    torch.distributed.all_reduce(vote, op=torch.distributed.ReduceOp.MAX)
    return bool(vote.item())


def _takes_mesh_manager() -> bool:
    """Return whether this version of transformers takes a mesh manager, and not a mesh."""
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
    mesh_argument = SimpleNamespace(get_mesh=lambda _kinds: mesh) if _takes_mesh_manager() else mesh
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
        mesh_argument = {} if _takes_mesh_manager() else {"device_mesh": mesh}
        return read_checkpoint(generation, dtype, distributed_config=plan, **mesh_argument)
