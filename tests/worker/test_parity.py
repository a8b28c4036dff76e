"""Parity as a trial carries it: asked for by a role, found out by its worker before anything is timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from assay.core.results import Parity
from assay.core.values import Paired, Role, Subject
from assay.worker import subjects
from assay.workloads import registry
from assay.workloads.base import PreparedWorkload
from tests.running import quickly

if TYPE_CHECKING:
    from pathlib import Path

    from tests.running import Measure

PAIRS = """
import itertools

import numpy as np

calls = itertools.count()

def reference(n):
    return np.linspace(0, 1, n)

def fast(n):
    return np.linspace(0, 1, n) + np.zeros(n)

def wrong(n):
    return np.linspace(0, 1, n) ** 1.001

def flips(n):
    return np.linspace(0, 1, n) * (1 + 1e-14 * next(calls))

def silent(n):
    pass

def coarse(n):
    return wrong(n)

coarse.tolerance = 0.01

def careless(n):
    return wrong(n)

careless.tolerance = "little"
"""


@pytest.fixture
def pairs(workplace: Path) -> Path:
    (workplace / "pairs.py").write_text(PAIRS)
    return workplace


def two(fast: str, reference: str = "reference") -> Role:
    functions = tuple(
        Subject(workload=f"pairs.py:{name}", impl="python", params={"n": 50}) for name in (reference, fast)
    )
    return Role(name="pair", subjects=functions, devices=("cpu:0",))


def test_a_fast_function_that_is_wrong_is_timed_all_the_same_and_said_to_be_wrong(
    pairs: Path, measure: Measure
) -> None:
    outcome = measure(two("wrong"), mode=quickly(Paired, rounds=4, parity=True))
    assert outcome.status == "ok", outcome.reason
    reference, fast = outcome.evidence[0].subjects
    assert reference.parity is None
    assert fast.parity is not None
    assert fast.parity.passed is False
    assert {series.subject for series in outcome.series} == {0, 1}


def compared(fast: str) -> Parity:
    ready = [subjects.prepare_subject(subject, device="cpu:0", seed=0) for subject in two(fast).subjects]
    return subjects.compare_outputs(ready[0], ready[1])


def test_what_a_function_says_about_itself_is_heard(pairs: Path) -> None:
    assert compared("fast").passed is True
    assert compared("coarse").passed is True
    assert compared("flips").deterministic is False
    told = compared("silent")
    assert told.passed is None
    assert told.reason == "the fast function returns nothing, which is no number, array or dense tensor"
    with pytest.raises(Exception, match=r"^The tolerance of pairs\.py:careless is a relative error from 0 to 1, not"):
        compared("careless")


def test_a_workload_that_knows_how_it_is_judged_is_asked_itself() -> None:
    own = Parity(passed=True, measure="its own")
    assert subjects.compare_outputs(PreparedWorkload(call=dict), PreparedWorkload(call=dict, parity=lambda: own)) is own


def test_commands_are_not_compared() -> None:
    told = subjects.compare_outputs(
        PreparedWorkload(call=dict, reports_extras=True), PreparedWorkload(call=dict, reports_extras=True)
    )
    assert told.passed is None
    assert told.reason == "the output of a command is not compared"


def test_the_branches_are_compared_by_a_worker_in_pairs(measure: Measure) -> None:
    given = {"sequence": "96", "head_dim": "16"}
    branches = tuple(
        registry.resolve_subject(f"{name}@{impl}", device_kind="cpu", explicit=given)
        for name in ("sliding_attention", "compressed_attention")
        for impl in ("masked", "flash")
    )
    role = Role(name="pairs", subjects=branches, devices=("cpu:0",))
    outcome = measure(role, mode=quickly(Paired, duration_s=60.0, timeout_s=90.0, rounds=4, parity=True))
    assert outcome.status == "ok", outcome.reason
    found = outcome.evidence[0].subjects
    assert [each.parity is not None and each.parity.passed for each in found] == [False, True, False, True]
    assert [each.backend for each in found] == ["flash", "chunks of flash"] * 2


def test_a_parity_that_did_not_pass_says_why() -> None:
    with pytest.raises(ValidationError, match="a parity that did not pass says why"):
        Parity(passed=None, measure="m")
