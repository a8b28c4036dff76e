"""What Slurm prints, read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.hosts.slurm import commands
from assay.hosts.slurm.commands import QueueEntry

QUEUE = """\
2|PENDING|assay-0f|n/a|PartitionNodeLimit
5|COMPLETING|assay-1f|n1|NodeDown
5|NODE_FAIL|assay-1f|n[1-2]|NodeDown
7|TIMEOUT|assay-2f|n[1-2]|TimeLimit

slurm_load_jobs error: nonsense
"""


def test_jobs_are_read_and_other_lines_are_not() -> None:
    found = commands.parse_queue(QUEUE)
    assert [(job.number, job.state, job.reason) for job in found] == [
        ("2", "PENDING", "PartitionNodeLimit"),
        ("5", "COMPLETING", "NodeDown"),
        ("5", "NODE_FAIL", "NodeDown"),
        ("7", "TIMEOUT", "TimeLimit"),
    ]
    assert [job.over for job in found] == [False, False, True, True]
    assert [job.waiting for job in found] == [True, False, False, False]


def test_a_reason_may_hold_anything() -> None:
    (job,) = commands.parse_queue("9|PENDING|assay-3f||ReqNodeNotAvail, UnavailableNodes:n[1-2]|x\n")
    assert job == QueueEntry("9", "PENDING", "assay-3f", "", "ReqNodeNotAvail, UnavailableNodes:n[1-2]|x")
    assert commands.wait_reason(job.reason).startswith("a node it needs is not available (ReqNodeNotAvail, ")
    assert commands.wait_reason("Resources") == "nodes are not free (Resources)"
    assert commands.wait_reason("QOSMaxGRESPerUser") == "QOSMaxGRESPerUser"
    assert commands.wait_reason("None") == "it is new"


def test_partitions_are_offers() -> None:
    text = "main|up|1/2/1/4|gpu:a100:8|2-00:00:00\nold|down|0/0/3/3|(null)|infinite\nshort|up|0/1/0/1|(null)|infinite\n"
    big, short = commands.parse_offers(text)
    assert (big.name, big.nodes, big.free_nodes, big.gpus, big.longest_s) == ("main", 4, 2, "gpu:a100:8", 172800.0)
    assert (short.name, short.gpus, short.longest_s) == ("short", None, None)


def test_more_nodes_than_there_ever_are_is_known_beforehand() -> None:
    found = commands.parse_offers("main|up|1/2/1/4|(null)|infinite\nside|up|0/1/0/1|(null)|infinite\n")
    assert commands.too_many_nodes_reason(4, None, found) is None
    assert commands.too_many_nodes_reason(5, None, found) == "5 nodes are asked for, and the largest partition has 4"
    assert commands.too_many_nodes_reason(2, "side", found) == "2 nodes are asked for, and the partition side has 1"
    assert commands.too_many_nodes_reason(9, "elsewhere", found) is None
    assert commands.too_many_nodes_reason(9, None, ()) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800.0),
        ("1:30", 90.0),
        ("02:00:00", 7200.0),
        ("1-00", 86400.0),
        ("1-06:30", 109800.0),
        ("infinite", None),
        ("UNLIMITED", None),
        ("n/a", None),
    ],
)
def test_times_are_read_as_slurm_writes_them(text: str, seconds: float | None) -> None:
    assert commands.parse_time_limit(text) == seconds


@given(st.floats(min_value=0.001, max_value=30 * 86400))
def test_a_limit_is_never_shorter_than_asked_nor_a_minute_longer(limit_s: float) -> None:
    written = commands.parse_time_limit(commands.format_time_limit(limit_s))
    assert written is not None
    assert limit_s <= written < limit_s + 60 or written == 60


def test_nodes_that_are_out_of_order_are_found_with_their_reason() -> None:
    text = "n1|idle|none\nn2|down|unplugged\nn3|idle*|Not responding\nn4|drained|disk\nn5|fail|none\nn6|down*|none\n"
    assert commands.parse_failed_nodes(text) == {
        "n2": "down: unplugged",
        "n3": "idle, not responding: Not responding",
        "n5": "fail",
        "n6": "down, not responding",
    }


def test_srun_names_the_node_that_failed() -> None:
    log = "srun: error: Node failure on n2\nsrun: Job step aborted\nsrun: error: Node failure on n2\n"
    assert commands.nodes_reported_failed(log) == ("n2",)
