"""A fleet on disk.

FLEET/
  fleet.json                  the order and how far each node is
  slurm-1/                    the first array: its script, and what the host said of each task
  NODE/order-1/               what the node's task left (see `hosts.traces`), and the wish it was given
  NODE/power-…/               the node's run folder, with a fingerprint of its own
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from assay.core.durable import friendly_os_errors, locked, read_json, replace_atomically
from assay.core.errors import BadInput, MachineCannot
from assay.core.values import Value, first_problem
from assay.hosts import traces
from assay.hosts.fleet import book, gather
from assay.hosts.fleet.model import Fleet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from assay.hosts.base import Order
    from assay.hosts.fleet.model import Post

FILE = "fleet.json"
WISH = "wish.json"
NOT_WAITED_FOR = "whoever had ordered it ended before it did"


class Wish(Value):
    """What a node is to do: go on with a run of its own where that is possible, else these words."""

    words: tuple[str, ...] = Field(min_length=1)
    resume: str | None = Field(default=None, description="A run folder, absolute.")


class FleetFolder:
    """One fleet on disk; ``fleet`` is what was last written."""

    def __init__(self, path: Path, fleet: Fleet) -> None:
        self.path = path
        self.fleet = fleet

    @classmethod
    def create(cls, fleet: Fleet) -> FleetFolder:
        """Make the folder that the order names."""
        made = cls(Path(fleet.order.folder), fleet)
        with friendly_os_errors(made.path):
            made.path.mkdir(parents=True)
        made.write(fleet)
        return made

    @classmethod
    def open(cls, path: Path) -> FleetFolder:
        """Open a fleet that is there, wherever it was moved to."""
        content = read_json(path / FILE)
        try:
            fleet = Fleet.model_validate(content)
        except ValidationError as error:
            raise BadInput(f"{path / FILE} is not what this version of Assay writes: {first_problem(error)}.") from None
        job = fleet.order.model_copy(update={"folder": str(path.absolute())})
        return cls(path.absolute(), fleet.model_copy(update={"order": job}))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep every other process from sending this fleet meanwhile."""
        with (
            friendly_os_errors(self.path),
            (self.path / ".lock").open("ab") as file,
            locked(file.fileno(), wait=False) as mine,
        ):
            if not mine:
                raise MachineCannot(f"{self.path} is being measured by another process at this moment.")
            yield

    def write(self, fleet: Fleet) -> None:
        """Write ``fleet.json``, whole."""
        self.fleet = fleet
        text = json.dumps(fleet.as_json(), indent=1, ensure_ascii=False)
        replace_atomically(self.path / FILE, text.encode() + b"\n")

    def begin(self, nodes: Iterable[str], name: str) -> None:
        """Write down that nodes are tried next, in an array of this name, and what each is to do."""
        number = self.fleet.rounds + 1
        names = tuple(nodes)
        for node in names:
            files = self.path / node / f"order-{number}"
            run = self.fleet.post(node).run
            request = Wish(
                words=_into(self.fleet.order.words, self.path / node),
                resume=None if run is None or not (self.path / run / "plan.json").is_file() else str(self.path / run),
            )
            with friendly_os_errors(files):
                traces.make(files)
                replace_atomically(files / WISH, request.model_dump_json(indent=1).encode() + b"\n")

        def change(post: Post) -> dict[str, Any]:
            return {
                "state": "waits", "reason": None, "exit_code": None, "task": None,
                "attempts": post.attempts + 1, "files": f"{post.node}/order-{number}",
            }  # fmt: skip

        fleet = book.changed(self.fleet, names, change)
        self.write(fleet.model_copy(update={"rounds": number, "open": name}))

    def order_of(self, node: str) -> Order:
        """Return the order as one node has it."""
        files = self.fleet.post(node).files or node
        return self.fleet.order.model_copy(update={"folder": str(self.path / files)})

    def settle(self) -> None:
        """Bring the book up to what the nodes have left; nobody waits or runs any more."""
        fleet = book.changed(self.found(), [post.node for post in self.fleet.posts], _given_up)
        self.write(fleet.model_copy(update={"open": None}))

    def found(self) -> Fleet:
        """Return the fleet as its nodes have left it by now, every GPU in it; nothing is written."""
        posts = tuple(post.model_copy(update=self._left(post)) for post in self.fleet.posts)
        return gather.gathered(self.fleet.model_copy(update={"posts": posts}), self.path)

    def _left(self, post: Post) -> dict[str, Any]:
        """Return what a node's last attempt adds to the book."""
        if post.files is None:
            return {}
        rank = traces.ranks(self.path / post.files).get(0)
        run = traces.run_of(self.path / post.files)
        left: dict[str, Any] = {}
        if run is not None and (self.path / post.node / run.name / "plan.json").is_file():
            left["run"] = f"{post.node}/{run.name}"
        if rank is not None and rank.exit_code is not None:
            left["exit_code"] = rank.exit_code
            left |= {"state": "done", "reason": None} if rank.exit_code in book.WHOLE else {}
        return left

    def begun(self) -> list[str]:
        """Return the nodes of which there is at least a record."""
        return [post.node for post in self.fleet.posts if post.run and gather.begun(self.path / post.run)]

    @property
    def exit_code(self) -> int:
        """What all of it comes to."""
        return book.exit_code(self.fleet, self.begun())


def _given_up(post: Post) -> dict[str, Any]:
    return {"state": "failed", "reason": NOT_WAITED_FOR} if post.state in {"waits", "runs"} else {}


def is_fleet(path: Path) -> bool:
    """Return whether a folder is a fleet's."""
    return (path / FILE).is_file()


def _into(words: tuple[str, ...], output_dir: Path) -> tuple[str, ...]:
    """Return the words with the folder that takes the run."""
    cut = words.index("--") if "--" in words else len(words)
    return (*words[:cut], "--output-dir", str(output_dir), *words[cut:])
