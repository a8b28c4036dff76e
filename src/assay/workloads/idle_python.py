"""Nothing at all, for a while: what a device draws when nobody asks anything of it."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.workloads.base import Prepared
from assay.workloads.parameters import flag
from assay.workloads.torch_device import import_torch, open_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.values import Params
    from assay.workloads.base import Workload

LONGEST_S = 60.0


class IdlePython:
    """``idle@python``. A GPU with an open context draws more than one without, so that it is said which is meant."""

    name = "idle"
    impl = "python"
    device_kinds = frozenset({"cpu", "cuda"})
    summary = "Does nothing for period_s a call; on a GPU with a context open, or none"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return how long a call sleeps, and whether a GPU has a context open meanwhile."""
        return {"period_s": 0.05, "context": True}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return nothing: there is nothing to tune."""
        return ()

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse a period that is none."""
        _period_s(params)

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Open a context where one is asked for. A call returns when it has slept, so the host's clock is meant."""
        if device.startswith("cuda") and flag(params, "context"):
            import_torch().zeros(1, device=open_device(device))
        return Prepared(call=partial(time.sleep, _period_s(params)), waits_itself=True)


def _period_s(params: Params) -> float:
    period_s = params["period_s"]
    if isinstance(period_s, bool | str) or period_s is None or not 0 < period_s <= LONGEST_S:
        raise BadInput(f"idle: period_s is above 0 and at most {LONGEST_S:g} s, not {period_s!r}.")
    return float(period_s)


WORKLOAD: Workload = IdlePython()
