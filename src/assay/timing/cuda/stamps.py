"""Stamps of the GPU's own clocks, before and after a call, and what they say.

    ready │ begin │ call │ end │ ready │ begin │ …          one stream, nothing waits for the host
              ↑ ns, cycles  ↑ ns, cycles

Now and then a spin of known duration stands in the place of a call: it shows what the stamps themselves take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.timing.cuda.driver import Kernels
    from assay.timing.instrument import Samples

    Mask = NDArray[np.bool_]

SLOTS = 64
_WORDS = 8  # of 64 bits: begin takes the first four, end the others
SHORT_NS = 20_000
"""Below this, the 32 ns steps of the device's timer show, and the cycle counter is asked."""


@dataclass(frozen=True)
class Stamps:
    """Pairs of stamps: nanoseconds and cycles between the two of each.

    ``cycles`` is null where a pair was not stamped on one multiprocessor: counters differ between them.
    """

    ns: Samples
    cycles: Samples | None

    def of(self, which: Mask) -> Stamps:
        """Return some of the pairs."""
        return Stamps(self.ns[which], None if self.cycles is None else self.cycles[which])

    @property
    def mhz(self) -> float | None:
        """The clock between the stamps, over all pairs; null where it is not known.

        Not over the whole batch: within microseconds of hard work the clock is lower than between.
        """
        total_ns = float(self.ns.sum())
        return None if self.cycles is None or total_ns <= 0 else float(self.cycles.sum()) / total_ns * 1000

    @property
    def us(self) -> Samples:
        """Microseconds of each pair: of the timer where it is fine enough, otherwise of the cycle counter."""
        mhz = self.mhz
        if self.cycles is None or mhz is None:
            return self.ns / 1000
        return np.where(self.ns < SHORT_NS, self.cycles / mhz, self.ns / 1000)


def read(words: NDArray[np.int64]) -> Stamps:
    """Return what the slots of some calls say, one row of eight words each."""
    begin, end = words[:, :4], words[:, 4:]
    ns = (end[:, 0] - begin[:, 0]).astype(np.float64)
    same = np.array_equal(begin[:, 2] & 0xFFFFFFFF, end[:, 2] & 0xFFFFFFFF)
    return Stamps(ns, (end[:, 1] - begin[:, 1]).astype(np.float64) if same else None)


class Slots:
    """Places on the device for stamps, and the launches that write them."""

    def __init__(self, torch: Any, kernels: Kernels, index: int) -> None:
        self._device = torch.zeros((SLOTS, _WORDS), dtype=torch.int64, device=f"cuda:{index}")
        self._host = torch.zeros((SLOTS, _WORDS), dtype=torch.int64, pin_memory=True)
        self._words = self._host.numpy()
        base = int(self._device.data_ptr())
        self.begin = [kernels.launch("begin", base + 8 * _WORDS * slot) for slot in range(SLOTS)]
        self.end = [kernels.launch("end", base + 8 * _WORDS * slot + 4 * _WORDS) for slot in range(SLOTS)]

    def fetch(self) -> None:
        """Put on the current stream the copy of all slots to the host."""
        self._host.copy_(self._device, non_blocking=True)

    def read(self, count: int) -> Stamps:
        """Return what the first slots say, once they are fetched."""
        return read(self._words[:count])

    def first(self) -> tuple[int, int, int]:
        """Return the stamp that begins the first slot, once it is fetched: nanoseconds, cycles, multiprocessor."""
        ns, cycles, multiprocessor = self._words[0, :3].tolist()
        return ns, cycles, multiprocessor & 0xFFFFFFFF
