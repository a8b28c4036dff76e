"""A model's layers with their small kernels fused by torch.compile, while a step is captured.

All layers of a model are the same program on other weights. Compiled as they stand they would be compiled one by one,
for each is told its number, to find its keys and values by. Here each is given a cache that holds its own alone, as
number 0, so that one is compiled for all.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_VARIANTS = 256
"""Of one layer: another is compiled for each batch size and length of the cache."""


@cache
def _compiled(forward: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """Return a layer's program, compiled when it is first called; kept, so that later stages find it."""
    compiled: Callable[..., Any] = import_torch().compile(forward, backend=backend, fullgraph=True, dynamic=False)
    return compiled


def layers_of(model: Any) -> list[Any]:
    """Return a model's layers, in order: the modules that it says are not to be split."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    candidates = [module for module in model.modules() if type(module).__name__ in names]
    return [
        module
        for module in candidates
        if not any(module is not other and module in other.modules() for other in candidates)
    ]


@contextmanager
def fused(model: Any, cache_of_all: Any, backend: str = "inductor") -> Iterator[None]:
    """Have a model's layers run compiled, each on its own part of a cache; as before when it is left.

    Raises:
        ValueError: The model's layers are not one for each part of the cache.
    """
    from assay.workloads.generation.static_cache import of_one_layer

    dynamo = import_module("torch._dynamo.config")
    layers = layers_of(model)
    if len(layers) != len(cache_of_all.layers):
        raise ValueError(f"{len(layers)} layers have {len(cache_of_all.layers)} caches")
    with ExitStack() as undo, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        undo.enter_context(dynamo.patch(recompile_limit=MOST_VARIANTS))
        for index, layer in enumerate(layers):
            _swap(layer, _program(layer, cache_of_all, of_one_layer(cache_of_all, index), backend), undo)
        yield


def _program(layer: Any, cache_of_all: Any, own: Any, backend: str) -> Callable[..., Any]:
    compiled = _compiled(type(layer).forward, backend)

    def program(*args: Any, **more: Any) -> Any:
        positional = (own if arg is cache_of_all else arg for arg in args)
        named = {name: own if arg is cache_of_all else arg for name, arg in more.items()}
        return compiled(layer, *positional, **named)

    return program


def _swap(layer: Any, program: Callable[..., Any], undo: ExitStack) -> None:
    """Put a program in a layer's place, and number 0 in that of its own."""
    hooked = vars(layer).get("forward")
    layer.forward = program
    undo.callback(_put_back, layer, hooked)
    for part in layer.modules():
        if isinstance(number := vars(part).get("layer_idx"), int):
            part.layer_idx = 0
            undo.callback(setattr, part, "layer_idx", number)


def _put_back(layer: Any, hooked: Any) -> None:
    if hooked is None:
        del layer.forward
    else:
        layer.forward = hooked
