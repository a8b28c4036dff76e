"""Inside an existing torchrun: rank 0 runs the loop, and the workers are spread over its processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from assay.core.errors import BadInput
from assay.worker.rendezvous import Torchrun
from tests.needing import need_modules
from tests.running import survivors, wait_for

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.full

need_modules("torch")
QUICK = ("--device", "cpu", "--isolation", "none", "--benchmark-runs", "5", "--restarts", "2", "--timeout", "60")


def torchrun(workplace: Path, processes: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--rdzv-backend"]
    return subprocess.run(
        [*command, "c10d", "--rdzv-endpoint", "localhost:0", "-m", "assay", *arguments],
        cwd=workplace,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_the_ranks_of_a_torchrun_measure_as_one(workplace: Path, assay_home: Path) -> None:
    done = torchrun(workplace, 2, "run", "bad.py:notes_rank", *QUICK, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (record,) = found["records"]
    assert record["status"] == "ok"
    assert sorted({(e["rank"], e["restart"]) for e in record["evidence"]}) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    told = [(workplace / f"rank-{rank}.txt").read_text().split() for rank in range(2)]
    assert [t[0] for t in told] == ["0", "1"]
    assert {t[2] for t in told} == {"2"}
    assert told[0][3:] == told[1][3:]
    wait_for(lambda: not survivors(assay_home))


def test_a_rank_that_dies_elsewhere_is_named_and_nobody_hangs(workplace: Path, assay_home: Path) -> None:
    done = torchrun(workplace, 2, "run", "bad.py:second_rank_dies", *QUICK)
    assert done.returncode != 0
    assert "rank 1 of ranks: the worker ended without an answer (exit code 7)" in done.stderr
    wait_for(lambda: not survivors(assay_home))


def test_more_ranks_than_torchrun_has_are_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.cli.run import rank_count

    assert Torchrun.from_environment({}) is None
    around = {
        "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "here", "MASTER_PORT": "1",
        "TORCHELASTIC_RUN_ID": "x",
    }  # fmt: skip
    place = Torchrun.from_environment(around)
    assert place is not None
    assert (place.rank, place.world_size, place.agent_store) == (1, 2, False)
    for name, value in around.items():
        monkeypatch.setenv(name, value)
    assert rank_count(None) == 2
    with pytest.raises(BadInput, match="more than the 2 processes"):
        rank_count(4)
