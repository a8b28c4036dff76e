"""The batch script of an order: one task on each node, and in it a torchrun where there are several processes."""

from __future__ import annotations

import re
from shlex import join, quote
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.core.text import control_character
from assay.hosts.slurm.queue import time_limit
from assay.hosts.traces import ENDED, FOLDER_VARIABLE, LOG

if TYPE_CHECKING:
    from assay.hosts.base import Order

INSIDE = "assay.cli.inside"
NODE = "assay.worker.node"
JOIN_WITHIN_S = 120

SHORT = {
    "-J": "--job-name", "-o": "--output", "-e": "--error", "-D": "--chdir", "-a": "--array", "-M": "--clusters",
    "-n": "--ntasks", "-N": "--nodes", "-W": "--wait",
}  # fmt: skip
OURS = (*SHORT.values(), "--ntasks-per-node", "--parsable", "--test-only", "--wrap")
"""Options of sbatch that Assay sets, or that would keep it from finding the job again."""

SHARES_NODES = ("--exclusive", "--oversubscribe", "-s", "--cpus-per-task", "-c", "--ntasks-per-core")
"""Options that say how much of a node is wanted; without one, whole nodes are asked for."""

_FREE_PORT = 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'


def batch_script(order: Order) -> str:
    """Return the script that ``sbatch`` gets; nothing in it is secret."""
    check(order)
    head = [f"#SBATCH {quoted(option)}" for option in options(order)]
    body = _one(order) if order.nodes * order.processes == 1 else _several(order)
    return "\n".join(["#!/bin/sh", *head, "", *set_up(order, quote(order.folder)), *body, ""])


def check(order: Order) -> None:
    """Refuse what Slurm cannot be told, or what would hide the job from us."""
    for argument in order.arguments:
        name = re.split(r"[=\s]", argument, maxsplit=1)[0]
        if not re.match(r"--[a-z]|-[A-Za-z]", name):
            raise BadInput(f"--sbatch-arg {argument!r} is no option of sbatch; write --sbatch-arg=--qos=high.")
        whole = name if name.startswith("--") else SHORT.get(name[:2], name)
        meant = [ours for ours in OURS if ours.startswith(whole)]  # sbatch reads beginnings of names too
        if meant:
            raise BadInput(f"--sbatch-arg {argument}: {meant[0]} is set by Assay.")
    paths = (order.cwd, order.folder, order.python, order.python_path or "")
    for text in (*order.words, *order.arguments, order.place or "", *paths):
        if (character := control_character(text)) is not None:
            raise BadInput(f"{text!r} holds the control character {character!r} and cannot be handed to a Slurm job.")


def options(order: Order) -> list[str]:
    """Return the options of ``sbatch``, the user's own last, so that they win.

    They are told to ``sbatch`` itself too: what stands in a script gives way to the user's variables (SBATCH_JOB_NAME).
    """
    shared = any(argument.startswith(SHARES_NODES) for argument in order.arguments)
    return [
        f"--job-name={order.name}",
        f"--nodes={order.nodes}",
        "--ntasks-per-node=1",
        *([] if shared else ["--exclusive"]),
        "--no-requeue",
        "--export=ALL",
        f"--chdir={order.cwd}",
        f"--output={order.folder}/{LOG}",
        *([f"--partition={order.place}"] if order.place else []),
        *([f"--time={time_limit(order.limit_s)}"] if order.limit_s else []),
        *order.arguments,
    ]


def quoted(option: str) -> str:
    """Return an option as it stands in a script."""
    name, equals, value = option.partition("=")
    return f"{name}={quote(value)}" if equals else quote(name)


def set_up(order: Order, folder: str) -> list[str]:
    """Return what every script begins with; ``folder``, as the shell reads it, takes what is left of the order."""
    path = "unset PYTHONPATH" if order.python_path is None else f"export PYTHONPATH={quote(order.python_path)}"
    return [
        f"export {FOLDER_VARIABLE}={folder}",
        f"""trap 'echo $? > "${FOLDER_VARIABLE}/{ENDED}"' EXIT""",
        "trap 'exit 143' TERM",
        path,
        f"export COLUMNS={order.columns}",
        f"python={quote(order.python)}",
    ]


def _one(order: Order) -> list[str]:
    words = join(order.words)
    return [
        "",
        f"{_srun()} sh -c '",
        f'  : > "${FOLDER_VARIABLE}/nodes/$SLURMD_NODENAME"',
        '  exec "$0" "$@"',
        f"""' "$python" -m {INSIDE} {words}""",
    ]


def _several(order: Order) -> list[str]:
    """Return the part that starts a torchrun on each node; they meet on the first."""
    return [
        "",
        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        'address=$(scontrol show node --oneliner "$first" | ' + r"sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')",
        f"port=$(\"$python\" -c '{_FREE_PORT}')",
        "",
        f"{_srun()} sh -c '",
        f'  : > "${FOLDER_VARIABLE}/nodes/$SLURMD_NODENAME"',
        f'  exec "$0" -m {NODE} "${FOLDER_VARIABLE}/nodes/$SLURMD_NODENAME" --nnodes {order.nodes} \\',
        f'    --node-rank "$SLURM_NODEID" --nproc-per-node {order.processes} --rdzv-conf timeout={JOIN_WITHIN_S} "$@"',
        f"""' "$python" --master-addr "$address" --master-port "$port" -m {INSIDE} \\""",
        f"  {join(order.words)}",
    ]


def _srun() -> str:
    """Return how tasks are started: all end when one fails, and binding to cores is Assay's own business."""
    return "srun --ntasks-per-node=1 --kill-on-bad-exit=1 --cpu-bind=none --export=ALL"
