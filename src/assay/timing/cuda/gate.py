"""A gate on a stream: work launched behind it waits until the host opens it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.timing.cuda.driver import Kernels

_OPEN = 1
_GIVEN_UP = 2


class Gate:
    """A kernel that watches a word of the host's memory, and opens by itself after a while: nothing hangs on it."""

    def __init__(self, torch: Any, kernels: Kernels) -> None:
        self._memory = torch.zeros(2, dtype=torch.int32, pin_memory=True)
        self._words = self._memory.numpy()
        self._kernels = kernels

    @contextmanager
    def closed(self, stream: int, most_ns: int) -> Iterator[Gate]:
        """Hold a stream, given by its handle, for the length of a ``with`` block and at most so many nanoseconds."""
        self._words[:] = 0
        self._kernels.launch("gate", int(self._memory.data_ptr()), most_ns)(stream)
        try:
            yield self
        finally:
            self._words[0] = _OPEN

    @property
    def given_up(self) -> bool:
        """Whether it opened by itself; known once the stream has passed it."""
        return int(self._words[1]) == _GIVEN_UP

    @property
    def passed(self) -> bool:
        """Whether the stream has passed it, either way."""
        return int(self._words[1]) != 0
