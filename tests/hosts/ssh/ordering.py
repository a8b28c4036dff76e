"""Orders for tests, and who listens to them."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING, Any

from assay.hosts.base import Job
from assay.hosts.remote.connection import RemoteConnection, run_process
from assay.hosts.remote.transfer import remote_runs_folder

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from assay.hosts.base import JobProgress
    from assay.hosts.remote.connection import Take

QUICK = ("--device", "cpu:0", "--isolation", "none", "--benchmark-runs", "3", "--no-monitor")


class Listener:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.printed = b""
        self.said = b""

    def progress(self, progress: JobProgress) -> None:
        """Keep a line."""
        self.told.append(progress.what)

    def out(self, data: bytes) -> None:
        """Keep the result."""
        self.printed += data

    def err(self, data: bytes) -> None:
        """Keep the rest."""
        self.said += data


class HereLine(RemoteConnection):
    """A line to this very machine: what is done there is done by a shell here."""

    where = "gpu7"

    def _run(self, script: str, feed: Iterable[bytes], out: Take, err: Take, within_s: float | None) -> int:
        return run_process(["sh", "-c", script], feed=feed, out=out, err=err, within_s=within_s)


def order_for(workplace: Path, *words: str, **changes: Any) -> Job:
    """Return an order to run these words on a machine elsewhere, with the interpreter of these tests."""
    number = secrets.token_hex(8)
    whole = ("run", "--output-dir", remote_runs_folder(number), *words[1:]) if words and words[0] == "run" else words
    return Job(
        **{
            "id": number,
            "words": whole or ("list",),
            "cwd": str(workplace),
            "folder": str(workplace / "runs" / f"ssh-{number[:4]}"),
            "output_dir": str(workplace / "runs"),
            "python": sys.executable,
            **changes,
        }
    )
