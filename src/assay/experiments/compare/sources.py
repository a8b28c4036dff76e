"""Results that can be compared, whatever wrote them: what a path holds, and its cells.

Records of a run, findings, the output of ``assay time --json``, tunings, times over ranks, threshold speed-ups.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from pydantic import ValidationError

from assay.core.errors import BadInput
from assay.core.files import read_json
from assay.core.format import unit_of
from assay.core.results import Finding
from assay.core.values import SCHEMA_VERSION, first_problem
from assay.experiments.compare import tunings
from assay.experiments.compare.pairing import THRESHOLD_QUANTITY, CellName, ComparedCell, ResultSource
from assay.experiments.contention.plan import WARM_UP
from assay.experiments.reporting import CLOCK_QUANTITIES, assess_quality, disturbance_text
from assay.experiments.scaling import saved_results as scaling
from assay.experiments.scaling.result_rows import DEVICE_SETTING
from assay.experiments.threshold import results_file as thresholds
from assay.experiments.threshold.results_file import RESULTS_FILE as THRESHOLDS
from assay.experiments.threshold.results_file import select_identity
from assay.experiments.threshold.spec import TIME_KINDS
from assay.machine.devices import gpu_targets
from assay.stats.intervals import restarts_interval
from assay.store.identity import (
    DTYPE,
    ISOLATION,
    IdentityDetail,
    devices_and_model,
    identity_details,
    identity_model,
    loaded_dtype_of,
    machine_model,
    parse_identity,
    subject_details,
    work_name,
)
from assay.store.records import verify_file
from assay.store.run_folder import RunFolder, run_paths
from assay.timing.results import Comparison, Measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pydantic import JsonValue

    from assay.core.results import Estimate, Origin, Record
    from assay.core.values import Trial
    from assay.experiments.compare.pairing import View
    from assay.experiments.compare.tunings import KernelTuning
    from assay.experiments.scaling.result_rows import ScalingRow
    from assay.experiments.threshold.results_file import ThresholdResults
    from assay.machine.model import Machine
    from assay.store.identity import Identity

    Reader = Callable[[], Sequence[ComparedCell]]

PLAN_FILE, FINDINGS_FILE = "plan.json", "findings.json"
NOT_COMPARABLE_TEXT = (
    "holds nothing that can be compared; known are run folders, findings.json, what --json printed, results of "
    "`assay threshold`, and files of the older tools"
)


def read_source(path: Path) -> ResultSource:
    """Return what a path holds.

    Raises:
        BadInput: It is not there, cannot be read, is of another version, or holds nothing that can be compared.
    """
    if not path.exists():
        raise BadInput(f"{path} does not exist.")
    if path.name == tunings.RECORDS_FILE:
        path = path.parent
    if path.is_dir():
        return _run_source(path) if (path / PLAN_FILE).is_file() else _folder_source(path)
    if not path.stat().st_size:
        raise BadInput(f"{path} is empty.")
    verify_file(path)
    content = read_json(path)
    _refuse_newer(content, path)
    try:
        return _file_source(path, content)
    except BadInput as error:
        message = str(error).rstrip(".")
        raise BadInput(f"{message}." if str(path) in message else f"{path}: {message}.") from None


def _refuse_newer(content: JsonValue, path: Path) -> None:
    version = content.get("schema", content.get("schema_version")) if isinstance(content, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise BadInput(f"{path} was written by a newer Assay (schema {version}, here {SCHEMA_VERSION}); update Assay.")


def _run_source(path: Path) -> ResultSource:
    """Return a run: its records, in the terms of its experiment too, and what it found."""
    _refuse_newer(read_json(path / PLAN_FILE), path / PLAN_FILE)
    folder = RunFolder.open(path)
    for left in (FINDINGS_FILE, THRESHOLDS):
        verify_file(path / left)
    experiment = folder.plan.experiment
    readers: dict[View, Reader] = {"times": lambda: run_cells(folder)}
    if experiment == "threshold" and (path / THRESHOLDS).is_file():
        readers = {**_threshold_readers(path / THRESHOLDS, read_json(path / THRESHOLDS)), **readers}
    if experiment == scaling.EXPERIMENT_NAME:
        readers["shapes"] = lambda: shape_cells(scaling.read_sources(path).rows, machine_model(folder.machine))
    if experiment in tunings.READABLE_EXPERIMENTS:
        readers["tunings"] = lambda: tuning_cells(_read_tunings([path]).tunings)
    if (path / FINDINGS_FILE).is_file():
        readers["findings"] = lambda: _read_findings(path / FINDINGS_FILE)
    records = folder.records()
    if not records:
        raise BadInput(f"{path} is a run in which nothing was measured yet.")
    origins: set[Origin] = {record.origin for record in records} - {"real"}
    bad = [record for record in records if record.status == "failed"]
    notes = [f"{len(bad)} of its {len(records)} trials failed: {bad[-1].reason}"] if bad else []
    notes += [disturbed] if (disturbed := disturbance_text(assess_quality(records))) else []
    return ResultSource(
        path=str(path),
        kind=f"a run of {experiment}",
        readers=readers,
        facts=_machine_facts(folder, path),
        origin=min(origins, default="real"),
        notes=tuple(notes),
    )


def _machine_facts(folder: RunFolder, path: Path) -> dict[str, str]:
    """Return what of a machine and its software may explain a difference."""
    machine = folder.machine
    facts = {
        "run": None if folder.path.name == path.name else folder.path.name,
        "host": machine.host,
        "GPUs": " ".join(target.uuid for target in gpu_targets(machine).values()),
        "driver": machine.driver,
        "kernel": machine.kernel,
        "commit": machine.git_commit,
        **{f"version of {name}": version for name, version in folder.plan.versions.items()},
    }
    return {name: value for name, value in facts.items() if value}


def _read_tunings(paths: Sequence[Path]) -> tunings.TuningGroup:
    """Read the tunings of files, or of a run: of one with phases, those of its baseline."""
    group = tunings.read_group(paths, "baseline")
    if not group.tunings:
        raise BadInput(f"{'; '.join(group.unusable)}.")
    return group


def _tuning_files(path: Path) -> ResultSource:
    """Return what an older tuner's file, or a folder of such, holds."""
    group = _read_tunings(sorted(path.glob("*.json")) if path.is_dir() else [path])
    cells = tuning_cells(group.tunings)
    notes = (*group.unusable, *(f"{tuning.source}: {note}" for tuning in group.tunings for note in tuning.notes))
    return ResultSource(str(path), "older tuning results", {"tunings": lambda: cells}, notes=notes)


