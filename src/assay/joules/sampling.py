"""Reading a meter again and again beside what is measured, in a thread: its slow answers hold nobody up."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from assay.core.errors import MachineCannot

if TYPE_CHECKING:
    from assay.joules.clock import Clock
    from assay.joules.readings import Meter, Reading

GIVE_UP_AFTER = 20
"""So many times in a row without an answer."""
JOIN_S = 5.0


class Sampling(Protocol):
    """Readings that come in while other things are done."""

    def start(self) -> None:
        """Begin to read."""

    def taken(self) -> list[Reading]:
        """Return all readings so far.

        Raises:
            MachineCannot: The device does not answer any more.
        """

    def stop(self) -> list[Reading]:
        """Read no more, and return all readings."""


class Poller:
    """Reads a meter in a thread of its own, ``every_s`` or as fast as it answers."""

    def __init__(self, meter: Meter, clock: Clock, every_s: float) -> None:
        self._meter = meter
        self._clock = clock
        self._every_s = every_s
        self._readings: list[Reading] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._read_on, name="assay-joules", daemon=True)
        self._trouble: BaseException | None = None

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def _read_on(self) -> None:
        silent = 0
        try:
            while not self._stopping.is_set():
                begin_ns = self._clock.now_ns()
                reading = self._meter.read()
                silent = 0 if reading is not None else silent + 1
                if reading is not None:
                    self._readings.append(reading)
                if self._meter.lost is not None or silent >= GIVE_UP_AFTER:
                    why = self._meter.lost or self._meter.last_error
                    raise MachineCannot(f"The device stopped saying what it spends: {why}.")  # noqa: TRY301
                took_s = (self._clock.now_ns() - begin_ns) / 1e9
                self._stopping.wait(max(0.0, self._every_s - took_s))
        except BaseException as error:  # noqa: BLE001 - told to the thread that asks for readings
            self._trouble = error

    def taken(self) -> list[Reading]:
        """Return all readings so far, or raise what ended them."""
        if self._trouble is not None:
            raise self._trouble
        return list(self._readings)

    @property
    def alive(self) -> bool:
        """Whether it reads."""
        return self._thread.is_alive()

    def stop(self) -> list[Reading]:
        """Read no more, and return all readings, or raise what ended them."""
        self._stopping.set()
        if self.alive:
            self._thread.join(JOIN_S)
        return self.taken()
