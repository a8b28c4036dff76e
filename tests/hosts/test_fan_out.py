"""What several machines come to: the worst exit code, and money that is shared and never exceeded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.hosts import offers
from assay.hosts.base import Offer
from assay.hosts.fan_out import EXIT_CODES_WORST_FIRST, FILE, FanOut, FanOutRun, share_budget, worst_exit_code
from assay.hosts.rented.journal import MachineRecord, RentalRecord

if TYPE_CHECKING:
    from pathlib import Path

COSTS = st.lists(st.floats(0, 10), min_size=1, max_size=6)
NOW = datetime(2026, 11, 15, tzinfo=UTC)


@given(st.lists(st.sampled_from(EXIT_CODES_WORST_FIRST), min_size=1))
def test_the_worst_exit_code_is_one_of_them_and_does_not_depend_on_their_order(codes: list[int]) -> None:
    assert worst_exit_code(codes) in codes
    assert worst_exit_code(codes) == worst_exit_code(reversed(codes))
    assert (worst_exit_code(codes) == 0) == (set(codes) == {0})


@pytest.mark.parametrize(
    ("codes", "code"), [([0, 1], 1), ([1, 4], 4), ([4, 3], 3), ([3, 2], 2), ([0, 70, 2], 70), ([], 3)]
)
def test_which_exit_code_is_worse(codes: list[int], code: int) -> None:
    assert worst_exit_code(codes) == code


@given(st.floats(0, 20), COSTS)
def test_shares_are_enough_for_each_and_together_no_more_than_there_is(purse: float, costs: list[float]) -> None:
    found = share_budget(purse, costs)
    if sum(costs) > purse * (1 + 1e-9):
        assert found is None
    elif found is not None:
        assert all(share >= cost for share, cost in zip(found, costs, strict=True))
        assert sum(found) <= purse * (1 + 1e-9)


def test_what_was_refused_leaves_the_exit_code_alone(tmp_path: Path) -> None:
    refused, done = (
        FanOutRun(gpu_label="T4", state="refused", reason="no"),
        FanOutRun(gpu_label="L4", state="done", exit_code=0),
    )
    whole = FanOut(words=("run",), runs=(refused, done))
    assert whole.exit_code == 0
    assert FanOut(words=("run",), runs=(refused,)).exit_code == 3
    whole.write(tmp_path)
    assert FanOut.model_validate_json((tmp_path / FILE).read_bytes()) == whole


def test_how_long_machines_took_to_answer_before_is_what_is_expected_next() -> None:
    def rental(seconds: float | None, provider: str = "moon") -> RentalRecord:
        up = None if seconds is None else NOW + timedelta(seconds=seconds)
        return RentalRecord(
            job_id="o", provider=provider, begun_at=NOW, machines=(MachineRecord(number="1", made_at=NOW, up_at=up),)
        )

    offer = Offer(host="moon", name="small", ready_s=60)
    seen = [rental(900), *(rental(s) for s in (30, 40, 50, 45, 35)), rental(None), rental(5, "sun")]
    assert offers.with_measured_ready_time(offer, seen).ready_s == 40
    assert offers.with_measured_ready_time(offer, [rental(5, "sun")]).ready_s == 60
