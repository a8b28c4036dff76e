"""The experiment behind ``assay scaling predict``: the time and the memory of whole rings, from single shares.

One device computes the whole, its result checked, and what the last rank of each ring computes, nothing sent:

    block tokens-65536     ring 1    the whole sequence: T1
                           ring 8    what the last rank of 8 computes
                           ring 64   what the last rank of 64 computes

A link's α and β say what the others would add. A count whose ring breaks a rule of the attention is skipped, with the
rule's own sentence as reason. Peak memory of a rank is a model, linear in the length of its shard:

                    queries' heads         keys' heads            elements of
    inputs          q, gradient of output  k, v                   the dtype
    output          output                                        the dtype
    log-sum-exp     one to a position                             the sums
    sums            gradient of q          gradients of k and v   the sums (float32, float64 for float64)
    gradients       of q                   of k and v             the dtype
    messages                               keys and values that a step brings or takes away: a shard's, dilated
    work            a block's output, and a gradient of as many elements backward

The library's own memory (CUDA context, workspaces, NCCL buffers, the allocator's cache) is not included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from assay.core.errors import BadInput
from assay.core.format import (
    BYTE_SCALES,
    format_percent,
    format_scaled,
    format_time,
    format_value,
    percent_cell,
    ratio_cell,
    time_cell,
)
from assay.core.page import LinePlot, PlotLine, Section, Text, build_table
from assay.core.results import Estimate, Finding, Missing
from assay.core.values import Block, Counted, Done, InterferencePolicy, Isolation, Role, Subject, Trial, Value
from assay.experiments.base import Experiment, Report
from assay.experiments.reporting import CLAIM_TONES, compose_page, gather_findings, monitor_table
from assay.experiments.scaling.prediction import (
    NOTHING_SENT,
    LinkModel,
    describe_link,
    predict_efficiency,
    predict_speedup,
    predict_time,
    ring_traffic,
)
from assay.experiments.scaling.timings import judge_at_least
from assay.workloads.dilated_attention.problem import DilatedAttentionProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from assay.core.page import Cell, Element, Page, Table
    from assay.core.results import Findings, Record
    from assay.core.values import Params
    from assay.experiments.scaling.prediction import PredictedTime, RankTraffic
    from assay.machine.model import Machine
    from assay.store.records import Records
    from assay.workloads.dilated_attention.problem import AttentionCosts


ROLE = "alone"
TRIAL_S = 30.0
"""What one trial takes at most as a rule: starting PyTorch, checking the result, a few calls."""
REQUIRED_EFFICIENCY = 0.7
"""The default, from the older tool's recipe for CI."""


class PredictionOptions(Value):
    """So many GPUs over a link, of which one is here: its share of each ring is measured alone."""

    subject: Subject = Field(description="The whole attention; sequence and ring are of each shape.")
    sequences: tuple[int, ...] = Field(min_length=1)
    counts: tuple[int, ...] = Field(min_length=1, description="GPUs, each count one ring.")
    link: LinkModel
    mode: Literal["strong", "weak"] = "strong"
    passes: Literal["forward", "total"] = "total"
    device: str
    isolation: Isolation = "full"
    warmup_runs: int = Field(default=3, ge=0)
    benchmark_runs: int = Field(default=10, ge=1)
    required_efficiency: float = Field(
        default=REQUIRED_EFFICIENCY, gt=0, lt=1, description="The efficiency that each prediction is judged by."
    )
    on_interference: InterferencePolicy = "warn"
    retakes: int = Field(default=0, ge=0)
    timeout_s: float = Field(default=600.0, gt=0)
    cpu_groups: int | None = Field(default=None, ge=1)
    seed: int = 0


@dataclass(frozen=True, order=True)
class PredictionCell:
    """One question: a requested sequence length over a number of GPUs in one ring."""

    tokens: int
    gpus: int


@dataclass(frozen=True)
class ImpossibleCell:
    """A cell that cannot be, and which rule says so."""

    cell: PredictionCell
    reason: str


def list_cells(options: PredictionOptions) -> tuple[PredictionCell, ...]:
    """Return the cells that can be predicted."""
    return tuple(cell for cell, refusal in _requested_cells(options) if refusal is None)


