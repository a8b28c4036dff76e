"""A role in pairs: one process, one pair after another, and what one of them does harms no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.core.results import Missing
from assay.core.values import Paired, Role, Subject, Trial
from tests.running import quickly

if TYPE_CHECKING:
    from pathlib import Path

    from tests.running import Measure

PATHS = """
import numpy as np

def plain(n): return float(sum(range(4 * n)))
def twice_as_fast(n): return float(2 * sum(range(2 * n)) + 4 * n * n)
def wrong(n): return 1.0
def too_large(n): raise MemoryError("8 GiB")
def nothing(n): pass
def broken(n): raise ValueError("no kernel for this size")
"""


def pair(fast: str, n: int = 500, reference: str = "plain") -> tuple[Subject, Subject]:
    made = (Subject(workload=f"paths.py:{name}", impl="python", params={"n": n}) for name in (reference, fast))
    first, second = made
    return first, second


def in_pairs(*pairs: tuple[Subject, Subject]) -> Role:
    subjects = tuple(subject for pair in pairs for subject in pair)
    return Role(name="pairs", subjects=subjects, devices=("cpu:0",))


@pytest.fixture(autouse=True)
def _paths(workplace: Path) -> None:
    (workplace / "paths.py").write_text(PATHS)


def test_each_pair_is_timed_in_rounds_and_checked_and_a_bad_one_is_left_out_with_its_reason(measure: Measure) -> None:
    names = ("twice_as_fast", "wrong", "too_large", "nothing", "broken")
    role = in_pairs(*map(pair, names), pair("twice_as_fast", 900))
    found = measure(role, mode=quickly(Paired, duration_s=60.0, rounds=9, parity=True))
    assert (found.status, found.reason) == ("ok", None)
    counts = {series.subject: len(series.data) // 8 for series in found.series}
    assert counts == dict.fromkeys((0, 1, 2, 3, 6, 7, 10, 11), 9)
    medians = {series.subject: float(np.median(np.frombuffer(series.data))) for series in found.series}
    assert medians[10] > medians[11]
    facts = found.evidence[0].subjects
    assert [(each.skipped.code, each.skipped.detail) for each in facts if each.skipped] == [
        ("out_of_memory", "out of memory: 8 GiB"),
        ("error", "ValueError: no kernel for this size"),
    ]
    assert [each.parity.passed if each.parity else "none" for each in facts[1::2]] == [
        True, False, "none", None, "none", True,
    ]  # fmt: skip
    assert all(series.start_ns < series.end_ns for series in found.series)
    assert len({(series.start_ns, series.end_ns) for series in found.series}) == 4


def test_pairs_whose_turn_does_not_come_are_told_to_be_not_reached(measure: Measure) -> None:
    found = measure(
        in_pairs(pair("twice_as_fast", 100_000), pair("twice_as_fast")),
        mode=quickly(Paired, duration_s=0.01, rounds=4),
    )
    assert found.status == "ok"
    assert [each.is_reached for each in found.evidence[0].subjects] == [True, True, False, False]


def test_where_no_pair_works_the_trial_fails_with_the_first_reason(measure: Measure) -> None:
    found = measure(in_pairs(pair("broken"), pair("broken", 2)), mode=quickly(Paired, rounds=4))
    assert (found.status, found.reason) == ("failed", "pairs: ValueError: no kernel for this size")


def test_where_none_fits_into_memory_each_is_left_out(measure: Measure) -> None:
    found = measure(in_pairs(pair("too_large")), mode=quickly(Paired, rounds=4))
    assert found.status == "ok"
    assert found.series == []
    assert found.evidence[0].subjects[1].skipped == Missing(code="out_of_memory", detail="out of memory: 8 GiB")


def test_every_subject_of_a_paired_trial_has_a_partner() -> None:
    one, other = pair("nothing")
    role = Role(name="r", subjects=(one, other, one), devices=("cpu:0",))
    with pytest.raises(ValueError, match="in pairs"):
        Trial(block="b", roles=(role,), mode=quickly(Paired, rounds=4))
