"""Triton's auto-tuner, over the same configurations as Assay's own tuner."""

from __future__ import annotations

import math
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

from assay.core.errors import BadInput, MachineCannot
from assay.core.results import TriedConfig
from assay.tuners.base import TuningResult, config_space
from assay.workloads import registry
from assay.workloads.kernel_support import launch_options, load_kernel
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.core.values import Params
    from assay.tuners.base import TuningJob
    from assay.workloads.kernel_support import TritonLaunch, TritonOperator

DOES_NOT_RUN = "it does not compile, or needs more than this GPU has"
NO_BUDGET_NOTE = "triton.autotune times each configuration for as long as it likes: it takes no budget"


def tune(job: TuningJob) -> TuningResult:
    """Let a new ``triton.autotune`` choose, so that no earlier result is used."""
    if job.subject.impl != "triton":
        raise BadInput(f"triton.autotune tunes kernels in Triton, and {job.subject.label} is none")
    if not job.device.startswith("cuda"):
        raise MachineCannot(f"triton.autotune times on a GPU, and {job.device} is none")
    workload = registry.find_workload(job.subject.workload, job.subject.impl)
    configs = config_space(workload, job)
    launch = cast("TritonOperator[Any]", workload).launch(job.subject.params, device=job.device, seed=job.seed)
    result = tune_launch(launch, configs)
    import_torch().cuda.synchronize()
    return result


def tune_launch(
    launch: TritonLaunch, configs: Sequence[Params], do_bench: Callable[..., Any] | None = None
) -> TuningResult:
    """Tune a launch over configurations; by default with Triton's own timer."""
    import triton

    settings = [launch.settings(config) for config in configs]
    pairs = zip(settings, configs, strict=True)
    triton_configs = [triton.Config(setting, **launch_options(config)) for setting, config in pairs]
    tuner: Any = triton.autotune(triton_configs, key=[], do_bench=do_bench)(load_kernel(launch.kernel))
    tuner.cache_results = False  # otherwise a variable set by the user makes it reuse earlier results
    tuner[launch.grid](*launch.args, **launch.fixed)
    timings = getattr(tuner, "configs_timings", {})
    config_of = dict(zip(triton_configs, configs, strict=True))
    tried = tuple(_tried_config(config_of[triton_config], timing) for triton_config, timing in timings.items())
    best = config_of[tuner.best_config]
    works = {str(entry.config): entry.time_us for entry in tried}
    if tried and works[str(best)] is None:
        none_works = f"no configuration works: {DOES_NOT_RUN}"
        return TuningResult(None, tried=tried, version=version("triton"), reason=none_works)
    return TuningResult(best, works.get(str(best)), tried, version=version("triton"), notes=(NO_BUDGET_NOTE,))


def _tried_config(config: Params, timing: float | Sequence[float]) -> TriedConfig:
    """Return a configuration with the median that Triton measured, in milliseconds; infinite where it did not run."""
    median_ms = timing if isinstance(timing, int | float) else timing[0]
    if not math.isfinite(median_ms):
        return TriedConfig(config=config, reason=DOES_NOT_RUN)
    return TriedConfig(config=config, time_us=1000 * median_ms)
