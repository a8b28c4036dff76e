"""What goes to another machine and what comes back.

Up: a wheel of exactly this version, the environment created from it once, and a job's files. Down: the output frames
of `agent.stream`, with remote paths translated, and the run folder.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import posixpath
import re
import shutil
import tarfile
import tempfile
import tomllib
import zipfile
import zlib
from base64 import urlsafe_b64encode
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

import assay
from assay._version import __version__
from assay.core.errors import BadInput, MachineCannot
from assay.core.files import append_line, read_json, translate_os_errors
from assay.core.results import Findings
from assay.core.values import first_problem
from assay.hosts.remote.agent.folder import JOB, JOBS, NOTHING_THERE, RUN, WORK, unpack
from assay.store.records import verify_file
from assay.store.run_folder import RunFolder, point_latest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from assay.hosts.base import Job, JobWatcher, UploadedFile
    from assay.hosts.remote.connection import RemoteConnection, RemoteResult


PACKAGE_NAME = "gpu-assay"
SOURCE_VARIABLE = "ASSAY_SEND"
NEVER_UPLOADED = ("__pycache__", ".git", ".pytest_cache", ".mypy_cache", ".ruff_cache")
CHUNK = 1 << 18
_EPOCH = (1980, 1, 1, 0, 0, 0)
_IN_MEMORY = 1 << 25


@cache
def wheel_contents() -> dict[str, bytes]:
    """Return the files of a wheel of the running package, by their paths in it.

    ``ASSAY_SEND`` names another package folder of Assay, whose files are only read: a commit is measured unchanged,
    and none of its code runs here.

    Raises:
        BadInput: ``ASSAY_SEND`` is not such a folder.
    """
    package = Path(os.environ.get(SOURCE_VARIABLE) or Path(assay.__file__).parent)
    if not (package / "cli/main.py").is_file():
        raise BadInput(f"{SOURCE_VARIABLE} is {package}, which is not the package of Assay.")
    described = f"{PACKAGE_NAME.replace('-', '_')}-{__version__}.dist-info"
    paths = [path for path in sorted(package.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    files = {f"assay/{p.relative_to(package)}": p.read_bytes() for p in paths if not p.name.startswith(".")}
    files[f"{described}/METADATA"] = _metadata(package)
    files[f"{described}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: assay\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{described}/entry_points.txt"] = b"[console_scripts]\nassay = assay.cli.entry:main\n"
    digests = {name: urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=") for name, data in files.items()}
    rows = [f"{name},sha256={digest.decode()},{len(files[name])}\n" for name, digest in digests.items()]
    files[f"{described}/RECORD"] = "".join([*rows, f"{described}/RECORD,,\n"]).encode()
    return files


def wheel_key() -> str:
    """Return a hash of the wheel's content, as part of the environment's name."""
    (record,) = (data for name, data in wheel_contents().items() if name.endswith(".dist-info/RECORD"))
    return hashlib.sha256(record).hexdigest()[:16]


def wheel() -> bytes:
    """Return the wheel; equal files give equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in wheel_contents().items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _metadata(package: Path) -> bytes:
    """Return the wheel's metadata: from the source tree around the package, else from the installed package."""
    try:
        project: dict[str, Any] = tomllib.loads((package.parents[1] / "pyproject.toml").read_text())["project"]
        declared = project if project.get("name") == PACKAGE_NAME else None
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        declared = None
    if declared is not None:
        needs, python = declared["dependencies"], declared["requires-python"]
    else:
        try:
            installed = distribution(PACKAGE_NAME)
        except PackageNotFoundError:
            raise MachineCannot(f"The package {PACKAGE_NAME} is not fully installed here: it cannot be sent.") from None
        needs = [need for need in installed.requires or [] if not re.search(r";.*\bextra\b", need)]
        python = installed.metadata["Requires-Python"] or ">=3.11"
    lines = ["Metadata-Version: 2.1", f"Name: {PACKAGE_NAME}", f"Version: {__version__}", f"Requires-Python: {python}"]
    return "\n".join([*lines, *(f"Requires-Dist: {requirement}" for requirement in needs), ""]).encode()


def start_folder(files: tuple[UploadedFile, ...]) -> str:
    """Return the working folder relative to the job's, deep enough that no ``../`` path leaves the job's folder."""
    above = max((PurePosixPath(posixpath.normpath(file.remote_path)).parts.count("..") for file in files), default=0)
    return "/".join((WORK, *("here" for _ in range(above))))


def job_archive(files: tuple[UploadedFile, ...], job: dict[str, Any]) -> Iterator[bytes]:
    """Yield a tar with a job's data and files, to be unpacked into the job's folder.

    Raises:
        MachineCannot: A file to upload cannot be read.
    """
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as buffer:
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            text = json.dumps(job).encode()
            entry = tarfile.TarInfo(JOB)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
            for file in files:
                try:
                    archive_path = posixpath.normpath(f"{start_folder(files)}/{file.remote_path}")
                    archive.add(file.local_path, arcname=archive_path, filter=_tar_filter)
                except OSError as error:
                    raise MachineCannot(f"{file.local_path} cannot be sent: {error.strerror or error}.") from error
        buffer.seek(0)
        while chunk := buffer.read(CHUNK):
            yield chunk


