"""Tokens by replays of one CUDA graph: a step is launched as a whole, so that the GPU does not wait for the host.

    host   launch 1 │ launch 2 │ wait for 1 ⏱ │ launch 3 │ wait for 2 ⏱ │ …
    GPU              step 1 → token to the host, step 2 → token to the host, step 3 → …

One step is always queued behind the one that runs. A token's time is when its copy has arrived in the host's memory.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

from assay.core.errors import MachineCannot, TrialFailed
from assay.timing.wall import quiet_collector
from assay.workloads.generation.choosing import choice
from assay.workloads.generation.fusing import fused
from assay.workloads.generation.stamps import Extras, of_decode, of_prefill, of_whole
from assay.workloads.generation.steps import Stepper, as_in_steps
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from assay.workloads.generation.batches import Batch, Batches
    from assay.workloads.generation.loading import Loaded

WARM_UP_STEPS = 3
TOLERANCE = {"float32": 0.01, "float64": 0.01}
HALF_TOLERANCE = 0.1
"""How far fused layers may be from plain ones, as a share of all logits: rounding is far below, and an error above."""

LONGEST_REASON = 160


def refuse(loaded: Loaded) -> None:
    """Say why a model cannot be decoded by graphs.

    Raises:
        MachineCannot: It is on no GPU, on several, or partly in the host's memory.
    """
    if loaded.device.type != "cuda":
        raise MachineCannot("CUDA graphs need a GPU, so that graphs is not measured here.")
    if loaded.ranks > 1 or len(set(loaded.placement.values())) > 1:
        raise MachineCannot("A CUDA graph is of one GPU, and this model lies on several: graphs is not measured.")
    if loaded.offloaded:
        raise MachineCannot(
            "A CUDA graph needs all weights on the GPU, and some lie elsewhere: graphs is not measured."
        )


class GraphLoop:
    """The phases of a generation over a cache of fixed size; prompts are read by plain launches.

    Attributes:
        notes: What happened while the step was captured.
        compile_s: Seconds until it was; null where no layers were fused.
    """

    mode = "graphs"

    def __init__(
        self,
        loaded: Loaded,
        batches: Batches,
        output_tokens: int,
        settings: Mapping[str, Any],
        *,
        compile: bool = True,  # noqa: A002 - as the scenario names it
    ) -> None:
        chosen = choice(loaded.model.generation_config.to_dict(), settings)
        self._device = loaded.device
        self._batches = batches
        self._output_tokens = output_tokens
        self._compile = compile
        rows = len(batches.pool[0].ids)
        self.stepper: Stepper | None = Stepper(
            loaded.model,
            loaded.device,
            batch=rows,
            columns=batches.columns + output_tokens,
            choose=chosen.made(loaded.vocabulary, loaded.device),
        )
        self._arrivals = _Arrivals(loaded.device, rows, output_tokens)
        self._player: Callable[[], None] | None = None
        self._graph: Any = None
        self.notes: tuple[str, ...] = ()
        self.compile_s: float | None = None

    def prefill(self) -> Extras:
        """Read a batch of prompts and make the first token of each."""
        batch = self._batches.next()
        begin_ns = time.perf_counter_ns()
        self._first(batch)
        return of_prefill(begin_ns, time.perf_counter_ns(), batch.tokens)

    def read(self) -> None:
        """Read the first batch of prompts, and have the step captured: what decoding needs."""
        self._first(self._batches.pool[0])
        captured = captured_step(self._stepping, self._device, fuse=self._compile)
        self._graph, self._player = captured.graph, captured.graph.replay
        self.notes, self.compile_s = captured.notes, captured.compile_s

    def decode(self, steps: int | None = None) -> Extras:
        """Make all tokens after the first, or so many, without reading the prompts again."""
        if self._player is None:
            self.read()
        self._stepping.rewind()
        begin_ns = time.perf_counter_ns()
        at_ns = self._rest(steps or self._output_tokens - 1)
        return of_decode([begin_ns, *at_ns], len(self._stepping.token))

    def whole(self) -> Extras:
        """Answer a batch of prompts."""
        if self._player is None:
            self.read()
        batch = self._batches.next()
        begin_ns = time.perf_counter_ns()
        self._first(batch)
        at_ns = [time.perf_counter_ns(), *self._rest(self._output_tokens - 1)]
        return of_whole(begin_ns, at_ns, len(batch.ids), batch.tokens)

    def occupied_us(self, steps: int) -> float:
        """Make so many steps and return how long the GPU was at them: within a graph nothing waits for the host."""
        torch, play = import_torch(), self._playing
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(steps)]
        self._stepping.rewind()
        for begin, end in pairs:
            begin.record()
            play()
            end.record()
        torch.cuda.synchronize(self._device)
        return sum(float(begin.elapsed_time(end)) * 1e3 for begin, end in pairs)

    def close(self) -> None:
        """Give the graph and the cache back."""
        if self._graph is not None:
            import_torch().cuda.synchronize(self._device)
            self._graph.reset()
        self._graph = self._player = self.stepper = None

    @property
    def last(self) -> Any:
        """Tokens of the latest call, one row a sequence, in the host's memory."""
        return self._arrivals.tokens()

    @property
    def _stepping(self) -> Stepper:
        if self.stepper is None:
            raise TrialFailed("the cache was given back already")
        return self.stepper

    @property
    def _playing(self) -> Callable[[], None]:
        if self._player is None:
            self.read()
        return cast("Callable[[], None]", self._player)

    def _first(self, batch: Batch) -> None:
        """Read a batch, and return when its first tokens are on the host."""
        token = self._stepping.prefill(batch)
        self._arrivals.send(0, token)
        self._arrivals.wait(0)
        self._arrivals.count = 1

    def _rest(self, steps: int) -> list[int]:
        """Make so many tokens more; return when each was on the host."""
        play, arrivals, token, at_ns = self._playing, self._arrivals, self._stepping.token, []
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


