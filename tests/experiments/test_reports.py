"""A report analyses its records once and opens each sample file once, in every experiment."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from assay.core.files import compute_digest, read_bytes
from assay.core.values import Subject
from assay.experiments.base import BUILT_IN, find_experiment
from assay.experiments.contention.findings import analyse
from assay.experiments.contention.layout import build_layout
from assay.experiments.energy.plan import replay_run as replay_energy_run
from assay.experiments.energy.study import build_study as build_energy_study
from assay.experiments.gate import build_answers
from assay.experiments.matrix.analysis import build_matrix
from assay.experiments.power.characterize.study import analyse_records
from assay.experiments.power.sweep.curve import build_study as build_sweep_study
from assay.experiments.power.sweep.curve import read_records
from assay.experiments.run.plan import RunOptions, build_blocks
from assay.experiments.run.report import collect_results
from assay.experiments.scaling.analysis import analyse_scaling
from assay.experiments.scaling_prediction import forecast_cells
from assay.experiments.threshold.plan import replay_run as replay_threshold_run
from assay.experiments.threshold.report import build_study as build_threshold_study
from assay.store import records as store
from assay.store.records import Records, samples_to_bytes
from tests.experiments import matrices
from tests.experiments.contention import worlds as contention
from tests.experiments.energy import metered_world as energy
from tests.experiments.gate import revisions as gates
from tests.experiments.power import characterized, sweeps
from tests.experiments.run import test_run_experiment as runs
from tests.experiments.scaling import test_scaling_prediction as prediction
from tests.experiments.scaling import worlds as scaling
from tests.experiments.threshold import crossings
from tests.machines import machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from assay.machine.model import Machine
    from assay.store.run_folder import RunFolder

    World = tuple[Machine, Any, Records]

STUDIES: dict[str, tuple[Callable[..., Any], ...]] = {
    "contention": (analyse, build_layout),
    "energy": (build_energy_study, replay_energy_run),
    "gate": (build_answers,),
    "matrix": (build_matrix,),
    "power": (analyse_records,),
    "power_sweep": (build_sweep_study, read_records),
    "run": (collect_results,),
    "scaling": (analyse_scaling,),
    "scaling_prediction": (forecast_cells,),
    "threshold": (build_threshold_study, replay_threshold_run),
}
"""The functions that compute the study of each experiment."""
WITHOUT_FILES = frozenset({"scaling_prediction"})
"""Their reports need no samples: the estimates are in the records."""


def contention_world(folder: RunFolder) -> World:
    wanted = contention.options()
    return contention.TWO_CORES, wanted, contention.World().run(wanted, contention.TWO_CORES)


def energy_world(folder: RunFolder) -> World:
    gpus = energy.gpus(2)
    wanted = energy.options(gpus, energy.config())
    return gpus, wanted, energy.World(gpus).measured(wanted)


def gate_world(folder: RunFolder) -> World:
    return gates.MACHINE, gates.options(), gates.World({"call_us": 1.05}).measured(gates.options())


def matrix_world(folder: RunFolder) -> World:
    wanted = matrices.options()
    return matrices.MACHINE, wanted, matrices.world(folder, wanted, lambda *_: 1.5)


def power_world(folder: RunFolder) -> World:
    wanted = characterized.options(characterized.ALONE, characterized.BESIDE)
    return characterized.FOUR, wanted, characterized.world(wanted, lambda where, device: 1000.0)


def sweep_world(folder: RunFolder) -> World:
    wanted = sweeps.options()
    return sweeps.MACHINE, wanted, sweeps.world(wanted, lambda _, setting: sweeps.Card().at(setting))


def run_world(folder: RunFolder) -> World:
    subjects = tuple(Subject(workload=workload, impl="numpy") for workload in ("softmax", "gemm"))
    wanted = RunOptions(subjects=subjects, devices=("cpu:0",), duration_s=4.0, repeat=2)
    trials = [trial for block in build_blocks(wanted) for trial in block.trials]
    records = [runs.measured(folder, trial, {"cpu:0": 5.0}) for trial in trials]
    return runs.MACHINE, wanted, Records(records, folder.path)


def scaling_world(folder: RunFolder) -> World:
    wanted = scaling.options()
    return scaling.FOUR_CORES, wanted, scaling.World().run(wanted)


def prediction_world(folder: RunFolder) -> World:
    wanted = prediction.options()
    return prediction.MACHINE, wanted, prediction.measured(wanted, folder.path)


def threshold_world(folder: RunFolder) -> World:
    wanted = crossings.options(crossings.threshold([2.0**n for n in range(4, 10)]))
    return machine(), wanted, crossings.World(lambda params, _: 1.2 * params["n"] / 200).measured(wanted)


WORLDS: dict[str, Callable[[RunFolder], World]] = {
    "contention": contention_world,
    "energy": energy_world,
    "gate": gate_world,
    "matrix": matrix_world,
    "power": power_world,
    "power_sweep": sweep_world,
    "run": run_world,
    "scaling": scaling_world,
    "scaling_prediction": prediction_world,
    "threshold": threshold_world,
}
"""A machine, options and records for each experiment."""


def on_disk(records: Records, folder: Path) -> Records:
    """Return records whose samples are files of a folder, opened by nobody yet."""
    stored = []
    for number, record in enumerate(records):
        named = []
        for index, series in enumerate(record.series):
            name, data = f"samples/{number}-{index}.npy", samples_to_bytes(np.array(records.samples(series)))
            (folder / name).write_bytes(data)
            named.append(series.model_copy(update={"file": name, "digest": compute_digest(data)}))
        stored.append(record.model_copy(update={"series": tuple(named)}))
    return Records(stored, folder)


def count_calls(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], calls: Counter[str]) -> None:
    """Count the calls of a function wherever it was imported."""

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[function.__qualname__] += 1
        return function(*args, **kwargs)

    for module in [module for name, module in sys.modules.items() if name.startswith("assay.")]:
        for attribute, value in list(vars(module).items()):
            if value is function:
                monkeypatch.setattr(module, attribute, counted)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_report_analyses_once_and_opens_each_sample_file_once(
    name: str, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    on, wanted, made = WORLDS[name](folder)
    records, opened, calls = on_disk(made, folder.path), Counter[str](), Counter[str]()

    def counted(path: Path) -> bytes:
        opened[path.name] += 1
        return read_bytes(path)

    monkeypatch.setattr(store, "read_bytes", counted)
    for function in STUDIES[name]:
        count_calls(monkeypatch, function, calls)
    report = find_experiment(name).report(on, wanted, records)
    for content in report.files.values():
        assert "".join(content)
    assert calls == {function.__qualname__: 1 for function in STUDIES[name]}
    assert set(opened.values()) == (set() if name in WITHOUT_FILES else {1})


folder = runs.folder


def test_samples_cannot_be_written_to(folder: RunFolder) -> None:
    _, _, records = run_world(folder)
    samples = records.samples(records[0].series[0])
    with pytest.raises(ValueError, match="read-only"):
        samples[0] = 1.0


def test_files_beyond_what_memory_holds_are_read_again(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, made = run_world(folder)
    monkeypatch.setattr(store, "MAX_HELD_BYTES", 0)
    records = on_disk(made, folder.path)
    series = records[0].series[0]
    first = records.samples(series)
    assert np.array_equal(first, records.samples(series))
    assert first is not records.samples(series)
