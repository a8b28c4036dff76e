"""What a clock shows of itself, at its edges: steps, spins, what is taken off, and how far it may be off."""

from __future__ import annotations

from itertools import chain, cycle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import assay.timing.cuda.device
import assay.timing.cuda.timers
from assay.timing import calibration
from assay.timing.calibration import ClockCalibration, SpinTiming, check_clocks
from assay.timing.cuda import timers
from assay.timing.sampling import SampleBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.results import Finding


class Ticking:
    """Stands for the module ``time``: each read comes so much later than the one before, over and over."""

    def __init__(self, *steps_ns: int) -> None:
        self._steps = chain([0], cycle(steps_ns))
        self.now_ns = 5_000
        self.reads = 0

    def perf_counter_ns(self) -> int:
        self.reads += 1
        self.now_ns += next(self._steps)
        return self.now_ns


def test_the_hosts_clock_steps_by_the_least_that_it_moved_and_costs_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    ticking, spun = Ticking(0, 1, 90, 40, 60), []

    def spins(true_us: float) -> Any:
        spun.append(true_us)
        return np.array([true_us])

    monkeypatch.setattr(calibration, "time", ticking)
    monkeypatch.setattr(calibration, "_host_spins", spins)
    found = calibration.calibrate_host_clock()
    assert (found.clock, found.step_ns, found.floor_us, found.event_overhead_us) == ("host", 1.0, 0.04, None)
    assert [each.true_us for each in found.spins] == spun == [5.0, 50.0, 500.0]
    assert ticking.reads == 2000


class Stopwatch:
    """Stands for the wall clock: it tries a call once, and then reads 7 µs, one more each time."""

    def __init__(self, call: Callable[[], None], *, single_calls: bool) -> None:
        assert single_calls
        self._call = call
        self._reads_us = 6.0
        call()

    def sample_us(self) -> float:
        self._call()
        self._reads_us += 1
        return self._reads_us


@pytest.mark.parametrize(("step_ns", "overshot_us"), [(500, 0.0), (1500, 1.0), (1999, 1.998), (2001, 0.001)])
def test_what_a_spin_overshot_is_taken_off_what_was_read(
    step_ns: int, overshot_us: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "time", Ticking(step_ns))
    monkeypatch.setattr(calibration, "WallTimer", Stopwatch)
    found = calibration._host_spins(2.0)
    assert found == pytest.approx(np.arange(7.0, 67.0) - overshot_us, abs=1e-9)


def test_a_spin_is_told_by_its_quartiles_and_by_how_often_it_was_disturbed() -> None:
    found = calibration._summarize_spins(3.0, np.array([1.0, 5.0, 3.0, 2.0, 4.0]))
    # Disturbed is more than 3.15 µs and the 0.2 µs that a GPU's clock may be off: two of five.
    assert found == SpinTiming(true_us=3.0, read_us=3.0, low_us=2.0, high_us=4.0, disturbed_share=0.4)
    assert found.error_us == 0.0


def test_a_spin_a_twentieth_longer_and_a_fifth_of_a_microsecond_is_just_not_disturbed() -> None:
    for longest, share in ((105.2, 0.0), (105.3, 0.25), (107.6, 0.25)):
        assert calibration._summarize_spins(100.0, np.array([100.0, 100.0, 100.0, longest])).disturbed_share == share


