"""Where the parts of a model really lie, once it is loaded; and that this is what was planned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.core.errors import TrialFailed
from assay.workloads.generation.explicit import place_of
from assay.workloads.generation.limits import CPU, DISK
from assay.workloads.generation.sizes import parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.workloads.generation.placement import Plan
    from assay.workloads.generation.seen import Seen

NOWHERE = "nowhere"


def real_places(model: Any, seen: Seen) -> dict[str, str]:
    """Return where each part of a model lies, by the machine's names, from its tensors and not from what was asked."""
    devices = {}
    for name, part in parts_of(model):
        part_devices = {_on_machine(where, seen) for module in part.modules() for where in _weights_of(module)}
        if part_devices:
            devices[name] = " and ".join(sorted(part_devices))
    return devices


def as_planned(model: Any, plan: Plan, seen: Seen) -> dict[str, str]:
    """Return the map of a loaded model, part by part as it was planned.

    Raises:
        TrialFailed: A part lies elsewhere than planned.
    """
    for name, device in real_places(model, seen).items():
        planned = place_of(name, plan.places)
        if device != planned:
            raise TrialFailed(f"The model was not placed as planned: {name} lies on {device}, and not on {planned}.")
    return dict(plan.places)


def _weights_of(module: Any) -> Iterator[str]:
    """Yield where the weights of a module itself are; what accelerate took away lies where its hook finds it."""
    for name, weight in module.named_parameters(recurse=False):
        yield str(weight.device) if weight.device.type != "meta" else _offloaded(module, name)


def _offloaded(module: Any, name: str) -> str:
    for hook in _hooks(getattr(module, "_hf_hook", None)):
        weights: Any = getattr(hook, "weights_map", None)
        key = f"{getattr(weights, 'prefix', '')}{name}"
        store: Any = getattr(weights, "dataset", weights)
        if key in getattr(store, "state_dict", {}):
            return str(store.state_dict[key].device)
        if key in getattr(store, "index", {}):
            return DISK
    return NOWHERE


def _hooks(hook: Any) -> Iterator[Any]:
    """Yield a hook of accelerate's, or those that it is made of."""
    if hook is not None:
        yield from getattr(hook, "hooks", (hook,))


def _on_machine(where: str, seen: Seen) -> str:
    return CPU if where.partition(":")[0] == CPU else seen.on_machine(where)
