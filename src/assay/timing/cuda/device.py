"""A GPU prepared for timing: a stream, Assay's kernels, a gate, slots for stamps, graph capture, and flushing L2.

Stamps of the GPU's own clocks are taken before and after a call:

    ready │ begin │ call │ end │ ready │ begin │ …          one stream, nothing waits for the host
              ↑ ns, cycles  ↑ ns, cycles

Now and then a spin of known duration replaces a call: it shows the overhead of the stamps themselves. A gate holds a
stream until the host opens it. The CUDA driver is called directly only to load and launch Assay's kernels and to count
a graph's nodes.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from assay.core.errors import MachineCannot, TrialFailed
from assay.core.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from assay.timing.cuda.timers import Cache
    from assay.timing.sampling import Call, Samples


_GATE_OPEN = 1
_GATE_TIMED_OUT = 2


class StreamGate:
    """A kernel that polls a word of host memory and opens by itself after a timeout, so that nothing can hang."""

    def __init__(self, torch: Any, kernels: AssayKernels) -> None:
        self._memory = torch.zeros(2, dtype=torch.int32, pin_memory=True)
        self._words = self._memory.numpy()
        self._kernels = kernels

    @contextmanager
    def closed(self, stream: int, most_ns: int) -> Iterator[StreamGate]:
        """Hold a stream, given by its handle, during a ``with`` block, for at most ``most_ns`` nanoseconds."""
        self._words[:] = 0
        self._kernels.launch("gate", int(self._memory.data_ptr()), most_ns)(stream)
        try:
            yield self
        finally:
            self._words[0] = _GATE_OPEN

    @property
    def timed_out(self) -> bool:
        """Whether it opened by itself; valid once the stream has passed it."""
        return int(self._words[1]) == _GATE_TIMED_OUT

    @property
    def passed(self) -> bool:
        """Whether the stream has passed it, either way."""
        return int(self._words[1]) != 0


class NotCapturable(TrialFailed):
    """A call did something that a graph cannot capture, such as waiting for the GPU."""


def capture_graph(device: GpuTimingDevice, body: Call, memory: object, *, keep: bool = False) -> Any:
    """Return a graph of what a body launches on the device's stream, using a memory pool; nothing is executed yet.

    Raises:
        NotCapturable: The body does something that a graph cannot capture.
    """
    torch = device.torch
    torch.cuda.synchronize(device.index)
    graph = torch.cuda.CUDAGraph(keep_graph=keep)
    with torch.cuda.stream(device.stream):
        graph.capture_begin(pool=memory, capture_error_mode="thread_local")
        try:
            body()
            graph.capture_end()
        except Exception as error:
            _abort_capture(device, graph, memory)
            raise NotCapturable(" ".join(str(error).split())[:200]) from error
        except BaseException:
            _abort_capture(device, graph, memory)
            raise
    return graph


def _abort_capture(device: GpuTimingDevice, graph: Any, memory: object) -> None:
    """End a failed capture, so that memory and random numbers work as before."""
    torch = device.torch
    with contextlib.suppress(RuntimeError):  # the failure is known; ending the capture is what matters
        graph.capture_end()
    with contextlib.suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device.index, memory)  # noqa: SLF001 - PyTorch leaves it open
    torch.cuda.synchronize(device.index)
    generator = torch.cuda.default_generators[device.index]
    replacement = torch.Generator(device=f"cuda:{device.index}")
    replacement.set_state(generator.get_state())
    generator.graphsafe_set_state(replacement.graphsafe_get_state())


if TYPE_CHECKING:
    Mask = NDArray[np.bool_]

SLOT_COUNT = 64
_WORDS_PER_SLOT = 8  # of 64 bits: begin takes the first four, end the others
CYCLE_COUNTER_BELOW_NS = 20_000
"""Below this, the 32 ns steps of the device's timer matter, and the cycle counter is used."""


