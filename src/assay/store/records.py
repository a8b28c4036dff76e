"""Records as a sequence whose samples can be opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from assay.core.errors import BadInput
from assay.monitor.reading import read, read_window

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from assay.core.results import Record, Series
    from assay.monitor.lines import Line


class Records(Sequence["Record"]):
    """Records of one run in the order they were taken; samples are read from their files when asked for."""

    def __init__(self, records: Sequence[Record], folder: Path) -> None:
        self._records = tuple(records)
        self._folder = folder

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Records: ...
    def __getitem__(self, index: int | slice) -> Record | Records:
        if isinstance(index, slice):
            return Records(self._records[index], self._folder)
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    @property
    def run(self) -> str:
        """The name of the run folder."""
        return self._folder.name

    def samples(self, series: Series) -> NDArray[np.float64]:
        """Return every sample of a series, in the order it was taken."""
        path = self._folder / series.file
        try:
            samples = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise BadInput(f"The samples in {path} cannot be read: {error}.") from None
        return np.asarray(samples, dtype=np.float64)

    def watched(self) -> Iterator[Line]:
        """Give what the monitor wrote during the run, one file after another; a file that is gone gives nothing."""
        for name in dict.fromkeys(record.sensors for record in self._records if record.sensors is not None):
            path = self._folder / name
            if path.is_file():
                yield from read(path)

    def watched_between(self, record: Record, start_ns: int, end_ns: int, *, margin_s: float = 0.0) -> tuple[Line, ...]:
        """Return what the monitor wrote beside a record from one moment to another; nothing where none watched."""
        path = None if record.sensors is None else self._folder / record.sensors
        if path is None or not path.is_file():
            return ()
        return read_window(path, start_ns, end_ns, margin_s=margin_s)
