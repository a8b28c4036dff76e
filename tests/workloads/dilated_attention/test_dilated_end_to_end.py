"""The workload as a user runs it: real ranks, real transfers, and what the records say of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from assay.core.values import Counted, Role
from assay.workloads import registry
from assay.workloads.dilated_attention.problem import DilatedAttentionProblem
from tests.needing import need_modules
from tests.running import quickly

if TYPE_CHECKING:
    from assay.core.results import SubjectFacts
    from tests.running import Assay, Measure

pytestmark = pytest.mark.full

need_modules("torch")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks with a thread each: more than there are cores would only wait for each other."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


SMALL = {
    "batch": "1", "sequence": "128", "heads": "2", "key_heads": "2", "dim": "8", "segments": "16,128", "rates": "1,2",
}  # fmt: skip
PARAMS = [word for name, value in SMALL.items() for word in ("--param", f"{name}={value}")]
PARTS: tuple[dict[str, str], ...] = (
    {"passes": "forward"},
    {"passes": "total"},
    {"passes": "total", "only": "compute"},
    {"passes": "total", "only": "communication"},
)
MOVED = ("received_bytes", "sent_bytes", "messages")


def test_two_ranks_are_one_ring_checked_in_step_and_move_what_the_formula_says(assay: Assay) -> None:
    how = ("--device", "cpu", "--warmup-runs", "1", "--benchmark-runs", "3", "--json")
    done = assay("run", "dilated_attention", "--ranks", 2, *how, *PARAMS)
    assert done.code == 0, done.err
    (record,) = done.data["records"]
    assert (record["status"], [(s["rank"], s["n"]) for s in record["series"]]) == ("ok", [(0, 3), (1, 3)])
    for evidence in record["evidence"]:
        (facts,) = evidence["subjects"]
        assert facts["check"]["error"] <= facts["check"]["tolerance"]
        message = 2 * 1 * 2 * 8 * 4 * (64 // 2)
        told = [facts["measured"][name] for name in (*MOVED, "expected_received_bytes")]
        assert told == [message, message, 1, message]


def test_rings_that_do_not_fit_the_world_are_bad_input(assay: Assay) -> None:
    done = assay("run", "dilated_attention", "--ranks", 4, "--param", "ring=8", "--device", "cpu")
    assert done.code == 2
    assert done.err.strip() == "assay: A world of 4 ranks is not divisible into rings of 8."


def test_two_rings_are_timed_whole_and_in_their_parts_and_traced(measure: Measure) -> None:
    given = {**SMALL, "ring": "2", "causal": "true"}
    subjects = tuple(
        registry.resolve_subject("dilated_attention", device_kind="cpu", explicit={**given, **part}, ranks=4)
        for part in PARTS
    )
    ring = Role(name="ring", subjects=subjects, ranks=4, devices=("cpu:0",))
    outcome = measure(ring, mode=quickly(Counted, warmup_runs=1, runs=2, timeout_s=100.0), profile=True)
    assert outcome.status == "ok", outcome.reason
    assert {len(series.data) for series in outcome.series} == {2 * 8}
    assert len(outcome.series) == 4 * len(PARTS)
    costs = DilatedAttentionProblem.of(subjects[1].params).costs
    for evidence in outcome.evidence:
        place = evidence.rank % 2
        forward, total, compute, communication = evidence.subjects
        keys = costs.received_bytes(place, 2)
        assert moved(forward) == (keys, *moved(forward)[1:])
        assert moved(total)[0] == keys + costs.backward_received_bytes(place, 2)
        assert moved(communication) == moved(total)
        assert moved(compute) == (0, 0, 0)
        assert (forward.check is None, total.check is None) == (False, False)
        assert (compute.check, communication.check, communication.flop) == (None, None, None)
        assert total.flop == compute.flop == 3.5 * costs.flop_at(place, 2)
        assert evidence.trace is not None
        assert evidence.trace.endswith(f"-rank{evidence.rank}.json")
        names = {event.get("name") for event in json.loads(outcome.traces[evidence.trace])["traceEvents"]}
        assert "dilated_attention@torch passes=total only=communication" in names
        assert "dilated_attention@torch passes=forward only=all" in names


def moved(facts: SubjectFacts) -> tuple[float, ...]:
    """Return what one call moved, having made sure that it is what the formula says."""
    assert facts.measured is not None
    assert facts.measured["received_bytes"] == facts.measured["expected_received_bytes"]
    return tuple(facts.measured[name] for name in MOVED)