@dataclass(frozen=True)
class StampPairs:
    """Pairs of stamps: nanoseconds and cycles between the two stamps of each pair.

    ``cycles`` is null where a pair was not taken on the same multiprocessor: their counters differ.
    """

    ns: Samples
    cycles: Samples | None

    def select(self, which: Mask) -> StampPairs:
        """Return the selected pairs."""
        return StampPairs(self.ns[which], None if self.cycles is None else self.cycles[which])

    @property
    def mhz(self) -> float | None:
        """The clock between the stamps, over all pairs; null where unknown.

        Not over the whole batch: within microseconds of heavy work the clock is lower than in between.
        """
        total_ns = float(self.ns.sum())
        return None if self.cycles is None or total_ns <= 0 else float(self.cycles.sum()) / total_ns * 1000

    @property
    def us(self) -> Samples:
        """Microseconds of each pair: by the timer where it is fine enough, otherwise by the cycle counter."""
        mhz = self.mhz
        if self.cycles is None or mhz is None:
            return self.ns / 1000
        return np.where(self.ns < CYCLE_COUNTER_BELOW_NS, self.cycles / mhz, self.ns / 1000)


def read_stamps(words: NDArray[np.int64]) -> StampPairs:
    """Return the stamps of some calls from their slots, one row of eight words each."""
    begin, end = words[:, :4], words[:, 4:]
    ns = (end[:, 0] - begin[:, 0]).astype(np.float64)
    same = np.array_equal(begin[:, 2] & 0xFFFFFFFF, end[:, 2] & 0xFFFFFFFF)
    return StampPairs(ns, (end[:, 1] - begin[:, 1]).astype(np.float64) if same else None)


class StampSlots:
    """Device memory for stamps, and the launches that write them."""

    def __init__(self, torch: Any, kernels: AssayKernels, index: int) -> None:
        self._device = torch.zeros((SLOT_COUNT, _WORDS_PER_SLOT), dtype=torch.int64, device=f"cuda:{index}")
        self._host = torch.zeros((SLOT_COUNT, _WORDS_PER_SLOT), dtype=torch.int64, pin_memory=True)
        self._words = self._host.numpy()
        base = int(self._device.data_ptr())
        self.begin = [kernels.launch("begin", base + 8 * _WORDS_PER_SLOT * slot) for slot in range(SLOT_COUNT)]
        self.end = [
            kernels.launch("end", base + 8 * _WORDS_PER_SLOT * slot + 4 * _WORDS_PER_SLOT) for slot in range(SLOT_COUNT)
        ]

    def fetch(self) -> None:
        """Enqueue the copy of all slots to the host on the current stream."""
        self._host.copy_(self._device, non_blocking=True)

    def read(self, count: int) -> StampPairs:
        """Return the stamps of the first ``count`` slots, after ``fetch`` has completed."""
        return read_stamps(self._words[:count])

    def first(self) -> tuple[int, int, int]:
        """Return the begin stamp of the first slot, after ``fetch``: nanoseconds, cycles, multiprocessor."""
        ns, cycles, multiprocessor = self._words[0, :3].tolist()
        return ns, cycles, multiprocessor & 0xFFFFFFFF


REFERENCE_NS = 2_000
"""Reference kernels spin for this long by the device's timer: in a single thread, or on all multiprocessors."""

REFERENCE_THREADS = 128

TIMER_ERROR_US = {"graph": 0.3, "queue": 0.6}
"""How far a time by stamps may be from the activity trace's, besides noise: measured on H200s (docs/evidence.md)."""


class TimerCalibration(Value):
    """Timer calibration of a GPU under a driver, in the convention of its activity trace."""

    gpu: str
    driver: str
    empty_us: float = Field(description="Duration in the trace of a kernel that spins for no time.")
    reference_us: dict[str, float] = Field(
        description="Duration in the trace of a reference kernel, by kind and cache: 'wide cold'."
    )
    boundary_us: dict[str, float] = Field(description="Between two operations, by method and cache: 'graph cold'.")
    error_us: dict[str, float] = Field(description="Error of a time, in addition to its interval, by method.")


ASSUMED_CALIBRATION = TimerCalibration(
    gpu="any",
    driver="any",
    empty_us=0.6,
    reference_us={"spin cold": 2.6, "spin warm": 2.6, "wide cold": 3.4, "wide warm": 3.0},
    boundary_us={f"{method} {cache}": 0.0 for method in ("graph", "queue") for cache in ("cold", "warm")},
    error_us={method: 2 * error_us for method, error_us in TIMER_ERROR_US.items()},
)
"""Used where there is no trace to calibrate with: values measured on H200s, with twice the error."""


