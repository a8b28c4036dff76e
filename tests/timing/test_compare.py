"""``assay.compare``: faster, slower, the same or not decided, and never a verdict that only the clock explains."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import assay
from assay.timing.compare import confirm_by_cycles
from assay.timing.interleaved import RoundMedians
from tests.timing.faking import PER_BATCH, Known, KnownRig, noisy, nothing

if TYPE_CHECKING:
    from assay.timing.results import Verdict
    from assay.timing.sampling import Samples
    from tests.timing.faking import VirtualTime


@pytest.fixture
def known(virtual: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compare functions whose truth is known."""

    def compared(_clock: Any = None, **draws: Any) -> assay.Comparison:
        options = {name: draws.pop(name) for name in ("budget_s", "minimum_effect", "seed") if name in draws}
        rig = KnownRig({name: Known(virtual, draw, mhz=_clock) for name, draw in draws.items()})
        rig.install(monkeypatch)
        return assay.compare(dict.fromkeys(draws, nothing), **options)

    return compared


def test_the_same_thing_twice_is_never_different() -> None:
    def work() -> int:
        return sum(range(500))

    verdicts = [assay.compare({"a": work, "b": work}, budget_s=0.3, seed=seed).verdict for seed in range(5)]
    assert verdicts.count("faster") + verdicts.count("slower") <= 1


def test_twice_the_work_is_slower_and_half_of_it_faster() -> None:
    def once() -> int:
        return sum(range(500))

    def twice() -> int:
        return sum(range(500)) + sum(range(500))

    forth = assay.compare({"once": once, "twice": twice}, budget_s=3.0)
    back = assay.compare({"twice": twice, "once": once}, budget_s=3.0)
    assert (forth.verdict, back.verdict) == ("slower", "faster")
    assert 1.4 < forth.others[0].ratio < 2.8
    assert 0.5 < forth.others[0].ratio * back.others[0].ratio < 2


def test_after_idling_it_says_the_same() -> None:
    def once() -> int:
        return sum(range(500))

    def twice() -> int:
        return once() + once()

    before = assay.compare({"once": once, "twice": twice}, budget_s=3.0)
    time.sleep(0.3)  # idling is the point
    after = assay.compare({"once": once, "twice": twice}, budget_s=3.0)
    assert before.verdict == after.verdict == "slower"


def test_a_difference_that_matters_is_found_and_its_size_is_in_the_interval(known: Any) -> None:
    result = known(a=noisy(10.0, 0.02, 1), b=noisy(10.5, 0.02, 2))
    (other,) = result.others
    assert (result.verdict, result.stopped) == ("slower", "decided")
    assert other.low < 1.05 < other.high
    assert result.pairs == len(result.series["a"]) == len(result.series["b"])


def test_what_differs_by_less_than_the_minimum_effect_is_the_same(known: Any) -> None:
    assert known(a=noisy(10.0, 0.01, 1), b=noisy(10.02, 0.01, 2)).verdict == "same"
    assert known(a=noisy(10.0, 0.01, 1), b=noisy(10.2, 0.01, 2), minimum_effect=0.05).verdict == "same"


def test_a_difference_at_the_edge_of_what_counts_stays_unsure_until_the_budget_is_spent(known: Any) -> None:
    result = known(a=noisy(10.0, 0.05, 1), b=noisy(10.1, 0.05, 2), budget_s=0.5)
    assert (result.verdict, result.stopped) == ("unsure", "budget spent")


def test_noise_that_both_share_does_not_hide_a_difference(known: Any) -> None:
    weather = 1 + 0.3 * np.sin(np.arange(100_000) / 40)

    def under(middle: float, seed: int) -> Any:
        noise = noisy(middle, 0.01, seed)
        return lambda first, n: noise(first, n) * weather[first : first + n]

    assert known(a=under(10.0, 1), b=under(10.5, 2)).verdict == "slower"


def test_every_other_one_is_compared_with_the_first(known: Any) -> None:
    result = known(a=noisy(10.0, 0.01, 1), b=noisy(9.0, 0.01, 2), c=noisy(10.01, 0.01, 3), d=noisy(20.0, 0.01, 4))
    assert result.first == "a"
    assert {other.name: other.verdict for other in result.others} == {"b": "faster", "c": "same", "d": "slower"}
    assert result.verdict == "faster"


def test_a_function_that_takes_no_time_at_all_can_be_compared(known: Any) -> None:
    assert known(a=noisy(10.0), b=lambda _, n: np.zeros(n)).verdict == "faster"


def test_a_result_survives_the_way_through_json_and_reads_as_a_few_lines(known: Any) -> None:
    result = known(a=noisy(10.0, 0.01, 1), b=noisy(5.0, 0.01, 2))
    assert assay.Comparison.model_validate_json(result.model_dump_json()) == result.model_copy(update={"series": {}})
    lines = str(result).splitlines()
    assert lines[0].startswith("a: ")
    assert lines[0].endswith(" (call)")
    assert lines[1].startswith("b: ")
    assert "faster than a by more than 1 %" in lines[1]
    assert lines[2].endswith("on cpu; ratios are within rounds")


