"""How a worker is undone: everything that carries its mark is ended, and its scratch folder goes."""

from __future__ import annotations

import shutil

from assay.core.processes import kill_marked


def end_worker(token: str, scratch: str) -> None:
    """End a worker and all it started, then remove what it left in its scratch folder; safe to do twice."""
    kill_marked(token)
    shutil.rmtree(scratch, ignore_errors=True)
