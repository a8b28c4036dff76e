"""Choose the power caps that give the most throughput under a power budget, from measured sweeps. Nothing is set here.

Each GPU has a concave curve of calls per second over watts, fitted through the measured steps of its power limit.
A step counts as its cap, up to the lowest cap that was measured as not binding: a higher one changes nothing. Where
none was, or every cap was, it counts at most the GPU's mean power. Where a GPU draws more than its cap, what it draws
counts. Curves are not extrapolated beyond the lowest and the highest step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import BadInput, MachineCannot
from assay.core.format import format_count, format_percent, format_range, percent_cell
from assay.core.page import LinePlot, Page, PlotLine, Section, Table, Text, build_table
from assay.core.results import Estimate, Finding, Findings
from assay.core.values import POWER_LIMIT_W
from assay.experiments.power.rows import row_notes
from assay.experiments.power.sweep.curve import MAX_FREE_THROTTLE_SHARE, MIN_LIMIT_SHARE, POWER_CAP_REASON
from assay.stats.concave import ConcaveCurve, allocate_total, fit_concave
from assay.stats.intervals import CONFIDENCE
from assay.stats.numerics import t_quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from assay.core.page import Element
    from assay.core.results import Origin, Verdict
    from assay.core.values import Params
    from assay.experiments.power.rows import GpuIdentity, GpuRow, SweepRow
    from assay.stats.intervals import Samples


MIN_REPEATS = 2
"""Repeats that an interval needs."""
MAX_CURVES = 8
NEGLIGIBLE_GAIN = 5e-4
"""A gain over an equal split that is not worth a number."""
METHOD = "concave curves through the measured steps; Student's t over repeats"
FULL_RATE_SHARE = 0.99
"""A cap that does not bind reaches this share of the rate without a cap."""


@dataclass(frozen=True)
class BudgetGpu:
    """One GPU and its slot."""

    uuid: str
    host: str
    slot: int
    model: str

    @classmethod
    def of(cls, row: GpuIdentity) -> BudgetGpu:
        """Return the GPU of a row."""
        return cls(row.uuid, row.host, row.slot, row.model)


@dataclass(frozen=True)
class PowerCurve:
    """Calls per second over watts.

    Attributes:
        gpu: The GPU it is of.
        fit: The curve.
        repeats: The same from each repeat alone.
        caps: Pairs of the watts that count and the cap to set for them.
        points: The measured steps: watts that count, calls per second.
        peers: GPUs of its model whose median curve it is; 0: it is the GPU's own.
    """

    gpu: BudgetGpu
    fit: ConcaveCurve
    repeats: tuple[ConcaveCurve, ...]
    caps: tuple[tuple[float, float], ...]
    points: tuple[tuple[float, float], ...] = ()
    peers: int = 0

    @property
    def full(self) -> float:
        """Calls per second without a cap that binds."""
        return self.fit.y[-1]

    def cap(self, watts: float) -> float:
        """Return the cap for so many watts, in whole watts, never below the lowest that was measured."""
        counted, caps = zip(*self.caps, strict=True)
        cap_w = float(np.interp(watts, counted, caps))
        return max(float(np.floor(cap_w + 1e-6)), float(np.ceil(caps[0] - 1e-6)))


@dataclass(frozen=True)
class GpuShare:
    """What one GPU gets: watts that count, the cap in whole watts, calls per second, and the share of its full rate."""

    curve: PowerCurve
    watts: float
    cap_w: float
    rate: float
    share: float


@dataclass(frozen=True)
class BudgetPlan:
    """The cap of each GPU. Watts include ``overhead_w`` only where that is stated.

    Attributes:
        watts: The budget, with the overhead.
        overhead_w: Watts of the budget that are not available to the GPUs.
        shares: What each GPU gets.
        least_w: The least budget that the measured steps allow, with the overhead.
        needed_w: What the GPUs take without caps.
        loss: The share of uncapped throughput that is lost.
        equal_w: What an equal split gives each GPU; null where that is below the lowest step of one.
        against_equal: How much more throughput than an equal split, as a share of it; null likewise.
    """

    watts: float
    overhead_w: float
    shares: tuple[GpuShare, ...]
    least_w: float
    needed_w: float
    loss: Estimate
    equal_w: float | None
    against_equal: Estimate | None

    @property
    def available_w(self) -> float:
        """What is left for the GPUs."""
        return self.watts - self.overhead_w

    @property
    def binds(self) -> bool:
        """Whether the budget is less than the GPUs take without caps."""
        return self.available_w < self.needed_w - 1e-6

    @property
    def spent_w(self) -> float:
        """The watts that count for all GPUs."""
        return sum(share.watts for share in self.shares)

    @property
    def capped_w(self) -> float:
        """The sum of all caps: the GPUs draw no more, whatever they run."""
        return sum(share.cap_w for share in self.shares)


def plan_budget(
    curves: Sequence[PowerCurve], watts: float, overhead_w: float = 0.0, min_share: float | None = None
) -> BudgetPlan:
    """Return the split with the most calls per second.

    Raises:
        BadInput: The overhead leaves nothing.
        MachineCannot: The budget is below the lowest caps that were measured, or below the least share for each.
    """
    available_w = watts - overhead_w
    if available_w <= 0:
        raise BadInput(f"--overhead {overhead_w:g} leaves nothing of --watts {watts:g} for the GPUs.")
    fits = [curve.fit for curve in curves]
    lows = [fit.low for fit in fits]
    if min_share is not None:
        lows = [curve.fit.reaches(min_share * curve.full) or curve.fit.low for curve in curves]
    watts_per_gpu = allocate_total(fits, available_w, lows)
    if watts_per_gpu is None:
        least = math.ceil(sum(lows) + overhead_w - 1e-6)
        goal = "at their lowest measured caps" if min_share is None else f"to keep {100 * min_share:g} % of full rate"
        overhead = f", including {overhead_w:g} W of overhead" if overhead_w else ""
        gpus = format_count(len(curves), "GPU")
        raise MachineCannot(f"{watts:g} W are not enough: {gpus} need {least} W {goal}{overhead}.")
    equal_w = _equal_split(fits, available_w)

    def lost_share(fits: Sequence[ConcaveCurve]) -> float:
        return 1 - total_rate(fits, watts_per_gpu) / sum(fit.y[-1] for fit in fits)

    def gain_over_equal(fits: Sequence[ConcaveCurve]) -> float:
        return total_rate(fits, watts_per_gpu) / total_rate(fits, [available_w / len(fits)] * len(fits)) - 1

    against_equal = None if equal_w is None else _repeat_estimate(curves, gain_over_equal, "share of an equal split")
    return BudgetPlan(
        watts=watts,
        overhead_w=overhead_w,
        shares=tuple(
            GpuShare(curve, w, curve.cap(w), curve.fit.at(w), curve.fit.at(w) / curve.full)
            for curve, w in zip(curves, watts_per_gpu, strict=True)
        ),
        least_w=sum(fit.low for fit in fits) + overhead_w,
        needed_w=sum(fit.top for fit in fits),
        loss=_repeat_estimate(curves, lost_share, "share of throughput", low=0.0),
        equal_w=equal_w,
        against_equal=against_equal,
    )


def _equal_split(fits: Sequence[ConcaveCurve], watts: float) -> float | None:
    """Return the watts of each GPU in an equal split; null where that is below the lowest step of one."""
    equal_w = watts / len(fits)
    return equal_w if all(equal_w >= fit.low - 1e-9 for fit in fits) else None


def total_rate(fits: Sequence[ConcaveCurve], watts_per_gpu: Sequence[float]) -> float:
    """Return the calls per second of all GPUs."""
    return sum(fit.at(watts) for fit, watts in zip(fits, watts_per_gpu, strict=True))


def _repeat_estimate(
    curves: Sequence[PowerCurve], of: Callable[[Sequence[ConcaveCurve]], float], unit: str, *, low: float | None = None
) -> Estimate:
    """Return a number of all curves, with Student's t over its values in each repeat alone."""
    value = of([curve.fit for curve in curves])
    repeats = min(len(curve.repeats) for curve in curves)
    ends: tuple[float | None, float | None] = (None, None)
    if repeats >= MIN_REPEATS:
        alone = np.array([of([curve.repeats[repeat] for curve in curves]) for repeat in range(repeats)])
        half = t_quantile(CONFIDENCE, repeats - 1) * float(alone.std(ddof=1)) / math.sqrt(repeats)
        ends = (value - half if low is None else max(low, value - half)), value + half
    return Estimate(
        value=value, low=ends[0], high=ends[1], unit=unit, scope="machine", method=METHOD, n=max(1, repeats)
    )


