"""Batch scripts: one task per node, with torchrun for several processes; and the script of an array.

An array's script has no ``srun``: a step gets only the GPUs that are requested by number, but the batch script has all
GPUs of its node.
"""

from __future__ import annotations

import re
from shlex import join, quote
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.core.files import find_control_character
from assay.hosts.run_job import ENDED, FOLDER_VARIABLE, LOG
from assay.hosts.slurm.commands import format_time_limit

if TYPE_CHECKING:
    from assay.hosts.base import Job


REMOTE_RANK_MODULE = "assay.cli.remote_rank"
NODE_MODULE = "assay.worker.rendezvous"
JOIN_TIMEOUT_S = 120

SHORT_OPTIONS = {
    "-J": "--job-name", "-o": "--output", "-e": "--error", "-D": "--chdir", "-a": "--array", "-M": "--clusters",
    "-n": "--ntasks", "-N": "--nodes", "-W": "--wait",
}  # fmt: skip
RESERVED_OPTIONS = (*SHORT_OPTIONS.values(), "--ntasks-per-node", "--parsable", "--test-only", "--wrap")
"""Options of sbatch that Assay sets, or that would keep it from finding the job."""

NODE_SHARING_OPTIONS = ("--exclusive", "--oversubscribe", "-s", "--cpus-per-task", "-c", "--ntasks-per-core")
"""Options that request a part of a node; without one, Assay requests whole nodes."""

SRUN = "srun --ntasks-per-node=1 --kill-on-bad-exit=1 --cpu-bind=none --export=ALL"
"""Starts tasks: all end when one fails, and Assay itself binds to cores."""

_FREE_PORT = 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'


def batch_script(job: Job) -> str:
    """Return the script for ``sbatch``; it contains no secrets."""
    check_job(job)
    head = _sbatch_lines(sbatch_options(job))
    body = _single_process_body(job) if job.nodes * job.processes == 1 else _torchrun_body(job)
    return "\n".join(["#!/bin/sh", *head, "", *script_head(job, quote(job.folder)), *body, ""])


def check_job(job: Job) -> None:
    """Refuse options and arguments that Slurm cannot take or that would hide the job from us."""
    for argument in job.arguments:
        name = re.split(r"[=\s]", argument, maxsplit=1)[0]
        if not re.match(r"--[a-z]|-[A-Za-z]", name):
            raise BadInput(f"--sbatch-arg {argument!r} is no option of sbatch; write --sbatch-arg=--qos=high.")
        whole = name if name.startswith("--") else SHORT_OPTIONS.get(name[:2], name)
        reserved = [option for option in RESERVED_OPTIONS if option.startswith(whole)]  # sbatch accepts prefixes
        if reserved:
            raise BadInput(f"--sbatch-arg {argument}: {reserved[0]} is set by Assay.")
    paths = (job.cwd, job.folder, job.python, job.python_path or "")
    for text in (*job.words, *job.arguments, job.host_place or "", *paths):
        if (character := find_control_character(text)) is not None:
            raise BadInput(f"{text!r} holds the control character {character!r} and cannot be handed to a Slurm job.")


def sbatch_options(job: Job) -> list[str]:
    """Return the options of ``sbatch``, the user's own last, so that they take precedence.

    They go on its command line too, as the user's variables (SBATCH_JOB_NAME) override those in a script.
    """
    shared = any(argument.startswith(NODE_SHARING_OPTIONS) for argument in job.arguments)
    return [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        *([] if shared else ["--exclusive"]),
        "--no-requeue",
        "--export=ALL",
        f"--chdir={job.cwd}",
        f"--output={job.folder}/{LOG}",
        *([f"--partition={job.host_place}"] if job.host_place else []),
        *([f"--time={format_time_limit(job.limit_s)}"] if job.limit_s else []),
        *job.arguments,
    ]


def _sbatch_lines(options: list[str]) -> list[str]:
    parts = [option.partition("=") for option in options]
    return [f"#SBATCH {name}={quote(value)}" if equals else f"#SBATCH {quote(name)}" for name, equals, value in parts]


