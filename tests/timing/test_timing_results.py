"""Results in words: times with their intervals, counts in the singular and plural, one line for a list."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from assay.core.results import Estimate
from assay.timing.results import (
    ClockSummary,
    ComparedFunction,
    Comparison,
    Measurement,
    Pick,
    PickCandidate,
    ProcessTimes,
    format_clock,
    format_elapsed,
    format_one_line,
    format_time_estimate,
)


def us(value: float, half: float | None = 0.004) -> Estimate:
    low, high = (None, None) if half is None else (value * (1 - half), value * (1 + half))
    return Estimate(value=value, low=low, high=high, unit="us", scope="process", method="median", n=20)


def measurement(**changed: object) -> Measurement:
    return Measurement.model_validate(
        {
            "name": "softmax", "device": "cuda:0", "cache": "cold", "method": "graph", "why": "it can be captured",
            "busy_us": us(13.6), "span_us": us(13.6), "call_us": us(21.0, None), "cycles": us(26_900.0),
            "decisive": "busy_us", "instrument_error_us": 0.3, "operations": 1, "precision_wanted": 0.01,
            "precision_reached": 0.004, "stopped": "precise enough", "shape": "steady", "warmed_up": True,
            "clock": ClockSummary(mhz_low=1970, mhz=1980, mhz_high=1980), "samples": 1, "calls": 40, "took_s": 0.31,
            **changed,
        }
    )  # fmt: skip


def comparison(verdict: str = "faster") -> Comparison:
    other = ComparedFunction.model_validate(
        {"name": "new", "verdict": verdict, "ratio": 0.5, "low": 0.49, "high": 0.51, "time_us": us(5.0)}
    )
    return Comparison(
        first="old", first_us=us(10.0), others=(other,), quantity="call_us", minimum_effect=0.01, device="cpu",
        cache="warm", methods={"old": "wall", "new": "wall"}, pairs=16, stopped="decided", took_s=0.1,
    )  # fmt: skip


def test_a_measurement_on_a_gpu_tells_all_three_times_the_cycles_and_the_instrument() -> None:
    assert str(measurement()).splitlines() == [
        "softmax on cuda:0, cold cache",
        "  busy  13.60 µs (13.55–13.65)   kernels at work",
        "  span  13.60 µs (13.55–13.65)   first start to last end",
        "  call  21.00 µs (no interval)   what a caller waits",
        "  26,900 cycles at 1980 MHz",
        "  by graph: it can be captured",
        "  the instrument itself is good to ±300.0 ns",
        "  ±1 % reached; 1 sample in 0.31 s",
        "  the interval is of this process and this window; a fresh process may differ by more (assay time)",
    ]


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("faster", "faster than old by more than 1 %"),
        ("slower", "slower than old by more than 1 %"),
        ("same", "the same as old within 1 %"),
        ("unsure", "not decided against old"),
    ],
)
def test_a_verdict_is_part_of_a_sentence(verdict: str, words: str) -> None:
    assert words in str(comparison(verdict))
    assert format_one_line(comparison(verdict)) == f"new is {words}, 0.50× (0.49–0.51) its time"


def test_a_measurement_in_one_line_has_the_decisive_time_and_how() -> None:
    assert format_one_line(measurement()) == "softmax: 13.60 µs (13.55–13.65) (busy on cuda:0, by graph)"


def test_a_pick_in_one_line_has_the_winner_and_how_sure() -> None:
    pick = Pick(
        winner="b", time_us=5.0, probability=0.98, expected_regret=1e-6, tolerance=0.01,
        ranking=(PickCandidate(name="b"), PickCandidate(name="a", behind=0.1)), quantity="busy_us", device="cuda:0",
        cache="cold", rounds=10, calls=100, stopped="decided", took_s=1.0,
    )  # fmt: skip
    assert format_one_line(pick) == "b: 5.000 µs, of 2 within 1 % of the best with probability 0.98"
    assert "expected regret <0.01 %" in str(pick)
    assert "  a: +10.0 %" in str(pick)


def test_a_clock_that_moved_is_told_with_its_range() -> None:
    assert format_clock(ClockSummary(mhz_low=1500, mhz=1800, mhz_high=1980)) == "1800 MHz (1500–1980)"
    assert format_clock(ClockSummary()) == ""


def test_a_time_without_an_interval_says_so() -> None:
    assert format_time_estimate(us(5.0, None)) == "5.000 µs (no interval)"


@pytest.mark.parametrize(("took_s", "written"), [(0.0312, "0.031 s"), (4.26, "4.3 s"), (75.0, "1 min 15 s")])
def test_how_long_it_took_is_written_for_people(took_s: float, written: str) -> None:
    assert format_elapsed(measurement(took_s=took_s)) == written


def test_a_result_is_of_one_process_unless_it_says_otherwise_and_never_of_none() -> None:
    first = ProcessTimes(process=1)
    assert (first.status, first.samples, first.took_s, first.times, first.ratios) == ("ok", 0, 0.0, {}, {})
    assert PickCandidate(name="new").rounds == 0
    two = {**comparison().model_dump(), "processes": 2}
    assert (measurement().processes, measurement(processes=1).processes, measurement(processes=2).processes) == (
        1,
        1,
        2,
    )
    assert (comparison().processes, Comparison.model_validate(two).processes) == (1, 2)
    assert Comparison.model_validate({**two, "processes": 1}).processes == 1
    with pytest.raises(ValidationError):
        measurement(processes=0)
    with pytest.raises(ValidationError):
        Comparison.model_validate({**two, "processes": 0})
    with pytest.raises(ValidationError):
        ProcessTimes(process=0)