def list_impossible_cells(options: PredictionOptions) -> tuple[ImpossibleCell, ...]:
    """Return the cells that cannot be."""
    return tuple(ImpossibleCell(cell, refusal) for cell, refusal in _requested_cells(options) if refusal is not None)


def _requested_cells(options: PredictionOptions) -> Iterable[tuple[PredictionCell, str | None]]:
    """Give every cell, and why it cannot be; null where it can."""
    for cell in (PredictionCell(tokens, gpus) for tokens in options.sequences for gpus in options.counts):
        try:
            cell_problem(options, cell)
        except BadInput as error:
            yield cell, str(error)
        else:
            yield cell, None


def cell_problem(options: PredictionOptions, cell: PredictionCell) -> DilatedAttentionProblem:
    """Return the problem of a cell, or say which rule it breaks."""
    return DilatedAttentionProblem.of(cell_subject(options, cell).params)


def cell_subject(options: PredictionOptions, cell: PredictionCell) -> Subject:
    """Return what is measured for a cell: the whole for one GPU, otherwise what the last rank computes."""
    grown = cell.gpus if options.mode == "weak" else 1
    changed = {
        "sequence": cell.tokens * grown,
        "ring": cell.gpus,
        "passes": options.passes,
        "only": "all" if cell.gpus == 1 else "compute",
    }
    return options.subject.model_copy(update={"params": {**options.subject.params, **changed}})


def cell_trial(options: PredictionOptions, cell: PredictionCell) -> Trial:
    """Return the trial in which a cell's computation is measured."""
    what = "the whole" if cell.gpus == 1 else f"one share of a ring of {cell.gpus}"
    return Trial(
        block=f"tokens-{cell.tokens}",
        roles=(
            Role(
                name=ROLE,
                subjects=(cell_subject(options, cell),),
                devices=(options.device,),
                isolation=options.isolation,
            ),
        ),
        mode=Counted(
            duration_s=TRIAL_S,
            warmup_runs=options.warmup_runs,
            runs=options.benchmark_runs,
            timeout_s=options.timeout_s,
        ),
        settings={"phase": f"{cell.tokens} tokens, {what}"},
        on_interference=options.on_interference,
        cpu_groups=options.cpu_groups,
        retakes=options.retakes,
        seed=options.seed,
    )


def plan_blocks(options: PredictionOptions) -> tuple[Block, ...]:
    """Return one block to a sequence length of which some count can be predicted."""
    by_length: dict[int, list[PredictionCell]] = {}
    for cell in list_cells(options):
        by_length.setdefault(cell.tokens, [PredictionCell(cell.tokens, 1)]).append(cell)
    return tuple(
        Block(
            name=f"tokens-{tokens}",
            why=f"one GPU's share of every ring at {tokens} tokens",
            trials=tuple(cell_trial(options, cell) for cell in dict.fromkeys(cells)),
        )
        for tokens, cells in by_length.items()
    )


MIB = 2**20
MESSAGES_IN_FLIGHT = {False: 3, True: 6}
"""Messages that are held at once, forward or also backward: keys held, passed on and awaited; gradients likewise."""

MEMORY_METHOD = (
    "a model: tensors of a shard, their sums in float32, and messages; the interval is from the minimum to all of them "
    "at once; excluding the CUDA context, workspaces, NCCL and the allocator's cache"
)


@dataclass(frozen=True)
class RankMemoryModel:
    """Bytes that a rank holds, by what for; all are linear in the length of its shard."""

    inputs: int
    output: int
    log_sums: int
    sums: int
    gradients: int
    messages: int
    work: int

    @property
    def least(self) -> int:
        """What is there at the end of a call whatever computes it."""
        return self.inputs + self.output + self.log_sums + self.gradients

    @property
    def peak(self) -> int:
        """What is there at the fullest moment as it is computed here: work is done before sums become gradients."""
        return self.inputs + self.output + self.log_sums + self.sums + self.messages + max(self.gradients, self.work)

    @property
    def most(self) -> int:
        """What is there where a kernel keeps sums of its own, and nothing is given back before the end."""
        return self.least + 2 * self.sums + self.messages + self.work


