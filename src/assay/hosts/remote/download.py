"""What comes back from another machine.

The output frames of `agent.follow`, with remote paths translated, and the run folder.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pydantic import ValidationError

from assay.core.errors import BadInput, MachineCannot
from assay.core.files import append_line, read_json, translate_os_errors
from assay.core.results import Findings
from assay.core.values import first_problem
from assay.hosts.remote.agent.folder import NOTHING_THERE, RUN, unpack
from assay.hosts.remote.upload import last_line, start_folder
from assay.store.run_folder import RunFolder, point_latest
from assay.store.seal import verify_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.hosts.base import Job, JobWatcher
    from assay.hosts.remote.connection import RemoteConnection


RESUME_HINT = re.compile(rb"[^\n]*Stopped by SIG\w+;[^\n]*assay resume [^\n]*\n")
"""How the Assay there ends when it is stopped: it says how to go on there."""

AGENT_REASONS = frozenset({"late", "unheard", "asked"})
"""Why it was stopped, where its keeper did that: then how to go on is said here, and rightly."""


def remote_runs_folder(order_id: str) -> str:
    """Return where runs are kept there, from the working folder: a name that stands nowhere else in what is printed."""
    return f"runs-{order_id}"


class FrameReader:
    """Takes what comes, piece by piece, over one line or several after one another; knows how far it has come."""

    def __init__(self, job: Job, watcher: JobWatcher) -> None:
        self._order = job
        self._buffer = b""
        self._lines = {"o": LineTranslator(watcher.out), "e": LineTranslator(watcher.err)}
        self.at = {"o": 0, "e": 0}
        self.begun = False
        self.ended: dict[str, Any] | None = None

    def take(self, data: bytes) -> None:
        """Take a piece."""
        self._buffer += data
        while True:
            head, newline, rest = self._buffer.partition(b"\n")
            if not newline:
                return
            size = int(head[1:])
            if len(rest) < size:
                return
            self._buffer = rest[size:]
            self._frame(head[:1].decode(), rest[:size])

    def cut(self) -> None:
        """Forget a frame of which only a part came: it comes again, as a whole."""
        self._buffer = b""

    def flush(self) -> None:
        """Hand on what ended without a line break, and how to go on, unless that is said here."""
        if self.ended is not None and self.ended.get("why") in AGENT_REASONS:
            self._lines["e"].forget_way_on()
        for lines in self._lines.values():
            lines.flush()

    def _frame(self, kind: str, data: bytes) -> None:
        if kind == "f":
            self.begun = True
            for lines in self._lines.values():
                lines.pairs = path_translations(self._order, os.fsdecode(data))
        elif kind == "x":
            self.ended = json.loads(data)
        elif kind in self._lines:
            self.at[kind] += len(data)
            self._lines[kind].take(data)


class LineTranslator:
    """Hands on whole lines, with paths there turned into paths here."""

    def __init__(self, translations: Callable[[bytes], None]) -> None:
        self._told = translations
        self._kept = b""
        self.pairs: tuple[tuple[bytes, bytes], ...] = ()

    def take(self, data: bytes) -> None:
        """Take a piece of any length."""
        whole, newline, rest = (self._kept + data).rpartition(b"\n")
        whole += newline
        last = whole.rfind(b"\n", 0, -1) + 1
        at = last if not rest and RESUME_HINT.fullmatch(whole, last) else len(whole)
        self._kept = whole[at:] + rest
        if at:
            self._told(self._translated(whole[:at]))

    def forget_way_on(self) -> None:
        """Do not hand on the last line, if it says how to go on there."""
        if RESUME_HINT.fullmatch(self._kept):
            self._kept = b""

    def flush(self) -> None:
        """Hand on the rest."""
        if self._kept:
            self._told(self._translated(self._kept))
        self._kept = b""

    def _translated(self, data: bytes) -> bytes:
        for there, here in self.pairs:
            data = data.replace(there, here)
        return data


def path_translations(job: Job, folder: str) -> tuple[tuple[bytes, bytes], ...]:
    """Return what stands there for what here: the folder of runs, whole and from the working folder; that itself."""
    start, runs = f"{folder}/{start_folder(job.files)}", remote_runs_folder(job.id)
    here = Path(job.output_dir)
    short = here.relative_to(job.cwd) if here.is_relative_to(job.cwd) and job.cwd != "/" else here
    prefix = b"" if str(short) == "." else os.fsencode(short) + b"/"
    return (
        (os.fsencode(f"{start}/{runs}"), os.fsencode(here)),
        (os.fsencode(f"{runs}/"), prefix),
        (os.fsencode(runs), os.fsencode(short)),
        (os.fsencode(start), os.fsencode(job.cwd)),
    )


DOWNLOADED = "brought"
NOT_A_RUN = (BadInput, ValueError, tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, FileExistsError)
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,200}")


def download_run(connection: RemoteConnection, job: Job, script: str) -> tuple[Path, ...]:
    """Run a script that sends a run folder as a tar; return where the run is now.

    Raises:
        MachineCannot: What came is not a run; it is kept in the order's folder.
        RemoteConnectionLost: The line broke.
    """
    parent = Path(job.output_dir)
    with translate_os_errors(parent):
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".brought-", dir=parent) as scratch:
            archive = Path(scratch) / "run.tar.gz"
            with archive.open("wb") as file:
                result = connection.do(script, out=_download_into(file))
            if result.code == NOTHING_THERE:
                return ()
            if result.code != 0:
                raise MachineCannot(f"The run could not be fetched from {connection.where}: {last_line(result.err)}.")
            try:
                run = _verify_run(archive, Path(scratch) / DOWNLOADED, json.loads(result.err)["start"], job)
            except NOT_A_RUN as error:
                raise MachineCannot(_keep_broken(archive, job, connection.where, error)) from error
            run_path = _install_run(run, parent)
    Path(job.folder).mkdir(parents=True, exist_ok=True)
    append_line(Path(job.folder) / RUN, str(run_path))
    return (run_path,)


def _download_into(file: IO[bytes]) -> Callable[[bytes], None]:
    def write(data: bytes) -> None:
        file.write(data)

    return write


def _verify_run(archive: Path, scratch: Path, start: str, job: Job) -> Path:
    """Unpack a run and read all of it that is read later; return its folder."""
    with archive.open("rb") as file:
        unpack(file, scratch)
    run, *others = scratch.iterdir()
    if others:
        raise BadInput("it is not one folder")
    if not _NAME.fullmatch(run.name):
        raise BadInput(f"a run is not called {run.name!r}")
    folder = RunFolder.open(run)
    folder.verify()
    if (run / "findings.json").exists():
        verify_file(run / "findings.json")
        try:
            Findings.model_validate(read_json(run / "findings.json"))
        except ValidationError as error:
            raise BadInput(f"findings.json is not what this version of Assay writes: {first_problem(error)}") from None
    if folder.plan.cwd == start:
        folder.start_in(job.cwd)
    return run


def _keep_broken(archive: Path, job: Job, where: str, error: Exception) -> str:
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    broken_archive = folder / f"{DOWNLOADED}.tar.gz"
    shutil.move(archive, broken_archive)
    why = " ".join(str(error).split()).replace(f"{archive.parent}/{DOWNLOADED}/", "").rstrip(".")
    return f"What came back from {where} is not a run that can be believed ({why}); it is kept as {broken_archive}."


def _install_run(run: Path, parent: Path) -> Path:
    """Put a run in its place; the older state of a run that went on is replaced by the newer."""
    target = parent / run.name
    if target.exists():
        before = run.parent / f"{run.name}.before"
        target.rename(before)
    run.rename(target)
    point_latest(parent, target.name)
    return target