def _shape_files(path: Path) -> ResultSource:
    """Return what a file of times over ranks, or a folder of such, holds."""
    shapes = scaling.read_sources(path)
    cells = shape_cells(shapes.rows, None)
    notes = (*shapes.unusable, *(note.rstrip(".") for note in shapes.notes))
    return ResultSource(str(path), "results over ranks", {"shapes": lambda: cells}, notes=notes)


def _read_findings(path: Path) -> list[ComparedCell]:
    content = read_json(path)
    _refuse_newer(content, path)
    findings = content.get("findings") if isinstance(content, dict) else None
    if not isinstance(findings, list):
        raise BadInput(f"{path} has no list of findings.")
    machine = path.parent / "machine.json"
    model = machine_model(RunFolder.open(path.parent).machine) if machine.is_file() else None
    try:
        return finding_cells(findings, model)
    except BadInput as error:
        raise BadInput(f"{path}: {error}.") from None


def _threshold_readers(path: Path, content: JsonValue) -> dict[View, Reader]:
    """Return how a result of ``assay threshold``, or of the older tool, is read."""
    from assay.compat.threshold import row_cells

    data = content if isinstance(content, dict) else {"results": content}
    info, rows = data.get("device_info"), data.get("results")
    name = info.get("device_name") if isinstance(info, dict) else None
    model = name if isinstance(name, str) else None
    recommended = recommendation_cells(data, model)
    readers: dict[View, Reader] = {}
    results = thresholds.read_saved(path).results if "schema" in data else None
    if results is not None:
        readers["speed-ups"] = lambda: [*recommended, *speedup_cells(results)]
    of_rows = row_cells(rows if isinstance(rows, list) else [], model)
    if not of_rows and results is None:
        raise BadInput("it has no row with a speed-up or a time")
    readers["rows"] = lambda: [*recommended, *of_rows]
    return readers


def _file_source(path: Path, content: JsonValue) -> ResultSource:
    """Return what a file holds, told by what is in it."""
    from assay.compat.threshold import is_threshold_result

    name = str(path)
    if is_threshold_result(content):
        return ResultSource(name, "a result of a threshold tool", _threshold_readers(path, content))
    if not isinstance(content, dict):
        raise BadInput(f"{path} {NOT_COMPARABLE_TEXT}.")
    if isinstance(content.get("findings"), list):
        claims = _read_findings(path)
        return ResultSource(name, "findings", {"findings": lambda: claims})
    if content.get("measurement") is not None or content.get("comparison") is not None:
        times = timed_cells(content)
        return ResultSource(name, "times of `assay time`", {"times": lambda: times})
    if "kernel_name" in content:
        return _tuning_files(path)
    if isinstance(content.get("results"), list):
        return _shape_files(path)
    raise BadInput(f"{path} {NOT_COMPARABLE_TEXT}.")


