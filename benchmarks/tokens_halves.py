"""Whether twice as long gives the same joules per token: the first half of each window beside the whole of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.experiments.energy.options import EnergyOptions
from assay.experiments.energy.plan import replay_run
from assay.joules.sensor_model import CounterModel, SensorModel
from assay.joules.trial_energy import PRECISION, gpu_readings
from assay.joules.window_energy import estimate_window_energy
from assay.launch.monitoring import MARGIN_NS
from benchmarks.tokens_tables import over

if TYPE_CHECKING:
    from assay.experiments.energy.estimates import PhaseWindow
    from assay.store.records import Records
    from assay.store.run_folder import RunFolder

PHASES = {"prefill": "input_tokens", "decode": "output_tokens"}
AT_ONCE = SensorModel(
    device="assumed",
    driver="any",
    counter=CounterModel(period_s=0.1, jitter_s=0.05, quantum_j=0.001, lag_s=0.0, lag_error_s=0.05, read_s=0.01),
)
"""A counter that is not late, of a run that does not say how its sensor saw: chosen as it gives the joules recorded."""
SAME = 0.005
"""A share: so near the joules of a window must be to those that its record has."""


def halves(folder: RunFolder) -> str:
    """Return the table of a run."""
    options, records = EnergyOptions.model_validate(folder.plan.options), folder.records()
    output = folder.path / "monitor" / "sensors-gpu0.json"
    sensor = SensorModel.model_validate_json(output.read_text(encoding="utf-8")) if output.exists() else AT_ONCE
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for window in replay_run(options, records).observations.windows:
        if window.cell_phase.cell is not None and window.cell_phase.phase in PHASES and window.stage.calls > 1:
            name = f"{window.cell_phase.cell.mode}, batch {window.cell_phase.cell.batch}", window.cell_phase.phase
            result = _of_window(window, records, sensor)
            if result is not None:
                pairs.setdefault(name, []).append(result)
    lines = [
        "| cell | phase | windows | first half, J/token | twice as long, J/token | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for (cell, phase), several in pairs.items():
        half, whole = (float(np.mean([pair[n] for pair in several])) for n in (0, 1))
        ratio = over([whole_j / half_j for half_j, whole_j in several])
        lines.append(f"| {cell} | {phase} | {len(several)} | {half:.4g} | {whole:.4g} | {ratio} |")
    return "\n".join(lines)


def _of_window(window: PhaseWindow, records: Records, sensor: SensorModel) -> tuple[float, float] | None:
    """Return the joules of a token in the first half of a window's calls, and in all of them.

    Raises:
        ValueError: The sensor did not see as is assumed here.
    """
    stage, tokens = window.stage, window.samples(PHASES[window.cell_phase.phase])
    ends_us = window.samples("start_us") + window.samples("call_us")
    count = len(ends_us) // 2
    half_ns = stage.start_ns + int(1000 * ends_us[count - 1])
    lines = records.watched_between(window.record, stage.start_ns, stage.end_ns, margin_s=MARGIN_NS / 1e9)
    readings = gpu_readings(lines, 0)
    results = [
        estimate_window_energy(readings, stage.start_ns, end_ns, sensor, precision=PRECISION).joules
        for end_ns in (half_ns, stage.end_ns)
    ]
    if results[0] is None or results[1] is None or stage.energy is None:
        return None
    if abs(results[1].value / stage.energy.value - 1) > SAME:
        raise ValueError(
            f"{window.cell_phase.name}: {results[1].value:.4g} J, but its record has {stage.energy.value:.4g} J"
        )
    return results[0].value / float(tokens[:count].sum()), results[1].value / float(tokens.sum())
