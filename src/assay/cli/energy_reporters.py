"""The reporters of an energy configuration.

Check before measuring that their files can be written, and write them afterwards.
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

import click

from assay.cli.host_flags import RemoteHook
from assay.core.errors import AssayError, BadInput, EndedEarly, MachineCannot
from assay.core.files import read_json, read_text, replace_atomically, translate_os_errors, update_file

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from assay.core.values import Scalar
    from assay.experiments.energy.config import EnergyReporter
    from assay.experiments.energy.result import EnergyResult


@dataclass(frozen=True)
class ReporterFiles:
    """Files to write, checked before anything is measured."""

    reporters: tuple[EnergyReporter, ...]

    @classmethod
    def prepared(cls, reporters: tuple[EnergyReporter, ...]) -> Self:
        """Make sure that all of them can be written."""
        check_writable(reporters)
        return cls(reporters)

    def write(self, run: Path, code: int) -> int:
        """Write them from a run folder, if it has results; return the exit code.

        Raises:
            EndedEarly: One could not be written after all; what was measured is kept.
        """
        from assay.experiments.energy.result import JSON_FILE

        if not self.reporters or not (run / JSON_FILE).is_file():
            return code
        try:
            written_files = write_reports(run, self.reporters)
        except AssayError as error:
            raise EndedEarly(str(error)) from error
        if written_files:
            click.echo(f"Written: {', '.join(written_files)}", err=True)
        return code


def reporter_hook(*, reports: bool) -> RemoteHook:
    """Return what is done with a run that comes back: its reporters write here, and not on the other machine."""
    write = write_run_reports if reports else ReporterFiles(()).write
    return RemoteHook(lambda: write, frozenset({"reports"}), ("--no-reports",))


def write_run_reports(run: Path, code: int) -> int:
    """Write what the reporters of a run's configuration name."""
    from assay.experiments.energy.options import EnergyOptions
    from assay.store.run_folder import RunFolder

    return ReporterFiles(EnergyOptions.model_validate(RunFolder.open(run).plan.options).config.reporter).write(
        run, code
    )


def check_file(path: Path) -> None:
    """Try whether a file can be written, or be replaced where it is there; what is no plain file is left alone.

    Raises:
        BadInput: It is a folder, or a file stands where a folder is needed.
        MachineCannot: It cannot be written.
    """
    path = path.resolve() if path.is_symlink() else path
    if path.is_dir():
        raise BadInput(f"{path} is a folder, but a file is needed there.")
    if path.exists():
        if not os.access(path, os.W_OK):
            raise MachineCannot(f"{path} is not writable: permission denied.")
        if not path.is_file():
            return
        with translate_os_errors(path):
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
    _try_create(_nearest_existing(path.parent, path), path, folder=not path.parent.exists())


def check_folder(path: Path) -> None:
    """Try whether a folder can be made, or be written into where it is there.

    Raises:
        BadInput: A file stands where it or a folder above it is needed.
        MachineCannot: It cannot be made.
    """
    _try_create(_nearest_existing(path, path), path, folder=True)


def _nearest_existing(folder: Path, folder_or_file: Path) -> Path:
    """Return the folder itself, or the nearest above it that is there."""
    folder = folder.absolute()
    existing = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
    if not existing.is_dir():
        wherefore = "" if existing == folder_or_file.absolute() else f" for {folder_or_file}"
        raise BadInput(f"{existing} is a file, but a folder is needed there{wherefore}.")
    return existing


def _try_create(existing: Path, path: Path, *, folder: bool) -> None:
    """Make something in a folder, and remove it."""
    if not os.access(existing, os.W_OK | os.X_OK):
        raise MachineCannot(f"{path} is not writable: permission denied.")
    trial = existing / f".{secrets.token_hex(8)}.tmp"
    with translate_os_errors(path):
        try:
            if folder:
                trial.mkdir()
                trial.rmdir()
            else:
                trial.touch(exist_ok=False)
                trial.unlink()
        except FileNotFoundError:
            raise MachineCannot(f"{path} is not writable: nothing can be made in {existing}.") from None


TABLES = frozenset({"csv", "ai_energy_score"})
"""Reporters whose files rows are added to; those of the others are of the newest run alone."""

_FIGURE = re.compile(r"\]\(figures/([^)]+)\)")


