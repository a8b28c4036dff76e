"""Numbers from every kind of result.

Records of a run, findings, the output of ``assay time --json``, tunings, times over ranks, threshold speed-ups.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from pydantic import ValidationError

from assay.core.errors import BadInput
from assay.core.format import unit_of
from assay.core.results import Finding
from assay.core.values import first_problem
from assay.experiments.compare.kernels import best_times
from assay.experiments.compare.pairing import THRESHOLD_QUANTITY, CellName, ComparedCell
from assay.experiments.contention.plan import WARM_UP
from assay.experiments.reporting import CLOCK_QUANTITIES
from assay.experiments.scaling.result_rows import DEVICE_SETTING
from assay.experiments.threshold.options import TIME_KINDS
from assay.experiments.threshold.results_file import select_identity
from assay.stats.intervals import restarts_interval
from assay.store.identity import (
    DTYPE,
    ISOLATION,
    IdentityDetail,
    devices_and_model,
    identity_details,
    identity_model,
    loaded_dtype_of,
    parse_identity,
    subject_details,
    work_name,
)
from assay.timing.results import Comparison, Measurement

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pydantic import JsonValue

    from assay.core.results import Estimate, Record, Summary
    from assay.core.values import Trial
    from assay.experiments.compare.tunings import KernelTuning
    from assay.experiments.scaling.result_rows import ScalingRow as Shape
    from assay.experiments.threshold.results_file import ThresholdResults, ThresholdRow
    from assay.machine.model import Machine
    from assay.store.identity import Identity
    from assay.store.run_folder import RunFolder


NOT_COMPARED = CLOCK_QUANTITIES | {"start_us"}
"""What is kept beside the times: how the clock was, and when a call began."""

FAILED_QUANTITY = "call_us"
"""The time that would be there of what failed: every way of timing takes it."""

CellLocation = tuple[CellName, str | None, str | None]


def run_cells(folder: RunFolder) -> list[ComparedCell]:
    """Return every number of a run; of what was measured several times, the mean of the times it was."""
    trials = {trial.id: trial for decision in folder.decisions() for trial in decision.block.trials}
    by_location: dict[CellLocation, list[ComparedCell]] = {}
    for record in folder.records():
        if record.trial in trials and trials[record.trial].settings.get("phase") != WARM_UP:
            for number in _record_cells(trials[record.trial], record, folder.machine):
                by_location.setdefault((number.name, number.device, number.model), []).append(number)
    return [_combine_cells(several) for several in by_location.values()]


def _record_cells(trial: Trial, record: Record, machine: Machine) -> Iterator[ComparedCell]:
    for role in trial.roles:
        if role.duty != "timed":
            continue
        device, model = devices_and_model(role, machine)
        for index, subject in enumerate(role.subjects):
            details = subject_details(trial, role, subject, loaded_dtype_of(record, role.name, index))
            if record.status != "ok":
                name = CellName(work_name(subject), details, FAILED_QUANTITY)
                yield ComparedCell(name, device, model, None, unit=unit_of(FAILED_QUANTITY), reason=record.reason)
                continue
            for summary in record.estimates:
                if (summary.role, summary.subject) == (role.name, index) and summary.quantity not in NOT_COMPARED:
                    name = CellName(work_name(subject), details, summary.quantity, summary.estimate.method_key)
                    yield _summary_number(name, device, model, summary, record)


def _summary_number(
    name: CellName, device: str | None, model: str | None, summary: Summary, record: Record
) -> ComparedCell:
    estimate = summary.estimate
    alike = [
        s for s in record.series if (s.role, s.subject, s.quantity) == (summary.role, summary.subject, summary.quantity)
    ]
    restarts = len({series.restart for series in alike})
    return ComparedCell(
        name=name,
        device=device,
        model=model,
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        unit=estimate.unit,
        processes=max(restarts, 1) if estimate.scope == "process" or restarts > 1 else estimate.n,
    )


def _combine_cells(several: list[ComparedCell]) -> ComparedCell:
    """Return one number for several of the same thing: each record is one draw."""
    good = [number for number in several if number.value is not None]
    if len(good) < 2:
        return (good or several)[0]
    values = [number.value for number in good if number.value is not None]
    centre, low, high, _ = restarts_interval(values)
    first = good[0]
    return ComparedCell(first.name, first.device, first.model, centre, low, high, first.unit, len(good))


UNIT_SPELLINGS = {"us": "µs"}
"""Units that are written in two ways."""

TIMED_QUANTITIES = ("busy_us", "span_us", "call_us")


def finding_cells(entries: list[JsonValue], model: str | None) -> list[ComparedCell]:
    """Return the number of each claim that has one.

    Raises:
        BadInput: A claim is not what this version of Assay writes; the sentence has no file name.
    """
    try:
        findings = [Finding.model_validate(entry) for entry in entries]
    except ValidationError as error:
        raise BadInput(f"a finding is not what this version of Assay writes: {first_problem(error)}") from None
    numbers: list[ComparedCell] = []
    counts: Counter[str] = Counter()
    for finding in findings:
        counts[finding.claim] += 1
        again = (
            (IdentityDetail("conditions", "number", str(counts[finding.claim])),) if counts[finding.claim] > 1 else ()
        )
        if finding.estimate is not None:
            identity = finding.identity or {}
            details = (*identity_details(identity), *again)
            name = CellName(finding.claim, details, finding.estimate.unit or "value", finding.estimate.method_key)
            numbers.append(_estimate_number(name, None, identity_model(identity) or model, finding.estimate))
    return numbers


def timed_cells(content: dict[str, JsonValue]) -> list[ComparedCell]:
    """Return the times that ``assay time --json`` printed.

    Raises:
        BadInput: It is not what this version of Assay writes; the sentence has no file name.
    """
    try:
        if content.get("measurement") is not None:
            return list(_measurement_cells(Measurement.model_validate(content["measurement"])))
        return list(_comparison_cells(Comparison.model_validate(content["comparison"])))
    except ValidationError as error:
        raise BadInput(f"it is not what this version of Assay writes: {first_problem(error)}") from None


def _measurement_cells(measurement: Measurement) -> Iterator[ComparedCell]:
    for quantity in TIMED_QUANTITIES:
        estimate = getattr(measurement, quantity)
        if estimate is not None:
            name = CellName(measurement.name, _conditions(measurement), quantity, estimate.method_key)
            yield _estimate_number(name, measurement.device, None, estimate, measurement.processes)


def _comparison_cells(comparison: Comparison) -> Iterator[ComparedCell]:
    times = {comparison.first: comparison.first_us, **{other.name: other.time_us for other in comparison.others}}
    for work, estimate in times.items():
        name = CellName(work, _conditions(comparison), comparison.quantity, estimate.method_key)
        yield _estimate_number(name, comparison.device, None, estimate, comparison.processes)


def _conditions(result: Measurement | Comparison) -> tuple[IdentityDetail, ...]:
    return IdentityDetail("device", "on", result.device.partition(":")[0]), IdentityDetail(
        "conditions", "cache", result.cache
    )


def _estimate_number(
    name: CellName, device: str | None, model: str | None, estimate: Estimate, processes: int | None = None
) -> ComparedCell:
    return ComparedCell(
        name=name,
        device=device,
        model=model,
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        unit=UNIT_SPELLINGS.get(estimate.unit, estimate.unit) or unit_of(name.quantity),
        processes=1 if estimate.scope == "process" else processes,
    )


def tuning_cells(tunings: Iterable[KernelTuning]) -> list[ComparedCell]:
    """Return the best time of each kernel on each device."""
    by_name: dict[tuple[CellName, str | None], list[KernelTuning]] = {}
    for older in tunings:
        name, model = _tuning_name(older)
        by_name.setdefault((name, model), []).append(older)
    return [
        _draws_cell(name, device or None, model, times, "ms")
        for (name, model), several in by_name.items()
        for device, times in best_times(several).items()
    ]


def _tuning_name(older: KernelTuning) -> tuple[CellName, str | None]:
    """Return what a tuning is of, as far as its file says, and the model of its device."""
    if older.identity is None:
        return CellName(older.kernel, (), "best_time_ms"), None
    work = older.identity.get("workload", {}).get("workload", older.kernel)
    details = tuple(detail for detail in identity_details(older.identity) if detail.aspect != "workload")
    return CellName(work, details, "best_time_ms"), identity_model(older.identity)


def shape_cells(rows: Iterable[Shape], model: str | None) -> list[ComparedCell]:
    """Return the time, the transfers and the memory of each shape."""
    return [number for row in rows for number in _shape_row_cells(row, model)]


def _shape_row_cells(row: Shape, model: str | None) -> Iterator[ComparedCell]:
    setting = dict(row.setting)
    work, model = setting.get("workload", "dilated attention"), setting.get(DEVICE_SETTING, model)
    details = (
        *(
            _parameter_detail(name, value)
            for name, value in row.setting
            if name not in {"workload", ISOLATION, DEVICE_SETTING}
        ),
        *([IdentityDetail("isolation", ISOLATION, setting[ISOLATION])] if ISOLATION in setting else []),
        *([_parameter_detail("tokens", str(row.requested_length))] if row.tokens else []),
        _parameter_detail("batch", str(row.batch)),
        IdentityDetail("conditions", "ranks", str(row.world)),
        IdentityDetail("conditions", "ring", str(row.ring)),
        IdentityDetail("conditions", "scaling", "weak" if row.weak else "strong"),
        IdentityDetail("conditions", "measured by", "the older tool" if row.assay_version is None else "Assay"),
    )
    time_ms = row.time_ms
    name = CellName(work, details, "time_ms")
    yield ComparedCell(name, None, model, time_ms.value, time_ms.low, time_ms.high, "ms")
    for quantity, value, unit in (
        ("communication_ms", row.communication_ms, "ms"),
        ("memory_gib", row.memory_gib, "GiB"),
    ):
        if value is not None and value > 0:
            yield ComparedCell(CellName(work, details, quantity), None, model, value, unit=unit)


def speedup_cells(results: ThresholdResults) -> list[ComparedCell]:
    """Return the speed-up of every point by each time that was taken, from the pairs of each process."""
    where = results.device_info.uuid, results.device_info.device_name
    return [number for row in results.results for number in _speedup_row_cells(row, *where, results.identity)]


def _speedup_row_cells(
    row: ThresholdRow, device: str | None, model: str | None, identity: Identity | None
) -> Iterator[ComparedCell]:
    details = (*parameter_details(row.params), *_threshold_details(identity, row.threshold))
    for time, timed in row.times.items():
        draws = [math.exp(sum(logs) / len(logs)) for logs in timed.log_speedups if logs]
        yield _draws_cell(CellName(row.threshold, details, f"speedup by {time}"), device, model, draws, "×")
    if not row.times:
        reason = row.refused or row.cannot or "not measured"
        for time in TIME_KINDS:
            name = CellName(row.threshold, details, f"speedup by {time}")
            yield ComparedCell(name, device, model, None, unit="×", reason=reason)


def recommendation_cells(content: Mapping[str, JsonValue], model: str | None) -> list[ComparedCell]:
    """Return the thresholds that a file recommends; without a value where it says never, or that it is not known."""
    entries = content.get("thresholds")
    decided = {
        str(entry.get("key")).rpartition(".")[2]: entry.get("decision")
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict)
    }
    named = {
        str(entry.get("key")).rpartition(".")[2]: str(entry.get("name"))
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict)
    }
    identity = parse_identity(content.get("identity"))
    recommended = content.get("recommendation")
    numbers: list[ComparedCell] = []
    for key, value in (recommended if isinstance(recommended, dict) else {}).items():
        last = key.rpartition(".")[2]
        name, decision = (
            CellName(last, _threshold_details(identity, named.get(last)), THRESHOLD_QUANTITY),
            decided.get(last),
        )
        size = None if decision == "disable" else positive_float(value)
        reason = "never" if decision == "disable" else "not known" if size is None else None
        numbers.append(ComparedCell(name, None, model, size, reason=reason))
    return numbers


def _threshold_details(identity: Identity | None, name: str | None) -> tuple[IdentityDetail, ...]:
    """Return what must agree for a threshold to be comparable; nothing where the file does not say."""
    if identity is None:
        return ()
    return identity_details(select_identity(identity, set() if name is None else {name}))


def positive_float(value: JsonValue) -> float | None:
    """Return a number above zero; null for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < math.inf else None


def parameter_details(params: Mapping[str, object]) -> tuple[IdentityDetail, ...]:
    """Return parameters as what must agree; those without a value are left out."""
    return tuple(_parameter_detail(name, str(value)) for name, value in params.items() if value is not None)


def _parameter_detail(name: str, value: str) -> IdentityDetail:
    return IdentityDetail("dtype" if name == DTYPE else "parameters", name, value)


def _draws_cell(
    name: CellName, device: str | None, model: str | None, draws: Sequence[float], unit: str
) -> ComparedCell:
    """Return the geometric mean of what several processes gave."""
    value = math.exp(sum(map(math.log, draws)) / len(draws)) if draws else None
    reason = None if draws else "not measured"
    return ComparedCell(name, device, model, value, unit=unit, processes=len(draws), draws=tuple(draws), reason=reason)
