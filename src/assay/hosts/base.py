"""The interface of a host: something that has machines, provides one for a job, and takes it back.

    available ──▶ offers ──▶ create ──▶ run ──▶ collect ──▶ release
        │                      │                              │
        the reason if not      the lease is on disk           confirmed gone, not just requested
                               before anything is created

No machine is left behind:

- `create` writes a lease, with the job's unique name in it, before it requests anything. If an answer never came, the
  machine is looked up by that name before anything is requested again.
- The machine is ours once `create` returns: `hosts.run_job` releases it whatever happens, the guardian if we are
  killed, `assay reap` at any later time.
- `release` returns once the machine is *confirmed* gone.
- A machine carries the job's deadline itself, where the host can enforce one.
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
    nodes: int | None = Field(default=None, description="Number of nodes; null: not known.")
    free_nodes: int | None = Field(default=None, description="Nodes that are free now; null: not known.")
    gpus: str | None = Field(default=None, description="GPUs of each node, as the host writes them.")
    longest_s: float | None = Field(default=None, description="Longest time one may be kept; null: no limit.")
    usd_per_hour: float | None = Field(default=None, description="Price of one; null: not billed by the hour.")
    gpu: str | None = Field(default=None, description="GPU type as Assay writes it: L4, H100-SXM; null: none.")
    gpu_count: int | None = Field(default=None, description="GPUs in one machine; null: not known.")
    region: str | None = None
    priced_on: str | None = Field(default=None, description="Date of the price; null: a live price.")
    ready_s: float | None = Field(default=None, description="Expected time from the request until the machine answers.")
    ends_itself: bool = Field(
        default=False, description="Whether the host itself enforces the deadline, and stops billing."
    )


class UploadedFile(Value):
    """A file to upload: its absolute path here, and its path there, relative to the working folder."""

    local_path: str
    remote_path: str


class Job(Value):
    """What to run, on how many machines, and its time limit."""

    id: str = Field(pattern=r"^[0-9a-z]{8,32}$", description="Unique; the machine's name ends with it.")
    words: tuple[str, ...] = Field(min_length=1, description="Command-line arguments of ``assay`` there.")
    cwd: str = Field(description="Working folder, absolute.")
    folder: str = Field(description="Absolute; the host and the ranks write here, and it outlives them.")
    output_dir: str = Field(description="Folder for the run folder, absolute.")
    host_place: str | None = Field(
        default=None, description="What followed the host's name: a partition, a machine, a region."
    )
    nodes: int = Field(default=1, ge=1)
    processes: int = Field(default=1, ge=1, description="Per node.")
    limit_s: float | None = Field(default=None, gt=0, description="Time limit; null: the host's default.")
    arguments: tuple[str, ...] = Field(default=(), description="Options passed unchanged to the host's own tool.")
    python: str = Field(description="The interpreter there.")
    python_path: str | None = Field(default=None, description="PYTHONPATH there; null: none.")
    columns: int = Field(default=80, ge=20, description="Width of the terminal that shows the output.")
    files: tuple[UploadedFile, ...] = Field(
        default=(), description="Files to upload to a machine that shares no files with this one."
    )
    gpu: str | None = Field(default=None, description="Required GPU type; null: any.")
    gpu_count: int = Field(default=1, ge=1, description="GPUs of a rented machine.")
    image: str | None = Field(default=None, description="Image of a rented machine; null: the default.")
    offer: Offer | None = Field(default=None, description="The chosen offer; null: whatever the host provides.")
    max_cost_usd: float | None = Field(
        default=None, gt=0, description="Rent nothing that may cost more; null: no limit."
    )

    @property
    def name(self) -> str:
        """The machine's name at the host, by which it is looked up."""
        return f"{NAME_PREFIX}{self.id}"


NAME_PREFIX = "assay-"


class Rental(Value):
    """A machine, or several as one, that is ours until it is confirmed gone."""

    host: str
    name: str
    number: str = Field(description="The host's identifier: a job number, an instance id.")
    state: str = Field(default="", description="State as the host writes it, when last polled.")
    gpu: str | None = None
    usd_per_hour: float | None = Field(default=None, description="As quoted when it was requested.")
    since: AwareDatetime | None = Field(default=None, description="When it was requested; null: not known.")
    deadline_at: AwareDatetime | None = Field(
        default=None, description="Whoever checks first after this terminates it."
    )


class JobProgress(Value):
    """A job's progress; ``what`` is a text that changes when there is something new to report."""

    state: Literal["waits", "runs"]
    what: str
    nodes: tuple[str, ...] = ()


class JobEnd(Value):
    """How a job ended. The exit code is that of the remote Assay, or of the reason that none ran."""

    exit_code: int
    reason: str | None = Field(default=None, description="Set where the remote Assay could not report it itself.")


class JobWatcher(Protocol):
    """Receives a job's progress and its output."""

    def progress(self, progress: JobProgress) -> None:
        """Receive the job's new progress."""

    def out(self, data: bytes) -> None:
        """Receive stdout of the remote Assay."""

    def err(self, data: bytes) -> None:
        """Receive stderr of the remote Assay."""


class Host(Protocol):
    """Something that has machines: built in, or a plug-in under the entry point ``assay.hosts``."""

    name: str
    options: frozenset[str]
    """The command-line options about machines that it supports."""

    def available(self) -> str | None:
        """Return why it cannot be used from here, as a clause; null when it can."""

    def offers(self) -> tuple[Offer, ...]:
        """Return what it offers."""

    def script(self, job: Job) -> str:
        """Return a readable description of what would be done; nothing is done."""

    def create(self, job: Job) -> Rental:
        """Request what the job needs, its lease written first; return the machine, ours from now on."""

    def run(self, rental: Rental, job: Job, watcher: JobWatcher) -> JobEnd:
        """Run the job there to its end, reporting progress."""

    def collect(self, rental: Rental, job: Job) -> tuple[Path, ...]:
        """Return the job's run folders, downloaded where needed."""

    def release(self, rental: Rental) -> None:
        """Release the machine and return once it is confirmed gone; do nothing if it is gone already."""

    def list_ours(self) -> tuple[Rental, ...]:
        """Return every machine at this host with a name of ours, whoever started it."""