def _folder_source(path: Path) -> ResultSource:
    """Return a folder of older files; a folder of runs is not one result."""
    runs = run_paths(path)
    if runs:
        raise BadInput(f"{path} is a folder of {len(runs)} runs; name one of them, such as {path / 'latest'}.")
    if not any(path.glob("*.json")):
        raise BadInput(f"{path} is neither a run folder nor a folder of .json files.")
    try:
        return _tuning_files(path)
    except BadInput as error:
        try:
            return _shape_files(path)
        except BadInput:
            raise error from None


NOT_COMPARED = CLOCK_QUANTITIES | {"start_us"}
"""What is kept beside the times: how the clock was, and when a call began."""
FAILED_QUANTITY = "call_us"
"""The time that would be there of what failed: every way of timing takes it."""


def run_cells(folder: RunFolder) -> list[ComparedCell]:
    """Return every number of a run; of what was measured several times, the mean of the times it was."""
    trials = {trial.id: trial for decision in folder.decisions() for trial in decision.block.trials}
    by_location: dict[tuple[CellName, str | None, str | None], list[ComparedCell]] = {}
    for record in folder.records():
        if record.trial in trials and trials[record.trial].settings.get("phase") != WARM_UP:
            for cell in _record_cells(trials[record.trial], record, folder.machine):
                by_location.setdefault((cell.name, cell.device, cell.model), []).append(cell)
    return [_combine_cells(several) for several in by_location.values()]


def _record_cells(trial: Trial, record: Record, machine: Machine) -> Iterator[ComparedCell]:
    for role in (role for role in trial.roles if role.duty == "timed"):
        where = devices_and_model(role, machine)
        for index, subject in enumerate(role.subjects):
            details = subject_details(trial, role, subject, loaded_dtype_of(record, role.name, index))
            if record.status != "ok":
                name = CellName(work_name(subject), details, FAILED_QUANTITY)
                yield ComparedCell(name, *where, None, unit=unit_of(FAILED_QUANTITY), reason=record.reason)
                continue
            for summary in record.estimates:
                quantity, estimate = summary.quantity, summary.estimate
                if (summary.role, summary.subject) == (role.name, index) and quantity not in NOT_COMPARED:
                    restarts = len(
                        {
                            series.restart
                            for series in record.series
                            if (series.role, series.subject, series.quantity) == (role.name, index, quantity)
                        }
                    )
                    several = estimate.scope == "process" or restarts > 1
                    processes = max(restarts, 1) if several else estimate.n
                    name = CellName(work_name(subject), details, quantity, estimate.method_key)
                    bounds = estimate.value, estimate.low, estimate.high
                    yield ComparedCell(name, *where, *bounds, estimate.unit, processes)


def _combine_cells(several: list[ComparedCell]) -> ComparedCell:
    """Return one number for several of the same thing: each record is one draw."""
    good = [cell for cell in several if cell.value is not None]
    if len(good) < 2:
        return (good or several)[0]
    centre, low, high, _ = restarts_interval([cell.value for cell in good if cell.value is not None])
    first = good[0]
    return ComparedCell(first.name, first.device, first.model, centre, low, high, first.unit, len(good))


def finding_cells(entries: list[JsonValue], model: str | None) -> list[ComparedCell]:
    """Return the number of each claim that has one.

    Raises:
        BadInput: A claim is not what this version of Assay writes; the sentence has no file name.
    """
    try:
        findings = [Finding.model_validate(entry) for entry in entries]
    except ValidationError as error:
        raise BadInput(f"a finding is not what this version of Assay writes: {first_problem(error)}") from None
    cells: list[ComparedCell] = []
    counts: Counter[str] = Counter()
    for finding in findings:
        counts[finding.claim] += 1
        number = counts[finding.claim]
        if finding.estimate is not None:
            identity = finding.identity or {}
            again = (IdentityDetail("conditions", "number", str(number)),) if number > 1 else ()
            details = (*identity_details(identity), *again)
            name = CellName(finding.claim, details, finding.estimate.unit or "value", finding.estimate.method_key)
            cells.append(_estimate_cell(name, None, identity_model(identity) or model, finding.estimate))
    return cells


