"""A torchrun over several nodes: two of them on this machine, and in values nodes that differ."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from assay.core.errors import MachineCannot
from assay.core.values import Adaptive, Role, Subject, Trial
from assay.launch.local import find_free_port
from assay.launch.trial import TrialPlacement
from assay.worker.rendezvous import Torchrun, devices_of_ranks, own_address
from tests.machines import machine
from tests.running import survivors, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.values import Isolation

pytestmark = pytest.mark.full

QUICK = ("--device", "cpu", "--benchmark-runs", "3", "--timeout", "60", "--no-monitor")


def place(rank: int, *, world: int = 8, local: int = 4, address: str = "127.0.0.1", port: int = 1) -> Torchrun:
    around = {
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank % local), "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(rank // local), "MASTER_ADDR": address, "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "x",
    }  # fmt: skip
    found = Torchrun.from_environment(around)
    assert found is not None
    return found


def both_nodes(workplace: Path, rendezvous: list[list[str]], *arguments: str) -> list[tuple[int, str, str]]:
    """Run the same command under a torchrun for each of two nodes; return how each ended."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    started = [
        subprocess.Popen(
            [*command, *words, "-m", "assay", *arguments],
            cwd=workplace,
            env=dict(os.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for words in rendezvous
    ]
    said = [process.communicate(timeout=110) for process in started]
    return [(process.returncode, *words) for process, words in zip(started, said, strict=True)]


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_two_torchruns_measure_as_one(backend: str, workplace: Path, assay_home: Path) -> None:
    pytest.importorskip("torch")
    port = find_free_port()
    static = [["--node-rank", str(n), "--master-addr", "127.0.0.1", "--master-port", str(port)] for n in range(2)]
    c10d = [["--rdzv-backend", "c10d", "--rdzv-id", "two", "--rdzv-endpoint", f"localhost:{port}"]] * 2
    ended = both_nodes(workplace, static if backend == "static" else c10d, "run", "bad.py:notes_rank", *QUICK, "--json")
    assert [code for code, _, _ in ended] == [0, 0], ended
    (out,) = [out for _, out, _ in ended if out]
    (record,) = json.loads(out)["records"]
    assert record["status"] == "ok"
    assert sorted(e["rank"] for e in record["evidence"]) == [0, 1]
    shared = [[limit["code"] for limit in e["isolation_limits"]] for e in record["evidence"]]
    assert [e["isolation_held"] for e in record["evidence"]] == ["none", "none"]
    assert all("shared_cores" in codes for codes in shared), "both nodes are this machine, and start at its first core"
    assert "nodes_share_machine" in {note["code"] for note in record["notes"]}
    told = [(workplace / f"rank-{rank}.txt").read_text().split() for rank in range(2)]
    assert [t[:3] for t in told] == [["0", "0", "2"], ["1", "0", "2"]]
    assert told[0][3:] == told[1][3:]
    wait_for(lambda: not survivors(assay_home))


def test_the_ranks_of_a_node_are_counted_there() -> None:
    assert [place(rank).local_ranks(8) for rank in (0, 3, 4, 7)] == [4, 4, 4, 4]
    assert [place(rank).local_ranks(6) for rank in (0, 4)] == [4, 2]
    assert place(0).local_ranks(3) == 3
    assert place(0).nodes == 2
    assert place(0, world=3, local=3).nodes == 1


def test_devices_are_numbered_on_each_node() -> None:
    eight = tuple(f"cuda:{index}" for index in range(8))
    assert devices_of_ranks(eight, place(0)) == eight[:4]
    assert devices_of_ranks(eight, place(0, world=4)) == eight
    assert devices_of_ranks(eight, None) == eight


def test_rank_0_is_known_by_the_name_of_the_store_where_it_keeps_it_and_by_its_own_address_elsewhere() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as here:
        port = here.getsockname()[1]
        assert own_address(place(0, address="localhost", port=port)) == "localhost"
    with closing(socket.create_server(("127.0.0.2", 0))) as there:
        port = there.getsockname()[1]
        assert own_address(place(0, address="127.0.0.2", port=port)) in {"127.0.0.1", "127.0.0.2"}
    with pytest.raises(MachineCannot, match="does not answer"):
        own_address(place(0, port=port), 0.5)


def trial(devices: tuple[str, ...], isolation: Isolation = "full", ranks: int = 4) -> Trial:
    role = Role(
        name="ring", subjects=(Subject(workload="x", impl="y"),), ranks=ranks, devices=devices, isolation=isolation
    )
    return Trial(block="b", roles=(role,), mode=Adaptive(duration_s=1), placed_with=tuple(dict.fromkeys(devices)))


def test_a_rank_elsewhere_gets_the_gpu_and_the_cores_of_its_own_node() -> None:
    here, there = machine(cores=(8,), gpus=(0, 0)), machine(cores=(16,), gpus=(0, 0))
    there = there.model_copy(
        update={
            "boot_id": "another",
            "gpus": tuple(gpu.model_copy(update={"uuid": f"GPU-there-{gpu.index}"}) for gpu in there.gpus),
        }
    )
    planned = trial(("cuda:0", "cuda:1", "cuda:0", "cuda:1"))
    placing = TrialPlacement(planned, here, {2: there, 3: there})
    role = planned.roles[0]
    uuids = [placing.allotment(role, rank).gpu_uuid for rank in range(4)]
    assert uuids == [here.gpus[0].uuid, here.gpus[1].uuid, "GPU-there-0", "GPU-there-1"]
    assert len(placing.allotment(role, 2).cpus or ()) > len(placing.allotment(role, 0).cpus or ())
    assert placing.machine_of(role, 3).cpus == there.cpus
    assert placing.notes() == []


def test_a_node_without_the_gpu_is_named() -> None:
    here, there = machine(cores=(4,), gpus=(0, 0)), machine(cores=(4,), gpus=(0,))
    planned = trial(("cuda:0", "cuda:1", "cuda:0", "cuda:1"))
    with pytest.raises(MachineCannot, match="Rank 3 would work on cuda:1, but its node has no such GPU"):
        TrialPlacement(planned, here, {2: there, 3: there})


def test_ranks_are_counted_against_the_cores_of_their_own_node() -> None:
    here = machine(cores=(2,))
    there = machine(cores=(2,)).model_copy(update={"boot_id": "another"})
    planned = trial(("cpu:0",) * 4, "none")
    assert TrialPlacement(planned, here, {2: there, 3: there}).notes() == []
    assert TrialPlacement(planned, here, {3: there}).notes()[0].params == {"ranks": 3, "cpus": 2}
    assert TrialPlacement(planned, here, {}).notes()[0].params == {"ranks": 4, "cpus": 2}
