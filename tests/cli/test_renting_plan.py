"""What would be rented for a command line, decided before anything is: kinds, times, money, reasons."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from assay.cli.contention import ContentionRunFlags
from assay.cli.power import SweepFlags
from assay.cli.rental import RentalPlan, offer_headline, parse_gpu_types, plan_rental, rental_page, rental_plan_data
from assay.cli.run import RunFlags
from assay.cli.threshold import ThresholdRunFlags
from assay.core.errors import BadInput
from assay.hosts import offers, registry
from assay.hosts.base import Offer
from assay.hosts.rented.journal import JournalEntry, RentalJournal

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 11, 15, tzinfo=UTC)
OFFERS = [
    {"gpu": "T4", "usd_per_hour": 0.5},
    {"gpu": "L4", "usd_per_hour": 0.8, "ready_s": 60},
    {"gpu": "A100-80GB", "usd_per_hour": 2.0, "priced_on": "2026-08"},
    {"gpu": "A100-80GB", "name": "eight", "gpu_count": 8, "usd_per_hour": 16.0},
]


@pytest.fixture(autouse=True)
def moon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host that rents, and one that is only known by its prices."""
    monkeypatch.setattr(
        registry, "known_hosts", lambda: {"moon": "tests.hosts.moon:HOST", "slurm": "assay.hosts.slurm.host:HOST"}
    )
    monkeypatch.setenv("MOON_FOLDER", str(tmp_path))
    monkeypatch.setenv("MOON_KEY", "secret")
    (tmp_path / "offers.json").write_text(json.dumps(OFFERS))
    return tmp_path


def plan(gpu_type: str | None, **changes: Any) -> RentalPlan:
    return plan_rental(ThresholdRunFlags(gpu_type=gpu_type, **changes), ("moon",), NOW)


def test_only_hosts_that_rent_are_asked() -> None:
    assert offers.renting_hosts() == ("moon",)


def test_each_kind_gets_the_cheapest_machine_and_what_cannot_work_is_refused() -> None:
    found = plan("t4,L4,a100")
    t4, l4, a100 = found.kinds
    assert t4.choice.best is None
    assert t4.refusal is not None
    assert "FlashAttention-2 does not support it" in t4.refusal
    assert l4.choice.best is not None
    assert l4.choice.best.cost_usd == pytest.approx(0.8 * (60 + 60 + 240) / 3600)
    assert a100.choice.best is not None
    assert a100.choice.best.offer.name == "A100-80GB"
    shown = rental_page(found)
    assert "T4: refused." in shown.lead
    assert "(listed 2026-08)" in shown.lead
    assert "(now)" in offer_headline(l4)
    assert [each["refusal"] is None for each in rental_plan_data(found)["kinds"]] == [False, True, True]  # type: ignore[union-attr,index,call-overload]


def test_on_a_cpu_nothing_is_too_old_for_flash() -> None:
    assert plan("T4", devices=("cpu",)).kinds[0].refusal is None


def test_how_many_gpus_stands_behind_a_colon() -> None:
    assert parse_gpu_types("L4,A100:8", offers.listed_gpu_types()) == [("L4", 1), ("A100", 8)]
    (eight,) = plan("A100:8").kinds
    assert eight.choice.best is not None
    assert eight.choice.best.offer.name == "eight"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("L4,l4", "names l4 twice"),
        ("L4,", "--gpu-type 'L4,' lacks a name"),
        ("L4:many", "how many GPUs stands behind the colon, as in L4:2"),
        ("L4:0", "how many GPUs"),
        ("L5", "Did you mean L4 (modal, runpod)?"),
    ],
)
def test_what_is_no_kind_of_gpu_is_said(text: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_gpu_types(text, offers.listed_gpu_types())
    assert said in str(caught.value)


def test_money_is_shared_among_machines_and_too_little_is_said() -> None:
    found = plan("L4,A100", max_cost=1.0)
    most = [kind.choice.best.most_usd for kind in found.kinds if kind.choice.best]
    assert sum(each or 0.0 for each in most) <= 1.0
    assert found.budget_problem is None
    little = plan("L4,A100", max_cost=0.3)
    assert little.budget_problem == "together they would cost about $0.347, and $0.300 may be spent"
    (alone,) = plan("L4", max_cost=0.05).kinds
    assert alone.no_offer_reason == "moon: it would cost about $0.080, more than the $0.050 of --max-cost"


def test_what_this_month_has_cost_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_MONTHLY_BUDGET_USD", "10")
    RentalJournal().write(JournalEntry(at=NOW, event="intent", job_id="before", provider="moon", at_most_usd=9.95))
    found = plan("L4")
    assert found.left_usd == pytest.approx(0.05)
    assert found.kinds[0].no_offer_reason == (
        "moon: it would cost about $0.080, and of this month's budget $0.050 are left"
    )


def test_a_host_without_credentials_or_answer_says_why(moon: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (moon / "offers.json").write_text("[]")
    assert plan("L4").kinds[0].no_offer_reason == "moon: The moon does not answer"
    monkeypatch.delenv("MOON_KEY")
    assert plan("L4").kinds[0].no_offer_reason == "moon: MOON_KEY is not set; make one on the moon's own page"


def test_without_credentials_the_snapshot_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOON_KEY")
    listed = Offer(host="moon", name="L4", gpu="L4", gpu_count=1, usd_per_hour=0.7, priced_on="2026-01")
    monkeypatch.setattr(offers, "provider_prices", lambda host: (listed,))
    (candidate,) = plan("L4").kinds[0].choice.candidates
    assert (candidate.offer, candidate.rejection_reason) == (
        listed,
        "MOON_KEY is not set; make one on the moon's own page",
    )


def test_how_long_a_verb_takes_is_known_from_its_options() -> None:
    assert ThresholdRunFlags().estimate_duration().run_s == 240
    assert ThresholdRunFlags(quick=True).estimate_duration().run_s == 120
    assert ThresholdRunFlags(devices=("cpu",)).estimate_duration().run_s == 90
    assert ContentionRunFlags(budget_s=90.0).estimate_duration().run_s == 90
    assert ContentionRunFlags().estimate_duration().run_s == 300
    run = RunFlags(workloads=("softmax", "gemm"), repeat=3, restarts=1, duration_s=5.0)
    assert run.estimate_duration().run_s == 6 * (5 + 10)
    assert SweepFlags().estimate_duration().run_s == 600
    assert "assumed" in SweepFlags().estimate_duration().source


def test_what_a_verb_measures_is_known_from_its_words() -> None:
    assert "sliding_attention@flash" in ThresholdRunFlags().named_workloads()
    assert RunFlags(workloads=("a@flash",), benchmarks=("b",)).named_workloads() == ("a@flash", "b")
    assert SweepFlags(workload="sgemm").named_workloads() == ("sgemm",)
    assert RunFlags(workloads=("a@flash",), devices=("cpu:0",)).measures_cpu_only()
    assert not RunFlags(workloads=("a@flash",), devices=("cuda:0",)).measures_cpu_only()
