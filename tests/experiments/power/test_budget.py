"""Caps from curves of known truth: the most work, what is refused, what is not said."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.experiments.power.budget import (
    BudgetPlan,
    budget_findings,
    budget_frontier,
    budget_headline,
    build_page,
    cap_commands,
    fit_curves,
    plan_budget,
    select_work,
    total_rate,
)
from tests.experiments.power.simulated_fleets import Setting, simulate
from tests.experiments.power.simulated_sweeps import rate_at, sweep_rows

if TYPE_CHECKING:
    from assay.experiments.power.rows import SweepRow

GPUS = ((100.0, 180.0), (95.0, 260.0), (90.0, 400.0))
"""Speed and knee of three GPUs that do not pay equally for a watt."""


def rows(noise: float = 0.0, repeats: int = 3) -> list[SweepRow]:
    return [
        row
        for slot, (speed, knee) in enumerate(GPUS)
        for row in sweep_rows(slot, speed=speed, knee=knee, noise=noise, repeats=repeats)
    ]


def planned(watts: float, told: list[SweepRow] | None = None, **more: float) -> BudgetPlan:
    curves, _ = fit_curves(told or rows(), ())
    return plan_budget(curves, watts, **more)


def test_no_caps_on_a_grid_do_more_work_than_the_chosen_ones() -> None:
    plan = planned(1050.0)
    fits = [share.curve.fit for share in plan.shares]
    grid = np.arange(200.0, 561.0, 20.0)
    best = max(total_rate(fits, way) for way in itertools.product(grid, grid, grid) if sum(way) <= 1050.0)
    assert total_rate(fits, [share.watts for share in plan.shares]) >= best - 1e-9
    truth = sum(rate_at(share.watts, *gpu) for share, gpu in zip(plan.shares, GPUS, strict=True))
    really = max(
        sum(rate_at(w, *gpu) for w, gpu in zip(way, GPUS, strict=True))
        for way in itertools.product(grid, grid, grid)
        if sum(way) <= 1050.0
    )
    assert truth >= 0.998 * really
    assert sum(share.cap_w for share in plan.shares) <= 1050.0
    assert all(share.cap_w == int(share.cap_w) for share in plan.shares)


def test_the_loss_has_an_interval_over_repeats_and_beats_an_equal_split() -> None:
    plan = planned(1050.0, rows(noise=0.003))
    truth = 1 - sum(rate_at(s.watts, *g) for s, g in zip(plan.shares, GPUS, strict=True)) / sum(
        rate_at(560.0, *gpu) for gpu in GPUS
    )
    assert plan.loss.low is not None
    assert plan.loss.high is not None
    assert plan.loss.low <= truth <= plan.loss.high
    assert plan.against_equal is not None
    assert plan.against_equal.value > 0
    assert "of their uncapped throughput" in budget_headline(plan)
    once = planned(1050.0, rows(repeats=1))
    assert once.loss.low is None
    assert "every step was measured once" in budget_headline(once)


def test_a_budget_below_the_lowest_caps_is_refused_with_the_least_that_would_do() -> None:
    with pytest.raises(MachineCannot, match="need 600 W at their lowest measured caps"):
        planned(599.0)
    with pytest.raises(MachineCannot, match="need 700 W at their lowest measured caps, including 100 W"):
        planned(650.0, overhead_w=100.0)
    with pytest.raises(MachineCannot, match="to keep 90 % of full rate"):
        planned(900.0, min_share=0.9)
    with pytest.raises(BadInput, match="leaves nothing"):
        planned(100.0, overhead_w=100.0)
    assert [round(share.watts) for share in planned(600.0).shares] == [200, 200, 200]


def test_every_gpu_keeps_the_share_that_was_asked_for() -> None:
    plan = planned(1100.0, min_share=0.82)
    assert all(share.share >= 0.82 - 1e-9 for share in plan.shares)
    assert min(share.share for share in planned(1050.0).shares) < 0.82


def test_a_budget_above_what_is_ever_drawn_does_not_bind() -> None:
    plan = planned(2000.0)
    assert not plan.binds
    assert "2000 W do not bind: 3 GPUs draw at most 1800 W together, so no cap is needed." in budget_headline(plan)
    assert not list(cap_commands(plan))
    assert plan.loss.value == pytest.approx(0.0)


def test_a_gpu_without_a_curve_gets_the_middle_one_of_its_model_and_is_marked() -> None:
    others = simulate(Setting(nodes=1, gpus=1, runs=1), 1).all_rows
    strange = others[0].model_copy(update={"model": "Other", "uuid": "GPU-other"})
    curves, notes = fit_curves(rows(), [*others, strange])
    (borrowed,) = [curve for curve in curves if curve.peers]
    assert borrowed.peers == 3
    assert borrowed.fit.at(400.0) == pytest.approx(rate_at(400.0, *GPUS[1]), rel=0.02)
    assert notes == ("node0000 GPU 0 (Other) has no curve: no GPU of its model was swept.",)
    plan = plan_budget(curves, 1300.0)
    shown = build_page(plan, select_work(rows(), None)[0], notes=notes)
    assert "median of 3 GPUs of its model" in str(shown)
    assert [line.split()[-1] for _, line in cap_commands(plan)] == [f"{share.cap_w:.0f}" for share in plan.shares]


def test_nothing_is_said_beyond_the_lowest_and_the_highest_step() -> None:
    narrow = sweep_rows(0, caps=(300.0, 400.0))[1:]
    curves, _ = fit_curves(narrow, ())
    assert (curves[0].fit.low, curves[0].fit.x[-1]) == (300.0, 400.0)
    never = [row.model_copy(update={"power_w": 150.0, "calls_per_s": 90.0}) for row in narrow]
    (curve,) = fit_curves(never, ())[0]
    assert curve.fit.x == (150.0,)
    assert curve.cap(150.0) == 300.0
    unknown, _ = fit_curves([row.model_copy(update={"power_w": None}) for row in narrow], ())
    assert unknown[0].fit.low == 300.0


def test_a_cap_is_free_only_where_it_was_measured_as_such_and_not_from_the_mean_draw_on() -> None:
    (curve,) = fit_curves(sweep_rows(0, caps=(400.0, 500.0, 570.0, 600.0, 700.0), most=560.0), ())[0]
    held = [
        row.model_copy(update={"held_back": {"power cap": 0.3}}) if row.setting in {500.0, 570.0} else row
        for row in sweep_rows(0, caps=(400.0, 500.0, 570.0, 600.0, 700.0), most=560.0)
    ]
    (peaks,) = fit_curves(held, ())[0]
    assert (curve.fit.x[-1], peaks.fit.x[-1]) == (570.0, 600.0)
    assert peaks.cap(600.0) == 600.0
    all_bind = [row for row in sweep_rows(0) if row.setting is None or float(str(row.setting)) < 560]
    assert fit_curves(all_bind, ())[0][0].fit.x[-1] == 560.0


def test_one_piece_of_work_is_planned_for_and_others_are_asked_about() -> None:
    both = [*rows(), *(row.model_copy(update={"params": {"n": 512}}) for row in rows())]
    with pytest.raises(BadInput, match="Select one with --workload"):
        select_work(both, None)
    work, own = select_work(both, "sgemm@torch n=512")
    assert (work.label, len(own)) == ("sgemm@torch n=512", len(rows()))
    with pytest.raises(BadInput, match="--workload hgemm was not swept"):
        select_work(both, "hgemm")
    with pytest.raises(BadInput, match="these rows sweep sm_mhz"):
        select_work([row.model_copy(update={"knob": "sm_mhz"}) for row in rows()], None)


def test_more_watts_never_do_less_and_findings_say_what_was_decided() -> None:
    plan = planned(1050.0, rows(noise=0.01))
    shares = [share for _, share, _ in budget_frontier([share.curve for share in plan.shares], 12)]
    assert shares == sorted(shares)
    found = budget_findings(plan, select_work(rows(), None)[0])
    assert [finding.verdict for finding in found.findings][:1] == ["yes"]
    assert found.findings[0].origin == "simulated"
