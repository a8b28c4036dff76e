"""``assay run`` as a fleet: a fleet sends any words, and these are measured in a moment."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from assay.cli import flags, fleet
from assay.cli import main as command_line
from assay.cli.commands import Verb, VerbRow
from assay.cli.run import RunFlags

if TYPE_CHECKING:
    from collections.abc import Sequence


class FleetRunFlags(RunFlags, fleet.FleetFlags):
    """What `assay run` can be asked for on all nodes."""


def _run_on_all_nodes(given: FleetRunFlags) -> int:
    code = fleet.dispatch_fleet(given)
    assert code is not None, "a fleet is sent, not run here"
    return code


def main(arguments: Sequence[str]) -> int:
    """Run the command line with a ``run`` that is sent as a fleet; everything else is as it is."""
    verb = Verb("run", VerbRow("assay.cli.run", "", flags.flag_rows(FleetRunFlags)))
    usual, usual_run = command_line.cli.get_command, flags.VERBS["run"]
    flags.VERBS["run"] = flags.VerbFunction("run", FleetRunFlags, _run_on_all_nodes)
    command_line.cli.get_command = lambda ctx, cmd_name: verb if cmd_name == "run" else usual(ctx, cmd_name)  # type: ignore[method-assign]
    try:
        return command_line.main(arguments)
    finally:
        command_line.cli.get_command = usual  # type: ignore[method-assign]
        flags.VERBS["run"] = usual_run


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
