"""The same results in the older tool's files, in the folders that its document names.

older/baseline/softmax_gpu0.json     each device alone
older/concurrent/softmax_gpu0.json   concurrent, naive
older/isolated/softmax_gpu0.json     concurrent, isolated
older/monitoring/gpu0.json  host.json
older/experiment_summary.json
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from assay.experiments.compare.kernels import compare_kernels
from assay.experiments.compare.tunings import gather_tunings, tuning_as_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import JsonValue

    from assay.core.results import Findings
    from assay.experiments.compare.kernels import ComparedKernel
    from assay.experiments.compare.tunings import KernelTuning
    from assay.experiments.contention.layout import ContentionLayout, PhaseTrial
    from assay.experiments.contention.options import ContentionOptions
    from assay.machine.model import Machine
    from assay.store.records import Records

PHASE_FOLDERS = {"baseline": "baseline", "naive": "concurrent", "isolated": "isolated"}
"""The folder of each phase. The second baseline, `again`, has none: the older tool had no such control."""


def older_files(
    machine: Machine, options: ContentionOptions, layout: ContentionLayout, findings: Findings, records: Records
) -> dict[str, str]:
    """Return the text of every older file, by its path within the run folder."""
    phase_trials = layout.phase_trials
    by_phase = {
        phase: gather_tunings(
            [(phase_trial.trial, phase_trial.record) for phase_trial in phase_trials if phase_trial.phase == phase],
            records,
            machine,
        )
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
    watched = [
        (phase_trial, phase_trial.record.during)
        for phase_trial in phase_trials
        if phase_trial.record.during is not None
    ]
    host: list[JsonValue] = []
    gpus: dict[int, list[JsonValue]] = {}
    for phase_trial, during in watched:
        common: dict[str, JsonValue] = {
            "phase": phase_trial.phase,
            "block": phase_trial.block,
            "trial": phase_trial.record.trial,
        }
        common["started_at"] = phase_trial.record.window.started_at
        host.append({**common, **{k: v for k, v in during.as_json().items() if k != "gpus"}})
        for gpu in during.gpus:
            gpus.setdefault(gpu.gpu, []).append({**common, **gpu.as_json()})
    files: dict[str, JsonValue] = {f"monitoring/gpu{gpu}.json": {"trials": rows} for gpu, rows in gpus.items()}
    return {**files, "monitoring/host.json": {"trials": host}} if watched else files


def summary_json(options: ContentionOptions, findings: Findings, by_phase: dict[str, list[KernelTuning]]) -> JsonValue:
    """Return the phases, the devices, what was measured, and how each phase compares with the baseline."""
    baseline = by_phase["baseline"]
    against = {phase: compare_kernels(baseline, several) for phase, several in by_phase.items() if phase != "baseline"}
    return {
        "headline": findings.headline,
        "benchmark": [subject.label for subject in options.subjects],
        "devices": list(options.devices),
        "phases": {
            PHASE_FOLDERS[phase]: {
                "files": [f"{PHASE_FOLDERS[phase]}/{file_stem(older, several)}.json" for older in several]
            }
            for phase, several in by_phase.items()
        },
        "slowdowns": {
            PHASE_FOLDERS[phase]: [_slowdown_json(kernel) for kernel in kernels] for phase, kernels in against.items()
        },
        "config_mismatches": {
            PHASE_FOLDERS[phase]: [_mismatch_json(kernel) for kernel in kernels] for phase, kernels in against.items()
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
