"""Files of the older contention tools, read and written: what its analyser read of one kernel on one device.

    {"kernel_name": "softmax", "best_config": {"block": 64}, "best_time_ms": 0.1,
     "all_benchmark_times": [{"config": {"block": 64}, "time_ms": 0.1, "repeats_ms": [0.1, 0.11]}, …],
     "num_configs_tested": 24, "autotune_duration_seconds": 3.2}

``all_benchmark_times`` may hold bare numbers, each of another configuration. Files written by Assay also have
``repeats_ms`` (the same configuration timed in several processes), ``cv_of_samples`` (of each of these processes),
``timed_by``, ``picks`` (what each of several tunings chose), ``device`` and ``identity`` (parameters, isolation and all
else that must agree before two results may be compared). A run of ``assay contention run`` writes

    older/baseline/softmax_gpu0.json     each device alone
    older/concurrent/softmax_gpu0.json   concurrent, naive
    older/isolated/softmax_gpu0.json     concurrent, isolated
    older/monitoring/gpu0.json  host.json
    older/experiment_summary.json
"""

from __future__ import annotations

import json
import math
import re
from statistics import median
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.core.files import read_json
from assay.experiments.compare.tunings import (
    KernelTuning,
    RepeatedTimes,
    TuningPick,
    gather_tunings,
    most_common_pick,
)
from assay.experiments.compare.variance import compare_kernels
from assay.store.identity import parse_identity
from assay.store.records import verify_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pydantic import JsonValue

    from assay.core.results import Findings
    from assay.experiments.compare.variance import ComparedKernel
    from assay.experiments.contention.layout import ContentionLayout, PhaseTrial
    from assay.experiments.contention.options import ContentionOptions
    from assay.machine.model import Machine
    from assay.store.records import Records

FILE_KEYS = (
    "kernel_name",
    "best_config",
    "best_time_ms",
    "all_benchmark_times",
    "num_configs_tested",
    "autotune_duration_seconds",
)


_DEVICE_PATTERN = re.compile(r"(?:^|[^a-z])(gpu|cuda|cpu)[_:-]?([0-9]+)", re.IGNORECASE)


def read_tuning_file(path: Path) -> KernelTuning:
    """Read one older file; the device comes from its name where it is not in the file."""
    if path.is_file() and not path.stat().st_size:
        raise BadInput(f"{path} is empty.")
    verify_file(path)
    content = read_json(path)
    try:
        older = parse_tuning(content)
    except BadInput as error:
        raise BadInput(f"{path}: {error}.") from None
    named = _DEVICE_PATTERN.search(path.stem)
    if older.device is None and named is not None:
        kind = "cpu" if named[1].lower() == "cpu" else "cuda"
        older = older.model_copy(update={"device": f"{kind}:{int(named[2])}"})
    return older.model_copy(update={"source": str(path)})


def parse_tuning(content: JsonValue) -> KernelTuning:
    """Return what a file says.

    Raises:
        BadInput: It is not such a file, or holds nothing that can be used; the sentence has no file name.
    """
    if not isinstance(content, dict):
        raise BadInput("it holds no JSON object with the keys of a tuning result")
    kernel = content.get("kernel_name")
    if not isinstance(kernel, str) or not kernel:
        raise BadInput("it has no kernel_name" if "kernel_name" not in content else "its kernel_name is not a name")
    notes: list[str] = []
    missing = [key for key in FILE_KEYS if key not in content]
    if missing:
        notes.append(f"it lacks {', '.join(missing)}")
    picks = _parse_picks(content, notes)
    timed = _parse_times(content.get("all_benchmark_times"), notes)
    if not picks and not timed:
        raise BadInput("; ".join([*notes, "nothing in it can be used"]))
    tested, device = content.get("num_configs_tested"), content.get("device")
    return KernelTuning(
        kernel=kernel,
        device=device if isinstance(device, str) else None,
        picks=picks,
        timed=timed,
        configs_tested=tested if isinstance(tested, int) else None,
        identity=parse_identity(content.get("identity")),
        notes=tuple(notes),
    )


