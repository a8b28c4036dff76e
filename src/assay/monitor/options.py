"""What to record: which GPUs, how often, into which file, on which cores."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self, TypeAlias, get_args

from pydantic import Field, model_validator

from assay.core.errors import BadInput
from assay.core.results import Origin
from assay.core.units import format_span
from assay.core.values import Value
from assay.monitor.lines import WatchedGpu

Form: TypeAlias = Literal["jsonl", "json", "csv"]

SHORTEST_S = 0.005
LONGEST_S = 600.0
HOST_AT_LEAST_S = 0.1
"""The kernel counts CPU time in hundredths of a second; shares over less than ten of them say little."""

HOST_BESIDE_GPUS_S = 0.5
"""A look at a large machine takes a millisecond or more of CPU time."""

ENERGY_S = 1.0
WINDOWS_ENERGY_S = 0.1
"""As often as the counter of an H200 moves: for whoever asks for the energy of windows."""
PROCESSES_S = 1.0
TOP_S = 5.0


class RecordingOptions(Value):
    """What a recorder is started with."""

    path: str = Field(description="Absolute; its ending tells the form.")
    gpus: tuple[WatchedGpu, ...] = ()
    gpu_note: str | None = Field(default=None, description="Why there are none.")
    interval_s: float = 0.1
    energy_interval_s: float = Field(
        default=ENERGY_S, ge=0, description="Energy counters take milliseconds of CPU time to read: 5 on an H200."
    )
    host: bool = True
    host_interval_s: float | None = Field(
        default=None, description="Null: as often, but at most ten times a second, beside GPUs twice."
    )
    processes_interval_s: float | None = Field(
        default=PROCESSES_S, description="Null: never list who is on the GPUs; it takes the driver's lock."
    )
    top_interval_s: float | None = Field(default=TOP_S, description="Null: never look at every process.")
    cpus: tuple[int, ...] | None = Field(default=None, description="Where the recorder runs; null: anywhere.")
    root: str = Field(default="/", description="Where sysfs and procfs are found.")
    origin: Origin = Field(default="real", description="Fake where the driver names itself one.")

    @model_validator(mode="after")
    def _something_to_watch(self) -> Self:
        check_interval(self.interval_s)
        form_of(Path(self.path))
        if not self.gpus and not self.host:
            raise ValueError("a recorder watches GPUs, the host, or both")
        return self

    @property
    def interval_ns(self) -> int:
        """From one tick to the next."""
        return round(self.interval_s * 1e9)

    def ticks(self, seconds: float) -> int:
        """Return how many ticks last at least so long."""
        return max(1, -(-round(seconds * 1e9) // self.interval_ns))

    @property
    def host_every(self) -> int | None:
        """Ticks from one look at the host to the next; null: it is not looked at."""
        if not self.host:
            return None
        at_least_s = HOST_BESIDE_GPUS_S if self.gpus else HOST_AT_LEAST_S
        return self.ticks(self.host_interval_s or max(self.interval_s, at_least_s))


def check_interval(interval_s: float) -> None:
    """Refuse an interval that cannot be kept.

    Raises:
        BadInput: It is not within 5 ms and ten minutes.
    """
    if not interval_s > 0:
        raise BadInput(f"An interval of {interval_s:g} s makes no sense; it must be longer than zero.")
    if interval_s < SHORTEST_S:
        raise BadInput(f"An interval of {interval_s * 1e3:g} ms is too short; the shortest is {SHORTEST_S * 1e3:g} ms.")
    if interval_s > LONGEST_S:
        raise BadInput(
            f"An interval of {format_span(interval_s)} is too long; the longest is {format_span(LONGEST_S)}."
        )


def form_of(path: Path) -> Form:
    """Return the form that a file's ending stands for.

    Raises:
        BadInput: It stands for none.
    """
    for form in get_args(Form):
        if path.suffix.lower() == f".{form}":
            matched: Form = form
            return matched
    raise BadInput(f"{path}: a recording is a file that ends in .jsonl, .json or .csv.")