def budget_frontier(curves: Sequence[PowerCurve], points: int = 40) -> list[tuple[float, float, float | None]]:
    """Return watts, the share of uncapped throughput, and that of an equal split (null: impossible), from the least."""
    fits = [curve.fit for curve in curves]
    full = sum(fit.y[-1] for fit in fits)
    least, most = sum(fit.low for fit in fits), sum(fit.top for fit in fits)
    rows = []
    for watts in np.linspace(least, most, points if most > least else 1).tolist():
        best = allocate_total(fits, watts) or [fit.low for fit in fits]
        equal_w = _equal_split(fits, watts)
        equal = None if equal_w is None else total_rate(fits, [equal_w] * len(fits)) / full
        rows.append((watts, total_rate(fits, best) / full, equal))
    return rows


@dataclass(frozen=True)
class SweptWork:
    """What was swept: rows of the same work are one set of curves."""

    label: str
    origin: Origin


def select_work(rows: Sequence[SweepRow], workload: str | None) -> tuple[SweptWork, tuple[SweepRow, ...]]:
    """Return the rows of the one workload that is requested.

    Raises:
        BadInput: There is no sweep of power limits, none of the requested workload, or several.
    """
    caps = [row for row in rows if row.knob == POWER_LIMIT_W and row.calls_per_s > 0]
    if not caps:
        knobs = ", ".join(dict.fromkeys(row.knob for row in rows))
        raise BadInput(
            "A budget needs a sweep of power limits, from `assay power sweep --limits … --apply`; "
            f"{f'these rows sweep {knobs}' if knobs else 'there is none'}."
        )
    parts: dict[SweptWork, list[SweepRow]] = defaultdict(list)
    for row in caps:
        params = " ".join(f"{name}={value}" for name, value in row.params.items() if value is not None)
        parts[SweptWork(f"{row.workload} {params}".strip(), row.origin)].append(row)
    matching = [work for work in parts if workload in {None, work.label, work.label.partition(" ")[0]}]
    if len(matching) == 1:
        return matching[0], tuple(parts[matching[0]])
    named = "; ".join(f"{work.label} ({work.origin})" for work in (matching or parts))
    if not matching:
        raise BadInput(f"--workload {workload} was not swept; available: {named}.")
    raise BadInput(f"Several workloads were swept, and their rates do not add up: {named}. Select one with --workload.")


