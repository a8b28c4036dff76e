"""Which right to change limits and clocks is missing, found out without changing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.machine.doctor import missing_rights

if TYPE_CHECKING:
    from pathlib import Path

EVERY_RIGHT, OF_A_CONTAINER = "000001ffffffffff", "00000000a80425fb"


@pytest.mark.parametrize(
    ("user_id", "effective", "said"),
    [
        (1000, EVERY_RIGHT, "only root may"),
        (0, OF_A_CONTAINER, "CAP_SYS_ADMIN"),
        (0, EVERY_RIGHT, None),
        (0, None, None),
    ],
)
def test_only_root_with_the_capability_may(
    tmp_path: Path, user_id: int, effective: str | None, said: str | None
) -> None:
    if effective is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/status").write_text(f"Name:\tpython\nCapPrm:\t0\nCapEff:\t{effective}\n")
    found = missing_rights(tmp_path, user_id=user_id)
    assert found is None if said is None else said in str(found)
