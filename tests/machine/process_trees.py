"""Process trees simulated in memory as Linux keeps their CPU time: births, deaths, waiting, orphans, coarse ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from assay.machine.interference import ProcessSnapshot, ProcessUsage

TICK_S = 0.01
INIT = 1


@dataclass
class Node:
    """A process with its exact CPU times in s; a zombie has ended and nobody has waited for it yet."""

    pid: int
    parent: int
    start: int
    subreaper: bool = False
    ignores_children: bool = False
    own_s: float = 0.0
    children_s: float = 0.0
    zombie: bool = False


@dataclass
class World:
    """All processes of a machine with so many CPUs; ``spent_s`` is all CPU time that was ever used."""

    cpus: int
    at_s: float = 0.0
    spent_s: float = 0.0
    born: int = 2
    nodes: dict[int, Node] = field(default_factory=lambda: {INIT: Node(INIT, 0, 1, subreaper=True)})

    @property
    def running(self) -> list[Node]:
        """The processes that have not ended."""
        return [node for node in self.nodes.values() if not node.zombie]

    def fork(self, parent: Node, *, subreaper: bool = False, ignores_children: bool = False) -> Node:
        """Return a new child of a process."""
        node = Node(self.born, parent.pid, self.born, subreaper, ignores_children)
        self.nodes[node.pid] = node
        self.born += 1
        return node

    def spend(self, seconds: float, who: list[Node]) -> None:
        """Let time go by in which a process runs on each CPU, as far as there are some."""
        for node in who[: self.cpus]:
            node.own_s += seconds
            self.spent_s += seconds
        self.at_s += seconds

    def end(self, node: Node) -> None:
        """End a process: its children go to the nearest subreaper above it, and itself waits for its parent."""
        if node.pid == INIT or node.zombie:
            return
        heir = self.nodes[node.parent]
        while heir.zombie or not heir.subreaper:
            heir = self.nodes[heir.parent]
        node.zombie = True
        for child in [child for child in self.nodes.values() if child.parent == node.pid]:
            child.parent = heir.pid
        if self.nodes[node.parent].ignores_children:
            del self.nodes[node.pid]

    def wait(self, node: Node) -> None:
        """Have the parent of an ended process wait for it: it gains its time, and the process is gone."""
        parent = self.nodes[node.parent]
        if node.zombie and not parent.zombie:
            parent.children_s += node.own_s + node.children_s
            del self.nodes[node.pid]

    def look(self, *, counts_cpus: bool = True) -> ProcessSnapshot:
        """Return what a look at this world shows, in whole ticks."""
        return ProcessSnapshot(
            at_s=self.at_s,
            cpus=self.cpus if counts_cpus else None,
            busy_s=_ticks(self.spent_s),
            idle_s=_ticks(self.cpus * self.at_s - self.spent_s),
            processes=tuple(
                ProcessUsage(
                    pid=node.pid,
                    start_ticks=node.start,
                    parent=node.parent,
                    name=f"p{node.pid}",
                    own_s=_ticks(node.own_s),
                    children_s=_ticks(node.children_s),
                )
                for node in self.nodes.values()
            ),
        )


def _ticks(seconds: float) -> float:
    return math.floor(seconds / TICK_S + 1e-9) * TICK_S
