"""Findings about energy at the edges of what decides them: precision, phases, modes, and cells that gave nothing."""

from __future__ import annotations

import math
from types import SimpleNamespace as Made
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.results import Estimate
from assay.experiments.energy.findings import (
    build_findings,
    cell_facts,
    format_half_width,
    ratio_of_estimates,
    smallest_and_largest,
)
from assay.experiments.energy.result import EnergyCell, EnergyRow
from tests.experiments.energy import metered_world as world
from tests.experiments.energy.made_rows import result

if TYPE_CHECKING:
    from assay.core.results import Finding, Scope

JOULES, SPEED, SERVED = "decode_j_per_token", "decode_tokens_per_s", "j_per_output_token"
MODEL = "random:llama-8b"
EAGER = EnergyCell(mode="eager", batch=2, input_tokens=100, output_tokens=51)
GRAPHS = EAGER.model_copy(update={"mode": "graphs"})
OPTIONS = world.options(world.gpus(2), world.config(precision=0.0625, backend={"device_ids": [0, 1]}))


def known(value: float, low: float | None = None, high: float | None = None, **changes: Any) -> Estimate:
    told = {"value": value, "low": low, "high": high, "unit": "J", "scope": "run", "method": "made", "n": 3}
    return Estimate.model_validate({**told, **changes})


def row(cell: EnergyCell = EAGER, figures: dict[str, Estimate | None] | None = None, **changes: Any) -> EnergyRow:
    return EnergyRow(cell=cell, figures=figures or {}, **changes)


def found(*rows: EnergyRow, left_out: dict[str, str] | None = None, records: tuple[Any, ...] = ()) -> list[Finding]:
    told = result(*rows).model_copy(update={"skipped": left_out or {}})
    study: Any = Made(result=told, progress=Made(observations=Made(records=records)))
    return list(build_findings(OPTIONS, study).findings)


def spread(low: float, high: float, value: float = 1.0) -> Finding:
    """Return what is found of the phases' share of whole requests."""
    (about,) = [f for f in found(row(figures={"phases_share": known(value, low, high)})) if "add up" in f.claim]
    return about


def between(name: str, ratio: Estimate, **changes: Any) -> Finding:
    """Return what is found of graphs against eager, where the second figure is exactly so many times the first."""
    rows = row(figures={name: known(1.0)}, **changes), row(GRAPHS, {name: ratio})
    (about,) = [f for f in found(*rows) if f.kind == "modes"]
    return about


def test_a_cell_is_told_with_its_model_its_gpus_and_its_sizes() -> None:
    assert cell_facts(OPTIONS, EAGER.model_copy(update={"concurrency": 7})) == {
        "model": MODEL, "backend": "pytorch", "gpus": "0,1", "mode": "eager", "batch": 2,
        "concurrency": 7, "input_tokens": 100, "output_tokens": 51,
    }  # fmt: skip
    on_cpu = world.options(world.gpus(0), world.config())
    assert cell_facts(on_cpu, EAGER)["gpus"] is None


def test_a_figure_is_known_well_enough_up_to_the_precision_that_was_asked_for() -> None:
    def judged(estimate: Estimate) -> tuple[str, str | None]:
        (one,) = found(row(figures={JOULES: estimate}))
        return one.verdict, one.reason

    assert judged(known(1.0, 0.9375, 1.0625)) == ("yes", None)  # exactly 6.25 % to both sides
    wider = "it is known to ±12.50%; a longer scenario.window_s or more repeats narrow it"
    assert judged(known(1.0, 0.875, 1.125)) == ("no", wider)
    assert judged(known(1.0, 0.9375, math.nextafter(1.0625, 2)))[0] == "no"
    assert judged(known(1.0)) == ("unsure", "made; more scenario.repeats give one over them")


