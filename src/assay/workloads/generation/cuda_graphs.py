"""Generation by replays of a CUDA graph: each step is one launch, so that the GPU does not wait for the host.

    host   launch 1 │ launch 2 │ wait for 1 ⏱ │ launch 3 │ wait for 2 ⏱ │ …
    GPU              step 1 → token to the host, step 2 → token to the host, step 3 → …

One step is always queued behind the running one. A token's time is when its copy has arrived in host memory.

While a step is captured, ``torch.compile`` fuses the small kernels of each layer. All layers are the same program with
different weights, but would be compiled one by one, as each has its own index into the KV cache. Here each gets its own
cache with index 0, so that one compilation serves all. Only functions import this module, as it imports PyTorch.
"""

from __future__ import annotations

import time
import warnings
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from transformers.cache_utils import Cache

from assay.core.errors import MachineCannot, TrialFailed
from assay.core.results import Note
from assay.timing.wall import gc_paused
from assay.workloads.base import one_line
from assay.workloads.generation.decode_step import DecodeStep, resolve_sampling, step_implementations
from assay.workloads.generation.eager import TokenExtras, decode_extras, prefill_extras, whole_extras

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from assay.workloads.generation.loading import LoadedModel
    from assay.workloads.generation.prompts import PromptBatch, PromptBatches

MAX_VARIANTS = 256  # limit of compiled variants of a layer: one per batch size and cache length


