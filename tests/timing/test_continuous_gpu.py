"""Continuous calls on a real GPU: no gap between them, and their times as a plain loop has them."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import pytest

from assay.timing.continuous import EventCallStream, probe_calls_per_sample, run_continuously

pytestmark = pytest.mark.gpu


def lane_of(torch: Any, size: int) -> EventCallStream:
    a, b = (torch.randn(size, size, device="cuda:0") for _ in range(2))
    out = torch.empty_like(a)
    call = partial(torch.mm, a, b, out=out)
    finish = partial(torch.cuda.synchronize, "cuda:0")
    event = partial(torch.cuda.Event, enable_timing=True)
    return EventCallStream(
        [call], [probe_calls_per_sample(call, finish)], event=event, synchronize=finish, limit_s=60.0
    )


@pytest.mark.parametrize("size", [512, 4096, 16384])
def test_where_the_host_keeps_up_there_is_no_gap_between_calls(cuda: str, size: int) -> None:
    import torch

    stretch = run_continuously(lane_of(torch, size), until_ns=time.perf_counter_ns() + 3_000_000_000)
    spans, starts = (np.array(series.samples) for series in stretch.series)
    calls = stretch.series[0].calls_per_sample
    ends_us = starts + calls * spans
    gaps_us = starts[1:] - ends_us[:-1]
    # the shortest gaps: what the host does beside it may lengthen many, and never shortens one
    assert np.quantile(gaps_us, 0.1) < 0.02 * calls * np.median(spans)
    assert (calls * spans).sum() + gaps_us.sum() + starts[0] == pytest.approx(ends_us[-1])
    assert ends_us[-1] <= (stretch.end_ns - stretch.start_ns) / 1e3


def test_calls_longer_than_any_delay_of_the_host_fill_the_time(cuda: str) -> None:
    import torch

    stretch = run_continuously(lane_of(torch, 16384), until_ns=time.perf_counter_ns() + 3_000_000_000)
    series = stretch.series[0]
    busy_us = np.array(series.samples).sum() * series.calls_per_sample
    assert busy_us / ((stretch.end_ns - stretch.start_ns) / 1e3) > 0.97


def test_with_a_duty_the_gpu_is_busy_for_that_share(cuda: str) -> None:
    import torch

    stretch = run_continuously(lane_of(torch, 4096), until_ns=time.perf_counter_ns() + 3_000_000_000, duty=0.4, seed=1)
    series = stretch.series[0]
    busy_us = np.array(series.samples).sum() * series.calls_per_sample
    assert busy_us / ((stretch.end_ns - stretch.start_ns) / 1e3) == pytest.approx(0.4, rel=0.05)
