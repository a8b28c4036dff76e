"""``assay.pick``: the fastest wins, who fails or is wrong never does, and how sure it is, is said."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import assay
from assay.core.errors import MachineCannot
from tests.timing.faking import Known, KnownRig, noisy, nothing

if TYPE_CHECKING:
    from assay.timing.sampling import Instrument, Samples
    from tests.timing.faking import VirtualTime


def work(n: int) -> Any:
    return lambda: sum(range(n))


@pytest.fixture
def known(virtual: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pick among candidates whose truth is known."""

    def picked(draws: dict[str, Any], **options: Any) -> assay.Pick:
        instruments: dict[str, Instrument] = {name: Known(virtual, draw) for name, draw in draws.items()}
        KnownRig(instruments).install(monkeypatch)
        return assay.pick(dict.fromkeys(draws, nothing), **options)

    return picked


def failing_after(draw: Any, batches: int, error: Exception) -> Any:
    """Draw until so many batches were taken, then raise."""
    calls = iter(range(batches))

    def drawn(first: int, n: int) -> Samples:
        if next(calls, None) is None:
            raise error
        return np.asarray(draw(first, n), dtype=np.float64)

    return drawn


def test_the_fastest_of_real_functions_wins() -> None:
    result = assay.pick({"long": work(3000), "short": work(300), "middle": work(1000)}, budget_s=3.0)
    assert (result.winner, result.stopped) == ("short", "decided")
    assert result.probability > 0.9
    assert (result.ranking[0].name, result.ranking[0].behind) == ("short", 0)
    assert all((place.behind or 0) > 0.5 for place in result.ranking[1:])


def test_the_best_of_many_is_found_and_clear_losers_leave_early(known: Any) -> None:
    draws = {f"c{i}": noisy(10.0 + i, 0.02, seed=i) for i in range(12)}
    result = known(draws, budget_s=5.0)
    assert result.winner == "c0"
    rounds = {place.name: place.rounds for place in result.ranking}
    assert rounds["c11"] <= rounds["c0"] == result.rounds
    assert result.time_us == pytest.approx(10.0, rel=0.02)


def test_candidates_that_are_alike_within_the_tolerance_are_as_good_as_each_other(known: Any) -> None:
    result = known({"a": noisy(10.0, 0.01, 1), "b": noisy(10.01, 0.01, 2)}, tolerance=0.02, budget_s=5.0)
    assert result.stopped == "decided"
    assert result.probability > 0.9
    assert result.expected_regret < 0.02


def test_when_the_budget_is_spent_the_best_so_far_is_given_with_less_certainty(known: Any) -> None:
    result = known({"a": noisy(10.0, 0.2, 1), "b": noisy(10.05, 0.2, 2)}, tolerance=0.001, budget_s=0.05)
    assert result.stopped == "budget spent"
    assert 0 < result.probability < 0.99


def test_one_candidate_alone_wins_and_is_timed() -> None:
    result = assay.pick({"only": work(1000)}, budget_s=0.2)
    assert (result.winner, result.rounds, result.probability) == ("only", 1, 1.0)
    assert result.time_us > 0


def test_candidates_without_names_are_numbered() -> None:
    assert assay.pick([work(3000), work(30)], budget_s=1.0).winner == "1"


def test_one_that_raises_is_out_and_listed_with_the_reason() -> None:
    result = assay.pick({"bad": lambda: 1 / 0, "good": work(100), "no function": 5}, budget_s=0.5)  # type: ignore[dict-item]
    assert result.winner == "good"
    out = {place.name: (place.status, place.reason) for place in result.ranking if place.status != "ok"}
    assert out["bad"] == ("failed", "bad raised ZeroDivisionError: division by zero")
    assert out["no function"][0] == "failed"
    assert "2 of 3 failed or were wrong" in str(result)


def test_one_that_is_wrong_never_wins_however_fast() -> None:
    result = assay.pick(
        {"wrong": lambda: 41, "right": lambda: sum(range(1000)) * 0 + 42}, check=lambda value: value == 42, budget_s=0.5
    )
    assert result.winner == "right"
    assert result.ranking[-1].reason == "its result did not pass the check"
    assert result.ranking[-1].status == "wrong"


def test_a_check_may_raise_to_say_no() -> None:
    def check(value: object) -> object:
        if value != 42:
            raise ValueError("not   42")
        return True

    result = assay.pick({"wrong": lambda: 41, "right": lambda: 42}, check=check, budget_s=0.5)
    assert result.winner == "right"
    assert result.ranking[-1].reason == "the check raised ValueError: not 42"