@cache
def _compile_forward(forward: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """Return a layer's compiled forward, cached for later stages; its first call compiles it."""
    return cast("Callable[..., Any]", torch.compile(forward, backend=backend, fullgraph=True, dynamic=False))


def model_layers(model: Any) -> list[Any]:
    """Return a model's layers, in order: its outermost ``_no_split_modules``."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    whole = [module for module in model.modules() if type(module).__name__ in names]
    return [layer for layer in whole if not any(layer is not other and layer in other.modules() for other in whole)]


@contextmanager
def fuse_layers(model: Any, cache_of_all: Any, backend: str = "inductor") -> Iterator[None]:
    """Run a model's layers compiled, each on its own layer of the cache, until the block ends."""
    dynamo = import_module("torch._dynamo.config")
    layers = model_layers(model)
    if len(layers) != len(cache_of_all.layers):
        raise ValueError(f"{len(layers)} layers have {len(cache_of_all.layers)} caches")
    with ExitStack() as undo, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        undo.enter_context(dynamo.patch(recompile_limit=MAX_VARIANTS))
        for layer, cached in zip(layers, cache_of_all.layers, strict=True):
            program = _layer_program(layer, cache_of_all, Cache(layers=[cached]), backend)
            undo.callback(_restore_forward, layer, vars(layer).get("forward"))
            layer.forward = program
            for part in layer.modules():
                if isinstance(number := vars(part).get("layer_idx"), int):
                    part.layer_idx = 0
                    undo.callback(setattr, part, "layer_idx", number)
        yield


def _layer_program(layer: Any, cache_of_all: Any, own: Any, backend: str) -> Callable[..., Any]:
    compiled = _compile_forward(type(layer).forward, backend)

    def program(*args: Any, **more: Any) -> Any:
        positional = (own if arg is cache_of_all else arg for arg in args)
        named = {name: own if arg is cache_of_all else arg for name, arg in more.items()}
        return compiled(layer, *positional, **named)

    return program


def _restore_forward(layer: Any, original: Any) -> None:
    if original is None:
        del layer.forward
    else:
        layer.forward = original


WARM_UP_STEPS = 3
LOGITS_TOLERANCE = {"torch.float32": 0.01, "torch.float64": 0.01}
HALF_LOGITS_TOLERANCE = 0.1
"""Largest relative error of the logits of fused layers: rounding is far below it, and a defect above."""

CUDA_OUT_OF_MEMORY = 2  # the CUDA runtime's ``cudaErrorMemoryAllocation``


def check_graph_support(loaded: LoadedModel) -> None:
    """Refuse a model that cannot be decoded by CUDA graphs: on no GPU, on several, or partly in host memory."""
    if loaded.device.type != "cuda":
        raise MachineCannot("CUDA graphs need a GPU, so graphs is not measured here.")
    if loaded.ranks > 1 or len(set(loaded.placement.values())) > 1:
        raise MachineCannot("A CUDA graph runs on one GPU, and this model is on several: graphs is not measured.")
    if loaded.offloaded:
        raise MachineCannot("A CUDA graph needs all weights on the GPU, and some are not: graphs is not measured.")


class GraphLoop:
    """The phases of a generation over a cache of fixed size; the prefill uses plain launches.

    Attributes:
        notes: Notes on the capture of the step.
        compile_s: Seconds that the capture with compilation took; null where no layers were fused.
    """

    mode: Literal["graphs"] = "graphs"

    def __init__(
        self,
        loaded: LoadedModel,
        batches: PromptBatches,
        output_tokens: int,
        settings: Mapping[str, Any],
        *,
        compile: bool = True,  # noqa: A002 - as the scenario names it
    ) -> None:
        sampling = resolve_sampling(loaded.model.generation_config.to_dict(), settings)
        self._device = loaded.device
        self._batches = batches
        self._output_tokens = output_tokens
        self._compile = compile
        rows, columns = len(batches.pool[0].ids), batches.columns + output_tokens
        choose = sampling.make_sampler(loaded.vocabulary, loaded.device)
        self.stepper: DecodeStep | None = DecodeStep(
            loaded.model, loaded.device, batch=rows, columns=columns, choose=choose
        )
        self._arrivals = _TokenCopies(loaded.device, rows, output_tokens)
        self._player: Callable[[], None] | None = None
        self._graph: Any = None
        self.notes: tuple[Note, ...] = ()
        self.compile_s: float | None = None

    def prefill(self) -> TokenExtras:
        """Process a batch of prompts and generate the first token of each."""
        batch = self._batches.next()
        begin_ns = time.perf_counter_ns()
        self._prefill_batch(batch)
        return prefill_extras(begin_ns, time.perf_counter_ns(), batch.tokens)

    def read(self) -> None:
        """Process the first batch of prompts and capture the step, which decoding needs."""
        self._prefill_batch(self._batches.pool[0])
        self._graph, self.notes, self.compile_s = capture_step(self._active_step, self._device, fuse=self._compile)
        self._player = self._graph.replay

    def decode(self, steps: int | None = None) -> TokenExtras:
        """Generate all tokens after the first, or ``steps`` of them, without another prefill."""
        play = self._replay
        self._active_step.rewind()
        begin_ns = time.perf_counter_ns()
        at_ns = self._decode_tokens(play, steps or self._output_tokens - 1)
        return decode_extras([begin_ns, *at_ns], len(self._active_step.token))

    def whole(self) -> TokenExtras:
        """Generate complete answers for a batch of prompts."""
        play, batch = self._replay, self._batches.next()
        begin_ns = time.perf_counter_ns()
        self._prefill_batch(batch)
        at_ns = [time.perf_counter_ns(), *self._decode_tokens(play, self._output_tokens - 1)]
        return whole_extras(begin_ns, at_ns, len(batch.ids), batch.tokens)

    def occupied_us(self, steps: int) -> float:
        """Run ``steps`` steps and return their GPU time in us: within a graph nothing waits for the host."""
        play = self._replay
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(steps)]
        self._active_step.rewind()
        for begin, end in pairs:
            begin.record()
            play()
            end.record()
        torch.cuda.synchronize(self._device)
        return sum(float(begin.elapsed_time(end)) * 1e3 for begin, end in pairs)

    def close(self) -> None:
        """Release the graph and the cache."""
        if self._graph is not None:
            torch.cuda.synchronize(self._device)
            self._graph.reset()
        self._graph = self._player = self.stepper = None

    @property
    def last(self) -> Any:
        """Tokens of the latest call, one row per sequence, in host memory."""
        return self._arrivals.tokens()

    @property
    def _active_step(self) -> DecodeStep:
        if self.stepper is None:
            raise TrialFailed("the cache has already been given back")
        return self.stepper

    @property
    def _replay(self) -> Callable[[], None]:
        if self._player is None:
            self.read()
        return cast("Callable[[], None]", self._player)

    def _prefill_batch(self, batch: PromptBatch) -> None:
        """Process a batch, and return once its first tokens are on the host."""
        token = self._active_step.prefill(batch)
        self._arrivals.send(0, token)
        self._arrivals.wait(0)
        self._arrivals.count = 1

    def _decode_tokens(self, play: Callable[[], None], steps: int) -> list[int]:
        """Run ``steps`` steps; return the time in ns at which each token was on the host."""
        arrivals, token, at_ns = self._arrivals, self._active_step.token, []
        for step in range(1, steps + 1):
            play()
            arrivals.send(step, token)
            if step > 1:
                arrivals.wait(step - 1)
                at_ns.append(time.perf_counter_ns())
        if steps:
            arrivals.wait(steps)
            at_ns.append(time.perf_counter_ns())
        arrivals.count = steps + 1
        return at_ns


