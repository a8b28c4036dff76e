"""The command ``assay``: verbs loaded only when they are called, errors in one sentence, honest exit codes."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from typing import TYPE_CHECKING

import click

from assay._version import __version__
from assay.core.errors import EXIT_DEFECT, EXIT_DONE, AssayError, BadInput, MachineCannot, Stopped, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

VERBS = {
    "doctor": ("assay.cli.doctor:command", "Look at this machine: what holds, what is noisy, how to mend it."),
    "list": ("assay.cli.list:command", "Show workloads, devices and runs."),
    "monitor": ("assay.cli.monitor:command", "Record what GPUs and the host do, for a time or beside a command."),
    "reap": ("assay.cli.reap:command", "Undo whatever a run that died left behind."),
    "report": ("assay.cli.report:command", "Draw the report of a run, or of a recording, again."),
    "resume": ("assay.cli.resume:command", "Go on with a run that was stopped or failed."),
    "run": ("assay.cli.run:command", "Time workloads, your own functions or any command."),
    "time": ("assay.cli.time:command", "How long a function takes, or which of several is faster."),
}


class LazyGroup(click.Group):
    """A group that knows its verbs by name and imports one only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every verb."""
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a verb, importing it."""
        if cmd_name not in VERBS:
            return None
        module, _, attribute = VERBS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb that is meant, or say which are near."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            raise BadInput(f"There is no command {args[0]!r}.{nearest(args[0], VERBS)} `assay --help` lists them.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs with their sentences, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in sorted(VERBS.items())])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="assay")
def cli() -> None:
    """Measure GPU programs so that the numbers can be believed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code, having told the user what went wrong."""
    code: object = EXIT_DONE
    try:
        code = cli.main(list(sys.argv[1:] if arguments is None else arguments), "assay", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last net: each is told in a sentence
        if not (isinstance(error, OSError) and error.errno == errno.EIO):  # the terminal is gone, and nobody reads it
            sentence, code = _told(error)
            with contextlib.suppress(OSError):
                click.echo(sentence, err=True)
    _let_go_of_a_closed_terminal()
    return code if isinstance(code, int) else EXIT_DONE


def _let_go_of_a_closed_terminal() -> None:
    """Point streams that cannot be written any more to nowhere, or Python fails on them when it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _told(error: BaseException) -> tuple[str, int]:
    """Return what to say of an error, and its exit code; what nobody foresaw is our defect, and is kept."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message(), BadInput.exit_code
    if isinstance(error, AssayError):
        sentence, code = str(error), error.exit_code
    elif isinstance(error, click.UsageError):
        sentence, code = error.format_message(), BadInput.exit_code
    elif isinstance(error, click.exceptions.Abort | KeyboardInterrupt):
        sentence, code = "Stopped.", Stopped.exit_code
    elif isinstance(error, OSError) and error.errno == errno.ENOSPC:
        sentence, code = "The disk is full: the output could not be written.", MachineCannot.exit_code
    else:
        from assay.cli.defect import report

        sentence, code = report(error), EXIT_DEFECT
    return f"assay: {sentence}", code
