"""The matrix at the edges of what decides it: measures, margins, outcomes, and the sentence about all of them."""

from __future__ import annotations

import math
from types import SimpleNamespace as Made
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from assay.core.results import Estimate, Evidence, SubjectFacts
from assay.core.values import Subject
from assay.experiments.matrix.analysis import (
    AggressorLoad,
    ContentionMatrix,
    MatrixCell,
    VictimRow,
    aggressor_load,
    aggressor_loads,
    block_means,
    compute_measure,
    effect_margin,
    exceeds,
    judge_outcome,
    log_ratios,
    mean_load,
    ratio_estimate,
)
from assay.experiments.matrix.plan import MatrixPair
from assay.experiments.matrix.report import build_findings, headline, outcome_text, row_label
from tests.experiments.matrices import options

if TYPE_CHECKING:
    from assay.core.results import Finding
    from assay.experiments.matrix.plan import MatrixOptions

BEYOND = 1.25


def many(count: int) -> MatrixOptions:
    return options(victims=tuple(Subject(workload=f"v{n}", impl="numpy") for n in range(count)))


def ratio(value: float | None, low: float | None = None, high: float | None = None) -> Estimate | None:
    if value is None:
        return None
    return Estimate(value=value, low=low, high=high, unit="×", scope="run", method="made", n=4)


def cell(outcome: Any = "hurts", aggressor: str = "cpu", victim: int = 0, **changes: Any) -> MatrixCell:
    told = {"naive": ratio(2.0, 1.9, 2.1), "isolated": ratio(1.5, 1.4, 1.6), "reduction": None, "beyond": 1.02}
    row = VictimRow(victim, "cpu:0", "call_us")
    return MatrixCell(
        **{"row": row, "aggressor": aggressor, "measure": "median", "outcome": outcome, **told, **changes}
    )


def said(*cells: MatrixCell, victims: int = 1) -> str:
    return headline(many(victims), ContentionMatrix((), cells, (), ()))


def record(trial: str, status: str = "ok", reason: str | None = None, **changes: Any) -> Any:
    return Made(**{"trial": trial, "status": status, "reason": reason, "origin": "real", "evidence": (), **changes})


def found(
    *cells: MatrixCell,
    pairs: tuple[tuple[MatrixPair, Any], ...] = (),
    victims: int = 1,
) -> list[Finding]:
    return list(build_findings(many(victims), ContentionMatrix((), cells, (), pairs)).findings)


def test_a_measure_is_told_from_its_fewest_samples_on() -> None:
    hundred = np.arange(1.0, 101.0)
    assert compute_measure(hundred, "p99") == pytest.approx(99.01)  # a hundredth of the way from the 99th to the 100th
    assert compute_measure(hundred[:99], "p99") is None
    assert compute_measure(np.array([1.0, 2.0, 9.0]), "median") == 2.0
    assert compute_measure(np.array([1.0, 3.0]), "jitter") == pytest.approx(math.sqrt(2) / 2)
    assert compute_measure(np.array([1.0, 2.0, 9.0]), "jitter") == pytest.approx(math.sqrt(19) / 4)
    assert compute_measure(np.array([0.25, 0.75]), "jitter") == pytest.approx(math.sqrt(2) / 2)
    assert compute_measure(np.array([-1.0, 1.0]), "jitter") is None
    assert compute_measure(np.array([4.0]), "median") == 4.0
    assert compute_measure(np.array([4.0]), "jitter") is None


def test_a_measure_is_positive_and_finite() -> None:
    assert compute_measure(np.array([0.0]), "median") is None
    assert compute_measure(np.array([0.5]), "median") == 0.5
    assert compute_measure(np.array([-2.0]), "median") is None
    assert compute_measure(np.array([math.inf]), "median") is None


