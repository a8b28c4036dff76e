"""The example of isolation levels runs as it is, and each level did what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

EXAMPLE = Path(__file__).resolve().parents[1] / "examples/isolation_levels.py"


def test_every_level_is_shown_with_where_its_processes_ran() -> None:
    ran = subprocess.run(
        [sys.executable, EXAMPLE, "--seconds", "0.05"], capture_output=True, text=True, check=False, timeout=110
    )
    assert ran.returncode == 0, ran.stderr
    lines = [re.split(r"\s{2,}", line) for line in ran.stdout.splitlines()]
    rows = {line[0]: line[1:] for line in lines[1:8]}
    assert list(rows) == ["alone", "1 naive", "2 GPU only", "3 pinned", "4 + NUMA", "5 full", "Assay, full"]
    assert all(row[0].endswith(" µs") for row in rows.values())
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core cannot be shared out")
    for name in ("3 pinned", "4 + NUMA", "5 full", "Assay, full"):
        first, second = (set(part.split(",")) for part in rows[name][3].split(" | "))
        assert not first & second, name
    assert rows["1 naive"][5] == "default | default"
    assert rows["5 full"][5] == rows["Assay, full"][5]