def test_a_difference_in_time_that_is_none_in_cycles_is_taken_back_where_the_clock_moved(
    virtual: VirtualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = [noisy(1.0, 0.002, seed) for seed in (1, 2)]

    def at(mhz: float, place: int) -> Any:
        def draw(first: int, n: int) -> Samples:
            return 20_000 / mhz * noise[place](first, n)

        return draw

    fast, slow = (Known(virtual, at(mhz, i), mhz=lambda _, m=mhz: m) for i, mhz in enumerate((2000.0, 1800.0)))  # type: ignore[misc]
    KnownRig({"a": fast, "b": slow}, device="cuda:0").install(monkeypatch)
    result = assay.compare({"a": nothing, "b": nothing})
    (other,) = result.others
    assert (other.verdict, other.cycles_verdict) == ("unsure", "same")
    assert other.ratio == pytest.approx(2000 / 1800, rel=0.01)
    assert other.reason == "it is slower in time, and in cycles same: the clock moved (2000 and 1800 MHz in the median)"


def turn(*mhz: float) -> RoundMedians:
    return RoundMedians(us=[1.0] * len(mhz), cycles=[1.0] * len(mhz), mhz=list(mhz))


@pytest.mark.parametrize(
    ("verdict", "by_cycles", "second_mhz", "left"),
    [
        ("slower", "slower", 1800.0, "slower"),
        ("slower", "faster", 1800.0, "unsure"),
        ("slower", "same", 1800.0, "unsure"),
        ("faster", "unsure", 1800.0, "unsure"),
        ("slower", "same", 1995.0, "slower"),
        ("slower", None, 1800.0, "slower"),
        ("same", "slower", 1800.0, "same"),
        ("unsure", "slower", 1800.0, "unsure"),
    ],
)
def test_a_verdict_is_taken_back_only_where_the_clock_moved_and_cycles_disagree(
    verdict: Verdict, by_cycles: Verdict | None, second_mhz: float, left: Verdict
) -> None:
    found, reason = confirm_by_cycles(verdict, by_cycles, turn(2000.0), turn(second_mhz))
    assert found == left
    assert (reason is not None) == (found != verdict)


def test_a_verdict_without_any_clock_stands() -> None:
    assert confirm_by_cycles("slower", "same", RoundMedians(us=[1.0]), RoundMedians(us=[1.0])) == ("slower", None)


@pytest.mark.parametrize("functions", [{}, {"a": nothing}, [nothing, nothing], (nothing,)])
def test_fewer_than_two_functions_by_name_are_bad_input(functions: Any) -> None:
    with pytest.raises(assay.BadInput, match="at least two functions, by name"):
        assay.compare(functions)


@pytest.mark.parametrize("effect", [0, 1, -0.1, float("nan")])
def test_a_minimum_effect_that_is_no_share_is_bad_input(effect: float) -> None:
    with pytest.raises(assay.BadInput, match="minimum_effect is a share"):
        assay.compare({"a": nothing, "b": nothing}, minimum_effect=effect)


def test_the_times_of_kernels_cannot_decide_on_a_cpu() -> None:
    with pytest.raises(assay.BadInput, match="by='busy' is for a GPU"):
        assay.compare({"a": nothing, "b": nothing}, by="busy", device="cpu")


def test_the_one_that_fails_is_named() -> None:
    calls = iter(range(5000))
    with pytest.raises(assay.TrialFailed, match="b raised StopIteration"):
        assay.compare({"a": nothing, "b": lambda: next(calls)})


def test_a_note_on_a_function_carries_its_name(virtual: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = KnownRig({n: Known(virtual, noisy(10.0, 0.01, i)) for i, n in enumerate("ab")}, notes=("hm",))
    rig.install(monkeypatch)
    assert assay.compare({"a": nothing, "b": nothing}).notes == ("a: hm", "b: hm")


def test_all_take_the_same_number_of_turns(virtual: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> None:
    instruments = {n: Known(virtual, noisy(10.0, 0.05, i)) for i, n in enumerate("abc")}
    KnownRig(dict(instruments)).install(monkeypatch)
    result = assay.compare(dict.fromkeys("abc", nothing), budget_s=0.3)
    assert {len(values) for values in result.series.values()} == {result.pairs}
    assert all(each.closed for each in instruments.values())
    assert PER_BATCH * result.pairs <= PER_BATCH * instruments["a"].batches


@pytest.mark.parametrize("budget_s", [0.27, 0.5, 1.0])
def test_a_verdict_that_stays_unsure_takes_the_whole_budget(known: Any, virtual: VirtualTime, budget_s: float) -> None:
    result = known(a=noisy(10.0, 0.05, 1), b=noisy(10.1, 0.05, 2), budget_s=budget_s)
    assert (result.verdict, result.stopped) == ("unsure", "budget spent")
    assert result.pairs == pytest.approx(budget_s / 0.002, abs=2)


def test_a_large_difference_is_called_early_and_a_small_one_at_the_end(known: Any) -> None:
    large = known(a=noisy(10.0, 0.01, 1), b=noisy(20.0, 0.01, 2), budget_s=1.0)
    small = known(a=noisy(10.0, 0.01, 1), b=noisy(10.5, 0.01, 2), budget_s=1.0)
    assert (large.verdict, small.verdict) == ("slower", "slower")
    assert large.pairs == 64
    assert small.pairs == pytest.approx(500, abs=2)


def test_a_side_that_wanders_by_itself_is_unsure_and_named(known: Any) -> None:
    noise = [noisy(10.0, 0.001, seed) for seed in (1, 2)]

    def wandering(first: int, n: int) -> Samples:
        return noise[1](first, n) * (1.05 + 0.05 * np.sin(np.arange(first, first + n) / 700))

    result = known(a=noise[0], b=wandering, budget_s=1.0)
    (other,) = result.others
    assert (other.verdict, other.caveat) == ("unsure", "ratio wanders")
    assert result.scope == "process"
    assert "noise of one side slower than a quarter of this window: only fresh processes show it" in str(result)
