"""``assay trace`` on a real GPU: kernels by the card's own clock, its sensors, and counters where they may be read."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.machine import nvidia

if TYPE_CHECKING:
    from tests.running import Assay

pytestmark = pytest.mark.gpu


def test_kernels_of_a_real_gpu_have_their_shape_their_sensors_and_perhaps_their_counters(assay: Assay) -> None:
    if not nvidia.list_gpus().gpus:
        pytest.skip("there is no GPU here")
    ran = assay("trace", "softmax@torch", "--gpus", "0", "--calls", 5, "--json")
    assert ran.code == 0, ran.err
    with (Path(ran.data["folder"]) / "kernels.csv").open(newline="", encoding="utf-8") as file:
        kernels = [row for row in csv.DictReader(file) if row["kind"] == "kernel"]
    assert {row["call"] for row in kernels} == {str(call) for call in range(5)}
    for row in kernels:
        assert float(row["duration_us"]) > 0
        assert row["grid"]
        assert int(row["registers"]) > 0
        assert float(row["sm_mhz"]) > 0
        assert abs(float(row["sensor_offset_ms"])) < 100
    starts = [int(row["start_ns"]) for row in kernels]
    assert starts == sorted(starts)
    assert ran.data["clock_error_us"] < 1000
    counters = ran.data["counters"]
    if counters["refused"] is None:
        assert counters["matched"] == len(kernels)
        assert all(0 < float(row["sm_efficiency_percent"]) <= 100 for row in kernels)
    else:
        assert all(row["sm_efficiency_percent"] == "" for row in kernels)
