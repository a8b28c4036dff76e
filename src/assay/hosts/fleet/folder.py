"""A fleet on disk.

FLEET/
  fleet.json                  the job and the state of each node
  slurm-1/                    the first array: its script, and Slurm's log of each task
  NODE/order-1/               what the node's task left (see `hosts.traces`), and its request
  NODE/power-…/               the node's run folder, with a fingerprint of its own

Which GPU was measured where is read from the run folders, by UUID.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from assay.core.errors import BadInput, DamagedFile, MachineCannot
from assay.core.files import file_lock, read_json, read_lines, replace_atomically, translate_os_errors
from assay.core.values import Value, first_problem
from assay.experiments.power.rows import GPUS_FILE
from assay.hosts import run_job as traces
from assay.hosts.fleet import state as book
from assay.hosts.fleet.state import FleetGpu, FleetState, GpuLocation
from assay.store.run_folder import RunFolder
from assay.store.seal import verify_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from assay.hosts.base import Job
    from assay.hosts.fleet.state import NodeState
    from assay.machine.model import Gpu


def with_measured_gpus(fleet: FleetState, folder: Path) -> FleetState:
    """Return the fleet with every GPU that its runs have measured; runs that cannot be read have none."""
    cards: dict[str, FleetGpu] = {}
    for post in fleet.posts:
        if post.run is None:
            continue
        try:
            run = RunFolder.open(folder / post.run)
            gpus = measured_gpus(run)
        except BadInput:
            continue
        origin = "fake" if run.machine.has_fake_driver else "real"
        for gpu in gpus:
            here = GpuLocation(node=post.node, run=post.run)
            card = cards.get(gpu.uuid) or FleetGpu(uuid=gpu.uuid, model=gpu.name, origin=origin, locations=(here,))
            if here not in card.locations:
                card = card.model_copy(update={"locations": (*card.locations, here)})
            cards[gpu.uuid] = card
    return fleet.model_copy(update={"gpus": tuple(cards.values())})


def measured_gpus(run: RunFolder) -> list[Gpu]:
    """Return the GPUs of a run: those its rows are about, else those that were there once anything was measured.

    Raises:
        BadInput: The rows cannot be read.
    """
    verify_file(run.path / GPUS_FILE)
    try:
        uuids = {json.loads(line)["uuid"] for line in read_lines(run.path / GPUS_FILE)}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise BadInput(f"{run.path / GPUS_FILE} holds a line that Assay does not write: {error}.") from None
    if uuids:
        return [gpu for gpu in run.machine.gpus if uuids & {gpu.uuid, *(instance.uuid for instance in gpu.instances)}]
    return list(run.machine.gpus) if has_records(run.path) else []


def has_records(run: Path) -> bool:
    """Return whether a run folder holds a record."""
    return bool(read_lines(run / "records.jsonl"))


def failed_trials_text(run: Path) -> str | None:
    """Say how many trials of a run failed, and why the first of them; null where none did, or it cannot be read."""
    try:
        failed = [record for record in RunFolder.open(run).counting() if record.status == "failed"]
    except DamagedFile as error:
        return str(error).rstrip(".")
    except BadInput:
        return None
    if not failed:
        return None
    several = "a trial" if len(failed) == 1 else f"{len(failed)} trials"
    return f"{several} failed: {failed[0].reason or 'no reason was given'}"


FLEET_FILE = "fleet.json"
REQUEST_FILE = "wish.json"
ABANDONED_REASON = "whoever had ordered it ended before it did"


class NodeRequest(Value):
    """What a node is to do: go on with a run of its own where that is possible, else these words."""

    words: tuple[str, ...] = Field(min_length=1)
    resume: str | None = Field(default=None, description="A run folder, absolute.")


class FleetFolder:
    """One fleet on disk; ``fleet`` is what was last written."""

    def __init__(self, path: Path, fleet: FleetState) -> None:
        self.path = path
        self.fleet = fleet

    @classmethod
    def create(cls, fleet: FleetState) -> FleetFolder:
        """Make the folder that the order names."""
        made = cls(Path(fleet.job.folder), fleet)
        with translate_os_errors(made.path):
            made.path.mkdir(parents=True)
        made.write(fleet)
        return made

    @classmethod
    def open(cls, path: Path) -> FleetFolder:
        """Open a fleet that is there, wherever it was moved to."""
        content = read_json(path / FLEET_FILE)
        try:
            fleet = FleetState.model_validate(content)
        except ValidationError as error:
            raise BadInput(
                f"{path / FLEET_FILE} is not what this version of Assay writes: {first_problem(error)}."
            ) from None
        job = fleet.job.model_copy(update={"folder": str(path.absolute())})
        return cls(path.absolute(), fleet.model_copy(update={"job": job}))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep every other process from sending this fleet meanwhile."""
        with (
            translate_os_errors(self.path),
            (self.path / ".lock").open("ab") as file,
            file_lock(file.fileno(), wait=False) as mine,
        ):
            if not mine:
                raise MachineCannot(f"{self.path} is being measured by another process at this moment.")
            yield

    def write(self, fleet: FleetState) -> None:
        """Write ``fleet.json``, whole."""
        self.fleet = fleet
        text = json.dumps(fleet.as_json(), indent=1, ensure_ascii=False)
        replace_atomically(self.path / FLEET_FILE, text.encode() + b"\n")

    def start_round(self, nodes: Iterable[str], name: str) -> None:
        """Write down that nodes are tried next, in an array of this name, and what each is to do."""
        number = self.fleet.rounds + 1
        names = tuple(nodes)
        for node in names:
            files = self.path / node / f"order-{number}"
            run = self.fleet.post(node).run
            request = NodeRequest(
                words=_with_output_dir(self.fleet.job.words, self.path / node),
                resume=None if run is None or not (self.path / run / "plan.json").is_file() else str(self.path / run),
            )
            with translate_os_errors(files):
                traces.make_job_folder(files)
                replace_atomically(files / REQUEST_FILE, request.model_dump_json(indent=1).encode() + b"\n")

        def change(post: NodeState) -> dict[str, Any]:
            return {
                "state": "waits", "reason": None, "exit_code": None, "task": None,
                "attempts": post.attempts + 1, "files": f"{post.node}/order-{number}",
            }  # fmt: skip

        fleet = book.update_nodes(self.fleet, names, change)
        self.write(fleet.model_copy(update={"rounds": number, "open": name}))

    def job_of(self, node: str) -> Job:
        """Return the order as one node has it."""
        files = self.fleet.post(node).files or node
        return self.fleet.job.model_copy(update={"folder": str(self.path / files)})

    def update_state(self) -> None:
        """Bring the book up to what the nodes have left; nobody waits or runs any more."""
        fleet = book.update_nodes(self.read_state(), [post.node for post in self.fleet.posts], _mark_abandoned)
        self.write(fleet.model_copy(update={"open": None}))

    def read_state(self) -> FleetState:
        """Return the fleet as its nodes have left it by now, every GPU in it; nothing is written."""
        posts = tuple(post.model_copy(update=self._left(post)) for post in self.fleet.posts)
        return with_measured_gpus(self.fleet.model_copy(update={"posts": posts}), self.path)

    def _left(self, post: NodeState) -> dict[str, Any]:
        """Return what a node's last attempt adds to the book."""
        if post.files is None:
            return {}
        rank = traces.read_ranks(self.path / post.files).get(0)
        run = traces.recorded_run(self.path / post.files)
        left: dict[str, Any] = {}
        if run is not None and (self.path / post.node / run.name / "plan.json").is_file():
            left["run"] = f"{post.node}/{run.name}"
        if rank is not None and rank.exit_code is not None:
            left["exit_code"] = rank.exit_code
            left |= {"state": "done", "reason": None} if rank.exit_code in book.WHOLE_EXIT_CODES else {}
        return left

    def nodes_with_records(self) -> list[str]:
        """Return the nodes of which there is at least a record."""
        return [post.node for post in self.fleet.posts if post.run and has_records(self.path / post.run)]

    @property
    def exit_code(self) -> int:
        """What all of it comes to."""
        return book.fleet_exit_code(self.fleet, self.nodes_with_records())


def _mark_abandoned(post: NodeState) -> dict[str, Any]:
    return {"state": "failed", "reason": ABANDONED_REASON} if post.state in {"waits", "runs"} else {}


def is_fleet(path: Path) -> bool:
    """Return whether a folder is a fleet's."""
    return (path / FLEET_FILE).is_file()


def _with_output_dir(words: tuple[str, ...], output_dir: Path) -> tuple[str, ...]:
    """Return the words with the folder that takes the run."""
    cut = words.index("--") if "--" in words else len(words)
    return (*words[:cut], "--output-dir", str(output_dir), *words[cut:])
