from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.experiments.energy import report as tables
from tests.experiments.energy.made_rows import row

if TYPE_CHECKING:
    from assay.experiments.energy.result import EnergyRow


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((row(), row(batch=8)), False),
        ((row(), row(batch=8, width=None)), True),
        ((row(width=None), row(batch=8, width=None)), False),
    ],
)
def test_a_number_without_an_interval_is_explained_where_others_have_one(
    rows: tuple[EnergyRow, ...], said: bool
) -> None:
    (speeds,) = tables.speed_tables(rows)
    assert speeds.kind == "table"
    assert ("Without ±: too little for an interval (more repeats)" in (speeds.note or "")) == said
