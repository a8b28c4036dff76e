"""Continuous trials with real workers: samples with their starts, loads that leave theirs, and a moment to settle."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.core.values import Continuous, Subject
from assay.launch.workers import RawSeries, join_series
from assay.runner import summaries
from tests.running import function, quickly, role

if TYPE_CHECKING:
    from pathlib import Path

    from assay.launch.workers import TrialOutcome
    from tests.running import Measure

NAPS = "import time\n\ndef nap(ms):\n    time.sleep(ms / 1000)\n"


@pytest.fixture
def nap(workplace: Path) -> Subject:
    (workplace / "naps.py").write_text(NAPS)
    return Subject(workload="naps.py:nap", impl="python", params={"ms": 5})


def samples(outcome: TrialOutcome, of: str) -> dict[str, np.ndarray]:
    return {s.quantity: np.frombuffer(s.data) for s in outcome.series if s.role == of}


def test_calls_follow_one_another_for_the_whole_time_and_a_load_leaves_its_calls_too(
    measure: Measure, nap: Subject
) -> None:
    outcome = measure(
        role("timed", nap),
        role("noise", function("tiny"), duty="load"),
        schedule="together",
        mode=quickly(Continuous, duration_s=1.0, settle_s=0.3),
    )
    assert outcome.status == "ok", outcome.reason
    timed, noise = samples(outcome, "timed"), samples(outcome, "noise")
    assert list(timed) == list(noise) == ["call_us", "start_us"]
    gaps_us = np.diff(timed["start_us"]) - timed["call_us"][:-1]
    assert np.median(gaps_us) < 0.1 * np.median(timed["call_us"])
    one, other = (next(s for s in outcome.series if s.role == name) for name in ("timed", "noise"))
    assert timed["start_us"][-1] < (one.end_ns - one.start_ns) / 1e3
    assert other.start_ns < one.start_ns < one.end_ns < other.end_ns
    assert other.calls_per_sample > 100
    assert noise["start_us"].min() >= 0
    assert outcome.settled is not None
    assert (outcome.settled.waited_s, outcome.settled.steady) == (0.3, False)
    assert "no GPU" in (outcome.settled.note or "")
    how = {e.role: e.subjects[0].timed for e in outcome.evidence}
    assert {each.method for each in how.values() if each is not None} == {"continuous"}
    calls = next(e.load_calls for e in outcome.evidence if e.role == "noise")
    assert calls == len(noise["call_us"]) * other.calls_per_sample
    assert next(e.load_calls for e in outcome.evidence if e.role == "timed") is None


def test_with_a_duty_the_time_is_filled_only_in_part(measure: Measure, nap: Subject) -> None:
    outcome = measure(role("timed", nap), mode=quickly(Continuous, duration_s=1.5, duty=0.3))
    assert outcome.status == "ok", outcome.reason
    (series,) = (s for s in outcome.series if s.quantity == "call_us")
    lasted_us = (series.end_ns - series.start_ns) / 1e3
    assert np.frombuffer(series.data).sum() / lasted_us == pytest.approx(0.3, abs=0.06)


def raw(quantity: str, start_ns: int, *values: float, of: str = "r") -> RawSeries:
    return RawSeries(of, 0, 0, 0, quantity, 1, start_ns, start_ns + 100, np.array(values).tobytes())


def test_starts_of_several_stretches_count_from_the_first() -> None:
    parts = [raw("start_us", 1_000_000, 0.0, 5.0), raw("start_us", 3_000_000, 0.0, 5.0), raw("call_us", 1, 4.0)]
    starts, _ = join_series(parts)
    assert np.frombuffer(starts.data).tolist() == [0.0, 5.0, 2000.0, 2005.0]
    assert (starts.start_ns, starts.end_ns) == (1_000_000, 3_000_100)


def test_neither_starts_nor_loads_are_summarised(measure: Measure, nap: Subject) -> None:
    from assay.core.values import Trial

    roles = (role("r", nap), role("noise", nap, duty="load"))
    trial = Trial(block="b", roles=roles, mode=quickly(Continuous))
    series = [raw("call_us", 0, 1.0, 2.0, 3.0), raw("start_us", 0, 0.0, 1.0, 3.0)]
    found = summaries(trial, [*series, *(replace(s, role="noise") for s in series)])
    assert [(s.role, s.quantity) for s in found] == [("r", "call_us")]
