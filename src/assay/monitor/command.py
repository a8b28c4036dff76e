"""A command that is watched: it and all it starts end with us, whatever ends us."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, Self

from assay.core import leases
from assay.core.errors import BadInput, MachineCannot
from assay.core.processes import kill_marked, marks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

GRACE_S = 5.0


class WatchedCommand:
    """A running command. It shares our terminal, and so gets a Ctrl-C as we do."""

    def __init__(self, argv: Sequence[str], *, stdout: int | None = None) -> None:
        token = leases.new_id()
        self._lease = leases.take("process", f"watched command {argv[0]}", f"{__name__}:end_all", {"token": token})
        try:
            self._process = subprocess.Popen(argv, stdout=stdout, env={**os.environ, **marks(token)})
        except BaseException as error:
            leases.release(self._lease)
            if isinstance(error, OSError):
                raise MachineCannot(f"{argv[0]} could not be started: {error.strerror}.") from error
            raise

    @property
    def ended(self) -> bool:
        """Whether the command has ended."""
        return self._process.poll() is not None

    def end(self, sent: signal.Signals) -> int:
        """Have the command ended: tell it, give it time, then kill what is left of it; return its exit code.

        A Ctrl-C has reached it already.
        """
        if self._process.poll() is None:
            if sent != signal.SIGINT:
                self._process.send_signal(sent)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)
        leases.release(self._lease)
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave nothing of it behind."""
        leases.release(self._lease)
        self._process.wait()


def check(argv: Sequence[str]) -> None:
    """Make sure that a command can be found.

    Raises:
        BadInput: It cannot.
    """
    if shutil.which(argv[0]) is None:
        raise BadInput(f"There is no command {argv[0]!r} to be found.")


def end_all(token: str) -> None:
    """End a watched command and all it started; safe to do twice."""
    kill_marked(token)
