"""Triton's own auto-tuner, over the same configurations that Assay's picks from."""

from __future__ import annotations

import math
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

from assay.core.errors import BadInput, MachineCannot
from assay.core.results import Tried
from assay.tuners.base import Found, space
from assay.workloads import registry
from assay.workloads.torch_device import import_torch
from assay.workloads.triton_common import kernel, launch_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.core.values import Params
    from assay.tuners.base import Job
    from assay.workloads.triton_common import Launch, TritonWorkload

DOES_NOT_RUN = "it does not compile, or needs more than this GPU has"
NOT_TOLD = "triton.autotune times each configuration for as long as it likes: it cannot be told a budget"


def tune(job: Job) -> Found:
    """Have ``triton.autotune`` choose, made anew, so that nothing is known from before."""
    if job.subject.impl != "triton":
        raise BadInput(f"triton.autotune tunes kernels in Triton, and {job.subject.label} is none")
    if not job.device.startswith("cuda"):
        raise MachineCannot(f"triton.autotune times on a GPU, and {job.device} is none")
    workload = registry.find(job.subject.workload, job.subject.impl)
    configs = space(workload, job)
    launch = cast("TritonWorkload", workload).launch(job.subject.params, device=job.device, seed=job.seed)
    result = tuned(launch, configs)
    import_torch().cuda.synchronize()
    return result


def tuned(launch: Launch, configs: Sequence[Params], do_bench: Callable[..., Any] | None = None) -> Found:
    """Tune a launch over configurations; without a timer, by Triton's own."""
    import triton

    settings = [launch.settings(config) for config in configs]
    triton_configs = [
        triton.Config(setting, **launch_options(config)) for setting, config in zip(settings, configs, strict=True)
    ]
    tuner: Any = triton.autotune(triton_configs, key=[], do_bench=do_bench)(kernel(launch.kernel))
    tuner.cache_results = False  # or a variable of the user's has it take what it found another time
    tuner[launch.grid](*launch.args, **launch.fixed)
    timings = getattr(tuner, "configs_timings", {})
    config_of = dict(zip(triton_configs, configs, strict=True))
    tried = tuple(_tried(config_of[triton_config], timing) for triton_config, timing in timings.items())
    best = config_of[tuner.best_config]
    works = {str(entry.config): entry.time_us for entry in tried}
    if tried and works[str(best)] is None:
        return Found(None, tried=tried, version=version("triton"), reason=f"no configuration works: {DOES_NOT_RUN}")
    return Found(best, works.get(str(best)), tried, version=version("triton"), notes=(NOT_TOLD,))


def _tried(config: Params, timing: float | Sequence[float]) -> Tried:
    """Return a configuration with the median that Triton saw, in milliseconds; infinite where it did not run."""
    median_ms = timing if isinstance(timing, int | float) else timing[0]
    if not math.isfinite(median_ms):
        return Tried(config=config, reason=DOES_NOT_RUN)
    return Tried(config=config, time_us=1000 * median_ms)
