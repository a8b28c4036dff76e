"""A scenario file, mapped: its making, its lock and its clock."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.fakes import nvml_layout as layout
from tests.fakes.nvml_build import DRIVER_NAME, build

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ENVIRONMENT = "ASSAY_FAKE_NVML"
NS = 1_000_000_000


def ns(seconds: float) -> int:
    """Return whole nanoseconds."""
    return round(seconds * NS)


class Mapped:
    """A scenario file that this process has mapped, as others may have."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = build()
        self._functions = _load(self.library.with_name(DRIVER_NAME))
        with path.open("r+b") as file:
            self._scenario = layout.Scenario.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(layout.Scenario)))
        found = (self._scenario.magic, self._scenario.version, self._scenario.size)
        if found != (layout.MAGIC, layout.VERSION, ctypes.sizeof(layout.Scenario)):
            raise ValueError(f"{path} is not a scenario of this version of the fake NVML")

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map a scenario that another process, or this one, has made."""
        return cls(path)

    @classmethod
    def from_env(cls) -> Self:
        """Map the scenario that the environment names."""
        return cls(Path(os.environ[ENVIRONMENT]))

    def env(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return `base`, by default this process's environment, so changed that a child finds the fake NVML."""
        environment = dict(os.environ if base is None else base)
        before = [entry for entry in environment.get("LD_LIBRARY_PATH", "").split(":") if entry]
        folder = str(self.library.parent)
        environment["LD_LIBRARY_PATH"] = ":".join([folder, *(entry for entry in before if entry != folder)])
        environment[ENVIRONMENT] = str(self.path)
        return environment

    @contextmanager
    def locked(self) -> Iterator[layout.Scenario]:
        """Hold the scenario, so that nobody sees a change of several values half done."""
        self._functions.assay_fake_lock(ctypes.byref(self._scenario))
        try:
            yield self._scenario
        finally:
            self._functions.assay_fake_unlock(ctypes.byref(self._scenario))

    def now_ns(self) -> int:
        """Return the scenario's time; a clock to hand in where the product asks for one."""
        return self._scenario.virtual_ns if self._scenario.is_virtual else time.monotonic_ns()

    def now_s(self) -> float:
        """Return the scenario's time in seconds."""
        return self.now_ns() / NS

    def advance(self, seconds: float) -> None:
        """Let virtual time pass, for all processes; also a `sleep` to hand in."""
        with self.locked() as scenario:
            self._needs_virtual_time()
            scenario.virtual_ns += ns(seconds)

    def set_time(self, seconds: float) -> None:
        """Set virtual time, for all processes."""
        with self.locked() as scenario:
            self._needs_virtual_time()
            scenario.virtual_ns = ns(seconds)

    def _needs_virtual_time(self) -> None:
        if not self._scenario.is_virtual:
            raise ValueError("this scenario runs on real time, which passes by itself")

    def _time_ns(self, seconds: float | None) -> int:
        return self.now_ns() if seconds is None else ns(seconds)

    def gpu(self, index: int) -> layout.Gpu:
        """Return the live state of a GPU: read and set its plain values here, as `gpu(0).temperature_c = 80`."""
        if not 0 <= index < self._scenario.gpu_count:
            raise IndexError(f"the scenario has no GPU {index}")
        return self._scenario.gpus[index]


def write_empty(path: Path, *, start_ns: int | None) -> None:
    """Write a scenario without GPUs, on virtual time from `start_ns` or on real time."""
    with path.open("w+b") as file:
        file.truncate(ctypes.sizeof(layout.Scenario))
        scenario = layout.Scenario.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(layout.Scenario)))
    scenario.is_virtual = start_ns is not None
    scenario.virtual_ns = start_ns or 0
    _load(build().with_name(DRIVER_NAME)).assay_fake_init_lock(ctypes.byref(scenario))
    scenario.version = layout.VERSION
    scenario.size = ctypes.sizeof(layout.Scenario)
    scenario.magic = layout.MAGIC


def _load(library: Path) -> ctypes.CDLL:
    functions = ctypes.CDLL(str(library))
    pointer = ctypes.POINTER(layout.Scenario)
    for name in ("assay_fake_init_lock", "assay_fake_lock", "assay_fake_unlock"):
        getattr(functions, name).argtypes = [pointer]
        getattr(functions, name).restype = None
    int64, double = ctypes.c_int64, ctypes.c_double
    functions.assay_fake_set_power.argtypes = [pointer, ctypes.c_int, int64, double]
    functions.assay_fake_add_load.argtypes = [pointer, ctypes.c_int, int64, int64, double]
    functions.assay_fake_settle.argtypes = [pointer, ctypes.c_int]
    return functions
