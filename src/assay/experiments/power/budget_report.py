"""The report of a power budget: caps, commands, the work lost, what other budgets would give, and the curves."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from assay.core.format import format_percent, format_range, percent_cell
from assay.core.page import Column, LinePlot, Page, PlotLine, Section, Table, Text
from assay.core.results import Estimate, Finding, Findings
from assay.experiments.power.budget import budget_frontier

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assay.core.page import Element
    from assay.core.results import Verdict
    from assay.experiments.power.budget import BudgetPlan, GpuShare, RepeatEstimate, SweptWork


def budget_headline(plan: BudgetPlan) -> str:
    """Return the answer in a sentence or two."""
    gpus = f"{len(plan.shares)} GPU{'' if len(plan.shares) == 1 else 's'}"
    left = f"{plan.watts - plan.overhead_w:g} W"
    if not plan.binds:
        return f"{left} do not bind: {gpus} need no more than {plan.needed_w:.0f} W together; no cap is needed."
    lost = f"Under {left} the best caps for {gpus} lose {percent_cell(plan.loss)} of the work they do without caps"
    if plan.loss.low is None:
        lost += " (how surely is not known: nothing was measured twice)"
    if plan.against_equal is None:
        return f"{lost}; an equal split would put some below the lowest cap that was measured."
    gain = plan.against_equal
    if gain.value < 5e-4:
        return f"{lost}; an equal split does as well."
    return f"{lost}, and do {percent_cell(gain)} more than an equal split."


def cap_commands(plan: BudgetPlan) -> Iterator[tuple[str, str]]:
    """Give the host and the command that would set each cap; nobody runs them here."""
    if plan.binds:
        for share in plan.shares:
            yield share.curve.card.host, f"nvidia-smi -i {share.curve.card.uuid} -pl {share.cap_w:.0f}"


def command_script(plan: BudgetPlan) -> str:
    """Return the commands as text, host by host."""
    parts = groupby(cap_commands(plan), key=lambda host_command: host_command[0])
    return "\n".join(f"# on {host}\n" + "\n".join(line for _, line in lines) for host, lines in parts)


def gpu_label(share: GpuShare, *, hosts: bool) -> str:
    """Return how a GPU is called."""
    card = share.curve.card
    return f"{card.host} GPU {card.slot}" if hosts else f"GPU {card.slot}"


def curve_source(share: GpuShare) -> str:
    """Say whose curve it is."""
    curve = share.curve
    if curve.own:
        return "own"
    return f"middle of {curve.of} of its model" if curve.of > 1 else "of another of its model"


MAX_CURVES = 8
MAX_PROBLEMS = 20
METHOD = "concave curves through the measured steps; Student's t over repeats"


def budget_findings(plan: BudgetPlan, work: SweptWork) -> Findings:
    """Return what was decided, as claims."""
    binds: Verdict = "yes" if plan.binds else "no"
    findings = [
        Finding(
            kind="budget",
            claim=f"{work.label}: {plan.watts:g} W are fewer than the GPUs would take",
            estimate=_to_estimate(plan.loss, "of the work is lost"),
            verdict=binds,
            records=(),
            facts={
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
                kind="equal_split",
                claim=f"{work.label}: these caps do more work than an equal split",
                estimate=_to_estimate(gain, "more work"),
                verdict=verdict,
                records=(),
                facts={"each_w": plan.equal_w},
                origin=work.origin,
            )
        )
    return Findings(headline=budget_headline(plan), findings=tuple(findings))


def _to_estimate(sure: RepeatEstimate, unit: str) -> Estimate:
    n = max(1, sure.repeats)
    return Estimate(value=sure.value, low=sure.low, high=sure.high, unit=unit, scope="machine", method=METHOD, n=n)


def build_page(plan: BudgetPlan, work: SweptWork, *, notes: Sequence[str] = (), unusable: Sequence[str] = ()) -> Page:
    """Return the whole page."""
    result_elements: list[Element] = [caps_table(plan), *(_cap_total_notes(plan))]
    rows = tuple(cap_commands(plan))
    title = "To be run by whoever may; nothing was set"
    lines = [Table(title=title, columns=_columns("host", "command"), rows=rows)] if rows else []
    curve_elements: list[Element] = [*_frontier_elements(plan), curves_figure(plan)]
    trouble = [Text(text=note) for note in notes] + [
        Text(text=f"{problem}.", tone="bad") for problem in unusable[:MAX_PROBLEMS]
    ]
    sections = (
        Section(title="Results", elements=tuple(result_elements)),
        Section(title="Commands", elements=tuple(lines)),
        Section(title="Curves", elements=tuple(curve_elements)),
        Section(title="What to know of the rows", elements=tuple(trouble)),
    )
    return Page(
        title=f"assay power budget: {plan.watts:g} W for {work.label}",
        lead=budget_headline(plan),
        lead_tone="plain" if plan.binds else "good",
        sections=tuple(section for section in sections if section.elements),
        origin=work.origin,
    )


def _columns(*titles: str, numeric: int | None = None) -> tuple[Column, ...]:
    return tuple(Column(title=title, numeric=numeric is not None and i >= numeric) for i, title in enumerate(titles))


def caps_table(plan: BudgetPlan) -> Table:
    """Return what each GPU gets."""
    hosts = len({share.curve.card.host for share in plan.shares}) > 1
    return Table(
        title="Caps" if plan.binds else "What the GPUs take without caps",
        columns=_columns("GPU", "curve", "cap, W", "counted, W", "of its full rate", "measured, W", numeric=2),
        rows=tuple(
            (
                gpu_label(share, hosts=hosts),
                curve_source(share),
                f"{share.cap_w:.0f}" if plan.binds else None,
                f"{share.watts:.0f}",
                format_percent(share.share, digits=3),
                format_range(f"{share.curve.fit.low:.0f}", f"{share.curve.fit.x[-1]:.0f}"),
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


def _cap_total_notes(plan: BudgetPlan) -> list[Element]:
    """Say what the caps add up to."""
    if not plan.binds:
        return []
    over = plan.capped_w > plan.watts - plan.overhead_w + 1e-6
    text = f"The caps add up to {plan.capped_w:.0f} W of {plan.watts - plan.overhead_w:g} W."
    if over:
        text += " That is more, as some GPUs draw less than the lowest cap that was measured; other work may not."
    return [Text(text=text, tone="unsure" if over else "plain")]


def _frontier_elements(plan: BudgetPlan) -> list[Element]:
    """Return what other budgets would give."""
    points = budget_frontier([share.curve for share in plan.shares])
    if len(points) < 2:
        return []
    x = tuple(watts + plan.overhead_w for watts, _, _ in points)
    best = PlotLine(label="best caps", x=x, y=tuple(100 * share for _, share, _ in points))
    equal = PlotLine(label="equal split", x=x, y=tuple(None if e is None else 100 * e for _, _, e in points))
    mine = plan.watts if plan.binds else None
    here = [PlotLine(label="this budget", x=(mine,), y=(100 * (1 - plan.loss.value),))] if mine is not None else []
    return [
        LinePlot(
            title="Work under other budgets",
            name="budgets",
            x_axis="budget (W)",
            y_axis="share of the work without caps (%)",
            lines=(best, *([equal] if any(e is not None for _, _, e in points) else []), *here),
            markers=False,
        )
    ]


def curves_figure(plan: BudgetPlan) -> LinePlot:
    """Return the curves of a few GPUs."""
    hosts = len({share.curve.card.host for share in plan.shares}) > 1
    shown = [share for share in plan.shares if share.curve.own] or list(plan.shares)
    note = f"{MAX_CURVES} of {len(shown)} GPUs." if len(shown) > MAX_CURVES else None
    points = [point for share in shown[:MAX_CURVES] for point in share.curve.points]
    broken: list[float | None] = [value for _, rate in points for value in (rate, None)]
    measured = PlotLine(label="measured", x=tuple(watts for watts, _ in points for _ in range(2)), y=tuple(broken))
    return LinePlot(
        title="Curves, and what was measured",
        name="curves",
        x_axis="counted power (W)",
        y_axis="calls a second",
        lines=(
            *(
                PlotLine(label=gpu_label(share, hosts=hosts), x=share.curve.fit.x, y=share.curve.fit.y)
                for share in shown[:MAX_CURVES]
            ),
            *([measured] if points else []),
        ),
        markers=False,
        note=note,
    )