def fit_curves(rows: Sequence[SweepRow], others: Iterable[GpuRow]) -> tuple[tuple[PowerCurve, ...], tuple[str, ...]]:
    """Return a curve for each GPU, also for those of ``others``, and a note for each that has none."""
    by_gpu: dict[str, list[SweepRow]] = defaultdict(list)
    for row in rows:
        by_gpu[row.uuid].append(row)
    curves = {uuid: curve for uuid, own in by_gpu.items() if (curve := _fit_curve(own)) is not None}
    own_curves = tuple(curves.values())
    candidates = [*(own[0] for own in by_gpu.values()), *(row for row in others if row.device.startswith("cuda"))]
    without_curve = {row.uuid: BudgetGpu.of(row) for row in reversed(candidates) if row.uuid not in curves}
    notes = []
    for gpu in reversed(without_curve.values()):
        peers = [curve for curve in own_curves if curve.gpu.model == gpu.model]
        if peers:
            curves[gpu.uuid] = _median_curve(gpu, peers)
        else:
            notes.append(f"{gpu.host} GPU {gpu.slot} ({gpu.model}) has no curve: no GPU of its model was swept.")
    ordered = sorted(curves.values(), key=lambda curve: (curve.gpu.host, curve.gpu.slot, curve.gpu.uuid))
    return tuple(ordered), tuple(notes)


