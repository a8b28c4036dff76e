"""``assay run`` as a fleet: a fleet sends any words, and these are measured in a moment."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from assay.cli import fleet, run
from assay.cli import main as command_line
from assay.cli.host_options import HostOption
from assay.cli.params import OlderVerb as Verb

if TYPE_CHECKING:
    from collections.abc import Sequence


@fleet.fleet_options
@click.pass_context
def _callback(ctx: click.Context, /, **given: Any) -> int:
    code = fleet.dispatch_fleet(ctx, given)
    assert code is not None, "a fleet is sent, not run here"
    return code


def main(arguments: Sequence[str]) -> int:
    """Run the command line with a ``run`` that is sent as a fleet; everything else is as it is."""
    options = [parameter for parameter in run.command.params if not isinstance(parameter, HostOption)]
    about_nodes = list(reversed(_callback.__click_params__))  # type: ignore[attr-defined]
    verb = Verb(
        "run", callback=_callback, params=[*options, *about_nodes], context_settings=run.command.context_settings
    )
    usual, found = command_line.cli.get_command, {"run": verb}
    command_line.cli.get_command = lambda ctx, cmd_name: found.get(cmd_name) or usual(ctx, cmd_name)  # type: ignore[method-assign]
    try:
        return command_line.main(arguments)
    finally:
        command_line.cli.get_command = usual  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
