"""The reporters of a configuration: what a run found, in the files that it names beside the run folder's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from assay.cli.outputs import check_file
from assay.core.durable import friendly_os_errors, read_json, read_text, replace_atomically
from assay.core.errors import AssayError, BadInput
from assay.core.shared_files import change_file

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from assay.core.values import Scalar
    from assay.experiments.energy.config import Reporter
    from assay.experiments.energy.rows import EnergyResult

TABLES = frozenset({"csv", "ai_energy_score"})
"""Reporters whose files rows are added to; those of the others are of the newest run alone."""

_FIGURE = re.compile(r"\]\(figures/([^)]+)\)")


def check_writable(reporters: Sequence[Reporter]) -> None:
    """Look at the files before anything is measured; what is made to try it is removed.

    Raises:
        BadInput: Two reporters name one file, or a table there is not one that rows can be added to.
        MachineCannot: A file or its folder cannot be written.
    """
    by_path: dict[Path, Reporter] = {}
    for reporter in reporters:
        path = Path(reporter.output_file)
        other = by_path.setdefault(path.absolute(), reporter)
        if other is not reporter:
            raise BadInput(f"Two reporters, {other.type} and {reporter.type}, would write the same file {path}.")
        _check(path, reporter)


def _check(path: Path, reporter: Reporter) -> None:
    if path.is_dir():
        raise BadInput(f"{path}, the file of the reporter {reporter.type}, is a folder.")
    check_file(path)
    if reporter.type in TABLES and path.is_file():
        from assay.experiments.energy.csv_rows import parse

        with friendly_os_errors(path):
            parse(path.read_bytes(), str(path), _known(reporter))


def _known(reporter: Reporter) -> Collection[str]:
    from assay.experiments.energy.flat import KNOWN
    from assay.experiments.energy.score import SCORE

    return KNOWN if reporter.type == "csv" else {SCORE}


def result_of(folder: Path) -> EnergyResult:
    """Return what a run found, from its folder.

    Raises:
        BadInput: It holds no such result, or that of another version.
    """
    from pydantic import ValidationError

    from assay.core.values import first_problem
    from assay.experiments.energy.report_files import JSON_FILE
    from assay.experiments.energy.rows import EnergyResult
    from assay.store.seal import verify_file

    file = folder / JSON_FILE
    if not file.is_file():
        raise BadInput(f"{folder} holds no {JSON_FILE}: there is no result yet to report.")
    verify_file(file)
    try:
        result = EnergyResult.model_validate(read_json(file))
    except ValidationError as error:
        raise BadInput(f"{file} is not what this version of Assay writes: {first_problem(error)}.") from None
    return result if result.run else result.model_copy(update={"run": folder.resolve().name})


def write_reports(folder: Path, reporters: Sequence[Reporter]) -> list[str]:
    """Write every reporter's file from a run folder; return the paths written.

    Raises:
        MachineCannot: One could not be written; all the others were.
        BadInput: One holds something else that nothing can be added to; all the others were written.
    """
    result = result_of(folder)
    paths: list[str] = []
    failed: list[AssayError] = []
    for reporter in reporters:
        try:
            paths += _write(folder, result, reporter)
        except AssayError as error:
            failed.append(error)
    if failed:
        messages = " ".join(str(error) for error in failed)
        others = f"; written: {', '.join(paths)}" if paths else ""
        raise type(max(failed, key=lambda error: error.exit_code))(
            f"{messages} What was measured is kept in {folder}{others}."
        )
    return paths


def _write(folder: Path, result: EnergyResult, reporter: Reporter) -> list[str]:
    path = Path(reporter.output_file)
    if reporter.type in TABLES:
        return _add(path, result, reporter)
    with friendly_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    if reporter.type == "json":
        from assay.experiments.energy.report_files import to_json

        replace_atomically(path, to_json(result).encode())
        return [str(path)]
    if reporter.type == "html":
        replace_atomically(path, read_text(folder / "report.html").encode())
        return [str(path)]
    return _markdown(folder, path)


def _add(path: Path, result: EnergyResult, reporter: Reporter) -> list[str]:
    """Add a run's rows, if it has any; a last line of the table that was cut short is set aside in its own file."""
    from assay.experiments.energy.csv_rows import added, parse, to_csv
    from assay.experiments.energy.flat import KEY, flat_rows
    from assay.experiments.energy.score import score_rows

    rows: Sequence[Mapping[str, Scalar]] = flat_rows(result) if reporter.type == "csv" else score_rows(result)
    if not rows:
        return []
    aside = path.with_name(f"{path.name}.torn")

    def change(data: bytes) -> bytes:
        table = parse(data, str(path), _known(reporter))
        if table.torn is not None:
            line = table.torn.encode() + b"\n"
            change_file(aside, lambda before: before if line in before else before + line)
        return to_csv(added(table, rows, KEY)).encode()

    torn_before = aside.exists() and aside.stat().st_size
    change_file(path, change)
    torn = aside.exists() and aside.stat().st_size != torn_before
    return [str(path), *([f"{aside} (a last line of {path} that was cut short)"] if torn else [])]


def _markdown(folder: Path, path: Path) -> list[str]:
    """Copy the report and its figures, which then lie in a folder beside it."""
    text = read_text(folder / "report.md")
    figures = path.with_name(f"{path.stem}_figures")
    names = list(dict.fromkeys(_FIGURE.findall(text)))
    for name in names:
        with friendly_os_errors(figures):
            figures.mkdir(exist_ok=True)
            replace_atomically(figures / name, (folder / "figures" / name).read_bytes())
    text = _FIGURE.sub(lambda match: f"]({quote(figures.name)}/{match[1]})", text)
    replace_atomically(path, text.encode())
    return [str(path)]