def _fit_curve(rows: Sequence[SweepRow]) -> PowerCurve | None:
    """Return a GPU's own curve; null where no step of it has a cap."""
    capped = [(row, cap) for row in rows if (cap := _cap_w(row)) is not None]
    if not capped:
        return None
    most = _max_useful_w(rows)
    usable = [row for row in rows if _cap_w(row) is not None or row.power_w is not None]
    watts = np.array([_step_cost_w(row, most) for row in usable])
    lowest = min(_step_cost_w(row, most) for row, _ in capped)
    inside = watts >= lowest
    rates = np.array([row.calls_per_s for row in usable])
    fit = fit_concave(watts[inside], rates[inside])
    caps = {_step_cost_w(row, most): min(cap, max(most, lowest)) for row, cap in capped}
    caps[lowest] = min(cap for _, cap in capped)
    caps.setdefault(fit.x[-1], fit.x[-1])
    return PowerCurve(
        gpu=BudgetGpu.of(max(rows, key=lambda row: row.started_at)),
        fit=fit,
        repeats=_fit_repeats(usable, watts, lowest),
        caps=tuple(sorted(caps.items())),
        points=tuple(zip(watts[inside].tolist(), rates[inside].tolist(), strict=True)),
    )


def _max_useful_w(rows: Sequence[SweepRow]) -> float:
    """Return the watts from which on a cap changes nothing.

    That is the lowest cap that was measured as not binding. Where none was, or where all were and a lower one might
    not bind either, it is the highest mean power of a step; a cap there may bind at power peaks.
    """
    capped = [(row, cap) for row in rows if (cap := _cap_w(row)) is not None]
    uncapped_rates = [row.calls_per_s for row in rows if _cap_w(row) is None]
    full = max(uncapped_rates or [row.calls_per_s for row in rows])
    binding = {cap for row, cap in capped if not _is_free(row, cap, full)}
    free = {cap for _, cap in capped} - binding
    if free and min(cap for _, cap in capped) in binding:
        return min(free)
    return max([row.power_w for row in rows if row.power_w is not None] or [cap for _, cap in capped])


def _is_free(row: SweepRow, cap: float, full: float) -> bool:
    """Return whether a step's cap does not bind: less is drawn, no throttling, and it is as fast."""
    below = row.power_w is not None and row.power_w < MIN_LIMIT_SHARE * cap
    return (
        below
        and row.held_back.get(POWER_CAP_REASON, 0.0) <= MAX_FREE_THROTTLE_SHARE
        and row.calls_per_s >= FULL_RATE_SHARE * full
    )


def _cap_w(row: SweepRow) -> float | None:
    """Return the power limit of a step; null where none was set."""
    setting = row.setting
    return float(setting) if isinstance(setting, int | float) and not isinstance(setting, bool) else None


def _step_cost_w(row: SweepRow, most: float) -> float:
    """Return the watts that count for a step."""
    cap = _cap_w(row)
    return most if cap is None else max(min(cap, most), row.power_w or 0.0)


def _fit_repeats(rows: Sequence[SweepRow], watts: Samples, lowest: float) -> tuple[ConcaveCurve, ...]:
    """Return a curve from each repeat alone: of every run, the r-th process of each step."""
    parts: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for row, counted in zip(rows, watts, strict=True):
        for number, median in enumerate(row.restart_medians_us or (row.median_us,)):
            if median > 0 and counted >= lowest:
                parts[row.run, number].append((float(counted), row.calls_per_s * row.median_us / median))
    whole = max(map(len, parts.values()), default=0)
    complete = [points for points in parts.values() if len(points) == whole]
    if len(complete) < MIN_REPEATS:
        return ()
    return tuple(fit_concave(*np.array(points).T) for points in complete)


def _median_curve(gpu: BudgetGpu, peers: Sequence[PowerCurve]) -> PowerCurve:
    """Return the median curve of a model, over the range that all of its curves cover."""
    number = min(len(peer.repeats) for peer in peers)
    repeats = tuple(_median_fit([peer.repeats[repeat] for peer in peers]) for repeat in range(number))
    fit = _median_fit([peer.fit for peer in peers])
    low, high = max(peer.caps[0][1] for peer in peers), fit.x[-1]
    caps = ((fit.low, low), (high, max(low, high))) if high > fit.low else ((fit.low, low),)
    return PowerCurve(gpu, fit, repeats, caps, peers=len(peers))


