"""A workload for GPUs that are not there: its time follows the fake's clock, and its watts are known.

    assay run tests/fakes/fake_kernel.py:call --gpus 0 --param work_mcycles=40 --param watts=500

On a machine whose NVML is the fake, in real time (``virtual=False``): a call waits as long as so many million cycles
take at the SM clock that the GPU has under this load, and makes the GPU draw so many watts more meanwhile, if neither
its power limit nor a locked clock says otherwise. What was truly spent is then ``fake.true_energy_j(…)``.
"""

from __future__ import annotations

import os
import sys
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2]))  # a worker knows only this file

from tests.fakes.fake_nvml import FakeNvml

if TYPE_CHECKING:
    from assay.core.values import Subject

PROBED_NS = 1_000
"""The load is on for so long before the clock under it is read."""
SPIN_NS = 200_000


def subject(work_mcycles: float = 40.0, watts: float = 500.0) -> Subject:
    """Return a call as a subject of a trial."""
    from assay.core.values import Subject

    params = {"work_mcycles": work_mcycles, "watts": watts}
    return Subject(workload=f"{Path(__file__).resolve()}:call", impl="python", params=params)


def call(work_mcycles: float = 40.0, watts: float = 500.0) -> None:
    """Do so much work on the GPU that this process sees, at such an extra power at the highest clock."""
    fake, gpu = _fake(), _gpu()
    begin_ns = fake.now_ns()
    if fake.gpu(gpu).lost_at_ns <= begin_ns:
        raise RuntimeError("CUDA error: the GPU has fallen off the bus")
    _add(fake, gpu, watts, begin_ns, begin_ns + PROBED_NS)
    end_ns = begin_ns + max(2 * PROBED_NS, round(1e3 * work_mcycles / _clock_mhz(fake, gpu, begin_ns) * 1e6))
    _add(fake, gpu, watts, begin_ns + PROBED_NS, end_ns)
    time.sleep(max(0, end_ns - SPIN_NS - fake.now_ns()) / 1e9)
    while fake.now_ns() < end_ns:
        pass


def _add(fake: FakeNvml, gpu: int, watts: float, from_ns: int, until_ns: int) -> None:
    fake.add_load(gpu, watts, from_ns / 1e9, until_ns / 1e9)


def _clock_mhz(fake: FakeNvml, gpu: int, at_ns: int) -> int:
    """Return the clock at a moment that lies little before the last change of power."""
    with fake.locked():
        state = fake.gpu(gpu)
        for place in range(state.segment_count - 1, -1, -1):
            if state.segments[place].t_ns <= at_ns + PROBED_NS // 2:
                return state.sm_forced_mhz or state.segments[place].sm_mhz
    raise LookupError("the fake has forgotten what it drew")


@cache
def _fake() -> FakeNvml:
    return FakeNvml.from_env()


@cache
def _gpu() -> int:
    """Return the GPU that this process was left alone with; without such a word, the first."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    uuids = [_fake().gpu(index).uuid.decode() for index in range(_fake().gpu_count)]
    return uuids.index(first) if first in uuids else int(first or 0)