def test_an_effect_is_taken_over_the_blocks_that_have_both() -> None:
    over, under = {"a": 2.0, "b": 16.0, "c": 5.0}, {"b": 2.0, "d": 3.0, "a": 1.0}
    assert log_ratios(over, under) == pytest.approx([math.log(2), math.log(8)])
    one = ratio_estimate(over, under)
    assert one is not None
    assert one.value == pytest.approx(4.0)
    # The logarithms lie ln 2 from their mean; Student's t of one degree is 12.706.
    assert one.low == pytest.approx(4 * math.exp(-12.7062 * math.log(2)), rel=1e-4)
    assert one.high == pytest.approx(4 * math.exp(12.7062 * math.log(2)), rel=1e-4)
    assert (one.n, one.unit, one.scope) == (2, "×", "run")
    assert one.method == "geometric mean of the ratios in 2 blocks, Student's t on their logarithms"
    assert ratio_estimate({"a": 1.0}, {"b": 1.0}) is None


def test_two_readings_of_a_block_are_one_and_a_single_one_stands_for_itself() -> None:
    both = block_means({"a": 2.0, "b": 5.0}, {"a": 8.0, "c": 7.0})
    assert both == {"a": pytest.approx(4.0), "b": pytest.approx(5.0), "c": pytest.approx(7.0)}
    assert list(both) == ["a", "b", "c"]


def test_what_counts_is_more_than_was_asked_for_and_more_than_chance() -> None:
    assert effect_margin([], 0.02) == math.inf
    assert effect_margin([0.01], 0.02) == math.inf
    assert effect_margin([0.0, 0.0], 0.02) == pytest.approx(1.02)
    # A root mean square of 0.01 over two blocks, with Student's t of two degrees, which is 4.30265.
    assert effect_margin([0.01, -0.01], 0.02) == pytest.approx(math.exp(0.0430265 / math.sqrt(2)), abs=1e-6)
    assert effect_margin([0.01, -0.01], 0.04) == pytest.approx(1.04)


def test_a_ratio_lies_beyond_a_bound_where_all_of_its_interval_does() -> None:
    assert exceeds(ratio(1.3, 1.25, 1.4), 1.25) is False
    assert exceeds(ratio(1.3, math.nextafter(1.25, 2), 1.4), 1.25) is True
    assert exceeds(None, 1.25) is None
    assert exceeds(ratio(1.3), 1.25) is None
    assert exceeds(ratio(1.3, 1.29, 1.31), math.inf) is None


STRONG = ratio(2.0, 1.5, 2.5)
FAINT = ratio(1.2, 1.1, 1.3)
NONE = ratio(1.0, 1.0, 1.05)
MORE, LESS, ALIKE = ratio(1.3, 1.2, 1.4), ratio(0.8, 0.7, 0.9), ratio(1.0, 0.9, 1.2)


@pytest.mark.parametrize(
    ("naive", "isolated", "less", "outcome"),
    [
        (None, STRONG, MORE, "not known"),
        (ratio(2.0), STRONG, MORE, "not known"),
        (STRONG, STRONG, ALIKE, "not cured"),
        (STRONG, STRONG, LESS, "not cured"),
        (FAINT, STRONG, ALIKE, "not cured"),
        (FAINT, STRONG, None, "not cured"),
        (FAINT, STRONG, ratio(0.8), "not cured"),
        (FAINT, STRONG, ratio(0.9, 0.8, 1.0), "not cured"),
        (FAINT, STRONG, ratio(0.9, 0.8, math.nextafter(1.0, 0)), "hurts only isolated"),
        (FAINT, STRONG, LESS, "hurts only isolated"),
        (NONE, STRONG, ALIKE, "hurts only isolated"),
        (NONE, STRONG, LESS, "hurts only isolated"),
        (NONE, NONE, ALIKE, "no effect seen"),
        (NONE, None, None, "no effect seen"),
        (ratio(1.2, 1.0, 2.0), NONE, ALIKE, "no effect seen"),
        (ratio(1.2, 1.0, math.nextafter(2.0, 3)), NONE, ALIKE, "not known"),
        (ratio(1.2, 1.0, 2.5), NONE, ALIKE, "not known"),
        (STRONG, NONE, MORE, "cured by isolation"),
        (STRONG, NONE, ratio(1.1, 1.0, 1.2), "hurts"),
        (STRONG, NONE, ALIKE, "hurts"),
        (STRONG, NONE, None, "hurts"),
        (STRONG, FAINT, MORE, "hurts"),
        (STRONG, FAINT, ALIKE, "hurts"),
        (STRONG, None, MORE, "hurts"),
        (STRONG, ratio(1.0), MORE, "hurts"),
    ],
)
def test_an_outcome_follows_from_both_levels_and_from_how_they_differ(
    naive: Estimate | None, isolated: Estimate | None, less: Estimate | None, outcome: str
) -> None:
    assert judge_outcome(naive, isolated, less, BEYOND) == outcome


