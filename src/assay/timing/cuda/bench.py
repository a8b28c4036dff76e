"""One GPU with all that timing on it needs: a stream, Assay's kernels, slots for stamps, a way to empty the cache."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Any

from assay.core.errors import MachineCannot, TrialFailed
from assay.timing.cuda.driver import Kernels, version
from assay.timing.cuda.gate import Gate
from assay.timing.cuda.graphs import capture
from assay.timing.cuda.known import ASSUMED, REFERENCE_NS, REFERENCE_THREADS
from assay.timing.cuda.stamps import Slots

if TYPE_CHECKING:
    from assay.timing.cuda.work import Cache

PAD_NS = 5_000
"""A warm call follows a spin of this length, behind which the GPU gets its launch ready."""

POLL_NS = 2_000_000
NAP_S = 0.0001


class Bench:
    """A GPU's stream, kernels and memory for timing. Everything is put on its own stream.

    Graphs share one pool of memory, which lives as long as one graph that is never replayed.
    """

    def __init__(self, index: int) -> None:
        self.torch = _torch(index)
        self.index = index
        with self.torch.cuda.device(index):
            self.stream = self.torch.cuda.Stream(index)
            self.handle = int(self.stream.cuda_stream)
            self.kernels = Kernels()
            self.slots = Slots(self.torch, self.kernels, index)
            properties = self.torch.cuda.get_device_properties(index)
            self.name = str(properties.name)
            self.multiprocessors = int(properties.multi_processor_count)
            self.l2_bytes = int(properties.L2_cache_size)
            self._overwritten = self.torch.empty(2 * self.l2_bytes, dtype=self.torch.int8, device=f"cuda:{index}")
            self._pad = self.kernels.launch("spin", PAD_NS)
            self._numbers = self.torch.zeros(
                self.multiprocessors * REFERENCE_THREADS, dtype=self.torch.int32, device=f"cuda:{index}"
            )
            self.references = {
                "spin": self.kernels.launch("spin", REFERENCE_NS),
                "wide": self.kernels.launch(
                    "wide",
                    REFERENCE_NS,
                    int(self._numbers.data_ptr()),
                    grid=self.multiprocessors,
                    block=REFERENCE_THREADS,
                ),
            }
            self._idle = self.torch.cuda.Event()
            self.gate = Gate(self.torch, self.kernels)
            self.renew_pool()
        self.driver = version()
        self.known = ASSUMED

    def renew_pool(self) -> None:
        """Begin a new pool of memory for graphs, as when a failed capture has spoilt the last one."""
        self.pool = self.torch.cuda.graph_pool_handle()
        self._anchor = capture(self, lambda: self._pad(self.handle), self.pool)

    @property
    def uuid(self) -> str:
        """The GPU's UUID, as NVML writes it."""
        return f"GPU-{self.torch.cuda.get_device_properties(self.index).uuid}"

    def now(self) -> tuple[int, int, int]:
        """Return the device's clocks, read by itself: nanoseconds, cycles, and the multiprocessor that counted them."""
        with self.torch.cuda.stream(self.stream):
            self.slots.begin[0](self.handle)
            self.slots.fetch()
        self.wait(60.0)
        return self.slots.first()

    def overwrite_cache(self) -> None:
        """Overwrite the L2 from the current stream."""
        self._overwritten.zero_()

    def finish(self, limit_s: float) -> None:
        """Wait until all streams of the GPU have no more work."""
        self._poll(self.torch.cuda.current_stream(self.index), limit_s)
        self.torch.cuda.synchronize(self.index)

    def make_ready(self, state: Cache) -> None:
        """Put on the stream what brings the caches into a state, before a call is stamped."""
        if state == "cold":
            self.overwrite_cache()
        else:
            self._pad(self.handle)

    def wait(self, limit_s: float) -> None:
        """Wait until the stream has no more work.

        Raises:
            TrialFailed: It is still at work after the limit.
        """
        self._poll(self.stream, limit_s)

    def _poll(self, stream: Any, limit_s: float) -> None:
        self._idle.record(stream)
        start = time.perf_counter_ns()
        while not self._idle.query():
            waited = time.perf_counter_ns() - start
            if waited > limit_s * 1e9:
                raise TrialFailed(f"The GPU has not finished within {limit_s:g} s; its work cannot be taken back.")
            if waited > POLL_NS:
                time.sleep(NAP_S)


@cache
def bench(index: int) -> Bench:
    """Return the bench of a GPU, made once in a process."""
    return Bench(index)


def _torch(index: int) -> Any:
    try:
        import torch
    except ImportError as error:
        raise MachineCannot(f"PyTorch cannot be imported here ({error}); it comes with gpu-assay[torch].") from error
    if not torch.cuda.is_available():
        raise MachineCannot("PyTorch here sees no CUDA GPU.")
    if index >= torch.cuda.device_count():
        raise MachineCannot(f"PyTorch here sees no GPU {index}; it sees {torch.cuda.device_count()}.")
    return torch
