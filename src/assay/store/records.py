"""Records as a sequence whose samples can be opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from assay.monitor.reading import read, read_window
from assay.store import recordings, samples

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from assay.core.results import Record, Series
    from assay.monitor.lines import Line


class Records(Sequence["Record"]):
    """Records of one run in the order they were taken; samples are read from their files when asked for.

    ``verified`` are sample files whose digests were looked at already. ``sealed`` is how far recordings are read, in
    bytes, by their names; those that it does not name are read whole.
    """

    def __init__(
        self,
        records: Sequence[Record],
        folder: Path,
        verified: Collection[str] = (),
        sealed: Mapping[str, int] | None = None,
    ) -> None:
        self._records = tuple(records)
        self._folder = folder
        self._verified = verified
        self._sealed = recordings.lengths(records) if sealed is None else sealed

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Records: ...
    def __getitem__(self, index: int | slice) -> Record | Records:
        if isinstance(index, slice):
            return Records(self._records[index], self._folder, self._verified, self._sealed)
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    @property
    def run(self) -> str:
        """The name of the run folder."""
        return self._folder.name

    def samples(self, series: Series) -> NDArray[np.float64]:
        """Return every sample of a series, in the order it was taken.

        Raises:
            DamagedFile: They are not as they were written.
            BadInput: They are missing, or lie outside the run folder.
        """
        return samples.load(self._folder, series, verified=series.file in self._verified)

    def watched(self) -> Iterator[Line]:
        """Give what the monitor wrote during the run, one file after another; a file that is gone gives nothing."""
        for name in dict.fromkeys(record.sensors for record in self._records if record.sensors is not None):
            path = samples.inside(self._folder, name)
            if path.is_file():
                yield from read(path, until=self._sealed.get(name))

    def watched_between(self, record: Record, start_ns: int, end_ns: int, *, margin_s: float = 0.0) -> tuple[Line, ...]:
        """Return what the monitor wrote beside a record from one moment to another; nothing where none watched."""
        path = None if record.sensors is None else samples.inside(self._folder, record.sensors)
        if record.sensors is None or path is None or not path.is_file():
            return ()
        return read_window(path, start_ns, end_ns, margin_s=margin_s, until=self._sealed.get(record.sensors))