def test_nothing_is_known_where_nothing_counts() -> None:
    assert judge_outcome(STRONG, NONE, MORE, math.inf) == "not known"


@pytest.mark.parametrize(
    ("outcome", "naive", "beyond", "verdict"),
    [
        ("hurts", None, 1.02, "yes"),
        ("cured by isolation", FAINT, 2.0, "yes"),
        ("not cured", FAINT, 2.0, "yes"),
        ("no effect seen", ratio(1.0, 0.9, 1.25), 1.25, "no"),
        ("hurts only isolated", ratio(1.0, 0.9, 1.25), 1.25, "no"),
        ("no effect seen", ratio(1.0, 0.9, math.nextafter(1.25, 2)), 1.25, "unsure"),
        ("not known", ratio(1.0), 1.25, "unsure"),
        ("not known", None, 1.25, "unsure"),
        ("not known", FAINT, math.inf, "unsure"),
    ],
)
def test_a_verdict_is_no_only_where_all_of_the_interval_counts_for_nothing(
    outcome: str, naive: Estimate | None, beyond: float, verdict: str
) -> None:
    (one,) = found(cell(outcome, naive=naive, beyond=beyond))
    assert one.verdict == verdict
    assert one.facts["counts_beyond"] == (beyond if beyond < 3 else None)


def test_a_finding_rests_on_what_worked_alone_and_beside_its_aggressor() -> None:
    pressed = Evidence(
        role="aggressor", rank=0, restart=0, pid=1, device="host", isolation_asked="full", isolation_held="full",
        allowed_cores=(1,), thread_limit=None, memory_nodes=None, setup_s=0.1, load_calls=500, load_s=2.0,
        load_cpu_s=3.0, subjects=(SubjectFacts(subject=0, bytes_moved=4e6),),
    )  # fmt: skip
    pairs = (
        (MatrixPair(0, "cpu:0", "alone"), record("alone")),
        (MatrixPair(0, "cpu:0", "again"), record("again", "failed", "it fell over", origin="simulated")),
        (MatrixPair(0, "cpu:0", "naive", "cpu"), record("naive", origin="fake", evidence=(pressed,))),
        (MatrixPair(0, "cpu:0", "naive", "memory"), record("other aggressor", origin="simulated")),
        (MatrixPair(0, "cpu:1", "naive", "cpu"), record("other device", origin="simulated")),
        (MatrixPair(1, "cpu:0", "naive", "cpu"), record("other victim", origin="simulated")),
    )
    made = cell("not cured")
    (one,) = found(made, pairs=pairs, victims=2)
    assert one.claim == "cpu beside v0@numpy: its median time grows without isolation"
    assert (one.records, one.origin, one.reason) == (("alone", "naive"), "fake", "not cured")
    assert one.estimate == made.naive
    assert one.facts == {
        "victim": "v0@numpy", "device": "cpu:0", "quantity": "call_us", "aggressor": "cpu", "measure": "median",
        "outcome": "not cured", "isolated": 1.5, "isolated_low": 1.4, "isolated_high": 1.6, "counts_beyond": 1.02,
        "naive_gb_s": 1.0, "naive_gflops": None, "naive_cores": 1.5,
    }  # fmt: skip
    (real,) = found(cell("hurts", isolated=None), pairs=pairs[:1])
    assert real.origin == "real"
    assert [real.facts[f"isolated{end}"] for end in ("", "_low", "_high")] == [None, None, None]


