"""What only a GPU can show: every tuner chooses a configuration that works, and tells what it tried."""

from __future__ import annotations

import pytest

from assay.core.values import Subject, Tuner
from assay.tuners import base
from assay.tuners.base import TuningJob, TuningResult
from assay.workloads import registry as workloads

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

SIZES: dict[str, dict[str, str]] = {
    "gemm": {"m": "512", "n": "512", "k": "512"},
    "softmax": {"rows": "512", "cols": "1024"},
}


def found_by(name: str, workload: str, impl: str, device: str) -> tuple[TuningJob, TuningResult]:
    subject: Subject = workloads.resolve_subject(f"{workload}@{impl}", device_kind="cuda", explicit=SIZES[workload])
    tuner = Tuner.model_validate({"name": name, "budget_s": 60})
    job = TuningJob(subject, tuner, device, seed=3)
    return job, base.check_choice(job, base.load_tuner(tuner.name)(job))


@pytest.mark.parametrize("workload", list(SIZES))
@pytest.mark.parametrize("tuner", ["pick", "triton"])
def test_a_kernel_in_triton_is_tuned_by_ours_and_by_its_own(tuner: str, workload: str, cuda: str) -> None:
    job, found = found_by(tuner, workload, "triton", cuda)
    assert found.reason is None
    assert found.config in list(workloads.find_workload(workload, "triton").configs(job.subject.params))
    assert found.time_us is not None
    assert any(each.time_us == found.time_us for each in found.tried)


@pytest.mark.parametrize("workload", list(SIZES))
def test_a_kernel_in_helion_is_tuned_by_helion_and_timed_again_as_it_chose(workload: str, cuda: str) -> None:
    pytest.importorskip("helion", reason="Helion is not installed here")
    job, found = found_by("helion", workload, "helion", cuda)
    assert found.reason is None
    assert found.time_us is not None
    assert found.tuning_s is not None
    assert len(found.tried) > 1
    ready = workloads.find_workload(workload, "helion").prepare(job.subject.params, found.config, device=cuda, seed=0)
    ready.call()
    ready.synchronize()
    assert ready.check is not None
    assert ready.check().passed
    assert ready.launched_kernels is not None
    assert ready.launched_kernels().backend == "helion"
