"""Ends what still runs of an order, and sees it gone."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from assay.hosts.remote.there import folder as its
from assay.hosts.remote.there.keeper import GRACE_S, UNDOING_S


def main(folder: Path) -> int:
    """Ask its keeper to end it; without one, end it ourselves. Not 0: something is still there."""
    deadline = time.monotonic() + GRACE_S + UNDOING_S + 15
    requested = False
    while (keeper := its.keeper_of(folder)) is not None and time.monotonic() < deadline:
        if not requested:
            os.kill(keeper, signal.SIGTERM)
            requested = True
        time.sleep(0.02)
    if keeper is not None:
        os.kill(keeper, signal.SIGKILL)
    if not requested:
        for pid in its.belonging(folder):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)
    return 0 if its.see_gone(folder, 0.0 if requested else UNDOING_S) else 1


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