_NODE_COPY = 1
_DEVICE_NODES = {0, _NODE_COPY, 2}  # node types: kernels, copies and fills
_CAPTURE_ACTIVE = 1  # status of a stream that is capturing


@dataclass(frozen=True)
class CaptureSummary:
    """How many kernels, copies and fills were captured, how many are copies, and whether some may run concurrently."""

    operations: int
    copies: int
    branches: bool


class KernelLaunch:
    """A kernel with its grid and arguments, ready to be launched on a stream."""

    def __init__(
        self, library: Any, function: ctypes.c_void_p, grid: int, block: int, arguments: tuple[int, ...]
    ) -> None:
        self._launch = library.cuLaunchKernel
        self._function = function
        self._shape = tuple(ctypes.c_uint(side) for side in (grid, 1, 1, block, 1, 1, 0))
        self._values = [ctypes.c_uint64(argument) for argument in arguments]
        self._pointers = (ctypes.c_void_p * max(1, len(arguments)))(
            *(ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in self._values)
        )

    def __call__(self, stream: int) -> None:
        """Launch on a stream, given by its handle."""
        code = self._launch(self._function, *self._shape, ctypes.c_void_p(stream), self._pointers, None)
        if code:
            raise MachineCannot(f"The CUDA driver would not launch a kernel of Assay's ({_error_text(code)}).")


class AssayKernels:
    """Assay's own kernels, compiled by the driver for the GPU whose context is current."""

    def __init__(self) -> None:
        self._library = driver_library()
        self._module = ctypes.c_void_p()
        source = resources.files(__package__).joinpath("kernels.ptx").read_bytes()
        code = self._library.cuModuleLoadData(ctypes.byref(self._module), source + b"\0")
        if code:
            raise MachineCannot(f"The CUDA driver would not load Assay's kernels ({_error_text(code)}).")

    def launch(self, name: str, *arguments: int, grid: int = 1, block: int = 1) -> KernelLaunch:
        """Return a launch of the kernel ``assay_name`` with 64-bit arguments."""
        function = ctypes.c_void_p()
        code = self._library.cuModuleGetFunction(ctypes.byref(function), self._module, f"assay_{name}".encode())
        if code:
            raise MachineCannot(f"The CUDA driver does not find assay_{name} ({_error_text(code)}).")
        return KernelLaunch(self._library, function, grid, block, arguments)


@cache
def driver_library() -> Any:
    """Return the driver library; raise where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise MachineCannot(f"There is no CUDA driver here: {error}.") from None


def driver_version() -> str:
    """Return the CUDA version of the driver: ``13.0``."""
    number = ctypes.c_int()
    if driver_library().cuDriverGetVersion(ctypes.byref(number)):
        return "unknown"
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def summarize_capture(stream: int) -> CaptureSummary:
    """Return what a stream, given by its handle, has captured so far.

    Raises:
        MachineCannot: It is not capturing, or the driver does not report it.
    """
    status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    _check_graph_code(
        driver_library().cuStreamGetCaptureInfo_v2(
            ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), ctypes.byref(graph), None, None
        )
    )
    if status.value != _CAPTURE_ACTIVE:
        raise MachineCannot("The CUDA driver says that nothing is being captured.")
    count, edges = ctypes.c_size_t(0), ctypes.c_size_t(0)
    _check_graph_code(driver_library().cuGraphGetNodes(graph, None, ctypes.byref(count)))
    _check_graph_code(driver_library().cuGraphGetEdges(graph, None, None, ctypes.byref(edges)))
    nodes = (ctypes.c_void_p * count.value)()
    if count.value:
        _check_graph_code(driver_library().cuGraphGetNodes(graph, nodes, ctypes.byref(count)))
    kinds = [_node_type(node) for node in nodes]
    on_device = [kind for kind in kinds if kind in _DEVICE_NODES]
    return CaptureSummary(len(on_device), on_device.count(_NODE_COPY), branches=edges.value != max(0, count.value - 1))


def _node_type(node: int | None) -> int:
    kind = ctypes.c_int()
    _check_graph_code(driver_library().cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)))
    return kind.value


def _check_graph_code(code: int) -> None:
    if code:
        raise MachineCannot(f"The CUDA driver would not describe a graph ({_error_text(code)}).")


def _error_text(code: int) -> str:
    """Return the driver's text for an error code."""
    message = ctypes.c_char_p()
    if driver_library().cuGetErrorString(code, ctypes.byref(message)) or message.value is None:
        return f"error {code}"
    return message.value.decode()