def test_what_never_worked_is_told_with_its_last_reason() -> None:
    beside, alone = MatrixPair(0, "cpu:0", "naive", "cpu"), MatrixPair(1, "cpu:0", "alone")
    pairs = (
        (beside, record("a", "failed", "first")),
        (beside, record("b", "failed", "second")),
        (beside, record("c", "refused", "third")),
        (alone, record("d", "failed", "it fell over")),
        (MatrixPair(0, "cpu:0", "naive", "memory"), record("e", "failed", "fourth")),
        (MatrixPair(0, "cpu:0", "naive", "memory"), record("f")),
        (MatrixPair(0, "cpu:0", "alone"), record("g")),
    )
    first, second = found(pairs=pairs, victims=2)
    assert first.model_dump(exclude_defaults=True) == {
        "kind": "missing",
        "claim": "v0@numpy on cpu:0 can be timed beside cpu",
        "estimate": None,
        "verdict": "no",
        "records": ("a", "b", "c"),
        "reason": "third",
        "facts": {"victim": "v0@numpy on cpu:0", "aggressor": "cpu", "status": "refused"},
    }
    assert (second.claim, second.reason) == ("v1@numpy on cpu:0 can be timed alone", "it fell over")
    assert second.facts == {"victim": "v1@numpy on cpu:0", "aggressor": None, "status": "failed"}


def test_only_medians_make_the_sentence() -> None:
    assert said(cell("hurts", measure="p99")) == "Nothing could be measured."
    assert said() == "Nothing could be measured."


def test_the_sentence_has_every_outcome_in_its_order() -> None:
    calm = ratio(1.0, 0.9, 1.034)
    cells = (
        cell("not known", "e"), cell("no effect seen", "d", naive=calm), cell("hurts only isolated", "c"),
        cell("hurts", "b"), cell("cured by isolation", "a"), cell("not cured", "z"),
    )  # fmt: skip
    both = "(beside v0@numpy: 2.00× without, 1.50× with)"
    assert said(*cells) == (
        f"Isolation does not cure z {both}; isolation cures a {both}; whether isolation cures is not clear for b "
        f"{both}; only isolated processes suffer from c {both}; no effect is seen of d elsewhere (at most 3.4 %); "
        "nothing can be said yet of e beside v0@numpy."
    )


def test_the_worst_cell_is_the_one_with_the_largest_ratio_of_either_level() -> None:
    wide = cell("not cured", "cpu", 0, naive=ratio(3.0), isolated=ratio(1.0))
    even = cell("not cured", "cpu", 1, naive=ratio(2.0), isolated=ratio(1.5))
    assert said(even, wide, victims=2) == (
        "Isolation does not cure cpu (worst beside v0@numpy: 3.00× without, 1.000× with)."
    )
    other = cell("not cured", "memory", 1, naive=None, isolated=ratio(4.0))
    assert said(even, wide, other, victims=2) == (
        "Isolation does not cure memory and cpu (worst memory beside v1@numpy: not measured without, 4.00× with)."
    )
    unseen = cell("hurts", "memory", naive=None, isolated=None)
    some = cell("hurts", "cpu", naive=ratio(1.25), isolated=None)
    start = "Whether isolation cures is not clear for"
    assert said(unseen, some) == (
        f"{start} cpu and memory (worst cpu beside v0@numpy: 1.25× without, not measured with)."
    )
    faster = cell("hurts", "cpu", naive=ratio(0.75), isolated=None)
    assert said(unseen, faster) == (
        f"{start} memory and cpu (worst memory beside v0@numpy: not measured without, not measured with)."
    )