def test_every_figure_is_a_finding_and_the_main_one_tells_what_stands_beside_it() -> None:
    figures: dict[str, Estimate | None] = {
        JOULES: known(2.0, 1.9375, 2.0625), "ttft_ms": known(9.0, 8.0, 10.0), "power_w": known(300.0),
        "busy_share": known(0.75), "idle_w": None,
    }  # fmt: skip
    main, first_token = found(row(figures=figures, records=("a", "b"), origin="fake", partial=True))
    facts = {**cell_facts(OPTIONS, EAGER), "partial": True}
    name = f"{MODEL}, eager, batch 2, 100 in, 51 out"
    assert main.claim == f"{name}: joules per output token while decoding are known to ±6.25 %"
    assert main.facts == {
        **facts, "figure": JOULES, "power_w": 300.0, "idle_w": None, "busy_share": 0.75, "bandwidth_share": None,
        "compute_share": None, "tokens_per_s_per_w": None,
    }  # fmt: skip
    assert first_token.claim == f"{name}: milliseconds until the first token are known to ±6.25 %"
    assert first_token.facts == {**facts, "figure": "ttft_ms"}
    assert [each.records for each in (main, first_token)] == [("a", "b"), ("a", "b")]
    assert [each.origin for each in (main, first_token)] == ["fake", "fake"]
    assert [each.verdict for each in (main, first_token)] == ["yes", "no"]
    assert (main.estimate, first_token.estimate) == (figures[JOULES], figures["ttft_ms"])


def test_of_figures_that_are_not_told_only_the_main_one_says_why() -> None:
    why = {JOULES: "no GPU is metered", "ttft_ms": "nobody asked", SERVED: "no GPU"}
    silent, speed = found(row(figures={JOULES: None, SPEED: known(9.0, 8.9, 9.1)}, missing_reasons=why))
    assert (silent.facts["figure"], silent.verdict, silent.estimate) == (JOULES, "unsure", None)
    assert silent.reason == "not measured: no GPU is metered"
    assert silent.facts["busy_share"] is None
    assert (speed.facts["figure"], speed.verdict) == (SPEED, "yes")
    (served,) = found(row(EAGER.model_copy(update={"mode": "server"}), missing_reasons=why))
    assert (served.facts["figure"], served.reason) == (SERVED, "not measured: no GPU")
    (one_token,) = found(row(EAGER.model_copy(update={"output_tokens": 1}), missing_reasons=why))
    assert one_token.facts["figure"] == SERVED


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.95, 1.05, "yes"),
        (math.nextafter(0.95, 0), 1.05, "unsure"),
        (0.95, math.nextafter(1.05, 2), "unsure"),
        (0.9, 0.95, "unsure"),
        (0.9, math.nextafter(0.95, 0), "no"),
        (1.05, 1.1, "unsure"),
        (math.nextafter(1.05, 2), 1.1, "no"),
        (1.9, 2.0, "no"),
        (0.5, 2.5, "unsure"),
    ],
)
def test_phases_add_up_where_all_of_the_interval_is_within_five_percent(low: float, high: float, verdict: str) -> None:
    assert spread(low, high).verdict == verdict


def test_phases_that_do_not_surely_add_up_are_told_with_their_share() -> None:
    sure, unsure, apart = spread(0.96, 1.04), spread(0.8, 1.2, 0.98), spread(0.5, 0.7, 0.625)
    assert [each.reason for each in (sure, unsure, apart)] == [
        None,
        "they are 98.0 % of it",
        "they are 62.5 % of it",
    ]
    assert sure.claim == (
        f"{MODEL}, eager, batch 2, 100 in, 51 out: prefill and decode add up to the energy of whole requests within 5 %"
    )
    assert sure.facts == {**cell_facts(OPTIONS, EAGER), "figure": "phases_share"}
    bare = row(figures={"phases_share": known(1.0)}, records=("a",), origin="simulated")
    _, phases = found(bare)
    assert (phases.verdict, phases.reason) == ("unsure", "they are 100.0 % of it")
    assert (phases.records, phases.origin) == (("a",), "simulated")


