"""Rounds of a fleet, with nodes that behave as told: who is tried again, what is kept, and that nothing is left."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from assay.cli import fleet_node
from assay.cli.fleet import fleet_page
from assay.cli.main import main
from assay.core.errors import BadInput, MachineCannot, StopRequested
from assay.core.page import Text
from assay.experiments.power.rows import GPUS_FILE
from assay.hosts import fleet as rounds
from assay.hosts import run_job
from assay.hosts.base import Rental
from assay.hosts.fleet import (
    ABANDONED_REASON,
    FLEET_FILE,
    REQUEST_FILE,
    FleetFolder,
    FleetState,
    NodeProgress,
    NodeRequest,
    NodeState,
    is_fleet,
)
from assay.hosts.run_job import FOLDER_VARIABLE
from assay.hosts.slurm.array import SlurmArrays
from assay.machine.detect import detect
from assay.machine.model import Gpu
from assay.store.run_folder import RunFolder, RunPlan
from tests.hosts.test_fleet_state import ORDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from assay.hosts.base import Job

PLAN = RunPlan(
    experiment="run", options={}, seed=0, versions={}, cwd="/", created_at="2026-01-01T00:00:00+00:00", monitor=False
)


class Cluster(SlurmArrays):
    """Nodes that end each attempt with the exit code that is next for them; null: the node dies."""

    def __init__(self, codes: Mapping[str, list[int | None]]) -> None:
        self.codes = {node: list(told) for node, told in codes.items()}
        self.trouble: dict[str, str | None] = dict.fromkeys(codes)
        self.did: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def nodes(self, place: str | None) -> Mapping[str, str | None]:
        return self.trouble

    def max_tasks(self) -> int:
        return 2

    def create(self, order: Job, nodes: tuple[str, ...], number: int, at_once: int | None) -> Rental:
        self.did.append(f"{number}: {' '.join(nodes)}")
        return Rental(host="slurm", name=order.name, number=str(number))

    def watch(self, loan: Rental, orders: Mapping[str, Job], tell: Callable[[Iterable[NodeProgress]], None]) -> None:
        from pathlib import Path

        tell([NodeProgress(node=node, state="runs") for node in orders])
        for node, order in orders.items():
            folder, code = Path(order.folder), self.codes[node].pop(0)
            wish = NodeRequest.model_validate_json((folder / REQUEST_FILE).read_text())
            run = Path(wish.resume) if wish.resume else folder.parent / "run-1"
            if not wish.resume:
                run.mkdir()
                (run / "plan.json").touch()
            (folder / "run").write_text(f"{run}\n")
            run_job.write_rank(folder, run_job.RankRecord(rank=0, node=node, exit_code=code))
            self.meanwhile()
            tell(
                [
                    NodeProgress(
                        node=node, state="done" if code == 0 else "failed", exit_code=code, reason=f"code {code}"
                    )
                ]
            )

    def release(self, loan: Rental) -> None:
        self.did.append("gone")

    def cancel(self, name: str) -> None:
        self.did.append(f"cancelled {name}")


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., FleetFolder]:
    def make_one(*nodes: str, **changes: object) -> FleetFolder:
        order = ORDER.model_copy(
            update={"folder": str(tmp_path / "fleet"), "words": ("run", "--", "x", "--output-dir")}
        )
        posts = tuple(NodeState(node=node) for node in nodes)
        return FleetFolder.create(FleetState(created_at="2026", job=order, posts=posts).model_copy(update=changes))

    return make_one


def states(folder: FleetFolder) -> dict[str, tuple[str, int]]:
    """Return what the file says, not what is in memory."""
    return {post.node: (post.state, post.attempts) for post in FleetFolder.open(folder.path).fleet.posts}


def test_arrays_are_no_larger_than_slurm_takes_and_who_died_is_tried_again(make: Callable[..., FleetFolder]) -> None:
    folder, cluster = make("n1", "n2", "n3"), Cluster({"n1": [0], "n2": [None, 0], "n3": [4, 4]})
    said: list[str] = []
    rounds.measure_fleet(folder, cluster, said.append)
    assert cluster.did == ["1: n1 n2", "gone", "2: n3 n2", "gone", "3: n3", "gone"]
    assert states(folder) == {"n1": ("done", 1), "n2": ("done", 2), "n3": ("failed", 2)}
    assert {post.node: post.run for post in folder.fleet.posts} == {
        node: f"{node}/run-1" for node in ("n1", "n2", "n3")
    }
    assert said[:3] == ["Slurm array 1: 2 nodes", "n1 and n2 run", "n1 is done: code 0"]
    assert "n2 is tried again" in said
    wish = NodeRequest.model_validate_json((folder.path / "n2/array-2" / REQUEST_FILE).read_text())
    assert wish.words == ("run", "--output-dir", str(folder.path / "n2"), "--", "x", "--output-dir")
    assert wish.resume == str(folder.path / "n2/run-1")


def test_a_node_that_stays_away_is_given_up_and_taken_up_when_it_is_back(make: Callable[..., FleetFolder]) -> None:
    folder, cluster = make("n1", "n2"), Cluster({"n1": [0], "n2": [None, 0]})
    cluster.meanwhile = lambda: cluster.trouble.update(n2="down: unplugged")
    rounds.measure_fleet(folder, cluster, lambda line: None)
    assert states(folder) == {"n1": ("done", 1), "n2": ("failed", 1)}
    cluster.trouble["n2"] = None
    cluster.meanwhile = lambda: None
    again = FleetFolder.open(folder.path)
    rounds.measure_fleet(again, cluster, lambda line: None)
    assert cluster.did == ["1: n1 n2", "gone", "2: n2", "gone"]
    assert states(folder) == {"n1": ("done", 1), "n2": ("done", 2)}


def test_ctrl_c_cancels_the_array_and_keeps_what_is_there(make: Callable[..., FleetFolder]) -> None:
    folder, cluster = make("n1", "n2"), Cluster({"n1": [0], "n2": [0]})
    cluster.meanwhile = lambda: os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(StopRequested, match="Stopped by SIGINT; the array is gone from the queue"):
        rounds.measure_fleet(folder, cluster, lambda line: None)
    assert cluster.did == ["1: n1 n2", "gone"]
    assert states(folder) == {"n1": ("done", 1), "n2": ("failed", 1)}
    assert folder.fleet.open is None
    assert folder.fleet.post("n2").reason == ABANDONED_REASON


def test_what_a_killed_command_left_is_cancelled_and_counted_before_anything_is_sent(
    make: Callable[..., FleetFolder],
) -> None:
    folder, cluster = make("n1", "n2"), Cluster({"n1": [], "n2": [0]})
    folder.start_round(("n1", "n2"), "assay-left")
    run_job.write_rank(folder.path / "n1/array-1", run_job.RankRecord(rank=0, node="n1", exit_code=0))
    rounds.measure_fleet(FleetFolder.open(folder.path), cluster, lambda line: None)
    assert cluster.did == ["cancelled assay-left", "2: n2", "gone"]
    assert states(folder) == {"n1": ("done", 1), "n2": ("done", 2)}


def test_two_commands_do_not_send_the_same_fleet(make: Callable[..., FleetFolder]) -> None:
    folder = make("n1")
    with folder.lock(), pytest.raises(MachineCannot, match="is being measured by another process"):
        rounds.measure_fleet(FleetFolder.open(folder.path), Cluster({"n1": [0]}), lambda line: None)


def test_a_file_that_is_no_fleet_is_said_to_be_none(tmp_path: Path) -> None:
    assert not is_fleet(tmp_path)
    (tmp_path / FLEET_FILE).write_text('{"posts": []}')
    assert is_fleet(tmp_path)
    with pytest.raises(BadInput, match=r"fleet\.json is not what this version of Assay writes"):
        FleetFolder.open(tmp_path)


def test_a_fleet_goes_on_where_it_was_begun(
    make: Callable[..., FleetFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make("n1")
    for option in ("--nodes=2", "--sbatch-arg=--qos=high", "--partition=main"):
        assert main(["resume", str(folder.path), "--on", "slurm", option]) == 2
        assert f"so {option.partition('=')[0]} cannot be changed" in capsys.readouterr().err


def test_a_node_goes_on_with_its_run_only_where_it_is_the_machine_that_began_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = detect()
    same = RunFolder.create(tmp_path, PLAN, machine).path
    other = RunFolder.create(tmp_path, PLAN, machine.model_copy(update={"kernel": "6.0"})).path
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    did: list[tuple[str, ...]] = []

    def note(words: tuple[str, ...]) -> int:
        did.append(tuple(words))
        return 0

    monkeypatch.setattr("assay.cli.remote_rank.main", note)
    for resume in (None, same, other, tmp_path / "gone"):
        wish = NodeRequest(words=("run", "x"), resume=None if resume is None else str(resume))
        (tmp_path / REQUEST_FILE).write_text(wish.model_dump_json())
        assert fleet_node.main() == 0
    assert did == [("run", "x"), ("resume", str(same)), ("run", "x"), ("run", "x")]
    assert "cannot be gone on with (kernel: 6.0 → " in capsys.readouterr().err


def test_gpus_are_gathered_by_uuid_with_the_run_that_has_them(make: Callable[..., FleetFolder]) -> None:
    folder = make("n1", "n2", "n3")
    seen = {"n1": ("a", "b"), "n2": ("b", "c")}
    for node, uuids in seen.items():
        gpus = tuple(Gpu(index=index, uuid=f"GPU-{uuid}", name="H200") for index, uuid in enumerate(uuids))
        run = RunFolder.create(folder.path / node, PLAN, detect().model_copy(update={"gpus": gpus, "driver": "fake 1"}))
        rows = "\n".join(f'{{"uuid": "GPU-{uuid}"}}' for uuid in uuids if uuid != "c")
        run.keep_files({GPUS_FILE: f"{rows}\n"})
        folder.start_round((node,), "assay-x")
        (folder.path / node / f"array-{folder.fleet.rounds}/run").write_text(f"{run.path}\n")
    folder.update_state()
    found = {card.uuid: [place.node for place in card.locations] for card in folder.fleet.gpus}
    assert found == {"GPU-a": ["n1"], "GPU-b": ["n1", "n2"]}, "what was there and not measured is not counted"
    assert {card.origin for card in folder.fleet.gpus} == {"fake"}
    shown = fleet_page(folder.fleet, begun=[])
    assert any(
        isinstance(e, Text) and "GPU-b (H200) was found on n1 and n2" in e.text for e in shown.sections[0].elements
    )
