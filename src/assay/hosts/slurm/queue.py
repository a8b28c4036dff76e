"""What Slurm's commands print, read into values; no command is started here.

PENDING ─▶ CONFIGURING ─▶ RUNNING ─▶ COMPLETING ─▶ COMPLETED, FAILED, TIMEOUT, NODE_FAIL, CANCELLED …
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from assay.hosts.base import Offer

JOB_FORMAT = "%i|%T|%j|%N|%r"
PARTITION_FORMAT = "%R|%a|%F|%G|%l"
NODE_FORMAT = "%N|%T|%E"

OVER = frozenset({
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
})  # fmt: skip

NEVER = {
    "BadConstraints": "no node is as it asks for",
    "InvalidAccount": "the account is not valid",
    "InvalidQOS": "the quality of service is not valid",
    "PartitionTimeLimit": "it asks for more time than the partition gives",
}
"""Reasons that waiting does not mend, and what they mean."""

WAITS = {
    "JobArrayTaskLimit": "as many as may run at once do",
    "PartitionNodeLimit": "it asks for more nodes than the partition has up",
    "Priority": "others come first",
    "ReqNodeNotAvail": "a node it needs is not available",
    "Resources": "nodes are not free",
}
"""The most usual reasons for waiting, in words."""

_FAILED_NODES = ("down", "fail", "error", "unknown", "no_respond")


@dataclass(frozen=True)
class Job:
    """One line of the queue."""

    number: str
    state: str
    name: str
    nodes: str
    reason: str

    @property
    def over(self) -> bool:
        """Whether it has ended and all its nodes are free again."""
        return self.state in OVER

    @property
    def waiting(self) -> bool:
        """Whether it has no nodes yet."""
        return self.state in {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}


def jobs(text: str) -> tuple[Job, ...]:
    """Read ``squeue --noheader --format`` with `JOB_FORMAT`; other lines are not jobs."""
    parts = (line.strip().split("|", 4) for line in text.splitlines())
    return tuple(Job(*(part.strip() for part in five)) for five in parts if len(five) == 5)


def task_of(job: Job) -> int | None:
    """Return which task of an array it is; null for a job that is none, or for several tasks in one line."""
    index = job.number.partition("_")[2]
    return int(index) if index.isdigit() else None


def why_waiting(reason: str) -> str:
    """Return a reason for waiting in words, with Slurm's own."""
    if reason == "None":
        return "it is new"
    meaning = {**NEVER, **WAITS}.get(reason.partition(",")[0])
    return reason if meaning is None else f"{meaning} ({reason})"


def offers(text: str) -> tuple[Offer, ...]:
    """Read ``sinfo --noheader --format`` with `PARTITION_FORMAT`: partitions that are up."""
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
                longest_s=seconds(longest),
            )
        )
    return tuple(result)


def too_many(nodes: int, place: str | None, found: tuple[Offer, ...]) -> str | None:
    """Say that no partition, or not the one named, ever has so many nodes; null when one has, or it is not known."""
    sizes = [offer.nodes for offer in found if place in {None, offer.name}]
    if not sizes or any(size is None or size >= nodes for size in sizes):
        return None
    most = max(size or 0 for size in sizes)
    where = f"the partition {place}" if place else "the largest partition"
    return f"{nodes} nodes are asked for, and {where} has {most}"


def seconds(text: str) -> float | None:
    """Return seconds from Slurm's ``D-HH:MM:SS``, ``HH:MM:SS``, ``MM:SS`` or minutes; null for no limit or no time."""
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


def time_limit(limit_s: float) -> str:
    """Write seconds as Slurm reads them; its limits are whole minutes, so they are rounded up."""
    minutes = max(1, math.ceil(limit_s / 60))
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def failed_nodes(text: str) -> dict[str, str]:
    """Read ``sinfo --Node --format`` with `NODE_FORMAT`: nodes that are out of order, and why."""
    failed: dict[str, str] = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|", 2)]
        if len(parts) == 3 and (parts[1].startswith(_FAILED_NODES) or parts[1].endswith("*")):
            state = parts[1].rstrip("*") + (", not responding" if parts[1].endswith("*") else "")
            failed[parts[0]] = state if parts[2] in {"", "none"} else f"{state}: {parts[2]}"
    return failed


def first_to_exit(log: str) -> str | None:
    """Return the node whose task ended first by itself and not well, from what ``srun`` says; null when none did."""
    match = re.search(r"srun: error: (\S+): tasks? [\d,-]+: Exited with exit code", log)
    return match[1] if match else None


def nodes_named_failed(log: str) -> tuple[str, ...]:
    """Return the nodes that ``srun`` says have failed, from what a job printed."""
    return tuple(dict.fromkeys(re.findall(r"srun: error: Node failure on (\S+)", log)))
