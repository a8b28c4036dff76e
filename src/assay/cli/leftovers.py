"""What runs that died have left behind is told by the next command, whatever that is."""

from __future__ import annotations

import click

from assay.core.errors import AssayError
from assay.core.home import lease_folder

NAMED = 3
"""So many leases are named at most; `assay reap` names them all."""


def warn() -> None:
    """Say on stderr what is left behind; quick where there is no lease at all."""
    try:
        if not any(lease_folder().glob("*.json")):
            return
        from assay.core.leases import left_behind

        left = left_behind()
    except AssayError:
        return  # a home that cannot be used is told by whoever needs it
    if left:
        more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
        what = "; ".join(lease.what for lease in left[:NAMED])
        click.echo(f"warning: a run that died has left behind: {what}{more}. `assay reap` undoes it.", err=True)