def check_writable(reporters: Sequence[EnergyReporter]) -> None:
    """Look at the files before anything is measured; what is made to try it is removed.

    Raises:
        BadInput: Two reporters name one file, or a table there is not one that rows can be added to.
        MachineCannot: A file or its folder cannot be written.
    """
    by_path: dict[Path, EnergyReporter] = {}
    for reporter in reporters:
        path = Path(reporter.output_file)
        other = by_path.setdefault(path.absolute(), reporter)
        if other is not reporter:
            raise BadInput(f"Two reporters, {other.type} and {reporter.type}, would write the same file {path}.")
        if path.is_dir():
            raise BadInput(f"{path}, the file of the reporter {reporter.type}, is a folder.")
        check_file(path)
        if reporter.type in TABLES and path.is_file():
            from assay.experiments.energy.result import parse_csv_table

            with translate_os_errors(path):
                parse_csv_table(path.read_bytes(), str(path), _known_columns(reporter))


def _known_columns(reporter: EnergyReporter) -> Collection[str]:
    from assay.experiments.energy.result import KNOWN_COLUMNS, SCORE_COLUMN

    return KNOWN_COLUMNS if reporter.type == "csv" else {SCORE_COLUMN}


def read_result(folder: Path) -> EnergyResult:
    """Return what a run found, from its folder.

    Raises:
        BadInput: It holds no such result, or that of another version.
    """
    from pydantic import ValidationError

    from assay.core.values import first_problem
    from assay.experiments.energy.result import JSON_FILE, EnergyResult
    from assay.store.records import verify_file

    file = folder / JSON_FILE
    if not file.is_file():
        raise BadInput(f"{folder} holds no {JSON_FILE}: there is no result yet to report.")
    verify_file(file)
    try:
        result = EnergyResult.model_validate(read_json(file))
    except ValidationError as error:
        raise BadInput(f"{file} is not what this version of Assay writes: {first_problem(error)}.") from None
    return result if result.run else result.model_copy(update={"run": folder.resolve().name})


def write_reports(folder: Path, reporters: Sequence[EnergyReporter]) -> list[str]:
    """Write every reporter's file from a run folder; return the paths written.

    Raises:
        MachineCannot: One could not be written; all the others were.
        BadInput: One holds something else that nothing can be added to; all the others were written.
    """
    result = read_result(folder)
    paths: list[str] = []
    failed: list[AssayError] = []
    for reporter in reporters:
        try:
            paths += _write_reporter(folder, result, reporter)
        except AssayError as error:
            failed.append(error)
    if failed:
        messages = " ".join(str(error) for error in failed)
        others = f"; written: {', '.join(paths)}" if paths else ""
        raise type(max(failed, key=lambda error: error.exit_code))(
            f"{messages} What was measured is kept in {folder}{others}."
        )
    return paths


def _write_reporter(folder: Path, result: EnergyResult, reporter: EnergyReporter) -> list[str]:
    path = Path(reporter.output_file)
    if reporter.type in TABLES:
        return _append_rows(path, result, reporter)
    with translate_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    if reporter.type == "json":
        from assay.experiments.energy.result import result_to_json

        replace_atomically(path, result_to_json(result).encode())
        return [str(path)]
    if reporter.type == "html":
        replace_atomically(path, read_text(folder / "report.html").encode())
        return [str(path)]
    return _copy_markdown(folder, path)


def _append_rows(path: Path, result: EnergyResult, reporter: EnergyReporter) -> list[str]:
    """Add a run's rows, if it has any; a last line of the table that was cut short is set aside in its own file."""
    from assay.experiments.energy.result import (
        KEY_COLUMNS,
        add_rows,
        flatten_rows,
        format_csv_table,
        parse_csv_table,
        score_rows,
    )

    rows: Sequence[Mapping[str, Scalar]] = flatten_rows(result) if reporter.type == "csv" else score_rows(result)
    if not rows:
        return []
    aside = path.with_name(f"{path.name}.torn")

    def change(data: bytes) -> bytes:
        table = parse_csv_table(data, str(path), _known_columns(reporter))
        if table.torn is not None:
            line = table.torn.encode() + b"\n"
            update_file(aside, lambda before: before if line in before else before + line)
        return format_csv_table(add_rows(table, rows, KEY_COLUMNS)).encode()

    torn_before = aside.exists() and aside.stat().st_size
    update_file(path, change)
    torn = aside.exists() and aside.stat().st_size != torn_before
    return [str(path), *([f"{aside} (a last line of {path} that was cut short)"] if torn else [])]


def _copy_markdown(folder: Path, path: Path) -> list[str]:
    """Copy the report and its figures, which then lie in a folder beside it."""
    text = read_text(folder / "report.md")
    figures = path.with_name(f"{path.stem}_figures")
    names = list(dict.fromkeys(_FIGURE.findall(text)))
    for name in names:
        with translate_os_errors(figures):
            figures.mkdir(exist_ok=True)
            replace_atomically(figures / name, (folder / "figures" / name).read_bytes())
    text = _FIGURE.sub(lambda match: f"]({quote(figures.name)}/{match[1]})", text)
    replace_atomically(path, text.encode())
    return [str(path)]
