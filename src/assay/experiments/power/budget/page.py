"""The page of a budget: caps, loss, what each budget would give, and the curves it all rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Line, Lines, Page, Section, Table, Text
from assay.core.results import Estimate, Finding, Findings
from assay.experiments.power.budget import words
from assay.experiments.power.budget.plan import frontier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Element
    from assay.core.results import Verdict
    from assay.experiments.power.budget.curves import Work
    from assay.experiments.power.budget.plan import Plan, Sure

MOST_CURVES = 8
MOST_TOLD = 20
METHOD = "concave curves through the measured steps; Student's t over repeats"


def findings_of(plan: Plan, work: Work) -> Findings:
    """Return what was decided, as claims."""
    binds: Verdict = "yes" if plan.binds else "no"
    findings = [
        Finding(
            claim=f"{work.label}: {plan.watts:g} W are fewer than the GPUs would take",
            estimate=_estimate(plan.loss, "of the work is lost"),
            verdict=binds,
            records=(),
            facts={
                "about": "budget",
                "watts": plan.watts,
                "overhead_w": plan.overhead_w,
                "least_w": plan.least_w,
                "needed_w": plan.needed_w + plan.overhead_w,
                "counted_w": plan.spent_w,
                "caps_w": plan.capped_w,
            },
            origin=work.origin,
        )
    ]
    if plan.against_equal is not None and plan.binds:
        gain = plan.against_equal
        verdict: Verdict = "unsure"
        if gain.low is not None and gain.high is not None:
            verdict = "yes" if gain.low > 0 else "no" if gain.high < 1e-3 else "unsure"
        findings.append(
            Finding(
                claim=f"{work.label}: these caps do more work than an equal split",
                estimate=_estimate(gain, "more work"),
                verdict=verdict,
                records=(),
                facts={"about": "equal split", "each_w": plan.equal_w},
                origin=work.origin,
            )
        )
    return Findings(headline=words.headline(plan), findings=tuple(findings))


def _estimate(sure: Sure, unit: str) -> Estimate:
    n = max(1, sure.repeats)
    return Estimate(value=sure.value, low=sure.low, high=sure.high, unit=unit, scope="machine", method=METHOD, n=n)


def page(plan: Plan, work: Work, *, notes: Sequence[str] = (), unusable: Sequence[str] = ()) -> Page:
    """Return the whole page."""
    result_elements: list[Element] = [caps_table(plan), *(_remarks(plan))]
    rows = tuple(words.commands(plan))
    title = "To be run by whoever may; nothing was set"
    lines = [Table(title=title, columns=_columns("host", "command"), rows=rows)] if rows else []
    curve_elements: list[Element] = [*_frontier(plan), curves_figure(plan)]
    trouble = [Text(text=note) for note in notes] + [
        Text(text=f"{problem}.", tone="bad") for problem in unusable[:MOST_TOLD]
    ]
    sections = (
        Section(title="Results", elements=tuple(result_elements)),
        Section(title="Commands", elements=tuple(lines)),
        Section(title="Curves", elements=tuple(curve_elements)),
        Section(title="What to know of the rows", elements=tuple(trouble)),
    )
    return Page(
        title=f"assay power budget: {plan.watts:g} W for {work.label}",
        lead=words.headline(plan),
        lead_tone="plain" if plan.binds else "good",
        sections=tuple(section for section in sections if section.elements),
        origin=work.origin,
    )


def _columns(*titles: str, numeric: int | None = None) -> tuple[Column, ...]:
    return tuple(Column(title=title, numeric=numeric is not None and i >= numeric) for i, title in enumerate(titles))


def caps_table(plan: Plan) -> Table:
    """Return what each GPU gets."""
    hosts = len({share.curve.card.host for share in plan.shares}) > 1
    return Table(
        title="Caps" if plan.binds else "What the GPUs take without caps",
        columns=_columns("GPU", "curve", "cap, W", "counted, W", "of its full rate", "measured, W", numeric=2),
        rows=tuple(
            (
                words.name(share, hosts=hosts),
                words.source(share),
                f"{share.cap_w:.0f}" if plan.binds else None,
                f"{share.watts:.0f}",
                f"{100 * share.share:.1f} %",
                f"{share.curve.fit.low:.0f} – {share.curve.fit.x[-1]:.0f}",
            )
            for share in plan.shares
        ),
        tones=tuple("plain" if share.curve.own else "unsure" for share in plan.shares),
        note=(
            "Counted: the cap, up to the lowest that was measured as not binding; where none was, up to the mean draw, "
            "and caps near that may bind, as power peaks above its mean. Measured: where its curve is known; nothing "
            "is said beyond. Marked: the GPU has no curve of its own."
        ),
    )


def _remarks(plan: Plan) -> list[Element]:
    """Say what the caps add up to."""
    if not plan.binds:
        return []
    over = plan.capped_w > plan.watts - plan.overhead_w + 1e-6
    text = f"The caps add up to {plan.capped_w:.0f} W of {plan.watts - plan.overhead_w:g} W."
    if over:
        text += " That is more, as some GPUs draw less than the lowest cap that was measured; other work may not."
    return [Text(text=text, tone="unsure" if over else "plain")]


def _frontier(plan: Plan) -> list[Element]:
    """Return what other budgets would give."""
    points = frontier([share.curve for share in plan.shares])
    if len(points) < 2:
        return []
    x = tuple(watts + plan.overhead_w for watts, _, _ in points)
    best = Line(label="best caps", x=x, y=tuple(100 * share for _, share, _ in points))
    equal = Line(label="equal split", x=x, y=tuple(None if e is None else 100 * e for _, _, e in points))
    mine = plan.watts if plan.binds else None
    here = [Line(label="this budget", x=(mine,), y=(100 * (1 - plan.loss.value),))] if mine is not None else []
    return [
        Lines(
            title="Work under other budgets",
            name="budgets",
            x_axis="budget (W)",
            y_axis="share of the work without caps (%)",
            lines=(best, *([equal] if any(e is not None for _, _, e in points) else []), *here),
            markers=False,
        )
    ]


def curves_figure(plan: Plan) -> Lines:
    """Return the curves of a few GPUs."""
    hosts = len({share.curve.card.host for share in plan.shares}) > 1
    shown = [share for share in plan.shares if share.curve.own] or list(plan.shares)
    note = f"{MOST_CURVES} of {len(shown)} GPUs." if len(shown) > MOST_CURVES else None
    points = [point for share in shown[:MOST_CURVES] for point in share.curve.points]
    broken: list[float | None] = [value for _, rate in points for value in (rate, None)]
    measured = Line(label="measured", x=tuple(watts for watts, _ in points for _ in range(2)), y=tuple(broken))
    return Lines(
        title="Curves, and what was measured",
        name="curves",
        x_axis="counted power (W)",
        y_axis="calls a second",
        lines=(
            *(
                Line(label=words.name(share, hosts=hosts), x=share.curve.fit.x, y=share.curve.fit.y)
                for share in shown[:MOST_CURVES]
            ),
            *([measured] if points else []),
        ),
        markers=False,
        note=note,
    )
