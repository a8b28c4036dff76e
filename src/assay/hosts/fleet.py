"""A fleet: the same command on many nodes, one run folder per node, and a file with the state of each node.

FLEET/
  fleet.json                  the job and the state of each node
  slurm-1/                    the first array: its script, and Slurm's log of each task
  NODE/array-1/               what the node's task left (see `hosts.run_job`), and its request
  NODE/power-…/               the node's run folder, with a fingerprint of its own

It is measured array after array, until every node has a result or has no tries left:

list the nodes ──▶ select those due ──▶ submit an array, lease first ──▶ watch ──▶ confirm gone ──▶ update the state
      ▲                                                                                                      │
      └─────────────────────── nodes that failed, are up, and have tries left ◀──────────────────────────────┘

The run folders say which GPU was measured on which node, by UUID.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError

from assay.core.errors import EXIT_INTERNAL_ERROR, EXIT_STOPPED, BadInput, DamagedFile, MachineCannot, StopRequested
from assay.core.files import file_lock, read_json, read_lines, replace_atomically, translate_os_errors
from assay.core.format import format_count, format_list
from assay.core.guardian import Guardian
from assay.core.processes import stop_on_signals
from assay.core.results import Origin
from assay.core.values import SCHEMA_VERSION, Value, first_problem
from assay.experiments.power.rows import GPUS_FILE
from assay.hosts import run_job
from assay.hosts.base import Job
from assay.store.records import verify_file
from assay.store.run_folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from assay.hosts.base import Rental
    from assay.hosts.slurm.array import SlurmArrays
    from assay.machine.model import Gpu


NodeStatus = Literal["absent", "due", "waits", "runs", "done", "failed"]
"""absent: out of order when requested; due: requested, and not started; failed: tried, without a complete result."""


class NodeProgress(Value):
    """One node's new progress."""

    node: str
    state: NodeStatus
    task: str | None = Field(default=None, description="The host's identifier: an array number and an index.")
    reason: str | None = None
    exit_code: int | None = Field(default=None, description="Exit code of the remote Assay; null where it gave none.")


class NodeState(Value):
    """One node of a fleet and its state."""

    node: str
    state: NodeStatus = "due"
    reason: str | None = Field(default=None, description="Why there is no result, or why the node waits.")
    attempts: int = Field(default=0, ge=0)
    task: str | None = None
    exit_code: int | None = None
    files: str | None = Field(default=None, description="Files of its last attempt, within the fleet's folder.")
    run: str | None = Field(default=None, description="Its run folder, within the fleet's folder.")


class GpuLocation(Value):
    """The node and run in which a GPU was measured."""

    node: str
    run: str


class FleetGpu(Value):
    """One GPU of the fleet, by its UUID; several locations mean that it was moved, or the nodes are one machine."""

    uuid: str
    model: str
    origin: Origin = "real"
    locations: tuple[GpuLocation, ...] = Field(min_length=1)


class FleetState(Value):
    """The content of ``fleet.json``."""

    schema_version: int = Field(default=SCHEMA_VERSION, le=SCHEMA_VERSION)
    created_at: str = Field(description="ISO 8601, UTC.")
    job: Job = Field(description="The job of each node; its folder is the fleet's.")
    tries: int = Field(default=2, ge=1, description="Most attempts per node and command.")
    at_once: int | None = Field(default=None, ge=1, description="Most nodes at a time; null: no limit.")
    rounds: int = Field(default=0, ge=0, description="Number of arrays submitted so far.")
    open: str | None = Field(default=None, description="Name of the array that is not confirmed gone yet; null: none.")
    posts: tuple[NodeState, ...] = Field(min_length=1)
    gpus: tuple[FleetGpu, ...] = ()

    def post(self, node: str) -> NodeState:
        """Return the state of a node."""
        return next(post for post in self.posts if post.node == node)


WHOLE_EXIT_CODES = frozenset({0, 1})
"""Exit codes of an Assay that measured everything; 1 is a failed gate."""