def _parse_picks(content: Mapping[str, JsonValue], notes: list[str]) -> tuple[TuningPick, ...]:
    """Return every tuning in the file; without a list of them, its only one."""
    several = content.get("picks")
    entries = several if isinstance(several, list) else [dict(content)]
    picks: list[TuningPick] = []
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        config, time_ms = entry.get("best_config"), _positive_time(entry.get("best_time_ms"))
        if time_ms is None and entry.get("best_time_ms") is not None:
            notes.append(f"a best_time_ms of {entry['best_time_ms']!r} is no time")
        if config is not None and not isinstance(config, dict):
            notes.append("its best_config is not an object of names and values")
            config = None
        tuning_s = _positive_time(entry.get("autotune_duration_seconds"))
        if config is not None or time_ms is not None:
            picks.append(TuningPick(config=config, time_ms=time_ms, tuning_s=tuning_s))
    return tuple(picks)


def _parse_times(entries: JsonValue, notes: list[str]) -> tuple[RepeatedTimes, ...]:
    """Return the configurations with their times; bare numbers name no configuration and are only counted."""
    if entries is None:
        return ()
    if not isinstance(entries, list):
        notes.append("its all_benchmark_times is not a list")
        return ()
    bare = sum(isinstance(entry, int | float) for entry in entries)
    if bare > 1:
        notes.append(f"its {bare} times are of different configurations, and their scatter is no variance")
    results: list[RepeatedTimes] = []
    useless = 0
    for entry in entries:
        if isinstance(entry, dict):
            times = _positive_times(entry.get("repeats_ms")) or _positive_times([entry.get("time_ms")])
            config, by = entry.get("config"), entry.get("timed_by")
            useless += not times
            if times and (config is None or isinstance(config, dict)):
                cvs, by = _positive_times(entry.get("cv_of_samples")), by if isinstance(by, str) else None
                results.append(RepeatedTimes(config=config, times_ms=times, cvs=cvs, timer=by))
    if useless:
        notes.append(f"{useless} of its configurations have no time above zero")
    return tuple(results)


def _positive_times(values: JsonValue) -> tuple[float, ...]:
    return tuple(t for value in values if (t := _positive_time(value)) is not None) if isinstance(values, list) else ()


def _positive_time(value: JsonValue) -> float | None:
    """Return a time that can be divided by; null for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < math.inf else None


def tuning_as_json(older: KernelTuning) -> dict[str, JsonValue]:
    """Return what the file holds; the first six keys are those of the older tool, summed up over several tunings."""
    best = most_common_pick(older.picks)
    timed: list[JsonValue] = [
        {
            "config": repeats.config,
            "time_ms": median(repeats.times_ms),
            "repeats_ms": list(repeats.times_ms),
            "cv_of_samples": list(repeats.cvs),
            "timed_by": repeats.timer,
        }
        for repeats in older.timed
    ]
    durations = [pick.tuning_s for pick in older.picks if pick.tuning_s is not None]
    return {
        "kernel_name": older.kernel,
        "best_config": best.config if best else None,
        "best_time_ms": best.time_ms if best else median(older.timed[0].times_ms) if older.timed else None,
        "all_benchmark_times": timed,
        "num_configs_tested": older.configs_tested,
        "autotune_duration_seconds": median(durations) if durations else None,
        "device": older.device,
        "identity": None if older.identity is None else {name: dict(values) for name, values in older.identity.items()},
        "picks": [
            {"best_config": p.config, "best_time_ms": p.time_ms, "autotune_duration_seconds": p.tuning_s}
            for p in older.picks
        ],
    }


PHASE_FOLDERS = {"baseline": "baseline", "naive": "concurrent", "isolated": "isolated"}
"""The folder of each phase. The second baseline, `again`, has none: the older tool had no such control."""


def build_files(
    machine: Machine, options: ContentionOptions, layout: ContentionLayout, findings: Findings, records: Records
) -> dict[str, str]:
    """Return the text of every older file, by its path within the run folder."""
    phase_trials = layout.phase_trials
    by_phase = {
        phase: gather_tunings([(one.trial, one.record) for one in phase_trials if one.phase == phase], records, machine)
        for phase in PHASE_FOLDERS
    }
    files: dict[str, JsonValue] = {}
    for phase, several in by_phase.items():
        for older in several:
            files[f"{PHASE_FOLDERS[phase]}/{file_stem(older, several)}.json"] = tuning_as_json(older)
    files.update(monitoring_files(phase_trials))
    files["experiment_summary.json"] = summary_json(options, findings, by_phase)
    return {f"older/{name}": json.dumps(data, indent=2, ensure_ascii=False) + "\n" for name, data in files.items()}


def file_stem(older: KernelTuning, several: Sequence[KernelTuning]) -> str:
    """Return a file's name without its ending: kernel and device, the kernel in full where its short name is taken."""
    short = older.kernel.partition("@")[0]
    alike = {other.kernel for other in several if other.kernel.partition("@")[0] == short}
    kernel = short if len(alike) == 1 else older.kernel
    device = (older.device or "device").replace("cuda:", "gpu").replace("cpu:", "cpu")
    return re.sub(r"[^A-Za-z0-9]+", "_", f"{kernel}_{device}").strip("_")


