"""The choice among offers: never beyond a limit, never dearer than another that would do, each with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.hosts.base import Offer
from assay.hosts.offers import SET_UP_S, RentalRequest, choose_offer, evaluate_offer

if TYPE_CHECKING:
    import random

KINDS = ["T4", "L4", "A100", "A100-40GB", "A100-80GB", "H100-SXM", None]
PRICES = st.none() | st.floats(0.01, 20)

OFFERS = st.lists(
    st.builds(
        Offer,
        host=st.sampled_from(["modal", "runpod", "lambda"]),
        name=st.sampled_from("abcd"),
        gpu=st.sampled_from(KINDS),
        gpu_count=st.sampled_from([None, 1, 2]),
        usd_per_hour=PRICES,
        ready_s=st.none() | st.floats(0, 900),
        free_nodes=st.sampled_from([None, 0, 3]),
        longest_s=st.none() | st.floats(60, 7200),
    ),
    max_size=8,
)
NEEDS = st.builds(
    RentalRequest,
    gpu=st.sampled_from(["L4", "A100", "A100-80GB", None]),
    gpu_count=st.sampled_from([1, 2]),
    run_s=st.floats(1, 3600),
    subjects=st.sampled_from([(), ("sliding_attention@flash",)]),
    limit_s=st.none() | st.floats(60, 7200),
    max_cost_usd=st.none() | st.floats(0.01, 5),
    left_usd=st.none() | st.floats(-1, 5),
)


def offer(usd_per_hour: float | None = 1.0, **changes: object) -> Offer:
    told = {"host": "moon", "name": "small", "gpu": "L4", "gpu_count": 1, "ready_s": 60.0}
    return Offer.model_validate({**told, "usd_per_hour": usd_per_hour, **changes})


@given(NEEDS, OFFERS)
def test_every_offer_is_told_once_and_what_is_taken_is_the_cheapest_that_would_do(
    need: RentalRequest, offers: list[Offer]
) -> None:
    found = choose_offer(need, offers)
    assert sorted(each.offer.model_dump_json() for each in found.candidates) == sorted(
        each.model_dump_json() for each in offers
    )
    if found.best is None:
        assert all(each.rejection_reason for each in found.candidates)
    else:
        assert all((found.best.cost_usd or 0) <= (each.cost_usd or 0) for each in found.fitting)


@given(NEEDS, OFFERS)
def test_nothing_is_taken_that_may_cost_more_than_allowed_or_ends_before_its_work(
    need: RentalRequest, offers: list[Offer]
) -> None:
    for each in choose_offer(need, offers).fitting:
        assert each.most_usd is not None
        assert each.limit_s is not None
        for purse in (need.max_cost_usd, need.left_usd):
            assert purse is None or each.most_usd <= purse * (1 + 1e-9)
        assert each.expected_s <= each.limit_s * (1 + 1e-9)
        assert need.limit_s is None or each.limit_s <= need.limit_s


@given(NEEDS, OFFERS, st.randoms(use_true_random=False))
def test_the_order_of_offers_changes_nothing(need: RentalRequest, offers: list[Offer], rng: random.Random) -> None:
    shuffled = rng.sample(offers, len(offers))
    first, second = choose_offer(need, offers), choose_offer(need, shuffled)
    assert [each.cost_usd for each in first.candidates] == [each.cost_usd for each in second.candidates]
    if first.best is not None and second.best is not None:
        assert first.best.offer.host == second.best.offer.host


@given(NEEDS, OFFERS)
def test_a_host_that_is_shut_is_never_chosen_and_the_others_are_as_before(
    need: RentalRequest, offers: list[Offer]
) -> None:
    open_ones = choose_offer(need, [each for each in offers if each.host != "modal"])
    found = choose_offer(need, offers, shut={"modal": "no token"})
    assert all(each.offer.host != "modal" for each in found.fitting)
    assert [each.offer for each in found.fitting] == [each.offer for each in open_ones.fitting]


def test_time_to_boot_and_set_up_is_paid_too() -> None:
    need = RentalRequest(gpu="L4", run_s=60)
    slow, quick = offer(0.5, name="slow", ready_s=1200), offer(1.0, name="quick", ready_s=10)
    found = choose_offer(need, [slow, quick])
    assert found.best is not None
    assert found.best.offer.name == "quick"
    assert found.best.expected_s == 10 + SET_UP_S + 60
    assert found.best.cost_usd == found.best.expected_s / 3600
    long = choose_offer(RentalRequest(gpu="L4", run_s=36000), [slow, quick])
    assert long.best is not None
    assert long.best.offer.name == "slow"


def test_each_reason_is_said_in_words() -> None:
    def why(found: Offer, **changes: object) -> str | None:
        return evaluate_offer(
            RentalRequest.model_validate({"gpu": "L4", "run_s": 240, **changes}), found
        ).rejection_reason

    assert why(offer()) is None
    assert why(offer(gpu="T4")) == "it is no L4"
    assert why(offer(gpu="H100"), gpu="H100-SXM") == "its H100 may be another than the H100-SXM that is requested"
    assert why(offer(gpu_count=8)) == "it has 8 GPUs, not 1"
    assert why(offer(region="north"), host_place="south") == "it is in north, not south"
    assert why(offer(region="north"), host_place="north") is None
    assert why(offer(free_nodes=0)) == "none is free now"
    assert why(offer(None)) == "its price is not known"
    assert why(offer(longest_s=120)) == "one can be rented for 2 min 0 s at most, and 6 min 0 s are expected"
    assert why(offer(), limit_s=300) == "--time 5 min 0 s is less than the 6 min 0 s that are expected"
    assert why(offer(), max_cost_usd=0.05) == "it would cost about $0.100, more than the $0.050 of --max-cost"
    assert why(offer(), left_usd=0) == "it would cost about $0.100, and of this month's budget $0.00 are left"
    assert "FlashAttention-2 does not support it" in str(why(offer(gpu="T4"), gpu="T4", subjects=("x@flash",)))


def test_money_and_limits_by_hand() -> None:
    """At 2 $ an hour: 60 s to boot, 60 s to set up, 300 s of work; twice that and ten minutes is the limit."""
    found = evaluate_offer(RentalRequest(run_s=300), offer(2.0))
    assert (found.expected_s, found.limit_s) == (420.0, 1440.0)
    assert (found.cost_usd, found.most_usd) == pytest.approx((2 * 420 / 3600, 0.8))
    assert (
        evaluate_offer(RentalRequest(run_s=300), offer(2.0, ready_s=None)).expected_s == 540.0
    )  # three minutes where it is not told
    assert evaluate_offer(RentalRequest(run_s=300), offer(2.0, ready_s=0.0)).expected_s == 360.0


def test_what_may_be_spent_shortens_the_limit_and_nothing_lengthens_it() -> None:
    assert evaluate_offer(RentalRequest(run_s=300, max_cost_usd=0.5), offer(2.0)).limit_s == 900.0
    assert evaluate_offer(RentalRequest(run_s=300, max_cost_usd=0.5, left_usd=0.25), offer(2.0)).limit_s == 450.0
    assert evaluate_offer(RentalRequest(run_s=300, left_usd=-1.0), offer(2.0)).limit_s == 0.0
    assert evaluate_offer(RentalRequest(run_s=300, max_cost_usd=50.0), offer(2.0)).limit_s == 1440.0
    assert evaluate_offer(RentalRequest(run_s=300), offer(2.0, longest_s=500.0)).limit_s == 500.0
    assert evaluate_offer(RentalRequest(run_s=300), offer(2.0, longest_s=5000.0)).limit_s == 1440.0
    assert evaluate_offer(RentalRequest(run_s=300, limit_s=700.0), offer(2.0)).limit_s == 700.0
    assert evaluate_offer(RentalRequest(run_s=300), offer(None)).limit_s is None
