"""The journal of rentals, budgets, and names that carry a deadline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import BadInput
from assay.hosts.rented.budget import (
    Allowance,
    affordable_time_s,
    committed_usd,
    monthly_usd,
    reason_over_budget,
    spent_usd,
)
from assay.hosts.rented.journal import JournalEntry, RentalJournal, RentalRecord, replay_entries
from assay.hosts.rented.provider import deadline_of_machine, job_of_machine, machine_name

if TYPE_CHECKING:
    from pathlib import Path

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
ORDER = "0123456789abcdef"


def entry(event: str, minutes: float = 0, **told: object) -> JournalEntry:
    at = NOON + timedelta(minutes=minutes)
    return JournalEntry.model_validate({"at": at, "event": event, "job_id": ORDER, "provider": "runpod", **told})


WHOLE = (
    entry("intent", usd_per_hour=1.2, at_most_usd=2.4, deadline_at=NOON + timedelta(hours=2), gpu="L4"),
    entry("requested", usd_per_hour=1.2),
    entry("created", 1, number="a", usd_per_hour=1.2),
    entry("up", 3, number="a"),
    entry("ended", 31, number="a"),
    entry("released", 32),
    entry("billed", 40, number="a", usd=0.61),
)


def unanswered(rental: RentalRecord) -> int:
    """Return how many requests may have created a machine that is not recorded."""
    return rental.request_count - rental.refused - len(rental.machines)


def test_the_journal_tells_what_became_of_an_order() -> None:
    (rental,) = replay_entries(WHOLE)
    assert rental.quoted_usd(NOON) == pytest.approx(0.6), "half an hour, whatever time it is now"
    assert rental.billed_usd == 0.61
    assert (unanswered(rental), rental.released_at is not None) == (0, True)
    assert committed_usd(rental, NOON) == 0.61, "what was billed counts, not what was quoted"


def test_while_it_runs_the_most_it_may_cost_counts() -> None:
    (rental,) = replay_entries(WHOLE[:4])
    assert committed_usd(rental, NOON + timedelta(minutes=4)) == 2.4
    assert spent_usd([rental], NOON) == 2.4
    assert spent_usd([rental], NOON + timedelta(days=30)) == 0, "another month"


def test_a_request_without_an_answer_may_have_made_something() -> None:
    assert unanswered(replay_entries(WHOLE[:2])[0]) == 1
    assert unanswered(replay_entries((*WHOLE[:2], entry("refused")))[0]) == 0
    assert unanswered(replay_entries((*WHOLE[:3], entry("requested")))[0]) == 1


def test_every_prefix_of_a_journal_makes_sense_and_garbage_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "rentals.jsonl"
    book = RentalJournal(path)
    for each in WHOLE:
        book.write(each)
    whole = path.read_bytes()
    for cut in range(0, len(whole), 37):
        path.write_bytes(whole[:cut])
        complete = whole[:cut].count(b"\n")
        assert len(RentalJournal(path).entries()) == complete
        assert len(RentalJournal(path).rentals()) == (1 if complete else 0)
    path.write_bytes(whole[:200] + b"\n\xff\x00nonsense{\n" + whole)
    broken = RentalJournal(path)
    assert broken.rental(ORDER) is not None
    assert broken.unreadable == 2
    path.write_bytes(whole[:-10])
    book.write(entry("billed", 50, number="a", usd=0.7))
    assert book.rentals()[0].billed_usd == 0.7, "a torn line is cut off by the next"


@given(st.datetimes(datetime(2020, 1, 1), datetime(2090, 1, 1)), st.from_regex(r"[0-9a-z]{8,32}", fullmatch=True))
def test_a_name_gives_its_deadline_and_its_order_back(deadline: datetime, order: str) -> None:
    aware = deadline.replace(tzinfo=UTC)
    name = machine_name(order, 2, aware)
    found = deadline_of_machine(name)
    assert found is not None
    assert timedelta() <= found - aware < timedelta(seconds=1), "never earlier than was meant"
    assert job_of_machine(name) == order
    assert len(name) <= 64, "what Lambda takes"


@pytest.mark.parametrize("name", ["assay-dev", "assay-until-20261399t000000z-1-abcdefgh", "assay-", "my-assay", ""])
def test_names_of_others_are_none_of_ours(name: str) -> None:
    assert job_of_machine(name) is None
    assert deadline_of_machine(name) is None


def test_a_budget_says_no_before_it_is_too_late() -> None:
    run = Allowance(run_usd=1.0)
    assert reason_over_budget(0.5, 3600, run) is None
    assert "it may cost $1.50 at $1.50 an hour in 60 min, and --max-cost is $1.00" in str(
        reason_over_budget(1.5, 3600, run)
    )
    assert "--max-cost" in str(reason_over_budget(0.5, 3600, run, already_usd=0.6)), (
        "what an earlier machine cost counts"
    )
    assert "its price is not known" in str(reason_over_budget(None, 3600, run))
    assert reason_over_budget(None, 3600, Allowance()) is None
    month = Allowance(month_usd=10, spent_usd=9.5)
    assert "of this month's $10.00" in str(reason_over_budget(1.0, 3600, month))
    assert reason_over_budget(0.5, 3600, month) is None
    assert "is enough for 30 s" in str(reason_over_budget(100.0, 30, run, ready_s=60))


@given(st.floats(0.01, 100), st.floats(0.01, 1000))
def test_a_limit_that_the_money_sets_is_never_over_the_budget(price: float, run_usd: float) -> None:
    seconds = affordable_time_s(None, price, run_usd, 3600)
    said = reason_over_budget(price, seconds, Allowance(run_usd=run_usd))
    assert said is None or "is enough for" in said


def test_a_months_budget_that_is_no_amount_is_said() -> None:
    assert monthly_usd({}) is None
    assert monthly_usd({"ASSAY_MONTHLY_BUDGET_USD": " $50 "}) == 50
    for text in ("much", "-1", "nan", "inf"):
        with pytest.raises(BadInput, match="is not an amount of dollars"):
            monthly_usd({"ASSAY_MONTHLY_BUDGET_USD": text})