def test_a_ratio_has_the_interval_of_both_and_counts_both() -> None:
    off = math.exp(0.1)
    first, second = known(2.0, 2.0 / off, 2.0 * off, n=3), known(8.0, 8.0 / off, 8.0 * off, n=5)
    ratio = ratio_of_estimates(first, second)
    assert ratio is not None
    assert ratio.value == pytest.approx(4.0)
    # Each is off by 0.1 / 1.960 on logarithms, both together by 0.07216, and Student's t of 8 degrees is 2.306.
    assert ratio.low == pytest.approx(4 * math.exp(-0.16639), rel=1e-5)
    assert ratio.high == pytest.approx(4 * math.exp(0.16639), rel=1e-5)
    assert (ratio.n, ratio.unit, ratio.scope) == (8, "×", "run")


def test_a_ratio_is_of_runs_only_where_both_are() -> None:
    def scope(first: Scope, second: Scope) -> str:
        ratio = ratio_of_estimates(known(1.0, scope=first), known(2.0, scope=second))
        assert ratio is not None
        return ratio.scope

    assert scope("run", "run") == "run"
    assert [scope("run", "process"), scope("process", "run"), scope("process", "process")] == ["process"] * 3


def test_there_is_no_ratio_without_both_numbers_and_no_interval_without_both_intervals() -> None:
    good, nothing = known(2.0, 1.9, 2.1), known(0.0, 0.0, 0.0)
    assert ratio_of_estimates(None, good) is None
    assert ratio_of_estimates(good, None) is None
    assert ratio_of_estimates(nothing, good) is None
    assert ratio_of_estimates(good, nothing) is None
    for first, second, value in ((known(1.0), good, 2.0), (good, known(1.0), 0.5)):
        ratio = ratio_of_estimates(first, second)
        assert ratio is not None
        assert ratio.value == pytest.approx(value)
        assert (ratio.low, ratio.high) == (None, None)


LEAST = 1 / 1.01


@pytest.mark.parametrize(
    ("name", "low", "high", "verdict"),
    [
        (JOULES, 0.5, LEAST, "unsure"),
        (JOULES, 0.5, math.nextafter(LEAST, 0), "yes"),
        (JOULES, 0.5, 0.995, "unsure"),
        (JOULES, 0.986, 0.987, "yes"),
        (JOULES, 1.01, 1.5, "unsure"),
        (JOULES, math.nextafter(1.01, 2), 1.5, "no"),
        (JOULES, 1.0075, 1.5, "unsure"),
        (JOULES, 1.013, 1.5, "no"),
        (JOULES, 0.5, 1.5, "unsure"),
        (SPEED, 1.013, 1.5, "yes"),
        (SPEED, 1.0075, 1.5, "unsure"),
        (SPEED, 0.5, 0.987, "no"),
        (SPEED, 0.5, 0.9925, "unsure"),
        (SPEED, 0.5, 1.5, "unsure"),
    ],
)
def test_graphs_are_better_or_worse_where_they_surely_differ_by_more_than_one_percent(
    monkeypatch: pytest.MonkeyPatch, name: str, low: float, high: float, verdict: str
) -> None:
    ratio = known(1.0, low, high, unit="×")
    monkeypatch.setattr("assay.experiments.energy.findings.ratio_of_estimates", lambda first, second: second and ratio)
    assert between(name, ratio).verdict == verdict


def test_what_graphs_change_is_told_in_joules_and_in_speed() -> None:
    def sure(value: float) -> Estimate:
        return known(value, 0.999 * value, 1.001 * value)

    eager = row(figures={JOULES: sure(2.0), SPEED: sure(100.0)}, records=("a", "b"))
    graphs = row(GRAPHS, {JOULES: sure(1.0), SPEED: sure(400.0)}, records=("b", "c"), origin="fake")
    less, faster = [f for f in found(eager, graphs) if f.kind == "modes"]
    sizes = f"{MODEL}, batch 2, 100 in, 51 out: decoding with graphs"
    assert less.claim == f"{sizes} takes less energy per output token than eager"
    assert faster.claim == f"{sizes} makes more tokens a second than eager"
    for each, name in ((less, JOULES), (faster, SPEED)):
        assert (each.verdict, each.reason, each.records, each.origin) == ("yes", None, ("a", "b", "c"), "fake")
        facts = {"mode": "graphs", "against": "eager", "figure": name}
        assert each.facts == {**cell_facts(OPTIONS, EAGER), **facts}
        assert each.estimate is not None
    assert [each.estimate and each.estimate.value for each in (less, faster)] == [
        pytest.approx(0.5),
        pytest.approx(4.0),
    ]
    more, slower = [
        f
        for f in found(
            row(figures={JOULES: sure(1.0), SPEED: sure(400.0)}), row(GRAPHS, {JOULES: sure(2.0), SPEED: sure(100.0)})
        )
        if f.kind == "modes"
    ]
    assert (more.verdict, more.reason) == ("no", "it is more: 2 times that of eager")
    assert (slower.verdict, slower.reason) == ("no", "it is less: 0.25 times that of eager")


