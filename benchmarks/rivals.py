"""Other timers, each at several budgets: as users run it, and as little as it can be told to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Rival:
    """A timer at one budget: what cache it times in, whether these are its defaults, and how to ask it for µs."""

    name: str
    setting: str
    cache: Literal["cold", "warm"]
    default: bool
    time_us: Callable[[Callable[[], object]], float]


def rivals(torch: Any) -> list[Rival]:
    """Return every timer at every budget."""
    return [*_triton(), *_triton_graph(), *_torch_timer(torch), *_inductor()]


def _triton() -> list[Rival]:
    from triton.testing import do_bench

    def requests(warmup: int, rep: int) -> Callable[[Callable[[], object]], float]:
        return lambda call: 1000 * float(do_bench(call, warmup=warmup, rep=rep, return_mode="median"))

    budgets = ((1, 1), (2, 5), (5, 20), (25, 100))
    return [
        Rival("triton do_bench", f"warmup {w}, rep {r} ms", "cold", (w, r) == (25, 100), requests(w, r))
        for w, r in budgets
    ]


def _triton_graph() -> list[Rival]:
    from triton.testing import do_bench_cudagraph

    def requests(rep: int) -> Callable[[Callable[[], object]], float]:
        return lambda call: 1000 * float(do_bench_cudagraph(call, rep=rep, return_mode="median"))

    return [Rival("triton do_bench_cudagraph", f"rep {rep} ms", "warm", rep == 20, requests(rep)) for rep in (1, 5, 20)]


def _torch_timer(torch: Any) -> list[Rival]:
    import torch.utils.benchmark as bench

    def requests(least_s: float) -> Callable[[Callable[[], object]], float]:
        def time_us(call: Callable[[], object]) -> float:
            timer = bench.Timer("call(); torch.cuda.synchronize()", globals={"call": call, "torch": torch})
            return 1e6 * float(timer.blocked_autorange(min_run_time=least_s).median)

        return time_us

    return [
        Rival("torch.utils.benchmark", f"{1000 * s:g} ms", "warm", s == 0.2, requests(s)) for s in (0.002, 0.02, 0.2)
    ]


def _inductor() -> list[Rival]:
    from torch._inductor.runtime.benchmarking import InductorBenchmarker

    benchmarker = InductorBenchmarker()
    return [
        Rival("inductor", "defaults", "cold", True, lambda call: 1000 * float(benchmarker.benchmark_gpu(call))),
        Rival(
            "inductor",
            "few",
            "cold",
            False,
            lambda call: (
                1000
                * float(
                    benchmarker.benchmark_gpu(
                        call, estimation_iters=2, memory_warmup_iters=5, benchmark_iters=10, max_benchmark_duration=2
                    )
                )
            ),
        ),
    ]
