"""``assay.do_bench``: what Triton's returns, in its units and modes, and an auto-tuner's own errors as they are."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import assay
from tests.timing.faking import Known, KnownRig, noisy, nothing
from tests.timing.tuning import tuned

if TYPE_CHECKING:
    from pathlib import Path

    from tests.timing.faking import VirtualTime


def summing() -> int:
    return sum(range(1000))


@pytest.fixture
def ten_us(virtual: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that takes ten microseconds, with some spread."""
    rig = KnownRig({"nothing": Known(virtual, noisy(10.0, 0.02))})
    rig.install(monkeypatch)
    return nothing


def test_it_takes_what_tritons_takes() -> None:
    triton = pytest.importorskip("triton.testing")
    theirs, ours = inspect.signature(triton.do_bench).parameters, inspect.signature(assay.do_bench).parameters
    assert list(ours) == list(theirs)
    assert {n: p.default for n, p in ours.items()} == {n: p.default for n, p in theirs.items()}


def test_it_returns_the_mean_in_milliseconds(ten_us: Any) -> None:
    assert assay.do_bench(ten_us) == pytest.approx(0.010, rel=0.02)
    assert type(assay.do_bench(ten_us)) is float


def test_it_returns_each_statistic_that_is_asked_for(ten_us: Any) -> None:
    low, middle, mean, high = (assay.do_bench(ten_us, return_mode=m) for m in ("min", "median", "mean", "max"))
    assert low < middle < high
    assert low < mean < high
    everything = assay.do_bench(ten_us, return_mode="all")
    assert len(everything) >= 16
    assert all(isinstance(value, float) for value in everything)


def test_it_returns_quantiles_in_their_order_and_one_alone_as_a_number(ten_us: Any) -> None:
    middle, low, high = assay.do_bench(ten_us, quantiles=(0.5, 0.2, 0.8))
    assert low < middle < high
    assert isinstance(assay.do_bench(ten_us, quantiles=[0.5]), float)


def test_an_unknown_statistic_is_bad_input() -> None:
    with pytest.raises(assay.BadInput, match="return_mode is one of min, max, mean, median, all"):
        assay.do_bench(summing, return_mode="mode")  # type: ignore[arg-type]


def test_gradients_are_removed_before_each_call() -> None:
    tensor = SimpleNamespace(grad=1)
    seen: set[object] = set()

    def step() -> None:
        seen.add(tensor.grad)
        tensor.grad = 1

    assert assay.do_bench(step, rep=10, grad_to_none=[tensor]) > 0
    assert seen == {None}


class OutOfResources(Exception):
    """As an auto-tuner's."""


def test_what_a_function_raises_comes_out_as_it_was() -> None:
    def kernel() -> None:
        raise OutOfResources("shared memory")

    with pytest.raises(OutOfResources, match="shared memory"):
        assay.do_bench(kernel)


def test_what_it_raises_later_comes_out_as_it_was_too() -> None:
    calls = iter([None] * 500)

    def kernel() -> None:
        if next(calls, 5) == 5:
            raise OutOfResources("at last")

    with pytest.raises(OutOfResources):
        assay.do_bench(kernel)


def test_a_real_function_takes_some_time() -> None:
    assert 0 < assay.do_bench(summing, warmup=5, rep=20) < 1000


@pytest.mark.full
def test_as_the_timer_of_tritons_autotuner_it_finds_the_best_configuration(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    told = tuned(tmp_path, "cpu", elements=1024, smaller_block=128, TRITON_INTERPRET="1")
    # Interpreted, a program costs far more than an element: one program beats eight.
    assert (told["best"], told["calls"]) == (1024, 2)
    assert told["least"] >= 1


def test_an_error_that_tritons_autotuner_knows_costs_the_configuration_and_not_the_tuning() -> None:
    autotuner = pytest.importorskip("triton.runtime.autotuner")
    errors = pytest.importorskip("triton.runtime.errors")

    def kernel(n: int, BLOCK: int) -> None:  # noqa: N803 - as Triton writes them
        """Stands for a kernel; the tuner looks at its arguments."""

    class Launched:
        def __init__(self) -> None:
            self.fn = kernel

        def run(self, *_: object, **given: object) -> None:
            if given["BLOCK"] == 64:
                raise errors.OutOfResources(200, 100, "shared memory")

    import triton

    tuner = autotuner.Autotuner(
        Launched(), ["n", "BLOCK"], [triton.Config({"BLOCK": b}) for b in (64, 32)], [], None, None,
        do_bench=lambda call, quantiles: assay.do_bench(call, warmup=1, rep=2, quantiles=quantiles),
    )  # fmt: skip
    tuner.run(4)
    assert tuner.best_config.kwargs == {"BLOCK": 32}