def timed_cells(content: dict[str, JsonValue]) -> list[ComparedCell]:
    """Return the times that ``assay time --json`` printed.

    Raises:
        BadInput: It is not what this version of Assay writes; the sentence has no file name.
    """
    result: Measurement | Comparison
    try:
        if content.get("measurement") is not None:
            result = Measurement.model_validate(content["measurement"])
            by_quantity = {q: getattr(result, q) for q in ("busy_us", "span_us", "call_us")}
            times = [(result.name, quantity, time) for quantity, time in by_quantity.items() if time is not None]
        else:
            result = Comparison.model_validate(content["comparison"])
            by_work = {result.first: result.first_us, **{other.name: other.time_us for other in result.others}}
            times = [(work, result.quantity, time) for work, time in by_work.items()]
    except ValidationError as error:
        raise BadInput(f"it is not what this version of Assay writes: {first_problem(error)}") from None
    details = (
        IdentityDetail("device", "on", result.device.partition(":")[0]),
        IdentityDetail("conditions", "cache", result.cache),
    )
    return [
        _estimate_cell(CellName(work, details, quantity, time.method_key), result.device, None, time, result.processes)
        for work, quantity, time in times
    ]


def _estimate_cell(
    name: CellName, device: str | None, model: str | None, estimate: Estimate, processes: int | None = None
) -> ComparedCell:
    return ComparedCell(
        name=name,
        device=device,
        model=model,
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        unit="µs" if estimate.unit == "us" else estimate.unit or unit_of(name.quantity),
        processes=1 if estimate.scope == "process" else processes,
    )


def tuning_cells(several: Iterable[KernelTuning]) -> list[ComparedCell]:
    """Return the best time of each kernel on each device."""
    by_name: dict[tuple[CellName, str | None], list[KernelTuning]] = {}
    for tuning in several:
        name, model = CellName(tuning.kernel, (), "best_time_ms"), None
        if tuning.identity is not None:
            work = tuning.identity.get("workload", {}).get("workload", tuning.kernel)
            details = tuple(detail for detail in identity_details(tuning.identity) if detail.aspect != "workload")
            name, model = CellName(work, details, "best_time_ms"), identity_model(tuning.identity)
        by_name.setdefault((name, model), []).append(tuning)
    return [
        _draws_cell(name, device or None, model, times, "ms")
        for (name, model), alike in by_name.items()
        for device, times in tunings.best_times(alike).items()
    ]


def shape_cells(rows: Iterable[ScalingRow], model: str | None) -> list[ComparedCell]:
    """Return the time, the transfers and the memory of each shape."""
    return [cell for row in rows for cell in _shape_row_cells(row, model)]


def _shape_row_cells(row: ScalingRow, model: str | None) -> Iterator[ComparedCell]:
    setting = dict(row.setting)
    work, model = setting.pop("workload", "dilated attention"), setting.pop(DEVICE_SETTING, model)
    isolation = setting.pop(ISOLATION, None)
    details = (
        *(_parameter_detail(name, value) for name, value in setting.items()),
        *([] if isolation is None else [IdentityDetail("isolation", ISOLATION, isolation)]),
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
    cells: list[ComparedCell] = []
    for row in results.results:
        details = (*parameter_details(row.params), *_threshold_details(results.identity, row.threshold))
        for time, timed in row.times.items():
            draws = [math.exp(sum(logs) / len(logs)) for logs in timed.log_speedups if logs]
            cells.append(_draws_cell(CellName(row.threshold, details, f"speedup by {time}"), *where, draws, "×"))
        reason = row.refused or row.cannot or "not measured"
        for time in () if row.times else TIME_KINDS:
            name = CellName(row.threshold, details, f"speedup by {time}")
            cells.append(ComparedCell(name, *where, None, unit="×", reason=reason))
    return cells


def recommendation_cells(content: Mapping[str, JsonValue], model: str | None) -> list[ComparedCell]:
    """Return the thresholds that a file recommends; without a value where it says never, or that it is not known."""
    entries = content.get("thresholds")
    by_key = {
        str(entry.get("key")).rpartition(".")[2]: entry
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict)
    }
    identity, recommended = parse_identity(content.get("identity")), content.get("recommendation")
    cells: list[ComparedCell] = []
    for key, value in (recommended if isinstance(recommended, dict) else {}).items():
        last = key.rpartition(".")[2]
        entry = by_key.get(last)
        name = CellName(
            last, _threshold_details(identity, None if entry is None else str(entry.get("name"))), THRESHOLD_QUANTITY
        )
        never = entry is not None and entry.get("decision") == "disable"
        size = None if never else positive_float(value)
        reason = "never" if never else "not known" if size is None else None
        cells.append(ComparedCell(name, None, model, size, reason=reason))
    return cells


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
