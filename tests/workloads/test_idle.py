"""Doing nothing: for as long as asked, and on a GPU without a context where none is wanted."""

from __future__ import annotations

import time

import pytest

from assay.core.errors import BadInput
from assay.workloads import registry
from assay.workloads.ops.host_load import IDLE_PYTHON as IDLE


@pytest.mark.parametrize("device", ["cpu:0", "cuda:0"])
def test_a_call_sleeps_and_is_timed_by_the_hosts_clock(device: str) -> None:
    ready = IDLE.prepare({"period_s": 0.01, "context": False}, None, device=device, seed=0)
    begin = time.perf_counter()
    ready.call()
    assert time.perf_counter() - begin >= 0.01
    assert ready.synchronizes_itself
    assert ready.flop is None


@pytest.mark.parametrize("period_s", ["0", "-1", "1e9"])
def test_a_period_that_cannot_be_is_refused(period_s: str) -> None:
    with pytest.raises(BadInput, match="period_s is above 0 and at most 60 s"):
        registry.resolve_subject("idle", device_kind="cuda", explicit={"period_s": period_s})
