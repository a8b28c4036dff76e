"""Run Slurm's commands and parse their output; the nodes of a partition.

PENDING ─▶ CONFIGURING ─▶ RUNNING ─▶ COMPLETING ─▶ COMPLETED, FAILED, TIMEOUT, NODE_FAIL, CANCELLED …
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, MachineCannot
from assay.core.processes import die_with_parent
from assay.hosts.base import Offer
from assay.hosts.fleet import join_nodes, unavailable_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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

_FAILED = ("down", "fail", "error", "unknown", "no_respond")


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
    return tuple(QueueEntry(*row) for row in _split_rows(text, 5))


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


def query_sinfo(*options: str) -> str:
    """Return what ``sinfo`` prints.

    Raises:
        MachineCannot: Slurm does not answer.
    """
    result = run_command("sinfo", "--noheader", *options)
    if result.code != 0:
        raise MachineCannot(f"Slurm does not answer: {result.reason}.")
    return result.out


def _split_rows(text: str, columns: int) -> list[list[str]]:
    """Return the columns of each line; lines with fewer are skipped, the last column may contain anything."""
    rows = [[part.strip() for part in line.strip().split("|", columns - 1)] for line in text.splitlines()]
    return [row for row in rows if len(row) == columns]


def list_offers() -> tuple[Offer, ...]:
    """Return the partitions that are up."""
    return parse_offers(query_sinfo(f"--format={PARTITION_FORMAT}"))


def parse_offers(text: str) -> tuple[Offer, ...]:
    """Parse ``sinfo --noheader --format`` with `PARTITION_FORMAT`; return the partitions that are up."""
    result: list[Offer] = []
    for name, available, counts, gpus, longest in _split_rows(text, 5):
        if available == "up":
            numbers = [int(number) for number in re.findall(r"\d+", counts)]
            free, nodes = (numbers[1], numbers[3]) if len(numbers) == 4 else (None, None)
            gpu_text = None if gpus in {"", "(null)"} else gpus
            longest_s = parse_time_limit(longest)
            offer = Offer(host="slurm", name=name, nodes=nodes, free_nodes=free, gpus=gpu_text, longest_s=longest_s)
            result.append(offer)
    return tuple(result)


def partitions_up_text() -> str:
    """Return a sentence with the partitions that are up; an empty string where Slurm does not answer."""
    try:
        names = dict.fromkeys(offer.name for offer in list_offers())
    except MachineCannot:
        return ""
    return f" Partitions that are up: {', '.join(names)}." if names else ""


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
    has_hours = days is not None or len(parts) == 3
    hours, minutes, secs = (*parts, 0, 0)[:3] if has_hours else (0, *parts, 0)[:3]
    return float(int(days or 0) * 86400 + hours * 3600 + minutes * 60 + secs)


def format_time_limit(limit_s: float) -> str:
    """Format seconds for Slurm; its limits are whole minutes, so they are rounded up."""
    minutes = max(1, math.ceil(limit_s / 60))
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def parse_failed_nodes(text: str) -> dict[str, str]:
    """Parse ``sinfo --Node --format`` with `NODE_FORMAT`; return the nodes that have failed, and why."""
    troubles = {name: _trouble_reason(state, why, _FAILED) for name, state, why in _split_rows(text, 3)}
    return {name: trouble for name, trouble in troubles.items() if trouble is not None}


def first_failed_node(log: str) -> str | None:
    """Return the node of the first task that exited with an error, from ``srun``'s messages; null when none did."""
    match = re.search(r"srun: error: (\S+): tasks? [\d,-]+: Exited with exit code", log)
    return match[1] if match else None


def nodes_reported_failed(log: str) -> tuple[str, ...]:
    """Return the nodes that failed according to ``srun``'s messages in a job's log."""
    return tuple(dict.fromkeys(re.findall(r"srun: error: Node failure on (\S+)", log)))


NODES_FORMAT = "%N|%P|%a|%T|%E"
_OUT_OF_ORDER = ("down", "drain", "err", "fail", "future", "inval", "maint", "no_respond", "perfctrs", "unknown")
_FREE = ("idle", "planned")


@dataclass(frozen=True)
class SlurmNode:
    """One node in one partition; ``trouble`` is why it takes no work, null where it does."""

    name: str
    partition: str
    default: bool
    trouble: str | None
    free: bool