def model_rank_memory(costs: AttentionCosts, ranks: int, *, backward: bool) -> RankMemoryModel:
    """Return what the rank at the end of a ring holds in one call."""
    shard = costs.sequence // ranks
    queries, keys = costs.heads.queries, costs.heads.keys
    rows, wide = costs.batch * shard, max(4, costs.item_bytes)
    head, head_sums = rows * costs.dim * costs.item_bytes, rows * costs.dim * wide
    if not backward:
        inputs, sums, gradients = (queries + 2 * keys) * head, queries * head_sums, 0
    else:
        inputs = 2 * (queries + keys) * head
        sums, gradients = (queries + 2 * keys) * head_sums, (queries + 2 * keys) * head
    longer = [branch for branch in costs.schedule.branches if branch.segment > shard]
    message = max((2 * keys * head // branch.rate for branch in longer), default=0)
    return RankMemoryModel(
        inputs=inputs,
        output=queries * head,
        log_sums=queries * rows * wide,
        sums=sums,
        gradients=gradients,
        messages=MESSAGES_IN_FLIGHT[backward] * message,
        work=queries * head * (2 if backward else 1),
    )


def predict_memory_mib(costs: AttentionCosts, ranks: int, *, backward: bool) -> Estimate:
    """Return the most that a rank holds; the interval is from what must be there to what may be there at once."""
    parts = model_rank_memory(costs, ranks, backward=backward)
    low, value, high = (size / MIB for size in (parts.least, parts.peak, parts.most))
    return Estimate(value=value, low=low, high=high, unit="MiB", scope="machine", method=MEMORY_METHOD, n=1)


TIME_QUANTITY = "call_us"


@dataclass(frozen=True)
class CellForecast:
    """The prediction for one cell; null where a measurement it needs is ``missing``.

    Attributes:
        cell: The question.
        shard: Positions per GPU.
        traffic: Messages and bytes that the busiest GPU receives in one call.
        time: Of a call.
        speedup: Over one GPU, in strong scaling.
        efficiency: Relative to one GPU.
        memory_mib: Peak memory of a GPU, by the model.
        peak_mib: The allocator's peak where the shard was measured; null on a CPU.
        missing: Which measurement is missing, and why.
        records: The trials it was computed from.
    """

    cell: PredictionCell
    shard: int
    traffic: RankTraffic
    time: PredictedTime | None
    speedup: Estimate | None
    efficiency: Estimate | None
    memory_mib: Estimate
    peak_mib: float | None
    missing: Missing | None
    records: tuple[str, ...]


def forecast_cells(options: PredictionOptions, records: Iterable[Record]) -> tuple[CellForecast, ...]:
    """Return the prediction for every possible cell."""
    by_trial = {record.trial: record for record in records}
    return tuple(_forecast_cell(options, cell, by_trial) for cell in list_cells(options))


def _forecast_cell(options: PredictionOptions, cell: PredictionCell, records: dict[str, Record]) -> CellForecast:
    problem, weak = cell_problem(options, cell), options.mode == "weak"
    trial, first = cell_trial(options, cell).id, cell_trial(options, PredictionCell(cell.tokens, 1)).id
    share, alone = _call_time_s(records.get(trial)), _call_time_s(records.get(first))
    traffic = ring_traffic(problem.costs, cell.gpus, backward=problem.backward)
    time = predict_time(share, traffic, options.link) if share is not None else None
    speedup, efficiency = None, None
    if time is not None and alone is not None:
        speedup = None if weak else predict_speedup(alone, time.time_s)
        efficiency = predict_efficiency(alone, time.time_s, 1 if weak else cell.gpus)
    return CellForecast(
        cell=cell,
        shard=problem.shard,
        traffic=traffic,
        time=time,
        speedup=speedup,
        efficiency=efficiency,
        memory_mib=predict_memory_mib(problem.costs, cell.gpus, backward=problem.backward),
        peak_mib=_peak_mib(records.get(trial)),
        missing=_find_missing(records, trial, first),
        records=tuple(dict.fromkeys(name for name in (first, trial) if name in records)),
    )


def _call_time_s(record: Record | None) -> Estimate | None:
    """Return the median time of a call, in seconds; null where it was not measured."""
    if record is None or record.status != "ok":
        return None
    estimate = next((s.estimate for s in record.estimates if (s.role, s.quantity) == (ROLE, TIME_QUANTITY)), None)
    return None if estimate is None else estimate.scaled("s", over=1e6)


def _peak_mib(record: Record | None) -> float | None:
    facts = [facts for evidence in record.evidence for facts in evidence.subjects] if record is not None else []
    measured = [(f.measured or {}).get("peak_allocated_mib") for f in facts]
    return max((peak for peak in measured if peak is not None), default=None)


def _find_missing(records: dict[str, Record], trial: str, first: str) -> Missing | None:
    for what, trial_id in (("its shard", trial), ("one GPU alone", first)):
        record = records.get(trial_id)
        if record is None:
            return Missing(code="not_measured", detail=f"{what} is not measured yet")
        if record.status != "ok":
            return Missing(code=record.status, detail=f"{what} was not measured: {record.reason}")
    return None


def build_findings(
    options: PredictionOptions, predictions: Sequence[CellForecast], records: Iterable[Record]
) -> Findings:
    """Return a judged claim for each cell; impossible cells with their reason."""
    findings = [_cell_finding(options, prediction) for prediction in predictions]
    findings += [
        Finding(
            kind="skipped",
            claim=_cell_claim(options, impossible.cell),
            estimate=None,
            verdict="no",
            records=(),
            reason=f"Not possible: {impossible.reason}",
            facts={"sequence": impossible.cell.tokens, "world": impossible.cell.gpus},
        )
        for impossible in list_impossible_cells(options)
    ]
    return gather_findings(write_headline(options, predictions), findings, records)


def write_headline(options: PredictionOptions, predictions: Sequence[CellForecast]) -> str:
    """Return the answer for the most tokens on the most devices, in one sentence."""
    timed = [prediction for prediction in predictions if prediction.time is not None]
    if not timed:
        return "Nothing can be predicted: no shard of a ring could be measured."
    last = max(timed, key=lambda prediction: (prediction.cell.tokens, prediction.cell.gpus))
    text = f"Predicted, not measured: {name_cell(options, last.cell)} over {options.link.name} take {_time_cell(last)}"
    if last.efficiency is None:
        return f"{text}; the efficiency is unknown: {last.missing.detail if last.missing else 'no baseline'}."
    speedup = "" if last.speedup is None else f", speedup {ratio_cell(last.speedup)}"
    no_interval = "" if last.efficiency.low is not None else " (no intervals)"
    return f"{text}{speedup}, efficiency {percent_cell(last.efficiency)}{no_interval}."


def name_cell(options: PredictionOptions, cell: PredictionCell) -> str:
    """Name a cell: "65,536 tokens on 8 GPUs"."""
    per_rank = " per rank" if options.mode == "weak" else ""
    ranks = name_ranks(options)
    return f"{cell.tokens:,} tokens{per_rank} on {cell.gpus} {ranks if cell.gpus > 1 else ranks.removesuffix('s')}"


def name_ranks(options: PredictionOptions) -> str:
    """Name what is counted: GPUs where one was measured, otherwise ranks like the one that was."""
    return "GPUs" if options.device.startswith("cuda") else "ranks"


def _time_cell(prediction: CellForecast) -> str | None:
    return None if prediction.time is None else time_cell(prediction.time.time_s.scaled("µs", times=1e6))


def _cell_finding(options: PredictionOptions, prediction: CellForecast) -> Finding:
    efficiency = prediction.efficiency
    reason = prediction.missing.detail if prediction.missing is not None else None
    if reason is None and efficiency is not None and efficiency.low is None:
        reason = "too few calls were measured for an interval"
    return Finding(
        kind="prediction" if prediction.time is not None else "missing",
        claim=_cell_claim(options, prediction.cell),
        estimate=efficiency,
        verdict=judge_at_least(efficiency, options.required_efficiency),
        records=prediction.records,
        reason=reason,
        facts=_cell_facts(options, prediction),
    )


def _cell_claim(options: PredictionOptions, cell: PredictionCell) -> str:
    required = format_percent(options.required_efficiency, digits=3)
    return f"Predicted: {name_cell(options, cell)} over {options.link.name} have an efficiency of at least {required}"


def _cell_facts(options: PredictionOptions, prediction: CellForecast) -> Params:
    time, memory = prediction.time, prediction.memory_mib
    of_time: Params = dict.fromkeys(("time_s", "time_low_s", "time_high_s", "compute_s", "communication_s"))
    if time is not None:
        of_time = {"time_s": time.time_s.value, "time_low_s": time.time_s.low, "time_high_s": time.time_s.high}
        of_time |= {"compute_s": time.compute_s, "communication_s": time.communication_s}
    return {
        "sequence": prediction.cell.tokens,
        "world": prediction.cell.gpus,
        "mode": options.mode,
        "passes": options.passes,
        "link": options.link.name,
        "shard": prediction.shard,
        **of_time,
        "messages": prediction.traffic.messages,
        "received_bytes": prediction.traffic.received_bytes,
        "speedup": None if prediction.speedup is None else prediction.speedup.value,
        "memory_mib": memory.value,
        "memory_low_mib": memory.low,
        "memory_high_mib": memory.high,
        "peak_allocated_mib": prediction.peak_mib,
    }


def build_page(
    machine: Machine,
    options: PredictionOptions,
    predictions: Sequence[CellForecast],
    findings: Findings,
    records: Records,
) -> Page:
    """Return the whole page."""
    timed = [prediction for prediction in predictions if prediction.time is not None]
    params = options.subject.params
    counts = ", ".join(map(str, options.counts))
    labels = {trial.id: str(trial.settings["phase"]) for block in plan_blocks(options) for trial in block.trials}
    link = [Text(text=f"Link {describe_link(options.link)}.") for _ in predictions[:1]]
    return compose_page(
        machine,
        records,
        title=f"assay scaling predict: {counts} {name_ranks(options)} over {options.link.name}",
        lead=findings.headline,
        lead_tone="plain" if timed else "bad",
        sections=[
            Section(title="Results", elements=_result_elements(options, predictions)),
            Section(title=f"By number of {name_ranks(options)}", elements=tuple(build_figures(options, timed))),
            Section(title="Method and data quality", elements=(*link, *monitor_table(records, labels))),
        ],
        facts={
            "measured on": options.device,
            "attention": " ".join(
                f"{k}={v}" for k, v in params.items() if k not in {"sequence", "ring", "only", "passes"}
            ),
            "calls": f"{options.warmup_runs} warm-up, {options.benchmark_runs} timed",
            "requested isolation": options.isolation,
            "seed": str(options.seed),
        },
    )


def _result_elements(options: PredictionOptions, predictions: Sequence[CellForecast]) -> tuple[Element, ...]:
    missing = [f"{name_cell(options, item.cell)}: {item.missing.detail}." for item in predictions if item.missing]
    skipped = [f"{name_cell(options, item.cell)}: skipped. {item.reason}" for item in list_impossible_cells(options)]
    return (
        time_table(options, predictions),
        parts_table(options, predictions),
        *(Text(text=text, tone="bad") for text in missing),
        *(Text(text=text, tone="unsure") for text in skipped),
        *(Text(text=f"Assumption: {text}") for text in list_assumptions(predictions)),
    )


def list_assumptions(predictions: Sequence[CellForecast]) -> tuple[str, ...]:
    """Return the assumptions of the predictions, each once."""
    texts = dict.fromkeys(
        text for prediction in predictions if prediction.time is not None for text in prediction.time.assumptions
    )
    texts.pop(NOTHING_SENT, None)
    ring = "All ranks form one ring, and each has one shard of every sequence."
    return tuple(dict.fromkeys((ring, *texts, f"Memory is {MEMORY_METHOD}.")))


def time_table(options: PredictionOptions, predictions: Sequence[CellForecast]) -> Table:
    """Return the prediction: times, speedups and efficiency with their intervals."""
    passes = "Forward and backward" if options.passes == "total" else "Forward"
    columns: dict[str, Callable[[CellForecast], Cell]] = {
        "shape": lambda prediction: name_cell(options, prediction.cell),
        "time": _time_cell,
        "speedup": lambda prediction: ratio_cell(prediction.speedup),
        "efficiency": lambda prediction: percent_cell(prediction.efficiency),
    }
    return build_table(
        f"{passes}, predicted over {options.link.name}{', weak scaling' if options.mode == 'weak' else ''}",
        predictions,
        columns,
        numeric=("time", "speedup", "efficiency"),
        tone=lambda prediction: CLAIM_TONES[judge_at_least(prediction.efficiency, options.required_efficiency)],
        note=f"Colour: efficiency against {format_percent(options.required_efficiency, digits=3)}.",
    )


def parts_table(options: PredictionOptions, predictions: Sequence[CellForecast]) -> Table:
    """Return the parts of each prediction, and the memory of a device."""

    def part(name: str) -> Callable[[CellForecast], Cell]:
        return lambda prediction: None if prediction.time is None else format_time(getattr(prediction.time, name) * 1e6)

    def memory(prediction: CellForecast) -> Cell:
        mib = prediction.memory_mib
        return format_value(mib.value, "MiB", mib.low, mib.high)

    columns: dict[str, Callable[[CellForecast], Cell]] = {
        "shape": lambda prediction: name_cell(options, prediction.cell),
        "shard": lambda prediction: prediction.shard,
        "computation": part("compute_s"),
        "transfers": part("communication_s"),
        "messages": lambda prediction: prediction.traffic.messages,
        "received": lambda prediction: format_scaled(prediction.traffic.received_bytes, BYTE_SCALES),
        "memory": memory,
        "measured peak, MiB": lambda prediction: prediction.peak_mib,
    }
    return build_table(
        "The busiest rank, in one call",
        predictions,
        columns,
        numeric=tuple(columns)[1:],
        note=(
            "Computation is measured alone; transfers are the link's time for the messages (none where every segment "
            "lies within a shard). Memory is a model; the measured peak is the allocator's for one shard (GPU only)."
        ),
    )


def build_figures(options: PredictionOptions, predictions: Sequence[CellForecast]) -> list[Element]:
    """Return time, efficiency and memory over the number of GPUs, with their intervals as bands."""
    if not predictions:
        return []
    times = [None if prediction.time is None else prediction.time.time_s for prediction in predictions]
    shares = [prediction.efficiency for prediction in predictions]
    figures: dict[tuple[str, str, str], tuple[Sequence[Estimate | None], float]] = {
        ("Predicted time of a call", "predicted_time", "time of a call, ms"): (times, 1e3),
        ("Predicted efficiency", "predicted_efficiency", "efficiency, %"): (shares, 100.0),
        ("Predicted memory of a rank", "predicted_memory", "memory of a rank, MiB"): (
            [prediction.memory_mib for prediction in predictions],
            1.0,
        ),
    }
    return [
        LinePlot(
            title=title,
            name=name,
            x_axis=f"{name_ranks(options)} in one ring over {options.link.name}",
            y_axis=y_axis,
            lines=_build_lines(predictions, [None if e is None else e.scaled("", times=scale) for e in estimates]),
            log_x=True,
            log_y=estimates is not shares,
            note="Bands: intervals from the link's speed, the possible overlap, and the measurement.",
        )
        for (title, name, y_axis), (estimates, scale) in figures.items()
        if any(estimate is not None for estimate in estimates)
    ]


def _build_lines(predictions: Sequence[CellForecast], estimates: Sequence[Estimate | None]) -> tuple[PlotLine, ...]:
    """Return a line over the number of GPUs for each number of tokens."""
    lines: dict[int, dict[int, Estimate | None]] = {}
    for prediction, estimate in zip(predictions, estimates, strict=True):
        lines.setdefault(prediction.cell.tokens, {})[prediction.cell.gpus] = estimate
    plots = []
    for tokens, line in sorted(lines.items()):
        along = [line[gpus] for gpus in sorted(line)]
        y, low, high = (
            tuple(None if estimate is None else getattr(estimate, name) for estimate in along)
            for name in ("value", "low", "high")
        )
        plots.append(PlotLine(label=f"{tokens:,} tokens", x=tuple(map(float, sorted(line))), y=y, low=low, high=high))
    return tuple(plots)


def next_block(options: PredictionOptions, records: Records) -> Block | Done:
    """Return the next sequence length, until all shares are measured."""
    measured = {record.block for record in records}
    left = [block for block in plan_blocks(options) if block.name not in measured]
    if not left:
        return Done(why="every share is measured")
    return left[0].model_copy(update={"left_s": TRIAL_S * sum(len(block.trials) for block in left)})


def build_report(machine: Machine, options: PredictionOptions, records: Records) -> Report:
    """Return what is predicted of every count of GPUs with its interval, and what it assumes."""
    predictions = forecast_cells(options, records)
    findings = build_findings(options, predictions, records)
    return Report(findings, build_page(machine, options, predictions, findings, records))


EXPERIMENT = Experiment(
    "scaling_prediction",
    PredictionOptions,
    step=lambda _, options, records: next_block(options, records),
    report=build_report,
)
