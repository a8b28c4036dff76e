"""What a host is: somebody who has machines, lends them for an order, and takes them back.

    available ──▶ offers ──▶ create ──▶ run ──▶ collect ──▶ release
        │                      │                              │
        why not, in words      the lease is on disk           seen gone, not asked to go
                               before anything is made

No machine is left behind:

- `create` writes a lease, with the order's unique name in it, before it asks for anything. An answer that never came is
  looked for by that name before anything is asked for again.
- The machine is owned when `create` returns: `hosts.errand` releases it whatever happens, the guardian when we are
  killed, `assay reap` at any later time.
- `release` returns when the machine has been *seen* to be gone.
- A machine carries the order's deadline itself, where the host can enforce one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from pydantic import AwareDatetime, Field

from assay.core.values import Value

if TYPE_CHECKING:
    from pathlib import Path


class Offer(Value):
    """A kind of machine that a host has: a partition of a cluster, a type of instance."""

    host: str
    name: str
    nodes: int | None = Field(default=None, description="How many there are; null: not known.")
    free_nodes: int | None = Field(default=None, description="How many nobody uses now.")
    gpus: str | None = Field(default=None, description="On each, as the host writes it.")
    longest_s: float | None = Field(default=None, description="How long one may be kept; null: no limit.")
    usd_per_hour: float | None = Field(default=None, description="Of one; null: not paid for by the hour.")
    gpu: str | None = Field(default=None, description="Its kind of GPU as Assay writes it: L4, H100-SXM; null: none.")
    gpu_count: int | None = Field(default=None, description="GPUs in one machine; null: not known.")
    region: str | None = None
    priced_on: str | None = Field(default=None, description="The day of the price; null: the price of this moment.")
    ready_s: float | None = Field(default=None, description="From asking to a machine that answers, as expected.")
    ends_itself: bool = Field(
        default=False, description="Whether the deadline is the host's to keep, billing included."
    )


class UploadedFile(Value):
    """A file that goes along: where it is here, absolute, and where it is to be there, from the working folder."""

    local_path: str
    remote_path: str


class Job(Value):
    """What is to be run, on how many machines, and for how long at most."""

    id: str = Field(pattern=r"^[0-9a-z]{8,32}$", description="Unique; the machine's name ends with it.")
    words: tuple[str, ...] = Field(min_length=1, description="The arguments of ``assay`` there.")
    cwd: str = Field(description="Where relative paths start, absolute.")
    folder: str = Field(description="Absolute; takes what the host and the ranks leave, and outlives them.")
    output_dir: str = Field(description="Where the run folder is to be, absolute.")
    host_place: str | None = Field(
        default=None, description="What stood behind the host's name: a partition, a machine."
    )
    nodes: int = Field(default=1, ge=1)
    processes: int = Field(default=1, ge=1, description="On each node.")
    limit_s: float | None = Field(default=None, gt=0, description="Ended after this long; null: as the host has it.")
    arguments: tuple[str, ...] = Field(default=(), description="Options of the host's own tool, handed to it as given.")
    python: str = Field(description="The interpreter there.")
    python_path: str | None = Field(default=None, description="PYTHONPATH there; null: none.")
    columns: int = Field(default=80, ge=20, description="How wide the terminal is that will show it.")
    files: tuple[UploadedFile, ...] = Field(
        default=(), description="What goes along to a machine that shares no files."
    )
    gpu: str | None = Field(default=None, description="The kind of GPU that is to answer; null: any.")
    gpu_count: int = Field(default=1, ge=1, description="GPUs on a machine that is rented.")
    image: str | None = Field(default=None, description="What a rented machine starts from; null: the default.")
    offer: Offer | None = Field(default=None, description="What was chosen for it; null: whatever the host gives.")
    max_cost_usd: float | None = Field(default=None, gt=0, description="Nothing is rented that may cost more.")

    @property
    def name(self) -> str:
        """What the machine is called at the host, so that it is found again."""
        return f"{NAME_PREFIX}{self.id}"


NAME_PREFIX = "assay-"


class Rental(Value):
    """A machine, or several as one, that is ours until it was seen gone."""

    host: str
    name: str
    number: str = Field(description="What the host calls it: a job's number, an instance's id.")
    state: str = Field(default="", description="As the host writes it, when it was last looked at.")
    gpu: str | None = None
    usd_per_hour: float | None = Field(default=None, description="As quoted when it was asked for.")
    since: AwareDatetime | None = Field(default=None, description="When it was asked for; null: not known.")
    deadline_at: AwareDatetime | None = Field(default=None, description="Ended after this, by whoever looks first.")


class JobProgress(Value):
    """How far an order is, in words; ``what`` changes when there is something new to say."""

    state: Literal["waits", "runs"]
    what: str
    nodes: tuple[str, ...] = ()


class JobEnd(Value):
    """How an order ended. The exit code is that of the Assay that ran there, or says why none did."""

    exit_code: int
    reason: str | None = Field(default=None, description="Where the Assay there could not tell itself.")


class JobWatcher(Protocol):
    """Somebody who is told how an order gets on, and what is printed there."""

    def progress(self, progress: JobProgress) -> None:
        """The order has come further."""
        ...

    def out(self, data: bytes) -> None:
        """The Assay there has printed this as its result."""
        ...

    def err(self, data: bytes) -> None:
        """The Assay there has said this."""
        ...


class Host(Protocol):
    """One that has machines. Built-in, or a plug-in's under the entry point ``assay.hosts``."""

    name: str
    options: frozenset[str]
    """The command line's options about machines that it understands."""

    def available(self) -> str | None:
        """Return why it cannot be asked from here, as a clause; null when it can."""
        ...

    def offers(self) -> tuple[Offer, ...]:
        """Return what it has."""
        ...

    def script(self, job: Job) -> str:
        """Return what would be done, for people to read; nothing is done."""
        ...

    def create(self, job: Job) -> Rental:
        """Ask for what the order needs, its lease written first; return what is ours from now on."""
        ...

    def run(self, rental: Rental, job: Job, watcher: JobWatcher) -> JobEnd:
        """Wait until the order is done there, telling how it gets on."""
        ...

    def collect(self, rental: Rental, job: Job) -> tuple[Path, ...]:
        """Return the run folders of the order, brought here if they were not."""
        ...

    def release(self, rental: Rental) -> None:
        """Give the machine back; return when it was seen gone. Nothing happens when that was so already."""
        ...

    def list_ours(self) -> tuple[Rental, ...]:
        """Return every machine at this host that bears a name of ours, whoever started it."""
        ...
