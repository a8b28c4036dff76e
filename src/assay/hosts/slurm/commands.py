"""Run Slurm's commands and parse their output.

PENDING ─▶ CONFIGURING ─▶ RUNNING ─▶ COMPLETING ─▶ COMPLETED, FAILED, TIMEOUT, NODE_FAIL, CANCELLED …
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import subprocess
from dataclasses import dataclass

from assay.core.errors import MachineCannot
from assay.core.processes import die_with_parent
from assay.hosts.base import Offer

ANSWER_TIMEOUT_S = 60.0
FILTER_VARIABLES = ("SQUEUE_", "SINFO_", "SCANCEL_")
"""Variables with which users filter the output of Slurm's commands; ours must not be filtered."""


@dataclass(frozen=True)
class CommandResult:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def reason(self) -> str:
        """The reason of a failure: Slurm's messages on one line."""
        lines = [line.partition("error: ")[2] or line for line in self.err.splitlines() if line.strip()]
        return "; ".join(line.strip().rstrip(".") for line in lines) or f"exit code {self.code}"


def run_command(*arguments: str, conf: str | None = None) -> CommandResult:
    """Run a command and return its result.

    An exception from a signal is raised only once the command has ended, so that its outcome is settled.

    Raises:
        MachineCannot: The command cannot be started.
    """
    parent = os.getpid()
    try:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=command_environment(conf),
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 - no threads here; an orphan's job would have no owner
        )
    except OSError as error:
        raise MachineCannot(f"Slurm's {arguments[0]} cannot be started: {error.strerror or error}.") from error
    try:
        out, err = process.communicate(timeout=ANSWER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return CommandResult(-1, "", f"no answer within {ANSWER_TIMEOUT_S:.0f} s")
    except BaseException:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=ANSWER_TIMEOUT_S)
        process.kill()
        raise
    return CommandResult(process.returncode, out, err)


def command_environment(conf: str | None = None) -> dict[str, str]:
    """Return our environment without the variables of a surrounding allocation and without filters."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(FILTER_VARIABLES) and (not name.startswith("SLURM_") or name == "SLURM_CONF")
    }
    return {**variables, "SLURM_CONF": conf} if conf else variables


JOB_FORMAT = "%i|%T|%j|%N|%r"
PARTITION_FORMAT = "%R|%a|%F|%G|%l"
NODE_FORMAT = "%N|%T|%E"

FINAL_STATES = frozenset({
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
})  # fmt: skip

NEVER_STARTS_REASONS = {
    "BadConstraints": "no node is as it asks for",
    "InvalidAccount": "the account is not valid",
    "InvalidQOS": "the quality of service is not valid",
    "PartitionTimeLimit": "it asks for more time than the partition gives",
}
"""Reasons for which a job never starts, and their meaning."""

WAIT_REASONS = {
    "JobArrayTaskLimit": "as many as may run at once do",
    "PartitionNodeLimit": "it asks for more nodes than the partition has up",
    "Priority": "others come first",
    "ReqNodeNotAvail": "a node it needs is not available",
    "Resources": "nodes are not free",
}
"""The most common reasons for waiting, and their meaning."""

_FAILED_NODES = ("down", "fail", "error", "unknown", "no_respond")


@dataclass(frozen=True)
class QueueEntry:
    """One line of ``squeue``."""

    number: str
    state: str
    name: str
    nodes: str
    reason: str

    @property
    def over(self) -> bool:
        """Whether it has ended and all its nodes are free again."""
        return self.state in FINAL_STATES

    @property
    def waiting(self) -> bool:
        """Whether it has no nodes yet."""
        return self.state in {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}


def parse_queue(text: str) -> tuple[QueueEntry, ...]:
    """Parse ``squeue --noheader --format`` with `JOB_FORMAT`; other lines are skipped."""
    rows = (line.strip().split("|", 4) for line in text.splitlines())
    return tuple(QueueEntry(*(part.strip() for part in row)) for row in rows if len(row) == 5)


def task_index(entry: QueueEntry) -> int | None:
    """Return an array task's index; null for a job that is not a task, or for several tasks in one entry."""
    index = entry.number.partition("_")[2]
    return int(index) if index.isdigit() else None


def wait_reason(reason: str) -> str:
    """Return the meaning of a wait reason, with Slurm's own name of it."""
    if reason == "None":
        return "it is new"
    meaning = {**NEVER_STARTS_REASONS, **WAIT_REASONS}.get(reason.partition(",")[0])
    return reason if meaning is None else f"{meaning} ({reason})"


def parse_offers(text: str) -> tuple[Offer, ...]:
    """Parse ``sinfo --noheader --format`` with `PARTITION_FORMAT`; return the partitions that are up."""
    result: list[Offer] = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 5 or parts[1] != "up":
            continue
        name, _, counts, gpus, longest = parts
        numbers = [int(number) for number in re.findall(r"\d+", counts)]
        result.append(
            Offer(
                host="slurm",
                name=name,
                nodes=numbers[3] if len(numbers) == 4 else None,
                free_nodes=numbers[1] if len(numbers) == 4 else None,
                gpus=None if gpus in {"", "(null)"} else gpus,
                longest_s=parse_time_limit(longest),
            )
        )
    return tuple(result)


def too_many_nodes_reason(nodes: int, partition: str | None, offers: tuple[Offer, ...]) -> str | None:
    """Return that no partition, or not the named one, has so many nodes; null when one has, or it is not known."""
    sizes = [offer.nodes for offer in offers if partition in {None, offer.name}]
    if not sizes or any(size is None or size >= nodes for size in sizes):
        return None
    most = max(size or 0 for size in sizes)
    where = f"the partition {partition}" if partition else "the largest partition"
    return f"{nodes} nodes are asked for, and {where} has {most}"


def parse_time_limit(text: str) -> float | None:
    """Parse Slurm's ``D-HH:MM:SS``, ``HH:MM:SS``, ``MM:SS`` or minutes, in seconds; null for no limit or no time."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if match is None:
        return None
    days, *fields = match.groups()
    parts = [int(part) for part in fields if part is not None]
    if days is not None:
        hours, minutes, secs = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, minutes, secs = parts
    else:
        hours, minutes, secs = (0, *(*parts, 0)[:2])
    return float(int(days or 0) * 86400 + hours * 3600 + minutes * 60 + secs)


def format_time_limit(limit_s: float) -> str:
    """Format seconds for Slurm; its limits are whole minutes, so they are rounded up."""
    minutes = max(1, math.ceil(limit_s / 60))
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def parse_failed_nodes(text: str) -> dict[str, str]:
    """Parse ``sinfo --Node --format`` with `NODE_FORMAT`; return the nodes that are out of order, and why."""
    failed: dict[str, str] = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|", 2)]
        if len(parts) == 3 and (parts[1].startswith(_FAILED_NODES) or parts[1].endswith("*")):
            state = parts[1].rstrip("*") + (", not responding" if parts[1].endswith("*") else "")
            failed[parts[0]] = state if parts[2] in {"", "none"} else f"{state}: {parts[2]}"
    return failed


def first_failed_node(log: str) -> str | None:
    """Return the node of the first task that exited with an error, from ``srun``'s messages; null when none did."""
    match = re.search(r"srun: error: (\S+): tasks? [\d,-]+: Exited with exit code", log)
    return match[1] if match else None


def nodes_reported_failed(log: str) -> tuple[str, ...]:
    """Return the nodes that failed according to ``srun``'s messages in a job's log."""
    return tuple(dict.fromkeys(re.findall(r"srun: error: Node failure on (\S+)", log)))