FINAL_EXIT_CODES = frozenset({BadInput.exit_code, MachineCannot.exit_code, EXIT_INTERNAL_ERROR})
"""Exit codes of an Assay that would fail again in the same way."""

NODE_GONE = "it is no longer in the partition"
MAX_NAMES = 12


def initial_node_states(out_of_order: Mapping[str, str | None]) -> tuple[NodeState, ...]:
    """Return the initial state of each node: due, or absent with the reason."""
    return tuple(
        NodeState(node=node, state="due" if why is None else "absent", reason=why) for node, why in out_of_order.items()
    )


def update_nodes(
    fleet: FleetState, nodes: Iterable[str], change: Callable[[NodeState], Mapping[str, Any]]
) -> FleetState:
    """Return the fleet with the states of some nodes changed."""
    names = set(nodes)
    states = [post.model_copy(update=change(post)) if post.node in names else post for post in fleet.posts]
    return fleet.model_copy(update={"posts": tuple(states)})


def apply_progress(fleet: FleetState, steps: Iterable[NodeProgress]) -> FleetState:
    """Return the fleet with its nodes' new progress."""
    by_node = {step.node: step for step in steps}
    return update_nodes(fleet, by_node, lambda post: by_node[post.node].model_dump(exclude={"node"}))


def update_availability(fleet: FleetState, out_of_order: Mapping[str, str | None]) -> FleetState:
    """Return the fleet with current availability: nodes that are back are due, others absent with the reason."""

    def change(post: NodeState) -> dict[str, Any]:
        why = out_of_order.get(post.node, NODE_GONE)
        if why is not None and post.state in {"absent", "due"}:
            return {"state": "absent", "reason": why}
        return {"state": "due", "reason": None} if why is None and post.state == "absent" else {}

    return update_nodes(fleet, [post.node for post in fleet.posts], change)


def due_nodes(
    fleet: FleetState, out_of_order: Mapping[str, str | None], tried: Mapping[str, int], *, most: int | None = None
) -> tuple[str, ...]:
    """Return the nodes to run next, those never tried first.

    Args:
        fleet: Its state; no node waits or runs.
        out_of_order: Every node that exists, and why it takes no work now; null: it does.
        tried: How often this command tried each node.
        most: Most nodes to return; null: all.
    """
    due = [
        post
        for post in fleet.posts
        if post.state != "done"
        and out_of_order.get(post.node, NODE_GONE) is None
        and tried.get(post.node, 0) < fleet.tries
        and (post.node not in tried or (post.state == "failed" and post.exit_code not in FINAL_EXIT_CODES))
    ]
    return tuple(post.node for post in sorted(due, key=lambda post: tried.get(post.node, 0)))[:most]


def nodes_without_result(fleet: FleetState) -> tuple[NodeState, ...]:
    """Return the states of the nodes without a complete result."""
    return tuple(post for post in fleet.posts if post.state != "done")


def moved_gpus(fleet: FleetState) -> tuple[FleetGpu, ...]:
    """Return the GPUs that were measured on more than one node."""
    return tuple(gpu for gpu in fleet.gpus if len({location.node for location in gpu.locations}) > 1)


def fleet_exit_code(fleet: FleetState, with_records: Iterable[str]) -> int:
    """Return the fleet's exit code: 0 complete; 4 nodes missing; 3 nothing measured; 2 all rejected the input.

    A failed gate of a complete fleet is 1. ``with_records`` are the nodes with at least one record.
    """
    missing = nodes_without_result(fleet)
    if not missing:
        return max(post.exit_code or 0 for post in fleet.posts)
    if len(missing) < len(fleet.posts) or set(with_records):
        return EXIT_STOPPED
    codes = {post.exit_code for post in fleet.posts if post.attempts}
    return BadInput.exit_code if codes == {BadInput.exit_code} else MachineCannot.exit_code