PAD_NS = 5_000
"""A warm call follows a spin of this length, during which the GPU prepares its launch."""

SPIN_BEFORE_SLEEP_NS = 2_000_000
POLL_SLEEP_S = 0.0001


class GpuTimingDevice:
    """A GPU's stream, kernels and memory for timing. All work goes to its own stream.

    Graphs share one memory pool, which is kept alive by one graph that is never replayed.
    """

    def __init__(self, index: int) -> None:
        self.torch = _import_torch(index)
        self.index = index
        with self.torch.cuda.device(index):
            self.stream = self.torch.cuda.Stream(index)
            self.handle = int(self.stream.cuda_stream)
            self.kernels = AssayKernels()
            self.slots = StampSlots(self.torch, self.kernels, index)
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
            self.gate = StreamGate(self.torch, self.kernels)
            self.renew_pool()
        self.driver = driver_version()
        self.calibration = ASSUMED_CALIBRATION

    def renew_pool(self) -> None:
        """Start a new memory pool for graphs, for example when a failed capture has spoilt the last one."""
        self.pool = self.torch.cuda.graph_pool_handle()
        self._anchor = capture_graph(self, lambda: self._pad(self.handle), self.pool)

    @property
    def uuid(self) -> str:
        """The GPU's UUID, in NVML's format."""
        return f"GPU-{self.torch.cuda.get_device_properties(self.index).uuid}"

    def now(self) -> tuple[int, int, int]:
        """Return the device's clocks, read on the device: nanoseconds, cycles, and the multiprocessor they are from."""
        with self.torch.cuda.stream(self.stream):
            self.slots.begin[0](self.handle)
            self.slots.fetch()
        self.wait(60.0)
        return self.slots.first()

    def overwrite_cache(self) -> None:
        """Overwrite the L2 from the current stream."""
        self._overwritten.zero_()

    def finish(self, limit_s: float) -> None:
        """Wait until all streams of the GPU are idle."""
        self._poll(self.torch.cuda.current_stream(self.index), limit_s)
        self.torch.cuda.synchronize(self.index)

    def make_ready(self, state: Cache) -> None:
        """Enqueue the work that puts the caches into a state, before a call is stamped."""
        if state == "cold":
            self.overwrite_cache()
        else:
            self._pad(self.handle)

    def wait(self, limit_s: float) -> None:
        """Wait until the stream is idle.

        Raises:
            TrialFailed: It is still busy after the limit.
        """
        self._poll(self.stream, limit_s)

    def _poll(self, stream: Any, limit_s: float) -> None:
        self._idle.record(stream)
        start = time.perf_counter_ns()
        while not self._idle.query():
            waited = time.perf_counter_ns() - start
            if waited > limit_s * 1e9:
                raise TrialFailed(f"The GPU has not finished within {limit_s:g} s; its work cannot be taken back.")
            if waited > SPIN_BEFORE_SLEEP_NS:
                time.sleep(POLL_SLEEP_S)


@cache
def gpu_timing_device(index: int) -> GpuTimingDevice:
    """Return the timing device of a GPU, created once per process."""
    return GpuTimingDevice(index)


def _import_torch(index: int) -> Any:
    try:
        import torch
    except ImportError as error:
        raise MachineCannot(f"PyTorch cannot be imported here ({error}); it comes with gpu-assay[torch].") from error
    if not torch.cuda.is_available():
        raise MachineCannot("PyTorch here sees no CUDA GPU.")
    if index >= torch.cuda.device_count():
        raise MachineCannot(f"PyTorch here sees no GPU {index}; it sees {torch.cuda.device_count()}.")
    return torch
