"""What only a GPU can show: spins of known duration, the vendor's own record, and calls that allow little."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import pytest

import assay
from assay.timing.cuda.device import NotCapturable, capture_graph
from assay.timing.cuda.timers import GateTimedOut, GpuCallBatch, QueueTimer
from tests.timing.tuning import tuned

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.running import Assay

pytestmark = pytest.mark.gpu

CACHES = ("cold", "warm")
STAMPED = ("graph", "queue")


@pytest.fixture
def torch(cuda: str) -> Any:
    import torch

    return torch


@pytest.fixture
def bench(torch: Any) -> Any:
    """The bench of the first GPU, which knows it."""
    from assay.timing.cuda.device import gpu_timing_device
    from assay.timing.setup import CudaTimerSetup

    CudaTimerSetup(0)
    return gpu_timing_device(0)


@pytest.fixture
def spin(bench: Any) -> Any:
    """Make calls that spin for so many microseconds on the device's own timer."""

    def spinning(us: float) -> Callable[[], None]:
        launch = bench.kernels.launch("spin", int(us * 1000))
        return lambda: launch(int(bench.torch.cuda.current_stream(0).cuda_stream))

    return spinning


def value(result: assay.Measurement, name: str = "busy_us") -> float:
    estimate = getattr(result, name)
    assert estimate is not None, result.notes
    return float(estimate.value)


def near(us: float, share: float, least_us: float) -> Any:
    return pytest.approx(us, rel=share, abs=least_us)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("method", STAMPED)
@pytest.mark.parametrize("us", [1, 5, 20])
def test_a_spin_of_known_duration_takes_what_it_spins(us: int, method: Any, cache: Any, spin: Any, bench: Any) -> None:
    result = assay.measure(spin(us), method=method, cache=cache, device="cuda:0", budget_s=3.0)
    assert result.method == method
    least_us = 0.2 if method == "graph" else bench.calibration.error_us[method]
    assert value(result) == near(us + bench.calibration.empty_us, 0.01, least_us)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("side", [64, 512, 2048])
def test_a_graph_and_the_gpus_own_record_agree_on_softmax(side: int, cache: Any, torch: Any) -> None:
    x = torch.randn(side, side, device="cuda:0")
    graph, trace = (
        assay.measure(lambda: torch.softmax(x, -1), method=method, cache=cache, device="cuda:0", budget_s=3.0)
        for method in ("graph", "trace")
    )
    assert value(graph) == near(value(trace), 0.03, 0.4)


def test_a_result_says_how_it_was_obtained_and_how_far_it_may_be_off(spin: Any) -> None:
    result = assay.measure(spin(5), device="cuda:0", budget_s=3.0)
    assert (result.method, result.cache, result.device, result.operations) == ("graph", "cold", "cuda:0", 1)
    assert result.decisive == "busy_us"
    assert result.instrument_error_us is not None
    assert value(result, "call_us") > value(result)
    assert result.clock.mhz is not None
    assert result.cycles is not None
    assert result.cycles.value == near(value(result) * result.clock.mhz, 0.2, 0.0)


def test_a_call_that_waits_for_the_gpu_is_traced(torch: Any) -> None:
    x = torch.ones(1 << 16, device="cuda:0")
    result = assay.measure(lambda: x.sum().item(), device="cuda:0", budget_s=2.0)
    assert result.method == "trace"
    assert value(result) > 0


def test_a_call_that_allocates_is_captured_and_gives_its_memory_back(torch: Any) -> None:
    def allocate() -> Any:
        return torch.empty(1 << 24, device="cuda:0").fill_(1)

    assay.measure(allocate, device="cuda:0", budget_s=1.0)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        assert assay.measure(allocate, device="cuda:0", budget_s=1.0).method == "graph"
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() - before < (1 << 26)


def test_several_kernels_are_counted_and_span_more_than_they_are_busy(torch: Any) -> None:
    x = torch.randn(1 << 16, device="cuda:0")
    result = assay.measure(lambda: torch.sum((x + 1) * 2), device="cuda:0", budget_s=3.0)
    assert result.operations is not None
    assert result.operations >= 3
    assert result.decisive == "span_us"
    assert value(result, "span_us") >= 0.95 * value(result)


def test_two_spins_one_after_the_other_take_twice_as_long(spin: Any, bench: Any) -> None:
    one = spin(10)

    def both() -> None:
        one()
        one()

    result = assay.measure(both, device="cuda:0", cache="warm", budget_s=3.0)
    assert value(result) == near(2 * (10 + bench.calibration.empty_us), 0.03, 0.6)


def test_a_call_that_draws_random_numbers_is_timed_and_the_numbers_stay_repeatable(torch: Any) -> None:
    result = assay.measure(lambda: torch.rand(1 << 16, device="cuda:0"), device="cuda:0", budget_s=1.0)
    assert value(result) > 0
    torch.manual_seed(7)
    first = torch.rand(100, device="cuda:0")
    torch.manual_seed(7)
    assert torch.equal(first, torch.rand(100, device="cuda:0"))


def test_a_call_that_launches_nothing_is_timed_by_the_host(cuda: str) -> None:
    result = assay.measure(lambda: sum(range(1000)), device=cuda, budget_s=0.5)
    assert (result.method, result.why) == ("wall", "it launches nothing on the GPU")
    assert result.busy_us is None


