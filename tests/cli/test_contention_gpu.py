"""What only a GPU can show of ``assay contention run``: an auto-tuner with a space of its own, end to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.machine import nvidia

if TYPE_CHECKING:
    from tests.running import Assay

pytestmark = pytest.mark.gpu


def test_helion_tunes_in_every_phase_and_its_picks_are_timed_again_beside_its_default(assay: Assay) -> None:
    if not nvidia.list_gpus().gpus:
        pytest.skip("there is no GPU here")
    pytest.importorskip("helion", reason="Helion is not installed here")
    ran = assay(
        "contention", "run", "--tuner", "helion", "--gpus", "0", "--repeat", "1", "--budget", "60", "--no-monitor",
        "--benchmark", "softmax", "--param", "rows=512", "--param", "cols=1024", "--timeout", "300", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    tunings = [tuning for record in ran.data["records"] for tuning in record["tunings"]]
    assert len(tunings) == 2
    assert all(tuning["config"] is not None and tuning["time_us"] > 0 for tuning in tunings)
    retimed = [record for record in ran.data["records"] if record["block"] == "retimed"]
    assert [record["status"] for record in retimed] == ["ok"]
    assert {series["subject"] for series in retimed[0]["series"]} >= {0, 1}