def test_what_graphs_perhaps_change_is_not_called_better() -> None:
    less, more = between(JOULES, known(0.75)), between(SPEED, known(1.25))
    assert (less.verdict, less.reason) == ("unsure", "it is 0.75 times that of eager, not surely less")
    assert (more.verdict, more.reason) == ("unsure", "it is 1.25 times that of eager, not surely more")


def test_modes_are_compared_at_the_same_sizes_only() -> None:
    def compared(*cells: EnergyCell, missing: bool = False) -> int:
        figures = {JOULES: None if missing else known(1.0, 0.9, 1.1)}
        return sum(f.kind == "modes" for f in found(*(row(cell, figures) for cell in cells)))

    larger = GRAPHS.model_copy(update={"batch": 4})
    server = EAGER.model_copy(update={"mode": "server"})
    assert compared(EAGER, GRAPHS) == compared(GRAPHS, EAGER) == 1
    assert compared(EAGER) == compared(GRAPHS) == compared(EAGER, larger) == compared(EAGER, server) == 0
    assert compared(EAGER, GRAPHS, larger, larger.model_copy(update={"mode": "eager"})) == 2
    assert compared(EAGER, GRAPHS, missing=True) == 0


def test_cells_that_gave_nothing_are_told_last_with_their_reason_and_every_record() -> None:
    records = (Made(trial="a", origin="real"), Made(trial="b", origin="fake"), Made(trial="c", origin="simulated"))
    first, second = found(left_out={"one": "no memory.", "two": "a stall"}, records=records)
    assert first.model_dump(exclude_defaults=True) == {
        "kind": "left_out",
        "claim": f"{MODEL}, one: can be measured",
        "estimate": None,
        "verdict": "no",
        "records": ("a", "b", "c"),
        "reason": "no memory",
        "facts": {"model": MODEL, "cell": "one"},
        "origin": "fake",
    }
    assert (second.reason, second.facts["cell"]) == ("a stall", "two")
    (real,) = found(left_out={"one": "no memory"}, records=records[:1])
    assert real.origin == "real"
    several = found(row(figures={JOULES: known(1.0)}), left_out={"one": "no memory"}, records=records)
    assert [each.kind for each in several] == ["energy", "left_out"]


@pytest.mark.parametrize(
    ("half", "words"),
    [
        (None, "no interval"), (2**-14, "±<0.01 %"), (0.000125, "±0.01 %"), (0.005, "±0.50 %"), (0.0125, "±1.2 %"),
        (0.09375, "±9.4 %"), (0.125, "±12 %"), (1.5, "±150 %"), (9.5, "±950 %"), (10.0, "±>995 %"),
    ],
)  # fmt: skip
def test_half_of_an_interval_is_written_with_as_many_digits_as_it_is_worth(half: float | None, words: str) -> None:
    about = known(1.0) if half is None else known(1.0, 1 - half, 1 + half)
    assert format_half_width(about) == words


def test_the_smallest_and_the_largest_cell_of_each_mode_are_shown() -> None:
    for half, words in ((1e-4, "±0.01 %"), (9.95, "±>995 %")):
        edge: Any = Made(relative_half_width=half)
        assert format_half_width(edge) == words
    first, second, third = (row(EAGER.model_copy(update={"batch": batch})) for batch in (1, 2, 4))
    other = row(GRAPHS)
    assert smallest_and_largest([first, other, second, third]) == [first, third, other]
    assert smallest_and_largest([first, second]) == [first, second]
    assert smallest_and_largest([]) == []