def test_calls_that_differ_are_queued_and_that_is_said(torch: Any) -> None:
    sizes = itertools.cycle([100, 200])
    result = assay.measure(lambda: torch.ones(next(sizes), device="cuda:0"), device="cuda:0", budget_s=1.0)
    assert result.method == "queue"
    assert "its calls differ" in result.notes[0]


def test_a_function_that_raises_has_failed_with_its_own_error_as_the_cause(torch: Any) -> None:
    a, b = torch.ones(3, 4, device="cuda:0"), torch.ones(3, 4, device="cuda:0")
    with pytest.raises(assay.TrialFailed, match="raised RuntimeError") as caught:
        assay.measure(lambda: a @ b, device="cuda:0")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_capture_that_fails_leaves_memory_and_random_numbers_working(torch: Any, bench: Any, spin: Any) -> None:
    torch.manual_seed(3)
    expected = torch.rand(10, device="cuda:0")
    torch.manual_seed(3)
    x = torch.ones(8, device="cuda:0")
    for body in (torch.cuda.synchronize, lambda: x.sum().item()):
        with pytest.raises(NotCapturable):
            capture_graph(bench, body, torch.cuda.graph_pool_handle())
    assert torch.equal(torch.rand(10, device="cuda:0"), expected)
    assert float(torch.empty(1 << 20, device="cuda:0").fill_(2).sum()) == 2 << 20
    assert assay.measure(spin(5), device="cuda:0", budget_s=1.0).method == "graph"


def test_a_gate_that_nobody_opens_opens_by_itself_and_says_so(bench: Any) -> None:
    with bench.gate.closed(bench.handle, 1_000_000) as gate:
        deadline = time.monotonic() + 10
        while not gate.passed:
            assert time.monotonic() < deadline, "the gate did not open by itself"
    bench.wait(10.0)
    assert gate.timed_out


def test_a_gate_that_is_opened_was_not_given_up(bench: Any) -> None:
    with bench.gate.closed(bench.handle, 10_000_000_000) as gate:
        assert not gate.passed
    bench.wait(10.0)
    assert gate.passed
    assert not gate.timed_out


def test_calls_that_wait_cannot_be_queued_behind_a_gate(bench: Any, torch: Any) -> None:
    clock = QueueTimer(bench, GpuCallBatch(lambda: torch.cuda.synchronize(), "warm", 2))  # noqa: PLW0108 - looked up late
    with pytest.raises(GateTimedOut):
        clock.take()


@pytest.mark.timeout(60, method="thread")
def test_work_that_does_not_finish_is_given_up_after_the_limit(spin: Any, torch: Any) -> None:
    try:
        with pytest.raises(assay.TrialFailed, match=r"within 0\.2 s"):
            assay.measure(spin(2_000_000), device="cuda:0", limit_s=0.2)
    finally:
        torch.cuda.synchronize()
    assert value(assay.measure(spin(5), device="cuda:0", budget_s=1.0)) > 0


def test_a_difference_of_a_microsecond_is_found_both_ways(spin: Any) -> None:
    forth = assay.compare({"five": spin(5), "six": spin(6)}, device="cuda:0", budget_s=5.0)
    back = assay.compare({"six": spin(6), "five": spin(5)}, device="cuda:0", budget_s=5.0)
    assert (forth.verdict, back.verdict) == ("slower", "faster")
    assert forth.quantity == "busy_us"


def test_the_same_kernel_twice_is_not_different(spin: Any) -> None:
    assert assay.compare({"a": spin(5), "b": spin(5)}, device="cuda:0", budget_s=3.0).verdict in {"same", "unsure"}


@pytest.mark.parametrize("by", ["busy", "span", "call"])
def test_any_of_the_three_times_may_decide(by: Any, spin: Any) -> None:
    result = assay.compare({"five": spin(5), "fifty": spin(50)}, by=by, device="cuda:0", budget_s=3.0)
    assert (result.quantity, result.verdict) == (f"{by}_us", "slower")


def test_the_fastest_kernel_is_picked(spin: Any) -> None:
    candidates = {str(us): spin(us) for us in (8, 5, 6, 7)}
    result = assay.pick(candidates, device="cuda:0", budget_s=5.0)
    assert result.winner == "5"
    assert result.probability > 0.9


def test_do_bench_leaves_the_launch_out(spin: Any, bench: Any) -> None:
    assert 1000 * assay.do_bench(spin(5)) == near(5 + bench.calibration.empty_us, 0.02, 0.3)


def test_tritons_autotuner_with_our_timer_finds_the_better_configuration(cuda: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    told = tuned(tmp_path, cuda, elements=1 << 22, smaller_block=16)
    assert (told["best"], told["calls"]) == (1024, 2)


def test_the_command_line_times_a_workload_on_the_gpu(cuda: str, assay: Assay) -> None:
    ran = assay("time", "softmax", "--device", cuda, "--budget", "2", "--json")
    assert ran.code == 0, ran.err
    assert ran.data["measurement"]["method"] == "graph"
    assert ran.data["facts"][0]["check"]["error"] <= ran.data["facts"][0]["check"]["tolerance"]


def test_the_command_line_finds_the_gpu_that_a_function_uses(cuda: str, assay: Assay, workplace: Path) -> None:
    (workplace / "mine.py").write_text(
        "import torch\nx = torch.randn(512, 512, device='cuda')\ndef f():\n    return x.softmax(-1)\n"
    )
    ran = assay("time", "mine.py:f", "--budget", "2", "--json")
    assert ran.code == 0, ran.err
    assert ran.data["measurement"]["device"].startswith("cuda")