def parse_nodes(text: str) -> tuple[SlurmNode, ...]:
    """Parse ``sinfo --noheader --Node`` with `NODES_FORMAT`."""
    nodes: list[SlurmNode] = []
    for name, partition, up, state, reason in _split_rows(text, 5):
        trouble = _trouble_reason(state, reason, _OUT_OF_ORDER) if up == "up" else f"the partition is {up}"
        is_free = state.startswith(_FREE)
        nodes.append(SlurmNode(name, partition.rstrip("*"), partition.endswith("*"), trouble, free=is_free))
    return tuple(nodes)


def _trouble_reason(state: str, reason: str, bad_states: tuple[str, ...]) -> str | None:
    """Return why a node in this state takes no work; null: its state is not a bad one, and it responds."""
    unresponsive = "*" in state
    if not unresponsive and not state.startswith(bad_states):
        return None
    trouble = state.rstrip("*~#!%$@^-+") + (", not responding" if unresponsive else "")
    return trouble if reason in {"", "none"} else f"{trouble}: {reason}"


def partition_nodes(partition: str | None) -> tuple[SlurmNode, ...]:
    """Return the nodes of a partition, of several separated by commas, or of the default one where it is null.

    Raises:
        MachineCannot: Slurm does not answer, or has no such partition.
    """
    options = [f"--partition={partition}"] if partition else []
    nodes = parse_nodes(query_sinfo("--Node", f"--format={NODES_FORMAT}", *options))
    if partition is None:
        if nodes and not any(node.default for node in nodes):
            raise BadInput(f"Slurm has no default partition; name one with --partition.{partitions_up_text()}")
        nodes = tuple(node for node in nodes if node.default)
    if not nodes:
        raise MachineCannot(f"Slurm has no partition {partition or 'with a node in it'}.{partitions_up_text()}")
    return nodes


def nodes_by_name(names: Iterable[str]) -> tuple[SlurmNode, ...]:
    """Return nodes by name, once for each of their partitions; none where Slurm does not answer."""
    options = ("--noheader", "--Node", f"--nodes={','.join(names)}", f"--format={NODES_FORMAT}")
    return parse_nodes(run_command("sinfo", *options).out)


def node_troubles(nodes: Iterable[SlurmNode]) -> dict[str, str | None]:
    """Return each node once, and why it takes no work; null where it does in at least one partition."""
    troubles: dict[str, str | None] = {}
    for node in nodes:
        is_up = node.name in troubles and troubles[node.name] is None
        troubles[node.name] = None if is_up else node.trouble
    return troubles


def choose_nodes(nodes: Sequence[SlurmNode], *, count: int | None, names: Sequence[str]) -> dict[str, str | None]:
    """Return the nodes of a fleet, and why each takes no work: the named ones, ``count`` nodes, or all.

    ``count`` selects free nodes first, and nodes that are out of order last.

    Raises:
        MachineCannot: A named node does not exist, there are too few nodes, or none takes work.
    """
    troubles = node_troubles(nodes)
    where = ", ".join(dict.fromkeys(node.partition for node in nodes))
    unknown = [name for name in names if name not in troubles]
    if unknown:
        raise MachineCannot(f"There is no node {unknown[0]} in the partition {where}; it has {join_nodes(troubles)}.")
    if count is not None and count > len(troubles):
        raise MachineCannot(f"{count} nodes are asked for, and the partition {where} has {len(troubles)}.")
    free = {node.name for node in nodes if node.free}
    ranked = sorted(troubles, key=lambda name: (troubles[name] is not None, name not in free))
    selected_names = set(names or ranked[:count])
    selected = {name: why for name, why in troubles.items() if name in selected_names}
    if all(why is not None for why in selected.values()):
        raise MachineCannot(f"No node of the partition {where} takes work: {unavailable_text(selected)}.")
    return selected


def expand_hostnames(nodes: str) -> tuple[str, ...]:
    """Return the nodes of a list such as ``n[1-2]``; nothing where Slurm does not answer or it is not a list."""
    result = run_command("scontrol", "show", "hostnames", nodes)
    return tuple(dict.fromkeys(result.out.split())) if result.code == 0 else ()


def expand_node_list(text: str) -> tuple[str, ...]:
    """Return the names in a Slurm node list from the command line: ``n[1-3],n7``.

    Raises:
        BadInput: It is not a valid list.
    """
    well_formed = re.fullmatch(r"[^\s\[\]]+(\[[\d,-]+\][^\s\[\]]*)*", text) is not None
    names = expand_hostnames(text) if well_formed else ()
    if not names:
        raise BadInput(f"--nodelist {text} is no list of nodes; write n1,n2 or n[1-4].")
    return names