def _tar_filter(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Skip caches and everything that is neither a file nor a folder; remove the owner."""
    if Path(entry.name).name in NEVER_UPLOADED or not (entry.isfile() or entry.isdir()):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


PYTHON = "python3"
"""The default interpreter there: then the best of `PYTHON_CANDIDATES` is used."""

PYTHON_CANDIDATES = (
    PYTHON, "/opt/conda/bin/python3", "/opt/venv/bin/python3", "/usr/local/bin/python3", "python3.13", "python3.12",
    "python3.11",
)  # fmt: skip
MINIMUM_PYTHON = (3, 11)
NO_PYTHON = 46
CREATE_TIMEOUT_S = 1800.0

PRELUDE = 'umask 077\nbase="${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/assay"\n'
"""Start of every script: ``$base`` is the folder of all of Assay's files there."""


def environment_key(job: Job) -> str:
    """Return the environment's name, which depends on every file of this version and on the interpreter."""
    return f"{wheel_key()}-{hashlib.sha256(job.python.encode()).hexdigest()[:8]}"


def prepare_environment(connection: RemoteConnection, job: Job) -> None:
    """Create the environment there.

    Raises:
        MachineCannot: There is no suitable interpreter, a dependency is not available, the disk is full.
    """
    data = wheel()
    chunks = (data[at : at + CHUNK] for at in range(0, len(data), CHUNK))
    result = connection.do(_script(job), feed=chunks, within_s=CREATE_TIMEOUT_S)
    if result.code == NO_PYTHON:
        old = result.out.decode("utf-8", errors="replace").strip()
        if old:
            needed = f"Assay needs Python {'.'.join(map(str, MINIMUM_PYTHON))} or later"
            raise MachineCannot(f"{connection.where} has {old}, and {needed}; name another one with --remote-python.")
        raise MachineCannot(f"{connection.where} has no {job.python}; --remote-python names the interpreter there.")
    if result.code != 0:
        raise MachineCannot(f"Assay cannot be set up on {connection.where}: {failure_reason(result)}.")


def last_line(data: bytes) -> str:
    """Return the last line that is not blank."""
    lines = [line.strip() for line in data.decode("utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else ""


def failure_reason(result: RemoteResult) -> str:
    """Return why a script failed there, with the cause in plain words where that is known."""
    why = last_line(result.err) or f"exit code {result.code}"
    return f"its disk is full ({why})" if "No space left" in why or "quota" in why.lower() else why


def _script(job: Job) -> str:
    """Return the script that stores the wheel, finds an interpreter and creates the environment with it."""
    candidates = PYTHON_CANDIDATES if job.python == PYTHON else (job.python,)
    name = environment_key(job)
    return f"""{PRELUDE}
mkdir -p "$base/env" "$base/{JOBS}" || exit 1
wheel="$base/env/.{name}.$$.whl"
trap 'rm -f "$wheel"' EXIT
cat > "$wheel" || exit 1
found= old=
for each in {" ".join(map(quote, candidates))}; do
  each=$(command -v "$each" 2>/dev/null) || continue
  if "$each" -c 'import sys; sys.exit(sys.version_info < {MINIMUM_PYTHON})' 2>/dev/null; then
    [ -n "$found" ] || found=$each
    if "$each" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; then
      found=$each
      break
    fi
  else
    old="$("$each" -V 2>&1 | tail -n 1) ($each)"
  fi
done
if [ -z "$found" ]; then
  echo "$old"
  exit {NO_PYTHON}
fi
PYTHONPATH="$wheel" "$found" -P -m assay.hosts.remote.agent.bootstrap "$base" {name} "$wheel"
"""


RESUME_HINT = re.compile(rb"[^\n]*Stopped by SIG\w+;[^\n]*assay resume [^\n]*\n")
"""The last line of a remote Assay that is stopped: how to resume on that machine."""

AGENT_REASONS = frozenset({"time limit", "unattended", "stop requested"})
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
            self._lines["e"].drop_resume_hint()
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

    def drop_resume_hint(self) -> None:
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
                result = connection.do(script, out=file.write)
            if result.code == NOTHING_THERE:
                return ()
            if result.code != 0:
                raise MachineCannot(f"The run could not be fetched from {connection.where}: {last_line(result.err)}.")
            try:
                run = _verify_run(archive, Path(scratch) / DOWNLOADED, json.loads(result.err)["start"], job)
            except NOT_A_RUN as error:
                raise MachineCannot(_keep_broken(archive, job, connection.where, error)) from error
            target = parent / run.name
            if target.exists():  # the older state of a resumed run
                target.rename(run.parent / f"{run.name}.before")
            run.rename(target)
            point_latest(parent, target.name)
    Path(job.folder).mkdir(parents=True, exist_ok=True)
    append_line(Path(job.folder) / RUN, str(target))
    return (target,)


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