def test_a_setup_goes_before_each_call_and_before_the_check() -> None:
    stack: list[int] = []
    result = assay.pick({"pops": stack.pop}, setup=lambda: stack.append(7), check=lambda x: x == 7, budget_s=0.1)
    assert result.winner == "pops"
    assert stack == []


def test_when_all_fail_that_is_said_with_the_first_reason() -> None:
    with pytest.raises(assay.TrialFailed, match=r"None of 2 candidates can be picked; the first, a: a raised KeyError"):
        assay.pick({"a": lambda: dict[str, int]()["x"], "b": lambda: 1 / 0})


@pytest.mark.parametrize("error", [MachineCannot("the GPU fell off the bus"), ValueError("later")])
def test_one_that_fails_midway_is_out_and_the_race_goes_on(known: Any, error: Exception) -> None:
    draws = {
        "fast": failing_after(noisy(5.0, 0.01, 1), 2, error),
        "middle": noisy(10.0, 0.05, 2),
        "alike": noisy(10.0, 0.05, 3),
    }
    result = known(draws, budget_s=2.0)
    assert result.winner in {"middle", "alike"}
    failed = next(place for place in result.ranking if place.name == "fast")
    assert failed.status == "failed"
    assert str(error) in (failed.reason or "")
    assert failed.behind is None


def test_one_that_fails_while_warming_up_is_out(known: Any) -> None:
    draws = {"fast": failing_after(noisy(5.0), 0, ValueError("at once")), "slow": noisy(10.0, 0.01, 2)}
    assert known(draws, budget_s=1.0).winner == "slow"


def test_when_all_fail_midway_that_is_said(known: Any) -> None:
    draws = {name: failing_after(noisy(5.0), 1, ValueError("all gone")) for name in "ab"}
    with pytest.raises(assay.TrialFailed, match=r"Every candidate failed; .*all gone"):
        known(draws)


def test_a_candidate_that_takes_no_time_at_all_wins(known: Any) -> None:
    assert known({"a": noisy(10.0), "b": lambda _, n: np.zeros(n)}, budget_s=1.0).winner == "b"


def test_configurations_are_kept_with_who_they_belong_to(known: Any) -> None:
    draws = {"a": noisy(10.0, 0.01, 1), "b": noisy(5.0, 0.01, 2)}
    result = known(draws, configs={"a": {"block": 64}, "b": {"block": 128}})
    assert result.config == {"block": 128}
    assert {place.name: place.config for place in result.ranking} == {"a": {"block": 64}, "b": {"block": 128}}


def test_failed_candidates_keep_their_configuration() -> None:
    result = assay.pick({"bad": lambda: 1 / 0, "good": work(10)}, configs={"bad": {"block": 1}}, budget_s=0.2)
    assert result.ranking[-1].config == {"block": 1}
    assert result.config is None


def test_the_same_samples_and_seed_give_the_same_pick(known: Any) -> None:
    def once() -> assay.Pick:
        found: assay.Pick = known({f"c{i}": noisy(10.0 + i / 10, 0.02, i) for i in range(6)}, seed=5, budget_s=3.0)
        return found.model_copy(update={"took_s": 0.0})

    assert once() == once()


def test_a_result_survives_the_way_through_json_and_reads_as_a_few_lines(known: Any) -> None:
    result = known({"a": noisy(10.0, 0.01, 1), "b": noisy(5.0, 0.01, 2)})
    assert assay.Pick.model_validate_json(result.model_dump_json()) == result
    lines = str(result).splitlines()
    assert lines[0].startswith("b: ")
    assert "within 1 % of the best with probability" in lines[1]
    assert lines[2].startswith("  a: +")
    assert "2 candidates" in lines[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"candidates": {}}, "nothing to pick from"),
        ({"candidates": []}, "nothing to pick from"),
        ({"candidates": {"a": nothing}, "tolerance": 0}, "tolerance is a share"),
        ({"candidates": {"a": nothing}, "tolerance": math.nan}, "tolerance is a share"),
        ({"candidates": {"a": nothing}, "configs": {"b": {}}}, "a configuration for 'b', and no such candidate"),
        ({"candidates": {"a": nothing}, "by": "span", "device": "cpu"}, "by='span' is for a GPU"),
        ({"candidates": {"a": nothing}, "budget_s": 0}, "budget_s is a positive"),
    ],
)
def test_what_makes_no_sense_is_bad_input(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(assay.BadInput, match=words):
        assay.pick(**arguments)
