"""Downloads from another machine.

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
from assay.store.records import verify_file
from assay.store.run_folder import RunFolder, point_latest

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.hosts.base import Job, JobWatcher
    from assay.hosts.remote.connection import RemoteConnection


RESUME_HINT = re.compile(rb"[^\n]*Stopped by SIG\w+;[^\n]*assay resume [^\n]*\n")
"""The last line of a remote Assay that is stopped: how to resume on that machine."""

AGENT_REASONS = frozenset({"late", "unheard", "asked"})
"""Reasons of a stop by the supervisor; then the hint is dropped, and the local process prints the right one."""


def remote_runs_folder(job_id: str) -> str:
    """Return the remote folder of runs, relative to the working folder; its unique name can be found in any output."""
    return f"runs-{job_id}"


class FrameReader:
    """Reads frames from chunks of one or several successive connections, and counts the bytes received."""

    def __init__(self, job: Job, watcher: JobWatcher) -> None:
        self._job = job
        self._buffer = b""
        self._lines = {"o": LineTranslator(watcher.out), "e": LineTranslator(watcher.err)}
        self.at = {"o": 0, "e": 0}
        self.begun = False
        self.ended: dict[str, Any] | None = None

    def take(self, data: bytes) -> None:
        """Process a chunk."""
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
        """Discard an incomplete frame: it is sent again as a whole."""
        self._buffer = b""

    def flush(self) -> None:
        """Pass on an unfinished last line and the resume hint, unless the local process prints its own."""
        if self.ended is not None and self.ended.get("why") in AGENT_REASONS:
            self._lines["e"].forget_way_on()
        for lines in self._lines.values():
            lines.flush()

    def _frame(self, kind: str, data: bytes) -> None:
        if kind == "f":
            self.begun = True
            for lines in self._lines.values():
                lines.pairs = path_translations(self._job, os.fsdecode(data))
        elif kind == "x":
            self.ended = json.loads(data)
        elif kind in self._lines:
            self.at[kind] += len(data)
            self._lines[kind].take(data)


class LineTranslator:
    """Passes on whole lines, with remote paths replaced by local ones."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._kept = b""
        self.pairs: tuple[tuple[bytes, bytes], ...] = ()

    def take(self, data: bytes) -> None:
        """Process a chunk of any length."""
        lines, newline, rest = (self._kept + data).rpartition(b"\n")
        lines += newline
        last = lines.rfind(b"\n", 0, -1) + 1
        end = last if not rest and RESUME_HINT.fullmatch(lines, last) else len(lines)
        self._kept = lines[end:] + rest
        if end:
            self._write(self._translated(lines[:end]))

    def forget_way_on(self) -> None:
        """Drop the last line if it is the remote resume hint."""
        if RESUME_HINT.fullmatch(self._kept):
            self._kept = b""

    def flush(self) -> None:
        """Pass on the rest."""
        if self._kept:
            self._write(self._translated(self._kept))
        self._kept = b""

    def _translated(self, data: bytes) -> bytes:
        for remote_path, local_path in self.pairs:
            data = data.replace(remote_path, local_path)
        return data


def path_translations(job: Job, folder: str) -> tuple[tuple[bytes, bytes], ...]:
    """Return pairs of remote and local paths: the folder of runs, absolute and relative, and the working folder."""
    start, runs = f"{folder}/{start_folder(job.files)}", remote_runs_folder(job.id)
    output_dir = Path(job.output_dir)
    is_below = output_dir.is_relative_to(job.cwd) and job.cwd != "/"
    short = output_dir.relative_to(job.cwd) if is_below else output_dir
    prefix = b"" if str(short) == "." else os.fsencode(short) + b"/"
    return (
        (os.fsencode(f"{start}/{runs}"), os.fsencode(output_dir)),
        (os.fsencode(f"{runs}/"), prefix),
        (os.fsencode(runs), os.fsencode(short)),
        (os.fsencode(start), os.fsencode(job.cwd)),
    )


DOWNLOADED = "brought"
NOT_A_RUN = (BadInput, ValueError, tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, FileExistsError)
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,200}")


def download_run(connection: RemoteConnection, job: Job, script: str) -> tuple[Path, ...]:
    """Run a script that sends a run folder as a tar; return the path of the run here.

    Raises:
        MachineCannot: The archive is not a valid run; it is kept in the job's folder.
        RemoteConnectionLost: The connection broke.
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
    """Unpack a run and validate every file that is read later; return its folder."""
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
    """Move a run to its place, replacing the older state of a resumed run."""
    target = parent / run.name
    if target.exists():
        old = run.parent / f"{run.name}.before"
        target.rename(old)
    run.rename(target)
    point_latest(parent, target.name)
    return target