class _TokenCopies:
    """Asynchronous copies of tokens to the host, one slot per step of an answer."""

    def __init__(self, device: Any, batch: int, tokens: int) -> None:
        on_gpu = device.type == "cuda"
        self._host = torch.zeros((tokens, batch, 1), dtype=torch.long, pin_memory=on_gpu)
        self._events = [torch.cuda.Event() for _ in range(tokens)] if on_gpu else []
        self.count = 0

    def send(self, step: int, token: Any) -> None:
        """Enqueue a copy of the tokens of a step."""
        self._host[step].copy_(token, non_blocking=True)
        if self._events:
            self._events[step].record()

    def wait(self, step: int) -> None:
        """Wait until the tokens of a step are on the host."""
        if self._events:
            self._events[step].synchronize()

    def tokens(self) -> Any:
        """Return the tokens of the latest call."""
        return self._host[: self.count, :, 0].T.clone()


def capture_step(stepper: DecodeStep, device: Any, *, fuse: bool) -> tuple[Any, tuple[Note, ...], float | None]:
    """Capture a decoding step after a prefill, with its layers fused where that works.

    Return the graph, notes on it, and the seconds that a capture with compilation took; null: nothing was compiled.

    Raises:
        TrialFailed: A step of this model cannot be captured.
    """
    notes: tuple[Note, ...] = ()
    if fuse:
        start_s = time.perf_counter()
        try:
            graph = _capture_graph(stepper, device, partial(fuse_layers, stepper.model, stepper.cache))
            return graph, (), time.perf_counter() - start_s
        except Exception as error:  # noqa: BLE001 - a compiler fails in many ways, and there is a way without it
            message = f"torch.compile failed ({_shorten(error)}); the layers' own kernels were captured"
            notes = (Note(code="not_compiled", message=message),)
    try:
        return _capture_graph(stepper, device, nullcontext), notes, None
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or getattr(error, "error_code", None) == CUDA_OUT_OF_MEMORY:
            raise
        raise TrialFailed(f"a decoding step cannot be captured as a CUDA graph: {_shorten(error)}") from error


def _capture_graph(stepper: DecodeStep, device: Any, fusing: Callable[[], AbstractContextManager[None]]) -> Any:
    """Return a graph of one step, captured on its own stream after a few warm-up steps."""
    graph, stream = torch.cuda.CUDAGraph(), _capture_stream(str(device))
    with step_implementations(stepper.model, on_gpu=True):
        stepper.rewind()
        plain = stepper.logits().clone()
        with fusing():
            stepper.rewind()
            torch.cuda.synchronize(device)
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP_STEPS):
                    logits = stepper.logits()
                    stepper.step()
                    stepper.rewind()
            torch.cuda.synchronize(device)
            _check_logits(plain, logits)
            with gc_paused(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                stepper.step()
    stepper.rewind()
    return graph


@cache
def _capture_stream(device: str) -> Any:
    """Return the stream for captures: one for all, as each stream has its own workspace for matrix products."""
    return torch.cuda.Stream(device)


def _check_logits(plain: Any, fused: Any) -> None:
    """Refuse fused layers whose logits differ from those of plain ones."""
    error = float((fused.float() - plain.float()).norm() / plain.float().norm())
    if not error <= LOGITS_TOLERANCE.get(str(plain.dtype), HALF_LOGITS_TOLERANCE):
        raise ValueError(f"logits of compiled layers are off by {error:.2g} of their size")


def _shorten(error: BaseException) -> str:
    return one_line(error, 160) or type(error).__name__
