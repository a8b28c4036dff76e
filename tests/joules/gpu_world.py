"""A GPU that works behind the host's back, on virtual time: what a stream and its events are to the keeper."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from assay.joules.devices import CudaCallLoad
from tests.joules.world import NS, VirtualRig, VirtualTime, World, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.joules.devices import CallLoad
    from assay.joules.readings import GpuPowerMeter
    from assay.timing.options import TimingOptions
    from assay.timing.setup import BoundCall
    from tests.joules.world import Kind

LAUNCH_NS = 20_000


class Stream:
    """Work in order: it begins when what is before it is over, and draws power meanwhile."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tail_ns = 0
        self.stuck = False

    def put(self, duration_s: float, watts: float) -> None:
        """Queue work; putting it there takes the host a moment."""
        begin_ns = max(self.world.now_ns(), self.tail_ns)
        self.tail_ns = begin_ns + round(duration_s * NS)
        self.world.fake.set_power(0, watts, begin_ns / NS)
        self.world.fake.set_power(0, self.world.idle_w, self.tail_ns / NS)
        self.world.pass_ns(LAUNCH_NS)


class Event:
    """A moment on a stream."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: Stream) -> None:
        self._stream = stream
        self._t_ns = max(stream.world.now_ns(), stream.tail_ns)

    def query(self) -> bool:
        return not self._stream.stuck and self._stream.world.now_ns() >= self._t_ns

    def elapsed_time(self, other: Self) -> float:
        return (other._t_ns - self._t_ns) / 1e6


def a_bench(world: World) -> Any:
    """Return what the keeper needs of a bench."""
    cuda = SimpleNamespace(stream=lambda _: nullcontext(), Event=Event)
    return SimpleNamespace(torch=SimpleNamespace(cuda=cuda), stream=Stream(world))


class GpuWorld(World):
    """A world whose host may wait without the GPU resting."""

    def sleep(self, seconds: float) -> None:
        VirtualTime.sleep(self, seconds)


class GpuRig(VirtualRig):
    """A rig that keeps the virtual GPU busy by batches of so many calls."""

    per_batch = 20

    def prepare_load(self, bound: BoundCall, options: TimingOptions) -> CallLoad:
        kernel: Any = bound.call
        self.bench = a_bench(self.world)

        def batch() -> None:
            for seconds, watts in kernel.profile:
                self.bench.stream.put(self.per_batch * seconds, watts)

        batch_s = self.per_batch * kernel.seconds
        return CudaCallLoad(self.bench, self.world, batch, calls=self.per_batch, batch_s=batch_s, how="in batches")


@contextmanager
def opened_gpu(kind: Kind, seed: int = 0) -> Iterator[tuple[GpuWorld, GpuPowerMeter]]:
    """Give a world with such a GPU, and its meter."""
    with opened(kind, seed, GpuWorld) as (world, meter):
        assert isinstance(world, GpuWorld)
        yield world, meter