def script_head(job: Job, folder: str) -> list[str]:
    """Return the start of every script; ``folder`` is the job's folder, quoted for the shell."""
    path = "unset PYTHONPATH" if job.python_path is None else f"export PYTHONPATH={quote(job.python_path)}"
    return [
        f"export {FOLDER_VARIABLE}={folder}",
        f"""trap 'echo $? > "${FOLDER_VARIABLE}/{ENDED}"' EXIT""",
        "trap 'exit 143' TERM",
        path,
        f"export COLUMNS={job.columns}",
        f"python={quote(job.python)}",
    ]


def _single_process_body(job: Job) -> list[str]:
    arguments = join(job.words)
    return [
        "",
        f"{SRUN} sh -c '",
        f'  : > "${FOLDER_VARIABLE}/nodes/$SLURMD_NODENAME"',
        '  exec "$0" "$@"',
        f"""' "$python" -m {REMOTE_RANK_MODULE} {arguments}""",
    ]


def _torchrun_body(job: Job) -> list[str]:
    """Return the part that starts torchrun on each node, with the rendezvous on the first."""
    return [
        "",
        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        'address=$(scontrol show node --oneliner "$first" | ' + r"sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')",
        f"port=$(\"$python\" -c '{_FREE_PORT}')",
        "",
        f"{SRUN} sh -c '",
        f'  : > "${FOLDER_VARIABLE}/nodes/$SLURMD_NODENAME"',
        f'  exec "$0" -m {NODE_MODULE} "${FOLDER_VARIABLE}/nodes/$SLURMD_NODENAME" --nnodes {job.nodes} \\',
        f'    --node-rank "$SLURM_NODEID" --nproc-per-node {job.processes} --rdzv-conf timeout={JOIN_TIMEOUT_S} "$@"',
        f"""' "$python" --master-addr "$address" --master-port "$port" -m {REMOTE_RANK_MODULE} \\""",
        f"  {join(job.words)}",
    ]


FLEET_NODE_MODULE = "assay.cli.fleet_node"
NODE_LIST_OPTIONS = {"-w": "--nodelist", "-x": "--exclude", "-F": "--nodefile"}
"""Options of sbatch that select nodes; a fleet binds each task to its own node."""


def array_log_folder(job: Job, number: int) -> str:
    """Return the folder for an array's script and Slurm's log of each task."""
    return f"{job.folder}/slurm-{number}"


def array_options(job: Job, tasks: int, number: int, at_once: int | None) -> list[str]:
    """Return the options of ``sbatch``: held until every task is bound to its node, the user's own last."""
    limit = "" if at_once is None else f"%{at_once}"
    log = array_log_folder(job, number).replace("%", "%%")
    return [
        *(option for option in sbatch_options(job) if not option.startswith("--output=")),
        f"--array=0-{tasks - 1}{limit}",
        "--hold",
        f"--output={log}/%a.log",
    ]


def array_script(job: Job, tasks: int, number: int, at_once: int | None) -> str:
    """Return the script for ``sbatch``; it contains no secrets and is the same for all nodes."""
    check_job(job)
    for argument in job.arguments:
        name = re.split(r"[=\s]", argument, maxsplit=1)[0]
        whole = name if name.startswith("--") else NODE_LIST_OPTIONS.get(name[:2], name)
        if any(option.startswith(whole) for option in NODE_LIST_OPTIONS.values()):  # sbatch accepts prefixes
            raise BadInput(f"--sbatch-arg {argument}: nodes are selected with --nodelist.")
    folder = f'{quote(job.folder)}/"$SLURMD_NODENAME"/array-{number}'
    return "\n".join(
        [
            "#!/bin/sh",
            *_sbatch_lines(array_options(job, tasks, number, at_once)),
            "",
            *script_head(job, folder),
            "",
            f': > "${FOLDER_VARIABLE}/nodes/$SLURMD_NODENAME"',
            f'"$python" -m {FLEET_NODE_MODULE}',
            "",
        ]
    )
