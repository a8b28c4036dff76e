"""A run folder from another machine: read through before it is believed, and set in its place in one step."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING

from pydantic import ValidationError

from assay.core.durable import append_line, friendly_os_errors, read_json
from assay.core.errors import BadInput, MachineCannot
from assay.core.results import Findings
from assay.core.values import first_problem
from assay.hosts.remote.environment import last_line
from assay.hosts.remote.there.folder import NOTHING_THERE, RUN
from assay.hosts.remote.there.unpacking import unpack
from assay.store.runs import RunFolder, point_latest
from assay.store.seal import verify_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.hosts.base import Order
    from assay.hosts.remote.line import Line

BROUGHT = "brought"
NOT_A_RUN = (BadInput, ValueError, tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, FileExistsError)
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,200}")


def bring(line: Line, order: Order, script: str) -> tuple[Path, ...]:
    """Run a script that sends a run folder as a tar; return where the run is now.

    Raises:
        MachineCannot: What came is not a run; it is kept in the order's folder.
        LineLost: The line broke.
    """
    parent = Path(order.output_dir)
    with friendly_os_errors(parent):
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".brought-", dir=parent) as scratch:
            archive = Path(scratch) / "run.tar.gz"
            with archive.open("wb") as file:
                result = line.do(script, out=_into(file))
            if result.code == NOTHING_THERE:
                return ()
            if result.code != 0:
                raise MachineCannot(f"The run could not be fetched from {line.where}: {last_line(result.err)}.")
            try:
                run = _read_through(archive, Path(scratch) / BROUGHT, json.loads(result.err)["start"], order)
            except NOT_A_RUN as error:
                raise MachineCannot(_kept(archive, order, line.where, error)) from error
            run_path = _set(run, parent)
    Path(order.folder).mkdir(parents=True, exist_ok=True)
    append_line(Path(order.folder) / RUN, str(run_path))
    return (run_path,)


def _into(file: IO[bytes]) -> Callable[[bytes], None]:
    def write(data: bytes) -> None:
        file.write(data)

    return write


def _read_through(archive: Path, scratch: Path, start: str, order: Order) -> Path:
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
        folder.start_in(order.cwd)
    return run


def _kept(archive: Path, order: Order, where: str, error: Exception) -> str:
    folder = Path(order.folder)
    folder.mkdir(parents=True, exist_ok=True)
    broken_archive = folder / f"{BROUGHT}.tar.gz"
    shutil.move(archive, broken_archive)
    why = " ".join(str(error).split()).replace(f"{archive.parent}/{BROUGHT}/", "").rstrip(".")
    return f"What came back from {where} is not a run that can be believed ({why}); it is kept as {broken_archive}."


def _set(run: Path, parent: Path) -> Path:
    """Put a run in its place; the older state of a run that went on is replaced by the newer."""
    target = parent / run.name
    if target.exists():
        before = run.parent / f"{run.name}.before"
        target.rename(before)
    run.rename(target)
    point_latest(parent, target.name)
    return target
