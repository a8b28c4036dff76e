"""Offers at the edges: exactly as long, as dear or as many as is asked for, and one step to either side."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from assay.hosts.base import Offer
from assay.hosts.offers import OfferCandidate, RentalRequest, choose_offer, evaluate_offer, format_usd, time_limit_s


def offer(**changes: object) -> Offer:
    """Return an L4 for 1 $ an hour that answers after a minute."""
    told = {"host": "moon", "name": "small", "gpu": "L4", "gpu_count": 1, "ready_s": 60.0, "usd_per_hour": 1.0}
    return Offer.model_validate({**told, **changes})


def held(need: dict[str, object] | None = None, shut: str | None = None, **changes: object) -> OfferCandidate:
    """Return such an offer held against 28 minutes of work: with a minute to boot and one to set up, 1800 s."""
    return evaluate_offer(RentalRequest.model_validate({"run_s": 1680, **(need or {})}), offer(**changes), shut)


def test_a_need_is_of_one_gpu_for_some_time_and_money() -> None:
    assert RentalRequest(run_s=0.5).gpu_count == 1
    assert RentalRequest(run_s=0.5, gpu_count=1, limit_s=0.5, max_cost_usd=0.5).limit_s == 0.5
    for wrong in ({"gpu_count": 0}, {"run_s": 0}, {"limit_s": 0}, {"max_cost_usd": 0}):
        with pytest.raises(ValidationError):
            RentalRequest.model_validate({"run_s": 1, **wrong})


def test_time_and_money_of_one_offer_by_hand() -> None:
    found = held(usd_per_hour=0.5)
    assert (found.expected_s, found.limit_s) == (1800.0, 4200.0)
    assert found.cost_usd == 0.25
    assert held(usd_per_hour=6.0).most_usd == 7.0
    assert held(ready_s=None).expected_s == 1920.0
    assert time_limit_s(0.0) == 600.0
    assert time_limit_s(100.0) == 800.0


def test_a_machine_that_costs_nothing_is_not_ended_by_a_purse() -> None:
    found = held({"max_cost_usd": 0.25, "left_usd": 0.0}, usd_per_hour=0.0)
    assert (found.rejection_reason, found.cost_usd, found.limit_s, found.most_usd) == (None, 0.0, 4200.0, 0.0)


@pytest.mark.parametrize(("price", "limit_s"), [(0.5, 3600.0), (1.0, 1800.0), (2.0, 900.0)])
def test_what_half_a_dollar_pays_for_is_the_limit(price: float, limit_s: float) -> None:
    assert held({"max_cost_usd": 0.5}, usd_per_hour=price).limit_s == limit_s
    assert held({"left_usd": 0.5}, usd_per_hour=price).limit_s == limit_s


def test_a_limit_that_is_exactly_as_long_as_expected_will_do() -> None:
    assert held(longest_s=1800.0).rejection_reason is None
    assert [held(longest_s=longest).limit_s for longest in (1800.0, 4199.0, 4201.0)] == [1800.0, 4199.0, 4200.0]
    assert (
        held(longest_s=1799.0).rejection_reason
        == "one can be rented for 29 min 59 s at most, and 30 min 0 s are expected"
    )
    assert held({"limit_s": 1800.0}).rejection_reason is None
    assert (
        held({"limit_s": 1799.0}).rejection_reason == "--time 29 min 59 s is less than the 30 min 0 s that are expected"
    )


@pytest.mark.parametrize("purse", ["max_cost_usd", "left_usd"])
def test_a_cost_of_exactly_what_there_is_will_do(purse: str) -> None:
    assert held({purse: 0.5}).rejection_reason is None
    assert held({purse: 0.5001}).rejection_reason is None
    assert str(held({purse: 0.4999}).rejection_reason).startswith("it would cost about $0.500")


def test_a_budget_that_is_overdrawn_has_nothing_left() -> None:
    assert str(held({"left_usd": -3.0}).rejection_reason).endswith("$0.00 are left")


def test_the_kind_comes_before_the_host_and_the_host_before_what_is_free_and_that_before_money() -> None:
    need: dict[str, object] = {"gpu": "L4", "max_cost_usd": 0.1}
    assert held(need, "no token", gpu="T4", free_nodes=0).rejection_reason == "it is no L4"
    assert held(need, "no token", free_nodes=0).rejection_reason == "no token"
    assert held(need, free_nodes=0).rejection_reason == "none is free now"
    assert str(held(need).rejection_reason).startswith("it would cost")
    assert held({"gpu": "L4"}, "no token").rejection_reason == "no token"
    assert held({"gpu": "L4"}).rejection_reason is None


def test_only_the_offers_of_a_host_that_is_shut_are_refused() -> None:
    offers = [offer(host="moon"), offer(host="sun")]
    found = choose_offer(RentalRequest(run_s=60), offers, {"moon": "no token"})
    assert [(each.offer.host, each.rejection_reason) for each in found.candidates] == [
        ("sun", None),
        ("moon", "no token"),
    ]
    assert len(choose_offer(RentalRequest(run_s=60), offers).fitting) == 2


def test_one_free_machine_is_enough_and_none_said_is_no_reason() -> None:
    assert [held(free_nodes=free).rejection_reason for free in (None, 0, 1, 2)] == [
        None,
        "none is free now",
        None,
        None,
    ]


def test_as_many_gpus_as_asked_for_or_as_nobody_says() -> None:
    assert held(gpu_count=None).rejection_reason is None
    assert held({"gpu_count": 2}, gpu_count=2).rejection_reason is None
    assert held({"gpu_count": 2}, gpu_count=1).rejection_reason == "it has 1 GPU, not 2"
    assert held({"gpu_count": 1}, gpu_count=2).rejection_reason == "it has 2 GPUs, not 1"


def test_any_kind_will_do_where_none_is_asked_for_but_it_has_to_be_told() -> None:
    assert held(gpu="T4").rejection_reason is None
    assert held({"gpu": "T4"}, gpu="T4").rejection_reason is None
    assert held(gpu=None).rejection_reason == "its GPU type is not known"


def test_a_place_is_a_region_or_a_machines_name() -> None:
    assert held({"host_place": "small"}).rejection_reason is None
    assert held({"host_place": "small"}, region="north").rejection_reason is None
    assert held({"host_place": "north"}, region="north").rejection_reason is None
    assert held({"host_place": "north"}).rejection_reason == "it is not north"


def test_offers_alike_are_taken_by_cost_then_time_then_name_then_region() -> None:
    alike = [
        offer(name="z", usd_per_hour=0.5),
        offer(name="y", usd_per_hour=1.0, ready_s=0.0),
        offer(host="mars", name="x", usd_per_hour=1.0, ready_s=0.0, region="b"),
        offer(host="moon", name="x", usd_per_hour=1.0, ready_s=0.0),
        offer(host="moon", name="x", usd_per_hour=1.0, ready_s=0.0, region="a"),
        offer(host="moon", name="x", usd_per_hour=1.0, ready_s=0.0, region="b"),
    ]
    for order in (alike, alike[::-1], alike[3:] + alike[:3]):
        found = choose_offer(RentalRequest(run_s=60), order)
        assert [each.offer for each in found.candidates] == [alike[0], *alike[2:], alike[1]]
        assert found.best is not None
        assert found.best.offer.name == "z"


def test_what_costs_the_same_is_taken_by_the_time_it_needs() -> None:
    slow, quick = offer(name="a", usd_per_hour=0.0, ready_s=61.0), offer(name="b", usd_per_hour=0.0)
    for order in ((slow, quick), (quick, slow)):
        assert [each.offer.name for each in choose_offer(RentalRequest(run_s=60), order).candidates] == ["b", "a"]


def test_an_offer_without_a_price_is_last_and_the_dear_one_before_it() -> None:
    unpriced, dear = offer(name="a", usd_per_hour=None), offer(name="b", usd_per_hour=90.0)
    found = choose_offer(RentalRequest(run_s=60, max_cost_usd=0.01), [unpriced, dear])
    assert [each.offer.name for each in found.candidates] == ["b", "a"]
    assert found.best is None
    assert (found.candidates[1].cost_usd, found.candidates[1].limit_s, found.candidates[1].most_usd) == (None,) * 3


@pytest.mark.parametrize(
    ("amount", "written"),
    [
        (0.0, "$0.00"),
        (0.00123, "$0.0012"),
        (0.0099, "$0.0099"),
        (0.01, "$0.010"),
        (0.5, "$0.500"),
        (0.999, "$0.999"),
        (1.0, "$1.00"),
        (1.5, "$1.50"),
        (1234.5, "$1,234.50"),
    ],
)
def test_a_small_amount_is_written_with_more_digits(amount: float, written: str) -> None:
    assert format_usd(amount) == written
