"""Records of worlds in which everything is known: their samples are in memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from assay.store.records import Records

if TYPE_CHECKING:
    from assay.core.results import Record, Series
    from assay.stats.intervals import Samples


class Remembered(Records):
    """Records whose samples are in memory."""

    def __init__(self, records: list[Record], kept: dict[str, Samples]) -> None:
        super().__init__(records, Path())
        self._kept = kept

    def samples(self, series: Series) -> Samples:
        return self._kept[series.file]