def test_no_effect_is_told_with_the_largest_that_may_be_there() -> None:
    def calm(high: float | None, aggressor: str = "cpu") -> MatrixCell:
        low = None if high is None else 0.5
        return cell("no effect seen", aggressor, naive=ratio(0.75, low, high))

    assert said(calm(1.034)) == "No effect is seen of cpu (at most 3.4 %)."
    assert said(calm(1.01), calm(1.2, "memory"), calm(1.1)) == ("No effect is seen of cpu and memory (at most 20 %).")
    assert said(calm(0.9)) == "No effect is seen of cpu (at most 0 %)."
    assert said(calm(None)) == "No effect is seen of cpu (at most 0 %)."
    assert said(calm(None), calm(1.034)) == "No effect is seen of cpu (at most 3.4 %)."
    assert said(cell("no effect seen", naive=None)) == "No effect is seen of cpu (at most 0 %)."


@pytest.mark.parametrize(
    ("beyond", "told"),
    [
        ((1.1,), ""),
        ((1.02, math.inf), ""),
        ((math.inf,), ""),
        ((1.12,), "12 %"),
        ((1.02, 1.5, 1.05), "50 %"),
        ((math.inf, 1.5), "50 %"),
        ((2.5,), "150 %"),
    ],
)
def test_a_machine_on_which_the_same_differs_by_more_than_a_tenth_is_said_to_be_noisy(
    beyond: tuple[float, ...], told: str
) -> None:
    cells = [cell("no effect seen", naive=ratio(1.0, 0.9, 1.2), beyond=each) for each in beyond]
    noise = f" Alone, the same measurement differs by up to {told} here: smaller effects cannot be seen."
    assert said(*cells) == f"No effect is seen of cpu (at most 20 %).{noise if told else ''}"


@pytest.mark.parametrize(
    ("unknown", "of", "victims"),
    [
        (1, 1, "v0@numpy"),
        (2, 2, "v0@numpy and v1@numpy"),
        (3, 3, "v0@numpy, v1@numpy and v2@numpy"),
        (4, 4, "any victim"),
        (5, 5, "any victim"),
        (3, 4, "v0@numpy, v1@numpy and v2@numpy"),
        (4, 5, "v0@numpy, v1@numpy, v2@numpy and 1 more"),
        (5, 6, "v0@numpy, v1@numpy, v2@numpy and 2 more"),
    ],
)
def test_victims_of_which_nothing_is_known_are_named_up_to_three(unknown: int, of: int, victims: str) -> None:
    cells = [cell("not known" if n < unknown else "no effect seen", victim=n, naive=None) for n in range(of)]
    assert f"othing can be said yet of cpu beside {victims}." in said(*cells, victims=of)


def test_aggressors_of_the_same_victims_are_told_together() -> None:
    cells = (
        cell("not known", "cpu", 0), cell("not known", "memory", 0), cell("not known", "hbm", 1),
        cell("not known", "sm", 0), cell("not known", "sm", 1),
    )  # fmt: skip
    assert said(*cells, victims=2) == (
        "Nothing can be said yet of cpu and memory beside v0@numpy, nor of hbm beside v1@numpy, nor of sm beside "
        "v0@numpy and v1@numpy."
    )


def test_a_row_is_called_by_what_tells_it_from_others() -> None:
    def called(*victims: str, devices: tuple[str, ...] = ("cpu:0",), victim: int = 0) -> str:
        asked = options(victims=tuple(Subject(workload=name, impl="numpy") for name in victims), devices=devices)
        return row_label(asked, VictimRow(victim, devices[0], "call_us"))

    assert called("a") == called("a", "b") == "a@numpy"
    assert called("a", "b", "a") == "a@numpy 1"
    assert called("a", "b", "a", victim=2) == "a@numpy 3"
    assert called("a", devices=("cpu:0", "cpu:1")) == "a@numpy on cpu:0"


