"""How long the references take by the GPU's own record, found once for each GPU and driver.

The references spin for a known time, but when a kernel starts and ends is a convention: an empty one takes 0.6 µs by
the activity trace. Assay takes that convention over. From then on no profiler is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import ValidationError

from assay.core.errors import BadInput, MachineCannot, TrialFailed
from assay.core.home import home
from assay.core.seals import read_sealed, write_sealed
from assay.timing.adaptive import warm_up
from assay.timing.cuda.known import ERROR_US, Known
from assay.timing.cuda.stamped import GraphClock, QueueClock
from assay.timing.cuda.trace import TraceClock
from assay.timing.cuda.work import Work

if TYPE_CHECKING:
    from pathlib import Path

    from assay.timing.cuda.bench import Bench
    from assay.timing.cuda.work import Cache
    from assay.timing.instrument import Call, Instrument

CALLS, BATCHES = 16, 8
WARMUP_S = 0.2  # of which a fifth is used at most: enough for the clock to rise from idle
CHAIN = 4  # references one after another, to see the boundaries between them
STATES: tuple[Cache, ...] = ("cold", "warm")


def find(bench: Bench) -> Known:
    """Trace the references, and time chains of them by stamps.

    Raises:
        MachineCannot: There is no trace here.
    """
    empty = bench.kernels.launch("spin", 0)
    launches = {"empty": empty, **bench.references}

    def calling(kind: str, times: int = 1) -> Call:
        def call() -> None:
            stream = int(bench.torch.cuda.current_stream(bench.index).cuda_stream)
            for _ in range(times):
                launches[kind](stream)

        return call

    def traced(kind: str, state: Cache) -> float:
        return _median_us(TraceClock(bench, Work(calling(kind), state, CALLS)), "busy_us")

    reference_us = {f"{kind} {state}": traced(kind, state) for kind in bench.references for state in STATES}
    bench.known = bench.known.model_copy(update={"reference_us": reference_us})
    boundary_us = {}
    for state in STATES:
        work = Work(calling("spin", CHAIN), state, CALLS)
        for clock in (GraphClock(bench, work), QueueClock(bench, work)):
            added_us = _median_us(clock, "span_us") - CHAIN * reference_us["spin warm"]
            boundary_us[f"{clock.method} {state}"] = max(0.0, added_us / (CHAIN - 1))
            clock.close()
    return Known(
        gpu=bench.uuid,
        driver=bench.driver,
        empty_us=traced("empty", "warm"),
        reference_us=reference_us,
        boundary_us=boundary_us,
        error_us=ERROR_US,
    )


def _median_us(clock: Instrument, quantity: str) -> float:
    warm_up(clock, WARMUP_S)
    return float(np.median(np.concatenate([clock.take().quantities[quantity] for _ in range(BATCHES)])))


def calibrate(bench: Bench) -> None:
    """Let a bench know its GPU: what was kept for this GPU and driver, or found now; where neither is, it assumes."""
    path = home() / "clocks" / f"{bench.uuid}-{bench.driver}.json"
    calibration = _kept(path)
    if calibration is None:
        try:
            calibration = find(bench)
        except (MachineCannot, TrialFailed):
            return
        path.parent.mkdir(exist_ok=True)
        write_sealed(path, calibration.as_json())
    bench.known = calibration


def _kept(path: Path) -> Known | None:
    """Return what was kept; null where nothing was, or it is damaged: then it is found again."""
    try:
        return Known.model_validate_json(read_sealed(path))
    except (BadInput, ValidationError):
        return None
