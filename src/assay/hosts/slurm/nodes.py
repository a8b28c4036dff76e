"""The nodes of a partition: which exist, which accept work, and which of them form a fleet."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, MachineCannot
from assay.hosts.fleet.state import join_nodes, unavailable_text
from assay.hosts.slurm.batch_job import partitions_up_text
from assay.hosts.slurm.commands import run_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|", 4)]
        if len(parts) != 5:
            continue
        name, partition, up, state, reason = parts
        trouble = _trouble_reason(state, reason) if up == "up" else f"the partition is {up}"
        nodes.append(
            SlurmNode(name, partition.rstrip("*"), partition.endswith("*"), trouble, free=state.startswith(_FREE))
        )
    return tuple(nodes)


def _trouble_reason(state: str, reason: str) -> str | None:
    unresponsive = "*" in state
    if not unresponsive and not state.startswith(_OUT_OF_ORDER):
        return None
    trouble = state.rstrip("*~#!%$@^-+") + (", not responding" if unresponsive else "")
    return trouble if reason in {"", "none"} else f"{trouble}: {reason}"


def partition_nodes(partition: str | None) -> tuple[SlurmNode, ...]:
    """Return the nodes of a partition, of several separated by commas, or of the default one where it is null.

    Raises:
        MachineCannot: Slurm does not answer, or has no such partition.
    """
    result = run_command(
        "sinfo",
        "--noheader",
        "--Node",
        f"--format={NODES_FORMAT}",
        *([f"--partition={partition}"] if partition else []),
    )
    if result.code != 0:
        raise MachineCannot(f"Slurm does not answer: {result.reason}.")
    nodes = parse_nodes(result.out)
    if partition is None:
        if nodes and not any(node.default for node in nodes):
            raise BadInput(f"Slurm has no default partition; name one with --partition.{partitions_up_text()}")
        nodes = tuple(node for node in nodes if node.default)
    if not nodes:
        raise MachineCannot(f"Slurm has no partition {partition or 'with a node in it'}.{partitions_up_text()}")
    return nodes


def nodes_by_name(names: Iterable[str]) -> tuple[SlurmNode, ...]:
    """Return nodes by name, once for each of their partitions; none where Slurm does not answer."""
    return parse_nodes(
        run_command("sinfo", "--noheader", "--Node", f"--nodes={','.join(names)}", f"--format={NODES_FORMAT}").out
    )


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


def expand_node_list(text: str) -> tuple[str, ...]:
    """Return the names in a Slurm node list: ``n[1-3],n7``.

    Raises:
        BadInput: It is not a valid list.
    """
    well_formed = re.fullmatch(r"[^\s\[\]]+(\[[\d,-]+\][^\s\[\]]*)*", text) is not None
    result = run_command("scontrol", "show", "hostnames", text)
    if not well_formed or result.code != 0 or not result.out.split():
        raise BadInput(f"--nodelist {text} is no list of nodes; write n1,n2 or n[1-4].")
    return tuple(dict.fromkeys(result.out.split()))
