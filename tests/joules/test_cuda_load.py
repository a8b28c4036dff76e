"""Keeping a GPU busy back to back, with a GPU that works on virtual time."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import TrialFailed
from assay.joules import devices
from assay.joules.devices import QUEUE_AHEAD_S, CudaCallLoad, CudaLoadBuilder
from assay.joules.measure import energy
from assay.joules.sensor_model import load_sensor_model
from assay.timing.cuda.device import NotCapturable
from assay.timing.cuda.timers import Capability
from assay.timing.options import TimingOptions
from assay.timing.setup import BoundCall
from tests.joules.gpu_world import GpuRig, GpuWorld, a_bench, opened_gpu
from tests.joules.trials import installed, model_of
from tests.joules.world import NS, Kernel, VirtualSampling, hopper_like

if TYPE_CHECKING:
    from assay.joules.devices import CallLoad


def a_keeper(world: GpuWorld, batch_s: float = 0.004, watts: float = 400.0, **more: Any) -> CudaCallLoad:
    bench = a_bench(world)
    return CudaCallLoad(
        bench, world, lambda: bench.stream.put(batch_s, watts), calls=10, batch_s=batch_s, how="in batches", **more
    )


def drawn(world: GpuWorld, from_ns: int, until_ns: int) -> float:
    return world.fake.true_energy_j(0, from_ns / NS, until_ns / NS) / ((until_ns - from_ns) / NS)


def test_the_gpu_never_waits_between_batches_nor_between_keeps() -> None:
    with opened_gpu(hopper_like()) as (world, _):
        keeper = a_keeper(world)
        keeper.run(0.3)
        world.pass_ns(round(0.5 * QUEUE_AHEAD_S * NS))  # the host is held up
        keeper.run(0.3)
        keeper.rest(0.1)
        knots = keeper.boundaries()
        assert drawn(world, knots[0].t_ns, knots[-1].t_ns) == pytest.approx(400.0)
        assert (knots[-1].t_ns - knots[0].t_ns) / NS == pytest.approx(knots[-1].calls / 10 * 0.004)
        assert 0.6 < (knots[-1].t_ns - knots[0].t_ns) / NS < 0.6 + 3 * QUEUE_AHEAD_S


def test_a_rest_is_a_rest_and_the_knots_say_when() -> None:
    with opened_gpu(hopper_like()) as (world, _):
        keeper = a_keeper(world)
        keeper.run(0.05)
        keeper.rest(0.2)
        keeper.run(0.05)
        keeper.close()
        knots = keeper.boundaries()
        ((before, after),) = [(a, b) for a, b in pairwise(knots) if a.calls == b.calls]
        assert (after.t_ns - before.t_ns) / NS == pytest.approx(0.2, abs=0.01)
        assert drawn(world, before.t_ns, after.t_ns) == pytest.approx(world.idle_w, rel=0.02)


def test_a_long_batch_is_not_queued_twice() -> None:
    with opened_gpu(hopper_like()) as (world, _):
        keeper = a_keeper(world, batch_s=2.0)
        keeper.run(0.1)
        keeper.rest(0.0)
        assert keeper.boundaries()[-1].calls == 10


def test_a_gpu_that_does_not_finish_is_given_up() -> None:
    with opened_gpu(hopper_like()) as (world, _):
        keeper = a_keeper(world, limit_s=0.5)
        keeper.run(0.01)
        keeper._timing_device.stream.stuck = True
        with pytest.raises(TrialFailed, match=r"not finished within 0\.5 s"):
            keeper.rest(0.1)


def test_what_is_held_is_given_back() -> None:
    released: list[bool] = []
    with opened_gpu(hopper_like()) as (world, _):
        keeper = a_keeper(world, release=lambda: released.append(True))
        keeper.run(0.01)
        keeper.close()
    assert released == [True]


def test_energy_of_queued_calls_is_right() -> None:
    model = model_of("Hopper")
    with opened_gpu(hopper_like(61.0), seed=2) as (world, meter):
        kernel = Kernel(world, ((0.0002, 450.0),))
        with installed(GpuRig(world, meter, model)):
            found = energy(kernel, seed=2)
    assert found.joules.value == pytest.approx(kernel.joules, rel=0.01)
    assert found.call_us == pytest.approx(200.0, rel=0.001)
    assert found.took_s < 3.3


def test_what_the_gpu_waits_for_the_host_is_taken_off_at_the_power_of_a_rest() -> None:
    model = model_of("Hopper")

    class HostBound(GpuRig):
        def prepare_load(self, bound: BoundCall, options: TimingOptions) -> CallLoad:
            keeper = super().prepare_load(bound, options)
            keeper.gap_s = 0.00005
            return keeper

    with opened_gpu(hopper_like(61.0), seed=2) as (world, meter):
        kernel = Kernel(world, ((0.00015, 450.0), (0.00005, world.idle_w)))
        with installed(HostBound(world, meter, model)):
            found = energy(kernel, seed=2)
    assert found.joules.value == pytest.approx(0.00015 * 450.0, rel=0.01)
    assert found.call_us == pytest.approx(150.0, rel=0.001)
    assert found.power_w == pytest.approx(450.0, rel=0.01)
    assert any("waited 50.00 µs a call for the host" in note for note in found.notes)
    assert found.systematic_j > 0.05 * found.joules.value


class AGraph:
    def __init__(self) -> None:
        self.was_reset = 0

    def replay(self) -> None:
        """Stand for a replay."""

    def reset(self) -> None:
        self.was_reset += 1


def keepers(patch: pytest.MonkeyPatch, allows: Capability, *, call_s: float = 1e-5, gap_s: float | None = None) -> Any:
    """Return the ways to keep a GPU busy with a call that allows so much, on a bench that is none."""
    captured: list[int] = []

    def count_calls(_bench: Any, body: Any, _memory: Any) -> AGraph:
        made.clear()
        body()
        captured.append(len(made))
        return AGraph()

    made: list[bool] = []
    patch.setattr(devices, "probe_capability", lambda *_, **__: allows)
    patch.setattr(devices, "capture_graph", count_calls)
    patch.setattr(devices, "_replay_s", lambda *_: captured[-1] * call_s)
    patch.setattr(devices, "_launch_s", lambda *_: call_s)
    patch.setattr(devices, "_host_gap_s", lambda *_: gap_s)
    cuda = SimpleNamespace(graph_pool_handle=lambda: None)
    bench: Any = SimpleNamespace(torch=SimpleNamespace(cuda=cuda), finish=lambda _: None)
    clock: Any = None
    return CudaLoadBuilder(bench, clock, BoundCall("call", lambda: made.append(True)), 60.0)


def test_short_calls_that_can_be_captured_are_replayed_by_the_hundred(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = keepers(monkeypatch, Capability(waits=False, captures=True, operations=1)).best()
    assert keeper.how == "a CUDA graph of 400 calls, replayed"
    assert keeper.call_s == pytest.approx(1e-5)
    assert keeper.gap_s is None


def test_long_calls_that_can_be_captured_are_replayed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = keepers(monkeypatch, Capability(waits=False, captures=True, operations=3), call_s=0.02).best()
    assert keeper.how == "a CUDA graph of 1 call, replayed"


def test_calls_that_cannot_be_captured_are_queued_and_what_the_gpu_waits_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allows = Capability(waits=False, captures=False, refusal="it allocates")
    keeper = keepers(monkeypatch, allows, gap_s=3e-6).best()
    assert keeper.how == "launched call by call, 64 to a batch"
    assert keeper.gap_s == 3e-6


def test_many_calls_that_cannot_be_captured_together_are_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = keepers(monkeypatch, Capability(waits=False, captures=True, operations=1))

    def refuse(*_: Any) -> None:
        raise NotCapturable("out of memory")

    monkeypatch.setattr(devices, "capture_graph", refuse)
    assert "call by call" in ways.best().how


@pytest.mark.parametrize(
    ("allows", "note"),
    [
        (Capability(waits=True, captures=False), "waits for the GPU"),
        (Capability(False, True, operations=0), "launches nothing"),
    ],
)
def test_calls_that_wait_or_launch_nothing_are_made_one_by_one(
    monkeypatch: pytest.MonkeyPatch, allows: Capability, note: str
) -> None:
    keeper = keepers(monkeypatch, allows).best()
    assert keeper.how == "called one by one"
    assert any(note in said for said in keeper.notes)


def test_a_gpus_sensors_are_looked_at_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened_gpu(hopper_like()) as (world, _):
        uuid = world.fake.gpu(0).uuid.decode()
        looked: list[bool] = []

        def load(*_: Any) -> CudaCallLoad:
            looked.append(True)
            return a_keeper(world)

        monkeypatch.setattr(devices, "gpu_timing_device", lambda _: SimpleNamespace(uuid=uuid))
        monkeypatch.setattr(devices, "HostMonotonicClock", lambda: world)
        monkeypatch.setattr(
            devices, "MeterPoller", lambda meter, clock, every_s: VirtualSampling(clock, meter, every_s)
        )
        monkeypatch.setattr(devices, "matmul_load", load)
        for _ in range(2):
            with devices.open_cuda_device(TimingOptions("cuda:0", "warm")) as on:
                assert on.model.counter is not None
                assert on.model.counter.period_s == pytest.approx(0.1, rel=0.005)
                assert on.origin == "fake"
        assert len(looked) == 1
        assert load_sensor_model(uuid, "580.00-assay-fake") == on.model