def test_an_outcome_is_written_with_the_bound_that_belongs_to_it() -> None:
    for less, words in (
        (ratio(1.3, 1.2, 1.4), "not cured, but eased"),
        (ratio(1.3, math.nextafter(1.0, 2), 1.4), "not cured, but eased"),
        (ratio(1.3, 1.0, 1.4), "not cured"),
        (ratio(1.3), "not cured"),
        (None, "not cured"),
    ):
        assert outcome_text(cell("not cured", reduction=less)) == words
    assert outcome_text(cell("hurts", reduction=ratio(1.3, 1.2, 1.4))) == "hurts; cure unclear"
    assert outcome_text(cell("no effect seen", naive=ratio(1.0, 0.9, 1.034))) == "no effect seen (at most 3.4 %)"
    assert outcome_text(cell("no effect seen", naive=ratio(0.8, 0.7, 0.9))) == "no effect seen (at most 0 %)"
    assert outcome_text(cell("cured by isolation", isolated=ratio(1.0, 0.9, 1.034))) == (
        "cured by isolation (≤ 3.4 % left)"
    )
    assert outcome_text(cell("cured by isolation", isolated=ratio(0.8, 0.7, 0.9))) == "cured by isolation (≤ 0 % left)"
    assert outcome_text(cell("hurts only isolated")) == "hurts only isolated"
    unknown = {
        "not measured without isolation": None,
        "one block tells nothing of chance": ratio(1.5),
        "it may be anything": ratio(1.5, 0.001, 1e6),
        "anything from 0.5 to 2.1": ratio(1.5, 0.5, 2.1),
    }
    for words, naive in unknown.items():
        assert outcome_text(cell("not known", naive=naive)) == f"not known: {words}"
    whole = ratio(1.5, 0.5, 2.1)
    assert whole is not None
    for end in ("low", "high"):
        half = whole.model_copy(update={end: None})
        assert outcome_text(cell("not known", naive=half)) == "not known: one block tells nothing of chance"


def test_a_load_is_what_its_calls_did_over_the_time_it_was_up() -> None:
    def loaded(*, up_s: float | None = 2.0, calls: int | None = 500, cpu_s: float | None = 3.0, **work: Any) -> Any:
        subjects = (SubjectFacts(subject=0, **work),) if work else ()
        given: Any = Made(load_s=up_s, load_calls=calls, load_cpu_s=cpu_s, subjects=subjects)
        return aggressor_load(given)

    assert loaded(bytes_moved=4e6, flop=8e6) == AggressorLoad(gb_s=1.0, gflops=2.0, cores=1.5)
    assert loaded(bytes_moved=4e6) == AggressorLoad(1.0, None, 1.5)
    assert loaded(flop=8e6) == AggressorLoad(None, 2.0, 1.5)
    assert loaded(bytes_moved=4e6, flop=8e6, calls=None) == AggressorLoad(None, None, 1.5)
    assert loaded(cpu_s=None) == AggressorLoad(None, None, None)
    assert loaded(bytes_moved=4e6, up_s=0.0) == loaded(bytes_moved=4e6, up_s=None) == AggressorLoad(None, None, None)
    several = [AggressorLoad(1.0, None, 1.0), AggressorLoad(2.0, None, None), AggressorLoad(6.0, 5.0, None)]
    assert mean_load(several) == AggressorLoad(3.0, 5.0, 1.0)
    assert mean_load([]) == AggressorLoad(None, None, None)


def test_loads_are_of_aggressors_in_trials_that_worked() -> None:
    def pressed(calls: int, role: str = "aggressor") -> Any:
        facts = (SubjectFacts(subject=0, flop=1e9),)
        return Made(role=role, load_s=1.0, load_calls=calls, load_cpu_s=None, subjects=facts)

    naive, isolated = (MatrixPair(0, "cpu:0", phase, "cpu") for phase in ("naive", "isolated"))
    pairs = (
        (naive, record("a", evidence=(pressed(2), pressed(100, "victim")))),
        (naive, record("b", evidence=(pressed(3),))),
        (naive, record("c", "failed", evidence=(pressed(50),))),
        (isolated, record("d", evidence=(pressed(7),))),
        (MatrixPair(0, "cpu:0", "alone"), record("e", evidence=(pressed(9),))),
    )
    assert aggressor_loads(pairs) == {
        ("cpu", "naive"): AggressorLoad(None, 2.5, None),
        ("cpu", "isolated"): AggressorLoad(None, 7.0, None),
    }
