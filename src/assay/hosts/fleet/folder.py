"""A fleet on disk.

FLEET/
  fleet.json                  the job and the state of each node
  slurm-1/                    the first array: its script, and Slurm's log of each task
  NODE/order-1/               what the node's task left (see `hosts.run_job`), and its request
  NODE/power-…/               the node's run folder, with a fingerprint of its own

The run folders say which GPU was measured on which node, by UUID.
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
from assay.hosts.fleet import state as fleet_state
from assay.hosts.fleet.state import FleetGpu, FleetState, GpuLocation
from assay.store.records import verify_file
from assay.store.run_folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from assay.hosts.base import Job
    from assay.hosts.fleet.state import NodeState
    from assay.machine.model import Gpu


def with_measured_gpus(fleet: FleetState, folder: Path) -> FleetState:
    """Return the fleet with every GPU that its runs have measured; unreadable runs are skipped."""
    fleet_gpus: dict[str, FleetGpu] = {}
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
            location = GpuLocation(node=post.node, run=post.run)
            fleet_gpu = fleet_gpus.get(gpu.uuid) or FleetGpu(
                uuid=gpu.uuid, model=gpu.name, origin=origin, locations=(location,)
            )
            if location not in fleet_gpu.locations:
                fleet_gpu = fleet_gpu.model_copy(update={"locations": (*fleet_gpu.locations, location)})
            fleet_gpus[gpu.uuid] = fleet_gpu
    return fleet.model_copy(update={"gpus": tuple(fleet_gpus.values())})


def measured_gpus(run: RunFolder) -> list[Gpu]:
    """Return the GPUs of a run: those in its rows, else the machine's GPUs if the run has any record.

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
    """Return how many trials of a run failed, and the first reason; null where none did or the run is unreadable."""
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
    """What a node is to do: resume its own run where possible, else run this command line."""

    words: tuple[str, ...] = Field(min_length=1)
    resume: str | None = Field(default=None, description="A run folder, absolute.")


class FleetFolder:
    """One fleet on disk; ``fleet`` is the state last written."""

    def __init__(self, path: Path, fleet: FleetState) -> None:
        self.path = path
        self.fleet = fleet

    @classmethod
    def create(cls, fleet: FleetState) -> FleetFolder:
        """Create the folder that the job names."""
        created = cls(Path(fleet.job.folder), fleet)
        with translate_os_errors(created.path):
            created.path.mkdir(parents=True)
        created.write(fleet)
        return created

    @classmethod
    def open(cls, path: Path) -> FleetFolder:
        """Open an existing fleet, even if it was moved."""
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
        """Hold the fleet's lock, so that no other process submits it meanwhile."""
        with (
            translate_os_errors(self.path),
            (self.path / ".lock").open("ab") as file,
            file_lock(file.fileno(), wait=False) as locked,
        ):
            if not locked:
                raise MachineCannot(f"{self.path} is being measured by another process at this moment.")
            yield

    def write(self, fleet: FleetState) -> None:
        """Write ``fleet.json`` atomically."""
        self.fleet = fleet
        text = json.dumps(fleet.as_json(), indent=1, ensure_ascii=False)
        replace_atomically(self.path / FLEET_FILE, text.encode() + b"\n")

    def start_round(self, nodes: Iterable[str], name: str) -> None:
        """Record that these nodes run next, in an array of this name, and write each node's request."""
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

        fleet = fleet_state.update_nodes(self.fleet, names, change)
        self.write(fleet.model_copy(update={"rounds": number, "open": name}))

    def job_of(self, node: str) -> Job:
        """Return the job as one node gets it."""
        files = self.fleet.post(node).files or node
        return self.fleet.job.model_copy(update={"folder": str(self.path / files)})

    def update_state(self) -> None:
        """Update the state from what the nodes left; nodes that still wait or run become failed."""
        fleet = fleet_state.update_nodes(self.read_state(), [post.node for post in self.fleet.posts], _mark_abandoned)
        self.write(fleet.model_copy(update={"open": None}))

    def read_state(self) -> FleetState:
        """Return the fleet's state from what its nodes left so far, with every GPU; nothing is written."""
        posts = tuple(post.model_copy(update=self._attempt_result(post)) for post in self.fleet.posts)
        return with_measured_gpus(self.fleet.model_copy(update={"posts": posts}), self.path)

    def _attempt_result(self, post: NodeState) -> dict[str, Any]:
        """Return the fields that a node's last attempt updates."""
        if post.files is None:
            return {}
        rank = traces.read_ranks(self.path / post.files).get(0)
        run = traces.recorded_run(self.path / post.files)
        updates: dict[str, Any] = {}
        if run is not None and (self.path / post.node / run.name / "plan.json").is_file():
            updates["run"] = f"{post.node}/{run.name}"
        if rank is not None and rank.exit_code is not None:
            updates["exit_code"] = rank.exit_code
            updates |= {"state": "done", "reason": None} if rank.exit_code in fleet_state.WHOLE_EXIT_CODES else {}
        return updates

    def nodes_with_records(self) -> list[str]:
        """Return the nodes with at least one record."""
        return [post.node for post in self.fleet.posts if post.run and has_records(self.path / post.run)]

    @property
    def exit_code(self) -> int:
        """The exit code of the whole fleet."""
        return fleet_state.fleet_exit_code(self.fleet, self.nodes_with_records())


def _mark_abandoned(post: NodeState) -> dict[str, Any]:
    return {"state": "failed", "reason": ABANDONED_REASON} if post.state in {"waits", "runs"} else {}


def is_fleet(path: Path) -> bool:
    """Return whether a folder contains a fleet."""
    return (path / FLEET_FILE).is_file()


def _with_output_dir(arguments: tuple[str, ...], output_dir: Path) -> tuple[str, ...]:
    """Return the arguments with ``--output-dir`` added."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return (*arguments[:end], "--output-dir", str(output_dir), *arguments[end:])
