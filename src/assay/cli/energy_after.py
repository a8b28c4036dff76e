"""Once ``assay energy run`` has measured: the files that the configuration's reporters name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import click

from assay.core.errors import AssayError, EndedEarly

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from assay.experiments.energy.config import Reporter
    from assay.hosts.base import Order


@dataclass(frozen=True)
class After:
    """Files to be written, looked at before anything is measured."""

    reporters: tuple[Reporter, ...]

    @classmethod
    def prepared(cls, reporters: tuple[Reporter, ...]) -> Self:
        """Make sure that all of them can be written."""
        from assay.cli.energy_reporting import check_writable

        check_writable(reporters)
        return cls(reporters)

    def __call__(self, run: Path, code: int) -> int:
        """Write them from a run folder, if it has results; return the exit code.

        Raises:
            EndedEarly: One could not be written after all; what was measured is kept.
        """
        from assay.cli.energy_reporting import write_reports
        from assay.experiments.energy.report_files import JSON_FILE

        if not self.reporters or not (run / JSON_FILE).is_file():
            return code
        try:
            written_files = write_reports(run, self.reporters)
        except AssayError as error:
            raise EndedEarly(str(error)) from error
        if written_files:
            click.echo(f"Written: {', '.join(written_files)}", err=True)
        return code


class Here:
    """What is done here with a run that came back from a machine that shares no files: its reporters write here."""

    kept: frozenset[str] = frozenset({"reports"})
    words: tuple[str, ...] = ("--no-reports",)

    def __init__(self, *, reports: bool) -> None:
        self._reports = reports

    def prepared(self, order: Order) -> Callable[[Path, int], int]:
        """Return who is given the run folder; which files are named is known when the run is here."""
        return reported if self._reports else After(())


def reported(run: Path, code: int) -> int:
    """Write what the reporters of a run's configuration name."""
    from assay.experiments.energy.options import EnergyOptions
    from assay.store.runs import RunFolder

    return After(EnergyOptions.model_validate(RunFolder.open(run).plan.options).config.reporter)(run, code)
