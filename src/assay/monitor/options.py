"""What to record: which GPUs, how often, into which file, on which cores.

GPUs are selected by index or UUID, by default all of them. GPUs hidden by CUDA_VISIBLE_DEVICES and GPUs in MIG mode
can be sampled as well: sensors belong to whole GPUs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeAlias, get_args

from pydantic import Field, model_validator

from assay.core.errors import BadInput, MachineCannot
from assay.core.format import format_duration
from assay.core.results import Origin
from assay.core.values import Value
from assay.monitor.samples import WatchedGpu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.machine.model import Gpu, GpuInventory


FileFormat: TypeAlias = Literal["jsonl", "json", "csv"]

MIN_INTERVAL_S = 0.005
MAX_INTERVAL_S = 600.0
MIN_HOST_INTERVAL_S = 0.1
"""The kernel counts CPU time in hundredths of a second; shares over less than ten of them are imprecise."""

HOST_INTERVAL_WITH_GPUS_S = 0.5
"""A host sample on a large machine takes a millisecond or more of CPU time."""

ENERGY_INTERVAL_S = 1.0
WINDOW_ENERGY_INTERVAL_S = 0.1
"""The update interval of an H200's counter: for measuring the energy of windows."""
PROCESSES_INTERVAL_S = 1.0
TOP_INTERVAL_S = 5.0


class RecordingOptions(Value):
    """The options a recorder is started with."""

    path: str = Field(description="Absolute; the extension selects the format.")
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
        default=None, description="Null: every tick, but at most ten times a second, or twice with GPUs."
    )
    processes_interval_s: float | None = Field(
        default=PROCESSES_INTERVAL_S, description="Null: never list processes on the GPUs; it takes the driver's lock."
    )
    top_interval_s: float | None = Field(default=TOP_INTERVAL_S, description="Null: never list all processes.")
    cpus: tuple[int, ...] | None = Field(default=None, description="CPU affinity of the recorder; null: any CPU.")
    root: str = Field(default="/", description="Where sysfs and procfs are found.")
    origin: Origin = Field(default="real", description="Fake if the driver identifies itself as one.")

    @model_validator(mode="after")
    def _something_to_watch(self) -> Self:
        check_interval(self.interval_s)
        format_of(Path(self.path))
        if not self.gpus and not self.host:
            raise ValueError("a recorder watches GPUs, the host, or both")
        return self

    @property
    def interval_ns(self) -> int:
        """Sampling interval in ns."""
        return round(self.interval_s * 1e9)

    def ticks(self, seconds: float) -> int:
        """Return the smallest number of ticks that lasts at least this long."""
        return max(1, -(-round(seconds * 1e9) // self.interval_ns))

    @property
    def host_every(self) -> int | None:
        """Ticks between two samples of the host; null: it is not sampled."""
        if not self.host:
            return None
        at_least_s = HOST_INTERVAL_WITH_GPUS_S if self.gpus else MIN_HOST_INTERVAL_S
        return self.ticks(self.host_interval_s or max(self.interval_s, at_least_s))


def check_interval(interval_s: float) -> None:
    """Check that an interval is within the supported range.

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
    """Return the file format for a file's extension.

    Raises:
        BadInput: The extension is unknown.
    """
    for file_format in get_args(FileFormat):
        if path.suffix.lower() == f".{file_format}":
            matched: FileFormat = file_format
            return matched
    raise BadInput(f"{path}: a recording is a file that ends in .jsonl, .json or .csv.")


def select_gpus(view: GpuInventory, names: Sequence[int | str] | None) -> tuple[WatchedGpu, ...]:
    """Return the selected GPUs; null selects all, which may be none.

    Raises:
        BadInput: A name is invalid, matches several GPUs, or is given twice.
        MachineCannot: There is no such GPU, or it is lost.
    """
    selected = view.gpus if names is None else tuple(_find_gpu(view, name) for name in names)
    duplicates = {gpu.index for gpu in selected if sum(other.uuid == gpu.uuid for other in selected) > 1}
    if duplicates:
        raise BadInput(f"The same GPU is named twice: {', '.join(map(str, sorted(duplicates)))}.")
    return tuple(map(watched_gpu, selected))


def watched_gpu(gpu: Gpu) -> WatchedGpu:
    """Return the fields that a recording stores about a GPU."""
    return WatchedGpu(
        index=gpu.index, uuid=gpu.uuid, name=gpu.name, memory_mib=gpu.memory_mib, power_limit_w=gpu.power_limit_w
    )


def driver_origin(view: GpuInventory) -> Origin:
    """Return whether the driver is real: the fake of the tests is recognized by its name."""
    return "fake" if view.driver is not None and "fake" in view.driver else "real"


def _find_gpu(view: GpuInventory, name: int | str) -> Gpu:
    text = str(name).strip()
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
    matches = [gpu for gpu in view.gpus if gpu.uuid.startswith(text)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise BadInput(f"{text} fits several GPUs: {', '.join(gpu.uuid for gpu in matches)}; write more of it.")
    raise MachineCannot(f"There is no GPU {text} here: {', '.join(gpu.uuid for gpu in view.gpus) or view.note}.")
