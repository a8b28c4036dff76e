"""The same results in the older tool's files, in the folders that its document names.

older/baseline/softmax_gpu0.json     each device alone
older/concurrent/softmax_gpu0.json   side by side, naive
older/isolated/softmax_gpu0.json     side by side, isolated
older/monitoring/gpu0.json  host.json
older/experiment_summary.json
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from assay.experiments.contention.cells import layout
from assay.experiments.variance.compare import compare
from assay.experiments.variance.from_records import gathered
from assay.experiments.variance.older_format import as_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import JsonValue

    from assay.core.results import Findings
    from assay.experiments.contention.cells import Seen
    from assay.experiments.contention.options import ContentionOptions
    from assay.experiments.variance.compare import Kernel
    from assay.experiments.variance.older_format import Older
    from assay.machine.model import Machine
    from assay.store.records import Records

FOLDERS = {"baseline": "baseline", "naive": "concurrent", "isolated": "isolated"}
"""The folder of each phase. The second baseline, `again`, has none: the older tool had no such control."""


def older_files(machine: Machine, options: ContentionOptions, findings: Findings, records: Records) -> dict[str, str]:
    """Return the text of every older file, by its path within the run folder."""
    phase_trials = layout(machine, options, records).seen
    by_phase = {
        phase: gathered(
            [(phase_trial.trial, phase_trial.record) for phase_trial in phase_trials if phase_trial.phase == phase],
            records,
            machine,
        )
        for phase in FOLDERS
    }
    files: dict[str, JsonValue] = {}
    for phase, several in by_phase.items():
        for older in several:
            files[f"{FOLDERS[phase]}/{stem(older, several)}.json"] = as_json(older)
    files.update(monitoring(phase_trials))
    files["experiment_summary.json"] = summary(options, findings, by_phase)
    return {f"older/{name}": json.dumps(data, indent=2, ensure_ascii=False) + "\n" for name, data in files.items()}


def stem(older: Older, several: Sequence[Older]) -> str:
    """Return a file's name without its ending: kernel and device, the kernel in full where its short name is taken."""
    short = older.kernel.partition("@")[0]
    alike = {other.kernel for other in several if other.kernel.partition("@")[0] == short}
    kernel = short if len(alike) == 1 else older.kernel
    device = (older.device or "device").replace("cuda:", "gpu").replace("cpu:", "cpu")
    return re.sub(r"[^A-Za-z0-9]+", "_", f"{kernel}_{device}").strip("_")


def monitoring(seen: Sequence[Seen]) -> dict[str, JsonValue]:
    """Return what the monitor saw while each trial was timed, a file for each GPU and one for the host."""
    watched = [
        (phase_trial, phase_trial.record.meanwhile) for phase_trial in seen if phase_trial.record.meanwhile is not None
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


def summary(options: ContentionOptions, findings: Findings, by_phase: dict[str, list[Older]]) -> JsonValue:
    """Return the phases, the devices, what was measured, and how each phase compares with the baseline."""
    baseline = by_phase["baseline"]
    against = {phase: compare(baseline, several) for phase, several in by_phase.items() if phase != "baseline"}
    return {
        "headline": findings.headline,
        "benchmark": [subject.label for subject in options.subjects],
        "devices": list(options.devices),
        "phases": {
            FOLDERS[phase]: {"files": [f"{FOLDERS[phase]}/{stem(older, several)}.json" for older in several]}
            for phase, several in by_phase.items()
        },
        "slowdowns": {FOLDERS[phase]: [_slowdown(kernel) for kernel in kernels] for phase, kernels in against.items()},
        "config_mismatches": {
            FOLDERS[phase]: [_mismatch(kernel) for kernel in kernels] for phase, kernels in against.items()
        },
    }


def _slowdown(kernel: Kernel) -> JsonValue:
    ratio = kernel.times.ratio
    return {
        "kernel_name": kernel.name,
        "baseline_ms": kernel.times.baseline_ms,
        "ms": kernel.times.concurrent_ms,
        "ratio": ratio.value if ratio else None,
        "low": ratio.low if ratio else None,
        "high": ratio.high if ratio else None,
    }


def _mismatch(kernel: Kernel) -> JsonValue:
    picks = kernel.picks
    return {
        "kernel_name": kernel.name,
        "differ": picks.mismatch.count,
        "of": picks.mismatch.n,
        "baseline_differs_from_itself": picks.by_chance.count,
        "baseline_of": picks.by_chance.n,
        "settings": list(dict.fromkeys(name for device in picks.devices for name in device.differ)),
    }
