"""The loop over simulated machines: the answer is right, and few processes find it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from assay.core.page import LinePlot, Table, Text
from assay.core.results import NOT_REACHED, Missing, Parity
from assay.experiments.threshold import EXPERIMENT
from assay.experiments.threshold.plan import replay_run
from assay.experiments.threshold.report import build_study
from tests.experiments.remembered import Remembered
from tests.experiments.threshold.crossings import World, options, point, threshold
from tests.machines import machine

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048)


def rising(crossing: float, steepness: float = 0.5) -> Callable[[dict[str, Any], str], float]:
    """A speed-up that is 1.2 at a size, and grows by a power of the size."""
    return lambda params, time: 1.2 * (params["n"] / crossing) ** steepness


@pytest.mark.parametrize(("crossing", "right"), [(10, 16), (90, 128), (1500, 2048)])
def test_the_first_size_from_which_all_clear_the_margin_is_found_in_few_processes(crossing: float, right: int) -> None:
    wanted = options(threshold(SIZES))
    records = World(rising(crossing)).measured(wanted)
    (found,) = build_study(wanted, records).answers
    assert (found.location.decision, found.value, found.location.low) == ("threshold", right, right)
    assert len(records) <= 3
    assert {trial.processes for trial in found.judgement.cells if trial.size == right} >= {2}


def test_what_never_clears_the_margin_is_never_and_small_sizes_are_hardly_looked_at() -> None:
    wanted = options(threshold(SIZES))
    records = World(lambda params, time: 1.05).measured(wanted)
    (found,) = build_study(wanted, records).answers
    assert (found.location.decision, found.value) == ("disable", 10**9)
    assert len(records) == 2


def test_what_is_just_at_the_margin_cannot_be_told_and_is_not_measured_for_ever() -> None:
    wanted = options(threshold(SIZES))
    records = World(lambda params, time: 1.2, noise=0.2).measured(wanted)
    (found,) = build_study(wanted, records).answers
    assert (found.location.decision, found.value) == ("unsure", None)
    assert len(records) <= wanted.blocks


@pytest.mark.parametrize("seed", range(8))
def test_processes_that_differ_widen_the_bounds_instead_of_fooling_them(seed: int) -> None:
    wanted = options(threshold(SIZES))
    records = World(rising(200, 0.3), noise=0.05, between=0.08, seed=seed).measured(wanted)
    (found,) = build_study(wanted, records).answers
    assert found.location.size is None or found.location.size >= 256


def test_a_cell_clears_only_if_all_its_points_do() -> None:
    points = tuple(point(window, s=s, w=window) for window in (32, 64, 128) for s in (256, 512))
    wanted = options(threshold((), points=points))

    def speed_up(params: dict[str, Any], time: str) -> float:
        return 1.0 if (params["s"], params["w"]) == (512, 64) else 2.0

    (found,) = build_study(wanted, World(speed_up).measured(wanted)).answers
    assert found.value == 128
    assert found.ranges == ((32, 32), (128, 128))
    assert any("does not rise" in why for why in found.reasons)


def test_the_time_that_decides_changes_the_answer_and_the_cautious_one_is_the_higher() -> None:
    def speed_up(params: dict[str, Any], time: str) -> float:
        return rising(30 if time == "call_us" else 200)(params, time)

    values = {}
    for decide_on in ("call", "span", "cautious"):
        wanted = options(threshold(SIZES), decide_on=decide_on, device="cuda:0")
        (found,) = build_study(wanted, World(speed_up, times=("call_us", "span_us")).measured(wanted)).answers
        values[decide_on] = found.value
        assert set(found.by_time) == {"call", "span"}
    assert values == {"call": 32, "span": 256, "cautious": 256}


def test_where_a_time_was_not_taken_of_both_the_kernels_at_work_stand_for_it() -> None:
    wanted = options(threshold(SIZES), device="cuda:0")
    (found,) = build_study(wanted, World(rising(90), times=("call_us", "busy_us")).measured(wanted)).answers
    assert {time: place.size for time, place in found.by_time.items()} == {"call": 128, "span": 128}


def test_a_point_that_does_not_fit_into_memory_does_not_count_and_is_told() -> None:
    wanted = options(threshold(SIZES))
    world = World(rising(90), left_out=lambda params, fast: "out of memory: 8 GiB" if params["n"] == 2048 else None)
    (found,) = build_study(wanted, world.measured(wanted)).answers
    assert found.value == 128
    assert any(
        "n 2048 could not be measured, and does not count: out of memory: 8 GiB." in why for why in found.reasons
    )


def test_a_size_where_only_the_fast_path_does_not_work_fails() -> None:
    wanted = options(threshold(SIZES))
    world = World(rising(90), left_out=lambda params, fast: "no kernel" if fast and params["n"] == 512 else None)
    (found,) = build_study(wanted, world.measured(wanted)).answers
    assert found.value == 1024
    assert any("the fast path does not work there: no kernel" in why for why in found.reasons)


@pytest.mark.parametrize(
    ("parity", "said"),
    [
        (Parity(passed=False, reason="its mean error is 1", measure="m"), "failed"),
        (Parity(passed=None, reason="it returns nothing", measure="m"), "skipped"),
        (None, "skipped"),
    ],
)
def test_without_parity_at_every_point_nothing_is_recommended(parity: Parity | None, said: str) -> None:
    wanted = options(threshold(SIZES))
    world = World(rising(90), parity=lambda params: parity if params["n"] == 256 else Parity(passed=True, measure="m"))
    records = world.measured(wanted)
    (found,) = build_study(wanted, records).answers
    assert (found.parity, found.value) == (said, None)
    assert found.reasons[0].startswith("Nothing is recommended, as the fast path did not pass at n 256")
    parities = [
        finding
        for finding in EXPERIMENT.report(machine(), wanted, records).findings.findings
        if finding.kind == "parity"
    ]
    assert [finding.verdict for finding in parities] == ["no" if said == "failed" else "unsure"]


def test_several_thresholds_share_the_processes() -> None:
    wanted = options(threshold(SIZES, name="first"), threshold(SIZES, name="second"))
    records = World(rising(90)).measured(wanted)
    assert [found.value for found in build_study(wanted, records).answers] == [128, 128]
    assert len(records) <= 3


def test_a_budget_ends_it_between_processes() -> None:
    wanted = options(threshold(SIZES), budget_s=25.0)
    world = World(lambda params, time: 1.2, noise=0.2, takes_s=12.0)
    records = world.measured(wanted)
    assert len(records) == 2
    assert "budget of 25 s" in replay_run(wanted, records).next_step.why


def test_one_process_decides_nothing() -> None:
    wanted = options(threshold(SIZES))
    world = World(rising(90))
    (found,) = build_study(wanted, Remembered([world.measured(wanted)[0]], world.kept)).answers
    assert (found.location.decision, found.value) == ("unsure", None)
    assert any("Only one process measured" in why for why in found.reasons)


def test_the_page_shows_answers_lines_with_the_margin_every_point_and_what_was_not_reached() -> None:
    wanted = options(threshold(SIZES), device="cuda:0")
    world = World(rising(90), times=("call_us", "span_us"))
    records = world.measured(wanted)
    last = records[-1]
    late = tuple(
        facts.model_copy(update={"skipped": Missing(code=NOT_REACHED, detail="late")})
        for facts in last.evidence[0].subjects
    )
    evidence = (last.evidence[0].model_copy(update={"subjects": late}),)
    shown = Remembered([*records[:-1], last.model_copy(update={"evidence": evidence})], world.kept)
    page = EXPERIMENT.report(machine(), wanted, shown).page
    (figure,) = page.figures
    assert isinstance(figure, LinePlot)
    assert [line.label for line in figure.lines] == ["by call", "by span", "margin 1.2×"]
    assert [line.limit for line in figure.lines] == [False, False, True]
    elements = [element for section in page.sections for element in section.elements]
    tables = {element.title: element for element in elements if isinstance(element, Table)}
    assert len(tables["sorting: plain@new against plain@old"].rows) == len(SIZES)
    said = [element.text for element in elements if isinstance(element, Text)]
    assert any("not reached in the last process" in text for text in said)