def _median_fit(fits: Sequence[ConcaveCurve]) -> ConcaveCurve:
    low, high = max(fit.low for fit in fits), min(fit.x[-1] for fit in fits)
    if low >= high:
        low = high = float(np.median([fit.x[-1] for fit in fits]))
    inner = {x for fit in fits for x in fit.x if low < x < high}
    knots = np.array(sorted({low, high} | inner))
    heights = np.median([[fit.at(x) for x in knots] for fit in fits], axis=0)
    return fit_concave(knots, heights)


def budget_headline(plan: BudgetPlan) -> str:
    """Return the answer in a sentence."""
    gpus = format_count(len(plan.shares), "GPU")
    available = f"{plan.available_w:g} W"
    if not plan.binds:
        return f"{available} do not bind: {gpus} draw at most {plan.needed_w:.0f} W together, so no cap is needed."
    lost = f"Under {available} the best caps for {gpus} cost {percent_cell(plan.loss)} of their uncapped throughput"
    if plan.loss.low is None:
        lost += " (no interval: every step was measured once)"
    if plan.against_equal is None:
        return f"{lost}; an equal split would put some below their lowest measured cap."
    if plan.against_equal.value < NEGLIGIBLE_GAIN:
        return f"{lost}; an equal split does as well."
    return f"{lost} and give {percent_cell(plan.against_equal)} more throughput than an equal split."


def cap_commands(plan: BudgetPlan) -> list[tuple[str, str]]:
    """Return the host and the command that would set each cap; they are never run here."""
    gpus = [(share.curve.gpu, share.cap_w) for share in plan.shares if plan.binds]
    return [(gpu.host, f"nvidia-smi -i {gpu.uuid} -pl {cap_w:.0f}") for gpu, cap_w in gpus]


def command_script(plan: BudgetPlan) -> str:
    """Return the commands as text, host by host."""
    by_host: dict[str, list[str]] = defaultdict(list)
    for host, command in cap_commands(plan):
        by_host[host].append(command)
    return "\n".join("\n".join([f"# on {host}", *commands]) for host, commands in by_host.items())


