"""Run the command line as one child of a fan-out: it exits when its parent does, and releases what it rented.

python -m assay.cli.fan_out_child PARENT VERB...
"""

from __future__ import annotations

import sys

from assay.core.processes import die_with_parent


def main(parent: str, *words: str) -> int:
    """Run a command line for a parent."""
    die_with_parent(int(parent))
    from assay.cli.entry import main as command_line

    return command_line(words)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