def monitoring_files(phase_trials: Sequence[PhaseTrial]) -> dict[str, JsonValue]:
    """Return what the monitor saw while each trial was timed, a file for each GPU and one for the host."""
    host: list[JsonValue] = []
    gpus: dict[int, list[JsonValue]] = {}
    for phase_trial in phase_trials:
        record = phase_trial.record
        if record.during is None:
            continue
        common: dict[str, JsonValue] = {"phase": phase_trial.phase, "block": phase_trial.block, "trial": record.trial}
        common["started_at"] = record.window.started_at
        host.append({**common, **{k: v for k, v in record.during.as_json().items() if k != "gpus"}})
        for gpu in record.during.gpus:
            gpus.setdefault(gpu.gpu, []).append({**common, **gpu.as_json()})
    files: dict[str, JsonValue] = {f"monitoring/gpu{gpu}.json": {"trials": rows} for gpu, rows in gpus.items()}
    return {**files, "monitoring/host.json": {"trials": host}} if host else files


def summary_json(options: ContentionOptions, findings: Findings, by_phase: dict[str, list[KernelTuning]]) -> JsonValue:
    """Return the phases, the devices, what was measured, and how each phase compares with the baseline."""
    baseline = by_phase["baseline"]
    against = {
        PHASE_FOLDERS[phase]: compare_kernels(baseline, several)
        for phase, several in by_phase.items()
        if phase != "baseline"
    }
    files = {
        PHASE_FOLDERS[phase]: [f"{PHASE_FOLDERS[phase]}/{file_stem(older, several)}.json" for older in several]
        for phase, several in by_phase.items()
    }
    return {
        "headline": findings.headline,
        "benchmark": [subject.label for subject in options.subjects],
        "devices": list(options.devices),
        "phases": {folder: {"files": list(names)} for folder, names in files.items()},
        "slowdowns": {folder: [_slowdown_json(kernel) for kernel in kernels] for folder, kernels in against.items()},
        "config_mismatches": {
            folder: [_mismatch_json(kernel) for kernel in kernels] for folder, kernels in against.items()
        },
    }


def _slowdown_json(kernel: ComparedKernel) -> JsonValue:
    ratio = kernel.times.ratio
    return {
        "kernel_name": kernel.name,
        "baseline_ms": kernel.times.baseline_ms,
        "ms": kernel.times.concurrent_ms,
        "ratio": ratio.value if ratio else None,
        "low": ratio.low if ratio else None,
        "high": ratio.high if ratio else None,
    }


def _mismatch_json(kernel: ComparedKernel) -> JsonValue:
    picks = kernel.picks
    return {
        "kernel_name": kernel.name,
        "differ": picks.mismatch.count,
        "of": picks.mismatch.n,
        "baseline_differs_from_itself": picks.baseline_mismatch.count,
        "baseline_of": picks.baseline_mismatch.n,
        "settings": list(dict.fromkeys(name for device in picks.devices for name in device.differing)),
    }