def fleet_headline(fleet: FleetState) -> str:
    """Return a sentence: how many nodes and GPUs are measured, and which nodes are missing."""
    missing = nodes_without_result(fleet)
    complete = len(fleet.posts) - len(missing)
    of = "" if not missing else f" of {len(fleet.posts)}"
    measured = f"{complete}{of} {'node is' if (complete, of) == (1, '') else 'nodes are'} measured"
    gpus = f", {format_count(len(fleet.gpus), 'GPU')}" if fleet.gpus else ""
    return f"{measured}{gpus}." if not missing else f"{measured}{gpus}; missing: {join_nodes(p.node for p in missing)}."


def progress_lines(steps: Iterable[NodeProgress]) -> list[str]:
    """Return a line for each state and reason, with all its nodes."""
    verbs = {"waits": ("waits", "wait"), "runs": ("runs", "run"), "done": ("is done", "are done")}
    groups: dict[tuple[str, str | None], list[str]] = {}
    for step in steps:
        groups.setdefault((step.state, step.reason), []).append(step.node)
    lines = []
    for (state, reason), nodes in groups.items():
        singular, plural = verbs.get(state, (state, state))
        lines.append(f"{join_nodes(nodes)} {singular if len(nodes) == 1 else plural}{f': {reason}' if reason else ''}")
    return lines


def unavailable_text(out_of_order: Mapping[str, str | None]) -> str:
    """List the nodes that are out of order, and why."""
    return join_nodes(f"{name} ({why})" for name, why in out_of_order.items() if why is not None)


def join_nodes(nodes: Iterable[str]) -> str:
    """Join node names; after the first dozen, count the rest."""
    return format_list(list(nodes), MAX_NAMES)


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
        origin: Origin = "fake" if run.machine.has_fake_driver else "real"
        here = GpuLocation(node=post.node, run=post.run)
        for gpu in gpus:
            fleet_gpu = fleet_gpus.get(gpu.uuid) or FleetGpu(
                uuid=gpu.uuid, model=gpu.name, origin=origin, locations=(here,)
            )
            locations = tuple(dict.fromkeys((*fleet_gpu.locations, here)))
            fleet_gpus[gpu.uuid] = fleet_gpu.model_copy(update={"locations": locations})
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
REQUEST_FILE = "request.json"
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
        number, names = self.fleet.rounds + 1, tuple(nodes)
        words = self.fleet.job.words
        end = words.index("--") if "--" in words else len(words)
        for node in names:
            files, run = self.path / node / f"array-{number}", self.fleet.post(node).run
            resumes = run is not None and (self.path / run / "plan.json").is_file()
            request = NodeRequest(
                words=(*words[:end], "--output-dir", str(self.path / node), *words[end:]),
                resume=str(self.path / str(run)) if resumes else None,
            )
            with translate_os_errors(files):
                run_job.make_job_folder(files)
                replace_atomically(files / REQUEST_FILE, request.model_dump_json(indent=1).encode() + b"\n")

        def change(post: NodeState) -> dict[str, Any]:
            attempt = {"attempts": post.attempts + 1, "files": f"{post.node}/array-{number}"}
            return {"state": "waits", "reason": None, "exit_code": None, "task": None, **attempt}

        fleet = update_nodes(self.fleet, names, change)
        self.write(fleet.model_copy(update={"rounds": number, "open": name}))

    def job_of(self, node: str) -> Job:
        """Return the job as one node gets it."""
        files = self.fleet.post(node).files or node
        return self.fleet.job.model_copy(update={"folder": str(self.path / files)})

    def update_state(self) -> None:
        """Update the state from what the nodes left; nodes that still wait or run become failed."""
        fleet = self.read_state()
        abandoned = [post.node for post in fleet.posts if post.state in {"waits", "runs"}]
        fleet = update_nodes(fleet, abandoned, lambda _: {"state": "failed", "reason": ABANDONED_REASON})
        self.write(fleet.model_copy(update={"open": None}))

    def read_state(self) -> FleetState:
        """Return the fleet's state from what its nodes left so far, with every GPU; nothing is written."""
        posts = tuple(post.model_copy(update=self._attempt_result(post)) for post in self.fleet.posts)
        return with_measured_gpus(self.fleet.model_copy(update={"posts": posts}), self.path)

    def _attempt_result(self, post: NodeState) -> dict[str, Any]:
        """Return the fields that a node's last attempt updates."""
        if post.files is None:
            return {}
        rank = run_job.read_ranks(self.path / post.files).get(0)
        run = run_job.recorded_run(self.path / post.files)
        updates: dict[str, Any] = {}
        if run is not None and (self.path / post.node / run.name / "plan.json").is_file():
            updates["run"] = f"{post.node}/{run.name}"
        if rank is not None and rank.exit_code is not None:
            updates["exit_code"] = rank.exit_code
            updates |= {"state": "done", "reason": None} if rank.exit_code in WHOLE_EXIT_CODES else {}
        return updates

    def nodes_with_records(self) -> list[str]:
        """Return the nodes with at least one record."""
        return [post.node for post in self.fleet.posts if post.run and has_records(self.path / post.run)]

    @property
    def exit_code(self) -> int:
        """The exit code of the whole fleet."""
        return fleet_exit_code(self.fleet, self.nodes_with_records())


