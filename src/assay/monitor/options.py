"""What to record: which GPUs, how often, into which file, on which cores.

GPUs are selected by index or UUID, by default all of them. GPUs hidden by CUDA_VISIBLE_DEVICES and GPUs in MIG mode can
be sampled as well: sensors belong to whole GPUs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeAlias, get_args

from pydantic import Field, model_validator

from assay.core.errors import BadInput, MachineCannot
from assay.core.results import Origin
from assay.core.units import format_duration
from assay.core.values import Value
from assay.monitor.samples import WatchedGpu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.machine.model import Gpu
    from assay.machine.vendor import GpuInventory


FileFormat: TypeAlias = Literal["jsonl", "json", "csv"]

MIN_INTERVAL_S = 0.005
MAX_INTERVAL_S = 600.0
MIN_HOST_INTERVAL_S = 0.1
"""The kernel counts CPU time in hundredths of a second; shares over less than ten of them say little."""

HOST_INTERVAL_WITH_GPUS_S = 0.5
"""A look at a large machine takes a millisecond or more of CPU time."""

ENERGY_INTERVAL_S = 1.0
WINDOW_ENERGY_INTERVAL_S = 0.1
"""As often as the counter of an H200 moves: for whoever asks for the energy of windows."""
PROCESSES_INTERVAL_S = 1.0
TOP_INTERVAL_S = 5.0


class RecordingOptions(Value):
    """What a recorder is started with."""

    path: str = Field(description="Absolute; its ending tells the form.")
    gpus: tuple[WatchedGpu, ...] = ()
    gpu_note: str | None = Field(default=None, description="Why there are none.")
    interval_s: float = 0.1
    energy_interval_s: float = Field(
        default=ENERGY_INTERVAL_S,
        ge=0,
        description="Energy counters take milliseconds of CPU time to read: 5 on an H200.",
    )
    host: bool = True
    host_interval_s: float | None = Field(
        default=None, description="Null: as often, but at most ten times a second, beside GPUs twice."
    )
    processes_interval_s: float | None = Field(
        default=PROCESSES_INTERVAL_S, description="Null: never list who is on the GPUs; it takes the driver's lock."
    )
    top_interval_s: float | None = Field(default=TOP_INTERVAL_S, description="Null: never look at every process.")
    cpus: tuple[int, ...] | None = Field(default=None, description="Where the recorder runs; null: anywhere.")
    root: str = Field(default="/", description="Where sysfs and procfs are found.")
    origin: Origin = Field(default="real", description="Fake where the driver names itself one.")

    @model_validator(mode="after")
    def _something_to_watch(self) -> Self:
        check_interval(self.interval_s)
        format_of(Path(self.path))
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
        at_least_s = HOST_INTERVAL_WITH_GPUS_S if self.gpus else MIN_HOST_INTERVAL_S
        return self.ticks(self.host_interval_s or max(self.interval_s, at_least_s))


def check_interval(interval_s: float) -> None:
    """Refuse an interval that cannot be kept.

    Raises:
        BadInput: It is not within 5 ms and ten minutes.
    """
    if not interval_s > 0:
        raise BadInput(f"An interval of {interval_s:g} s makes no sense; it must be longer than zero.")
    if interval_s < MIN_INTERVAL_S:
        raise BadInput(
            f"An interval of {interval_s * 1e3:g} ms is too short; the shortest is {MIN_INTERVAL_S * 1e3:g} ms."
        )
    if interval_s > MAX_INTERVAL_S:
        raise BadInput(
            f"An interval of {format_duration(interval_s)} is too long; the longest is "
            f"{format_duration(MAX_INTERVAL_S)}."
        )


def format_of(path: Path) -> FileFormat:
    """Return the form that a file's ending stands for.

    Raises:
        BadInput: It stands for none.
    """
    for form in get_args(FileFormat):
        if path.suffix.lower() == f".{form}":
            matched: FileFormat = form
            return matched
    raise BadInput(f"{path}: a recording is a file that ends in .jsonl, .json or .csv.")


def select_gpus(view: GpuInventory, named: Sequence[int | str] | None) -> tuple[WatchedGpu, ...]:
    """Return the GPUs that are meant; with nothing said, all that there are, be it none.

    Raises:
        BadInput: A name makes no sense, fits several, or comes twice.
        MachineCannot: There is no such GPU, or it is lost.
    """
    chosen = view.gpus if named is None else tuple(_find_gpu(view, word) for word in named)
    twice = {gpu.index for gpu in chosen if sum(other.uuid == gpu.uuid for other in chosen) > 1}
    if twice:
        raise BadInput(f"The same GPU is named twice: {', '.join(map(str, sorted(twice)))}.")
    return tuple(map(watched_gpu, chosen))


def watched_gpu(gpu: Gpu) -> WatchedGpu:
    """Return what a recording says of a GPU."""
    return WatchedGpu(
        index=gpu.index, uuid=gpu.uuid, name=gpu.name, memory_mib=gpu.memory_mib, power_limit_w=gpu.power_limit_w
    )


def driver_origin(view: GpuInventory) -> Origin:
    """Return whether the driver is one: the fake of the tests names itself."""
    return "fake" if view.driver is not None and "fake" in view.driver else "real"


def _find_gpu(view: GpuInventory, word: int | str) -> Gpu:
    text = str(word).strip()
    for lost in view.lost:
        if text == str(lost.index):
            raise MachineCannot(f"GPU {lost.index} cannot be reached: {lost.reason}.")
    if text.startswith("GPU-"):
        return _find_by_uuid(view, text)
    if not text.isdecimal():
        raise BadInput(f"{text!r} is not a GPU's number; write 0, 1 or UUIDs as nvidia-smi -L shows them.")
    for gpu in view.gpus:
        if text == str(gpu.index):
            return gpu
    if not view.gpus:
        raise MachineCannot(f"There is no GPU {text} here: {view.note or 'no GPU is to be seen'}.")
    raise MachineCannot(f"There is no GPU {text} here; there are {', '.join(str(gpu.index) for gpu in view.gpus)}.")


def _find_by_uuid(view: GpuInventory, text: str) -> Gpu:
    fits = [gpu for gpu in view.gpus if gpu.uuid.startswith(text)]
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise BadInput(f"{text} fits several GPUs: {', '.join(gpu.uuid for gpu in fits)}; write more of it.")
    raise MachineCannot(f"There is no GPU {text} here: {', '.join(gpu.uuid for gpu in view.gpus) or view.note}.")
