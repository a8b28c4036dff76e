"""Options of a measurement, validated before anything runs."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Literal

from assay.core.errors import BadInput, MachineCannot, suggest_nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.results import GpuSnapshot
    from assay.timing.results import Cache
    from assay.timing.sampling import Call

    ClockReader = Callable[[], GpuSnapshot | None]

MethodChoice = Literal["auto", "graph", "queue", "trace", "wall"]
TimeKind = Literal["busy", "span", "call"]
METHODS: tuple[MethodChoice, ...] = ("auto", "graph", "queue", "trace", "wall")
TIMES: tuple[TimeKind, ...] = ("busy", "span", "call")
PRECISION = 0.01
BUDGET_S = 10.0
LIMIT_S = 60.0
SHORTEST_LIMIT_S = 0.001
BATCH_US = 2_000.0
"""Approximate duration of a batch of GPU calls; positions in a graph differ by 0.1 µs, which many calls average out."""

SMALL_BATCH_US = 800.0
"""The same where many calls are interleaved."""


@dataclass(frozen=True)
class TimingOptions:
    """Timing options; see ``assay.measure`` for their meaning."""

    device: str
    cache: Cache
    method: MethodChoice = "auto"
    precision: float = PRECISION
    budget_s: float = BUDGET_S
    times: tuple[TimeKind, ...] = TIMES
    limit_s: float = LIMIT_S
    setup: Call | None = None
    lock_mhz: int | None = None
    reader: ClockReader | None = None
    batch_us: float = BATCH_US

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.startswith("cuda")

    @property
    def index(self) -> int:
        """The GPU's index, as PyTorch counts in this process."""
        return int(self.device.partition(":")[2] or 0)


def resolve_options(
    *,
    device: str | None,
    cache: Cache | None,
    method: MethodChoice,
    precision: float,
    budget_s: float,
    times: tuple[TimeKind, ...],
    limit_s: float,
    setup: Call | None = None,
    lock_mhz: int | None = None,
    reader: ClockReader | None = None,
    batch_us: float = BATCH_US,
) -> TimingOptions:
    """Validate the options and fill in defaults."""
    _require_one_of("method", method, METHODS)
    for time in times:
        _require_one_of("times", time, TIMES)
    if not times:
        raise BadInput("times must name at least one of busy, span and call.")
    if cache is not None:
        _require_one_of("cache", cache, ("cold", "warm"))
    if not (_is_number(precision) and 0 < precision < 1):
        raise BadInput(f"precision is a share between 0 and 1, such as 0.01 for ±1 %, not {precision!r}.")
    for name, value in (("budget_s", budget_s), ("limit_s", limit_s)):
        if not (_is_number(value) and value > 0 and math.isfinite(value)):
            raise BadInput(f"{name} is a positive number of seconds, not {value!r}.")
    if limit_s < SHORTEST_LIMIT_S:
        raise BadInput(f"limit_s is {SHORTEST_LIMIT_S:g} s at least, not {limit_s!r}.")
    if lock_mhz is not None and not (_is_number(lock_mhz) and lock_mhz >= 1):
        raise BadInput(f"lock_mhz is a clock in MHz, such as 1410, not {lock_mhz!r}.")
    device_name = _resolve_device(device)
    gpu = device_name.startswith("cuda")
    if not gpu and (cache == "cold" or method in {"graph", "queue", "trace"} or lock_mhz is not None):
        requested = "cache='cold'" if cache == "cold" else f"method={method!r}" if method != "auto" else "lock_mhz"
        raise BadInput(
            f"{requested} is for a GPU; {device_name} is timed by the host's clock, its caches as calls leave them."
        )
    state = cache or ("cold" if gpu else "warm")
    return TimingOptions(
        device_name, state, method, precision, budget_s, times, limit_s, setup, lock_mhz, reader, batch_us
    )


def require_time_kind(by: TimeKind | None, options: TimingOptions) -> None:
    """Check that a device can measure the time that is to decide.

    Raises:
        BadInput: It is a kernel time, and the device is a CPU.
    """
    if by is None:
        return
    _require_one_of("by", by, TIMES)
    if by != "call" and not options.on_gpu:
        raise BadInput(f"by={by!r} is for a GPU; on {options.device} there is only call.")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _require_one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise BadInput(f"{name} is one of {', '.join(allowed)}, not {value!r}.{suggest_nearest(str(value), allowed)}")


def _resolve_device(requested: str | None) -> str:
    """Return the device's name; by default a GPU where PyTorch is already loaded and sees one, else the CPU."""
    if requested is None:
        loaded = sys.modules.get("torch")
        return f"cuda:{loaded.cuda.current_device()}" if loaded is not None and loaded.cuda.is_available() else "cpu"
    kind, _, number = str(requested).partition(":")
    if kind not in {"cpu", "cuda"} or (number and not number.isdecimal()):
        raise BadInput(f"device is cpu, cuda or cuda:N, not {requested!r}.")
    if kind == "cpu" and number:
        raise BadInput(f"device is cpu, cuda or cuda:N, not {requested!r}: groups of cores are for `assay run`.")
    if kind == "cpu":
        return "cpu"
    try:
        import torch
    except ImportError as error:
        raise MachineCannot(f"CUDA is timed through PyTorch, which cannot be imported here: {error}.") from None
    if not torch.cuda.is_available():
        raise MachineCannot("CUDA was asked for, and PyTorch here sees no CUDA GPU.")
    if number and int(number) >= torch.cuda.device_count():
        raise MachineCannot(f"There is no {requested}: PyTorch here sees {torch.cuda.device_count()} GPUs.")
    return f"cuda:{number or torch.cuda.current_device()}"