def is_fleet(path: Path) -> bool:
    """Return whether a folder contains a fleet."""
    return (path / FLEET_FILE).is_file()


def measure_fleet(folder: FleetFolder, arrays: SlurmArrays, say: Callable[[str], None]) -> None:
    """Measure the nodes of a fleet that have no result yet; whatever happens, nothing is left in the queue.

    Raises:
        MachineCannot: The host refuses, or does not answer.
        StopRequested: A signal came; what was measured until then is kept.
    """
    tried: Counter[str] = Counter()
    with stop_on_signals(), Guardian(), folder.lock():
        if folder.fleet.open is not None:
            arrays.cancel(folder.fleet.open)
        folder.update_state()
        while True:
            out_of_order = arrays.nodes(folder.fleet.job.host_place)
            folder.write(update_availability(folder.fleet, out_of_order))
            missing = {post.node: out_of_order.get(post.node, NODE_GONE) for post in nodes_without_result(folder.fleet)}
            if any(missing.values()):
                say(f"Out of order, and left out: {unavailable_text(missing)}")
            nodes = due_nodes(folder.fleet, out_of_order, tried, most=arrays.max_tasks())
            if not nodes:
                return
            retried = [node for node in nodes if tried[node]]
            if retried:
                say(f"{join_nodes(retried)} {'is' if len(retried) == 1 else 'are'} tried again")
            tried.update(nodes)
            _run_array(folder, arrays, nodes, say)


def _run_array(folder: FleetFolder, arrays: SlurmArrays, nodes: tuple[str, ...], say: Callable[[str], None]) -> None:
    """Submit one array and wait for its end; the state is up to date afterwards, however it ended."""
    job = folder.fleet.job.model_copy(update={"id": secrets.token_hex(8)})
    folder.start_round(nodes, job.name)

    def report(steps: Iterable[NodeProgress]) -> None:
        new_steps = tuple(steps)
        folder.write(apply_progress(folder.fleet, new_steps))
        for line in progress_lines(new_steps):
            say(line)

    rental: Rental | None = None
    try:
        rental = arrays.create(job, nodes, folder.fleet.rounds, folder.fleet.at_once)
        say(f"{rental.host.capitalize()} array {rental.number}: {format_count(len(nodes), 'node')}")
        arrays.watch(rental, {node: folder.job_of(node) for node in nodes}, report)
    except BaseException as error:
        if rental is not None:
            run_job.release_after(error, lambda: arrays.release(rental))
        folder.update_state()
        if isinstance(error, StopRequested):
            raise StopRequested(f"{error}; the array is gone from the queue") from None
        raise
    arrays.release(rental)
    folder.update_state()
