"""Assay as one machine's part of a fan-out: it ends when whoever fans out does, and gives back what it rented.

    python -m assay.cli.leg PARENT VERB...

Killed with its parent, its guardian gives the machine back, as after any kill.
"""

from __future__ import annotations

import sys

from assay.core.lifeline import die_with_parent


def main(parent: str, *words: str) -> int:
    """Run a command line for a parent."""
    die_with_parent(int(parent))
    from assay.cli.entry import main as command_line

    return command_line(words)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