class Known:
    """A GPU that is not there: an empty kernel takes 1.5 µs, and by events a spin 23.5 µs, or 59 µs at worst."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.launches: list[tuple[str, int]] = []
        self.streams: list[int] = []
        self.works: list[tuple[str, int]] = []
        self.journal: list[str] = []
        self.calibrated = 0
        self._elapsed_ms = cycle([0.0235, 0.0235, 0.059])
        cuda = SimpleNamespace(
            current_stream=lambda index: SimpleNamespace(cuda_stream=70 + index),
            Event=self._event,
            synchronize=lambda: self.journal.append("synchronize"),
        )
        self.bench = SimpleNamespace(
            calibration=SimpleNamespace(empty_us=1.5),
            kernels=SimpleNamespace(launch=self._launch),
            torch=SimpleNamespace(cuda=cuda),
        )
        patch.setattr(assay.timing.cuda.device, "gpu_timing_device", lambda _: self.bench)
        patch.setattr(assay.timing.cuda.timers, "calibrate_device", self._calibrate)
        patch.setattr(timers, "GraphTimer", self._clock)

    def _calibrate(self, on: object) -> None:
        assert on is self.bench
        self.calibrated += 1

    def _launch(self, kernel: str, ns: int) -> Callable[[int], None]:
        self.launches.append((kernel, ns))

        def launch(stream: int) -> None:
            self.streams.append(stream)
            self.journal.append("spin")

        return launch

    def _clock(self, _on: object, work: Any) -> Any:
        """Return a clock whose first two batches are slow, the third 2 µs and each after it 1 µs longer."""
        self.works.append((work.state, work.calls))
        batches = iter([900.0, 800.0, 2.0, 3.0, 4.0, 5.0])
        take = lambda: SampleBatch({"span_us": np.array([next(batches)])})  # noqa: E731 - a method of what stands for a clock
        return SimpleNamespace(take=take, close=lambda: self.journal.append(f"closed {len(list(batches))}"))

    def _event(self, *, enable_timing: bool) -> Any:
        assert enable_timing
        return SimpleNamespace(
            record=lambda: self.journal.append("record"), elapsed_time=lambda _: next(self._elapsed_ms)
        )


def test_a_gpus_clock_is_told_by_spins_behind_the_first_two_batches_less_an_empty_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = Known(monkeypatch)
    found = calibration.calibrate_gpu_clock(1)
    assert (found.clock, found.step_ns, found.floor_us, known.calibrated) == ("cuda:1", 32.0, 1.5, 1)
    assert [each.true_us for each in found.spins] == [1.0, 2.0, 5.0, 20.0, 200.0]
    # The median of 2 to 5 µs is 3.5 µs, the quartiles 2.75 and 4.25 µs, and 1.5 µs are taken off each.
    assert {(each.low_us, each.read_us, each.high_us) for each in found.spins} == {(1.25, 2.0, 2.75)}
    assert known.launches == [("spin", ns) for ns in (1_000, 2_000, 5_000, 20_000, 200_000, 20_000)]
    assert known.works == [("warm", 16)] * 5
    assert known.journal == ["closed 0"] * 5 + ["record", "spin", "record", "synchronize"] * 60
    assert known.streams == [71] * 60


def test_events_add_what_they_read_longer_in_the_median_than_a_spin_and_an_empty_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Known(monkeypatch)
    assert calibration.calibrate_gpu_clock(0).event_overhead_us == pytest.approx(2.0)


def spun(true_us: float, read_us: float, disturbed: float = 0.0) -> SpinTiming:
    return SpinTiming(true_us=true_us, read_us=read_us, low_us=read_us, high_us=read_us, disturbed_share=disturbed)


def judged(clock: str, *spins: SpinTiming, events_us: float | None = None) -> list[Finding]:
    made = ClockCalibration(clock=clock, step_ns=31.6, floor_us=0.456, event_overhead_us=events_us, spins=spins)
    return check_clocks([made])


@pytest.mark.parametrize(
    ("clock", "true_us", "read_us", "right"),
    [
        ("host", 5.0, 6.0, "yes"),
        ("host", 5.0, 4.0, "yes"),
        ("host", 5.0, 6.01, "no"),
        ("host", 5.0, 3.99, "no"),
        ("host", 500.0, 505.0, "yes"),
        ("host", 500.0, 495.0, "yes"),
        ("host", 500.0, 505.25, "no"),
        ("cuda:0", 0.0, 0.2, "yes"),
        ("cuda:0", 0.0, 0.21, "no"),
        ("cuda:0", 0.0, -0.21, "no"),
        ("cuda:0", 500.0, 505.0, "yes"),
        ("cuda:0", 500.0, 505.25, "no"),
    ],
)
def test_a_clock_may_be_off_by_a_hundredth_or_by_a_microsecond_on_the_host_and_a_fifth_on_a_gpu(
    clock: str, true_us: float, read_us: float, right: str
) -> None:
    assert judged(clock, spun(true_us, read_us))[0].verdict == right
    assert judged(clock, spun(true_us, true_us), spun(true_us, read_us))[0].verdict == right


def test_what_a_clock_showed_is_told_whole() -> None:
    reading, quiet = judged("host", spun(5.0, 5.126), spun(50.0, 50.0), events_us=None)
    assert reading.claim == "The host's clock reads spins of known duration right (±1 %, or 1 µs)"
    assert reading.reason == "5 µs reads 5.13, 50 µs reads 50.00; steps of 32 ns, floor 0.46 µs"
    assert reading.facts == {
        "topic": "clock", "fix": None, "error_us": pytest.approx(0.126), "floor_us": 0.456, "event_overhead_us": None,
    }  # fmt: skip
    assert (quiet.claim, quiet.verdict) == ("The host's clock is not disturbed", "yes")
    assert quiet.reason == "0% of the spins took 5 % longer than most"
    assert quiet.facts == {"topic": "clock", "fix": None, "disturbed_share": 0.0}
    (on_gpu, _) = judged("cuda:1", spun(20.0, 20.0), events_us=2.34)
    assert on_gpu.claim == "The clock of cuda:1 reads spins of known duration right (±1 %, or 0.2 µs)"
    assert on_gpu.reason == "20 µs reads 20.00; steps of 32 ns, floor 0.46 µs; a pair of CUDA events adds 2.3 µs"


@pytest.mark.parametrize(
    ("spins", "worst_us", "error_us"),
    [
        ((spun(5.0, 7.0), spun(500.0, 504.5)), 5, 2.0),
        ((spun(5.0, 3.0), spun(500.0, 507.5)), 5, -2.0),
        ((spun(5.0, 6.5), spun(500.0, 490.0)), 500, -10.0),
        ((spun(500.0, 520.0), spun(5.0, 6.5), spun(50.0, 53.0)), 500, 20.0),
    ],
)
def test_the_worst_spin_is_the_one_furthest_off_for_what_it_may_be(
    spins: tuple[SpinTiming, ...], worst_us: float, error_us: float
) -> None:
    reading, _ = judged("host", *spins)
    assert reading.facts["error_us"] == error_us
    assert reading.facts["fix"] == f"close other programs and look again; {worst_us} µs is the worst"


@pytest.mark.parametrize(("first", "second", "verdict"), [(0.0, 0.05, "yes"), (0.06, 0.0, "no"), (0.0, 0.06, "no")])
def test_a_twentieth_of_the_spins_may_be_disturbed_and_no_more(first: float, second: float, verdict: str) -> None:
    _, quiet = judged("cuda:0", spun(5.0, 5.0, first), spun(20.0, 20.0, second))
    told = "see what else runs (assay run --on-interference refuse does)" if verdict == "no" else None
    assert (quiet.claim, quiet.verdict, quiet.facts["fix"]) == ("The clock of cuda:0 is not disturbed", verdict, told)
    assert quiet.facts["disturbed_share"] == max(first, second)


def test_every_clock_is_judged_twice() -> None:
    made = ClockCalibration(clock="host", step_ns=1.0, floor_us=0.1, spins=(spun(5.0, 5.0),))
    assert [each.claim[:10] for each in check_clocks([made, made.model_copy(update={"clock": "cuda:0"})])] == [
        "The host's", "The host's", "The clock ", "The clock ",
    ]  # fmt: skip
