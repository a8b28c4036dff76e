"""The nodes of a partition, and which of them a fleet is."""

from __future__ import annotations

import pytest

from assay.core.errors import MachineCannot
from assay.hosts.slurm import commands as nodes

SINFO = """\
n1|main*|up|idle|none
n2|main*|up|allocated|none
n3|main*|up|drained|disk | two
n4|main*|up|idle*|Not responding
n5|main*|up|down|none
n6|main*|up|mixed|none
n7|main*|up|idle~|none
n6|old|down|mixed|none
nonsense
"""


def test_nodes_that_take_no_work_say_why() -> None:
    found = nodes.parse_nodes(SINFO)
    assert nodes.node_troubles(found) == {
        "n1": None,
        "n2": None,
        "n3": "drained: disk | two",
        "n4": "idle, not responding: Not responding",
        "n5": "down",
        "n6": None,
        "n7": None,
    }
    assert nodes.node_troubles(found[-1:]) == {"n6": "the partition is down"}
    assert {node.partition for node in found if node.default} == {"main"}


def test_free_nodes_come_first_and_those_that_are_out_of_order_last() -> None:
    found = nodes.parse_nodes(SINFO)
    assert list(nodes.choose_nodes(found, count=2, names=())) == ["n1", "n7"]
    assert list(nodes.choose_nodes(found, count=4, names=())) == ["n1", "n2", "n6", "n7"]
    assert len(nodes.choose_nodes(found, count=5, names=())) == 5
    assert nodes.choose_nodes(found, count=None, names=("n2", "n5")) == {"n2": None, "n5": "down"}
    assert len(nodes.choose_nodes(found, count=None, names=())) == 7


def test_what_is_not_there_or_takes_nothing_is_said() -> None:
    found = nodes.parse_nodes(SINFO)
    with pytest.raises(MachineCannot, match="There is no node n9 in the partition main, old; it has n1, n2, "):
        nodes.choose_nodes(found, count=None, names=("n1", "n9"))
    with pytest.raises(MachineCannot, match="8 nodes are asked for, and the partition main, old has 7"):
        nodes.choose_nodes(found, count=8, names=())
    with pytest.raises(MachineCannot, match=r"No node of the partition main, old takes work: n5 \(down\)"):
        nodes.choose_nodes(found, count=None, names=("n5",))
