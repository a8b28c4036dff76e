"""The batch script of an array: each task does on its own node what its folder there says.

There is no ``srun`` in it: of the GPUs of a whole node a step gets only those that were asked for by number, and the
batch script has them all.
"""

from __future__ import annotations

import re
from shlex import quote
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.hosts.slurm.script import check, options, quoted, set_up
from assay.hosts.traces import FOLDER_VARIABLE

if TYPE_CHECKING:
    from assay.hosts.base import Order

ON_NODE = "assay.cli.on_node"
WHICH_NODES = {"-w": "--nodelist", "-x": "--exclude", "-F": "--nodefile"}
"""Options of sbatch that say which nodes; a fleet sends each task to its own."""


def logs(order: Order, number: int) -> str:
    """Return the folder that takes an array's script and what Slurm said of each task."""
    return f"{order.folder}/slurm-{number}"


def array_options(order: Order, tasks: int, number: int, at_once: int | None) -> list[str]:
    """Return the options of ``sbatch``: held until every task has its node, the user's own last."""
    limit = "" if at_once is None else f"%{at_once}"
    log = logs(order, number).replace("%", "%%")
    return [
        *(option for option in options(order) if not option.startswith("--output=")),
        f"--array=0-{tasks - 1}{limit}",
        "--hold",
        f"--output={log}/%a.log",
    ]


def array_script(order: Order, tasks: int, number: int, at_once: int | None) -> str:
    """Return the script that ``sbatch`` gets; nothing in it is secret, and nothing in it tells nodes apart."""
    check(order)
    for argument in order.arguments:
        name = re.split(r"[=\s]", argument, maxsplit=1)[0]
        whole = name if name.startswith("--") else WHICH_NODES.get(name[:2], name)
        if any(option.startswith(whole) for option in WHICH_NODES.values()):  # sbatch reads beginnings of names too
            raise BadInput(f"--sbatch-arg {argument}: which nodes is said with --nodelist.")
    folder = f'{quote(order.folder)}/"$SLURMD_NODENAME"/order-{number}'
    return "\n".join(
        [
            "#!/bin/sh",
            *(f"#SBATCH {quoted(option)}" for option in array_options(order, tasks, number, at_once)),
            "",
            *set_up(order, folder),
            "",
            f': > "${FOLDER_VARIABLE}/nodes/$SLURMD_NODENAME"',
            f'"$python" -m {ON_NODE}',
            "",
        ]
    )
