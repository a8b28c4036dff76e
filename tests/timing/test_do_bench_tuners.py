"""Helion's tuner, mended: its timers are ours inside the block and its own again after it."""

from __future__ import annotations

import math
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from assay.core.errors import MachineCannot
from assay.timing.do_bench import HELION_TUNER_MODULE, interleaved_bench, patch_helion


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands for the module of Helion's that times."""
    module: Any = ModuleType(HELION_TUNER_MODULE)
    module.do_bench = lambda *_, **given: ("theirs", given)
    module.interleaved_bench = lambda *_, **__: ["theirs"]
    for name in ("helion", "helion.autotuner"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, HELION_TUNER_MODULE, module)
    return module


def work(n: int) -> Any:
    return lambda: sum(range(n))


def test_inside_the_block_helion_times_by_us_and_after_it_by_itself(stub: Any) -> None:
    theirs = stub.do_bench, stub.interleaved_bench
    with patch_helion():
        found = stub.do_bench(work(1000), return_mode="median", warmup=1, rep=5, process_group_name=None)
        assert isinstance(found, float)
        assert stub.interleaved_bench is interleaved_bench
    assert (stub.do_bench, stub.interleaved_bench) == theirs


def test_an_error_in_the_block_gives_helion_its_timers_back(stub: Any) -> None:
    theirs = stub.do_bench
    with pytest.raises(ValueError, match="oh"), patch_helion():
        raise ValueError("oh")
    assert stub.do_bench is theirs


def test_kernels_over_several_processes_keep_helions_own_timer(stub: Any) -> None:
    with patch_helion():
        assert stub.do_bench(work(1), rep=5, process_group_name="g") == (
            "theirs",
            {"rep": 5, "process_group_name": "g"},
        )


def test_without_helion_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "helion", None)
    with pytest.raises(MachineCannot, match="no Helion here"), patch_helion():
        pytest.fail("it went on")


def test_a_helion_that_looks_different_is_said(stub: Any) -> None:
    del stub.interleaved_bench
    with pytest.raises(MachineCannot, match=r"made for 1\.0"), patch_helion():
        pytest.fail("it went on")


def test_functions_in_turns_come_out_in_their_order_in_milliseconds() -> None:
    one, ten = interleaved_bench([work(500), work(5000)], repeat=50, desc="Rebenchmarking")
    assert 3 < ten / one < 30
    assert 0 < one < 100


def test_of_no_functions_there_are_no_times() -> None:
    assert interleaved_bench([], repeat=10) == []


def test_what_one_of_them_raises_comes_out_as_it_was() -> None:
    with pytest.raises(ZeroDivisionError):
        interleaved_bench([work(10), lambda: 1 / 0], repeat=10)


class TestWithHelion:
    """The real one, as far as it runs without a GPU."""

    @pytest.fixture
    def tuner(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        module = pytest.importorskip(HELION_TUNER_MODULE, reason="Helion is not installed here")
        monkeypatch.setattr(module, "_synchronize_device", lambda: None)
        return module

    @pytest.fixture
    def search(self) -> Any:
        """Stands for a search, as far as its timing looks at it."""
        return SimpleNamespace(
            _autotune_metrics=SimpleNamespace(num_configs_tested=0, num_accuracy_failures=0),
            _mutated_arg_indices=[],
            args=(1000,),
            best_perf_so_far=math.inf,
            kernel=SimpleNamespace(
                env=SimpleNamespace(process_group_name=None),
                bench_compile_config=lambda _config, *, allow_print: lambda n: sum(range(n)),
            ),
            log=SimpleNamespace(debug=lambda _: None),
            settings=SimpleNamespace(
                autotune_accuracy_check=False, autotune_benchmark_fn=None, autotune_progress_bar=False
            ),
        )

    def test_a_configuration_is_timed_by_us(self, tuner: Any, search: Any) -> None:
        with patch_helion():
            taken = tuner.BaseSearch.benchmark_function(search, {}, lambda n: sum(range(n)))
        assert isinstance(taken, float)
        assert search.best_perf_so_far == taken > 0

    def test_the_best_are_timed_again_by_us_in_turns(self, tuner: Any, search: Any) -> None:
        members = [SimpleNamespace(fn=lambda n, k=k: sum(range(n * k)), perfs=[]) for k in (1, 10)]
        with patch_helion():
            tuner.PopulationBasedSearch.rebenchmark(search, members)
        assert 3 < members[1].perfs[0] / members[0].perfs[0] < 30

    def test_its_setting_for_the_second_timing_takes_ours(self) -> None:
        helion = pytest.importorskip("helion", reason="Helion is not installed here")
        assert helion.Settings(autotune_benchmark_fn=interleaved_bench).autotune_benchmark_fn is interleaved_bench
