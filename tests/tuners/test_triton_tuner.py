"""Triton's own tuner over our configurations: driven for real under its interpreter, refused where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.core.values import Subject, Tuner
from assay.tuners import triton
from assay.tuners.base import TuningJob

pytest.importorskip("triton", reason="Triton is not installed here")

PROGRAM = """
import math
from assay.tuners import triton as tuner
from assay.workloads import registry
from triton.runtime.errors import OutOfResources

def timer(call, quantiles):
    call()  # the kernel really runs
    times.append(len(times))
    if len(times) == 1:
        raise OutOfResources(1, 0, "shared memory")
    return [10.0 / len(times)] * 3

for name in ("gemm", "softmax"):
    workload = registry.find_workload(name, "triton")
    params = workload.defaults("cpu")
    configs = list(workload.configs(params))[:4]
    times = []
    found = tuner.tune_launch(workload.launch(params, device="cpu:0", seed=0), configs, timer)
    assert found.config == configs[-1], found
    assert [tried.config for tried in found.tried] == configs
    assert [tried.time_us is None for tried in found.tried] == [True, False, False, False]
    assert found.tried[0].reason == tuner.DOES_NOT_RUN
    assert math.isclose(found.time_us, 10_000 / 4)
    assert found.version
    times = []
    alone = tuner.tune_launch(workload.launch(params, device="cpu:0", seed=0), configs[:1], timer)
    assert (alone.config, alone.time_us, times) == (configs[0], None, [])
"""


@pytest.mark.full
def test_it_tries_every_configuration_of_a_kernel_and_chooses_the_fastest(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path), "TRITON_CACHE_AUTOTUNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def job(impl: str, device: str) -> TuningJob:
    return TuningJob(Subject(workload="softmax", impl=impl), Tuner(name="triton", budget_s=1), device, seed=0)


def test_a_cpu_and_what_is_not_written_in_triton_are_refused() -> None:
    with pytest.raises(MachineCannot, match=r"triton\.autotune times on a GPU, and cpu:0 is none"):
        triton.tune(job("triton", "cpu:0"))
    with pytest.raises(BadInput, match=r"triton\.autotune tunes kernels in Triton, and softmax@numpy is none"):
        triton.tune(job("numpy", "cuda:0"))