class _Arrivals:
    """Tokens on their way to the host, one place for each step of an answer."""

    def __init__(self, device: Any, batch: int, tokens: int) -> None:
        torch = import_torch()
        on_gpu = device.type == "cuda"
        self._host = torch.zeros((tokens, batch, 1), dtype=torch.long, pin_memory=on_gpu)
        self._events = [torch.cuda.Event() for _ in range(tokens)] if on_gpu else []
        self.count = 0

    def send(self, step: int, token: Any) -> None:
        """Have the tokens of a step copied, when what was launched so far is done."""
        self._host[step].copy_(token, non_blocking=True)
        if self._events:
            self._events[step].record()

    def wait(self, step: int) -> None:
        """Return when the tokens of a step are here."""
        if self._events:
            self._events[step].synchronize()

    def tokens(self) -> Any:
        """Return the tokens of the latest call."""
        return self._host[: self.count, :, 0].T.clone()


@dataclass(frozen=True)
class Captured:
    """A step that is replayed, and how it came to be one."""

    graph: Any
    notes: tuple[str, ...] = ()
    compile_s: float | None = None


def captured_step(stepper: Stepper, device: Any, *, fuse: bool) -> Captured:
    """Capture a decoding step of prompts that were read; with its layers fused where that works.

    Raises:
        TrialFailed: A step of this model cannot be captured.
    """
    notes: tuple[str, ...] = ()
    if fuse:
        begun = time.perf_counter()
        try:
            graph = _captured(stepper, device, partial(fused, stepper.model, stepper.cache))
            return Captured(graph, compile_s=time.perf_counter() - begun)
        except Exception as error:  # noqa: BLE001 - a compiler fails in many ways, and there is a way without it
            notes = (f"torch.compile did not work ({_short(error)}), so that the layers' own kernels were captured",)
    try:
        return Captured(_captured(stepper, device, nullcontext), notes)
    except RuntimeError as error:
        if "out of memory" in str(error):
            raise
        raise TrialFailed(
            f"a decoding step of this model cannot be captured as a CUDA graph: {_short(error)}"
        ) from error


def _captured(stepper: Stepper, device: Any, fusing: Callable[[], AbstractContextManager[None]]) -> Any:
    """Return a graph of one step, which was made a few times before, beside the graph's own stream."""
    torch = import_torch()
    graph, stream = torch.cuda.CUDAGraph(), _beside(str(device))
    with as_in_steps(stepper.model, on_gpu=True):
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
            _make_sure(plain, logits)
            with quiet_collector(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                stepper.step()
    stepper.rewind()
    return graph


@cache
def _beside(device: str) -> Any:
    """Return the stream that steps are captured on: one for all, as each has memory of its own for products."""
    return import_torch().cuda.Stream(device)


def _make_sure(plain: Any, fused_: Any) -> None:
    """Refuse fused layers that say something else than plain ones."""
    error = float((fused_.float() - plain.float()).norm() / plain.float().norm())
    most = TOLERANCE.get(str(plain.dtype).removeprefix("torch."), HALF_TOLERANCE)
    if not error <= most:
        raise ValueError(f"logits of compiled layers are off by {error:.2g} of their size")


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 1]}…"
