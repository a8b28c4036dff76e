"""The workers of command lines that tests run are forked, and see what they would see if they had been started."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.running import Assay

TELLING = """
import faulthandler, sys

def tells():
    with open("told.txt", "w") as file:
        file.write(f"{'tests.forked_children' in sys.modules} {faulthandler.is_enabled()}")
"""


def test_a_worker_is_forked_and_tells_where_it_crashes(assay: Assay, workplace: Path) -> None:
    (workplace / "mine.py").write_text(TELLING)
    ran = assay("run", "mine.py:tells", "--device", "cpu:0", "--benchmark-runs", "3", "--no-monitor")
    assert ran.code == 0, ran.err
    assert (workplace / "told.txt").read_text() == "True True"