def budget_findings(plan: BudgetPlan, work: SweptWork) -> Findings:
    """Return the decisions, as findings."""
    findings = [
        Finding(
            kind="budget",
            claim=f"{work.label}: {plan.watts:g} W are less than the GPUs draw without caps",
            estimate=plan.loss,
            verdict="yes" if plan.binds else "no",
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
    gain = plan.against_equal
    if gain is not None and plan.binds:
        verdict: Verdict = "unsure"
        if gain.low is not None and gain.high is not None:
            verdict = "yes" if gain.low > 0 else "no" if gain.high < 1e-3 else "unsure"
        claim = f"{work.label}: these caps give more throughput than an equal split"
        facts: Params = {"each_w": plan.equal_w}
        finding = Finding(kind="equal_split", claim=claim, estimate=gain, verdict=verdict, records=(), facts=facts)
        findings.append(finding.model_copy(update={"origin": work.origin}))
    return Findings(headline=budget_headline(plan), findings=tuple(findings))


def build_page(plan: BudgetPlan, work: SweptWork, *, notes: Sequence[str] = (), unusable: Sequence[str] = ()) -> Page:
    """Return the whole page."""
    commands = build_table(
        "Commands that set the caps (root); nothing was set",
        cap_commands(plan),
        {"host": lambda command: command[0], "command": lambda command: command[1]},
    )
    gpus = [share.curve.gpu for share in plan.shares]
    several = len({gpu.host for gpu in gpus}) > 1
    names = {gpu.uuid: f"{gpu.host} GPU {gpu.slot}" if several else f"GPU {gpu.slot}" for gpu in gpus}
    sections = (
        Section(title="Results", elements=(caps_table(plan, names), *_cap_total_notes(plan))),
        Section(title="Commands", elements=(commands,) if commands.rows else ()),
        Section(title="Curves", elements=(*_frontier_figure(plan), curves_figure(plan, names))),
        Section(title="Data quality", elements=row_notes(notes, unusable)),
    )
    return Page(
        title=f"assay power budget: {plan.watts:g} W for {work.label}",
        lead=budget_headline(plan),
        lead_tone="plain" if plan.binds else "good",
        sections=tuple(section for section in sections if section.elements),
        origin=work.origin,
    )


def caps_table(plan: BudgetPlan, names: Mapping[str, str]) -> Table:
    """Return what each GPU gets; ``names`` are those of the GPUs by their UUIDs."""

    def source(curve: PowerCurve) -> str:
        return f"median of {format_count(curve.peers, 'GPU')} of its model" if curve.peers else "own"

    return build_table(
        "Caps" if plan.binds else "Power without caps",
        plan.shares,
        {
            "GPU": lambda share: names[share.curve.gpu.uuid],
            "curve": lambda share: source(share.curve),
            "cap, W": lambda share: f"{share.cap_w:.0f}" if plan.binds else None,
            "counted, W": lambda share: f"{share.watts:.0f}",
            "share of full rate": lambda share: format_percent(share.share, digits=3),
            "measured, W": lambda s: format_range(f"{s.curve.fit.low:.0f}", f"{s.curve.fit.x[-1]:.0f}"),
        },
        numeric=("cap, W", "counted, W", "share of full rate", "measured, W"),
        tone=lambda share: "unsure" if share.curve.peers else "plain",
        note="Counted: the cap, up to the lowest cap measured as not binding; where there is none, up to the mean "
        "power (caps near it may bind, as power peaks above its mean). Measured: the range of the curve, which is not "
        "extrapolated. Marked: GPUs without a curve of their own.",
    )


def _cap_total_notes(plan: BudgetPlan) -> list[Element]:
    if not plan.binds:
        return []
    over = plan.capped_w > plan.available_w + 1e-6
    text = f"The caps add up to {plan.capped_w:.0f} W of {plan.available_w:g} W."
    if over:
        text += " They exceed it because some GPUs draw less than their lowest measured cap; other work may draw more."
    return [Text(text=text, tone="unsure" if over else "plain")]


def _frontier_figure(plan: BudgetPlan) -> list[Element]:
    """Return the throughput under other budgets."""
    points = budget_frontier([share.curve for share in plan.shares])
    if len(points) < 2:
        return []
    x = tuple(watts + plan.overhead_w for watts, _, _ in points)
    lines = [PlotLine(label="best caps", x=x, y=tuple(100 * share for _, share, _ in points))]
    equal = tuple(None if share is None else 100 * share for _, _, share in points)
    if any(share is not None for share in equal):
        lines.append(PlotLine(label="equal split", x=x, y=equal))
    if plan.binds:
        lines.append(PlotLine(label="this budget", x=(plan.watts,), y=(100 * (1 - plan.loss.value),)))
    return [
        LinePlot(
            title="Throughput under other budgets",
            name="budgets",
            x_axis="budget (W)",
            y_axis="share of uncapped throughput (%)",
            lines=tuple(lines),
            markers=False,
        )
    ]


def curves_figure(plan: BudgetPlan, names: Mapping[str, str]) -> LinePlot:
    """Return the curves of a few GPUs."""
    curves = [share.curve for share in plan.shares]
    own = [curve for curve in curves if not curve.peers] or curves
    shown = own[:MAX_CURVES]
    lines = [PlotLine(label=names[curve.gpu.uuid], x=curve.fit.x, y=curve.fit.y) for curve in shown]
    points = [point for curve in shown for point in curve.points]
    if points:
        broken: list[float | None] = [value for _, rate in points for value in (rate, None)]
        measured_x = tuple(watts for watts, _ in points for _ in range(2))
        lines.append(PlotLine(label="measured", x=measured_x, y=tuple(broken)))
    return LinePlot(
        title="Curves and measured steps",
        name="curves",
        x_axis="counted power (W)",
        y_axis="calls per second",
        lines=tuple(lines),
        markers=False,
        note=f"{MAX_CURVES} of {len(own)} GPUs." if len(own) > MAX_CURVES else None,
    )
