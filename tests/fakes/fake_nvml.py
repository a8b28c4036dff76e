"""A fake NVML: a scenario that tests write and that the real `nvidia-ml-py` reads, in as many processes as wanted.

fake = FakeNvml.create(path, [hopper(), hopper()])      time is virtual and stands at 0 s
fake.set_power(0, 500.0, at_s=1.0)                      what GPU 0 truly draws
fake.advance(2.0)
with attached(fake) as nvml: …                          in this process
subprocess.run(…, env=fake.env())                       in another one
fake.true_energy_j(0, 0.0, 2.0)                         what an estimator should have found
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

from tests.fakes import nvml_layout as layout
from tests.fakes import nvml_write as write
from tests.fakes.nvml_attach import attached, preload
from tests.fakes.nvml_build import build
from tests.fakes.nvml_mapping import NS, ns, write_empty
from tests.fakes.nvml_power import Power, Segment
from tests.fakes.nvml_specs import Gpu, GpuProcess, MigInstance, NvLink, Sensor, ampere, hopper, volta

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Iterable, Sequence
    from pathlib import Path

__all__ = [
    "DRIVER_VERSION",
    "FakeNvml",
    "Gpu",
    "GpuProcess",
    "MigInstance",
    "NvLink",
    "Segment",
    "Sensor",
    "SettingCall",
    "ampere",
    "attached",
    "build",
    "hopper",
    "preload",
    "volta",
]

DRIVER_VERSION = "580.00-assay-fake"
NOT_SUPPORTED = 3
UNSIGNED_LONG_LONG = 3
NODE, SYSTEM = 40, 50


class SettingCall(NamedTuple):
    """One NVML call that tried to change a GPU, with what it was answered."""

    function: str
    gpu: int
    arguments: tuple[int, int]
    code: int
    pid: int
    t_s: float


class FakeNvml(Power):
    """A scenario: the GPUs of a machine that is not there. Power over time is in the base class."""

    @classmethod
    def create(
        cls,
        path: Path,
        gpus: Sequence[Gpu] | None = None,
        *,
        virtual: bool = True,
        start_s: float = 0.0,
        privileged: bool = True,
    ) -> Self:
        """Write and map a scenario.

        Args:
            path: The file; it is made or made anew.
            gpus: The GPUs, at most eight; one Hopper by default.
            virtual: Whether time stands still until a test advances it; otherwise it is CLOCK_MONOTONIC.
            start_s: Where virtual time begins.
            privileged: Whether limits, clocks and persistence may be set.
        """
        chosen = [hopper()] if gpus is None else list(gpus)
        if len(chosen) > layout.MAX_GPUS:
            raise ValueError(f"a scenario has room for {layout.MAX_GPUS} GPUs, not {len(chosen)}")
        write_empty(path, start_ns=ns(start_s) if virtual else None)
        fake = cls(path)
        fake._furnish(chosen)
        fake.privileged = privileged
        return fake

    def _furnish(self, gpus: list[Gpu]) -> None:
        with self.locked() as scenario:
            scenario.driver_version = DRIVER_VERSION.encode()
            scenario.nvml_version = f"13.{DRIVER_VERSION}".encode()
            scenario.cuda_version = 13000
            scenario.gpu_count = len(gpus)
            for index, gpu in enumerate(gpus):
                write.write_gpu(scenario.gpus[index], gpu, index, self.now_ns())
                self._furnish_exceptions(index, gpu)
                for other, neighbour in enumerate(gpus[:index]):
                    near = gpu.host_numa_node == neighbour.host_numa_node
                    self.set_topology(index, other, NODE if near else SYSTEM)

    def _furnish_exceptions(self, index: int, gpu: Gpu) -> None:
        for function in gpu.unsupported:
            self.fail(function, NOT_SUPPORTED, gpu=index)
        for field in gpu.unsupported_fields:
            self.fail_field(index, field, NOT_SUPPORTED)
        for field, value in gpu.fields.items():
            self.set_field(index, field, value)

    @property
    def gpu_count(self) -> int:
        """How many GPUs NVML lists."""
        return self._scenario.gpu_count

    @property
    def privileged(self) -> bool:
        """Whether limits, clocks and persistence may be set; otherwise the answer is NO_PERMISSION."""
        return bool(self._scenario.privileged)

    @privileged.setter
    def privileged(self, value: bool) -> None:
        self._scenario.privileged = int(value)

    # What is on the GPUs and between them

    def set_processes(self, gpu: int, processes: Sequence[GpuProcess]) -> None:
        """Let a GPU list exactly these processes; their memory counts as used."""
        with self.locked():
            write.write_processes(self.gpu(gpu), processes)

    def add_process(self, gpu: int, process: GpuProcess) -> None:
        """Let a GPU list one process more."""
        with self.locked():
            self.set_processes(gpu, [*write.read_processes(self.gpu(gpu)), process])

    def remove_process(self, gpu: int, pid: int) -> None:
        """Let a GPU no longer list a process."""
        with self.locked():
            self.set_processes(gpu, [p for p in write.read_processes(self.gpu(gpu)) if p.pid != pid])

    def set_mig(self, gpu: int, instances: Sequence[MigInstance] | None) -> None:
        """Cut a GPU into instances, or with `None` switch MIG off."""
        with self.locked():
            write.write_mig(self.gpu(gpu), instances)

    def set_links(self, gpu: int, links: Sequence[NvLink]) -> None:
        """Give a GPU its NVLinks, numbered from 0."""
        with self.locked():
            write.write_links(self.gpu(gpu), links)

    def set_cpus(self, gpu: int, cpus: Iterable[int]) -> None:
        """Set the cores that lie near a GPU."""
        with self.locked():
            write.write_cpus(self.gpu(gpu), cpus)

    def set_topology(self, gpu: int, other: int, level: int) -> None:
        """Set how two GPUs lie to each other: one of `NVML_TOPOLOGY_*`, 10 the same switch to 50 across sockets."""
        self._set_pair(self._scenario.topology, gpu, other, level)

    def set_p2p(self, gpu: int, other: int, status: int) -> None:
        """Set whether two GPUs reach each other: one of `NVML_P2P_STATUS_*`, 0 by default."""
        self._set_pair(self._scenario.p2p, gpu, other, status)

    def _set_pair(self, matrix: ctypes.Array[ctypes.c_int32], gpu: int, other: int, value: int) -> None:
        matrix[gpu * layout.MAX_GPUS + other] = value
        matrix[other * layout.MAX_GPUS + gpu] = value

    # Field values

    def set_field(
        self,
        gpu: int,
        field: int,
        value: float,
        *,
        rate_per_s: float = 0.0,
        scope: int | None = None,
        value_type: int = UNSIGNED_LONG_LONG,
    ) -> None:
        """Let a field be `value` now and grow from it; before the model's own 74, 83, 185 and 186.

        Args:
            gpu: Its index.
            field: Its id, as 197 for sent PCIe bytes.
            value: What it is now.
            rate_per_s: How fast it counts.
            scope: For which scope, as the number of an NVLink; by default any.
            value_type: One of `NVML_VALUE_TYPE_*`.
        """
        entry = layout.Field(field, _scope(scope), value_type, 0, value, rate_per_s, self.now_ns())
        self._put_field(gpu, entry)

    def fail_field(self, gpu: int, field: int, code: int = NOT_SUPPORTED, *, scope: int | None = None) -> None:
        """Let a field answer with an error of its own, while the call succeeds."""
        self._put_field(gpu, layout.Field(field, _scope(scope), UNSIGNED_LONG_LONG, code))

    def clear_field(self, gpu: int, field: int) -> None:
        """Give a field back to the model, or where the model has none, to NOT_SUPPORTED."""
        with self.locked():
            self._keep_fields(gpu, [f for f in self._fields(gpu) if f.field != field])

    def _put_field(self, gpu: int, entry: layout.Field) -> None:
        """Put an entry in place of its like; entries for one scope come before those for any."""
        with self.locked():
            others = [f for f in self._fields(gpu) if (f.field, f.scope) != (entry.field, entry.scope)]
            self._keep_fields(gpu, sorted([entry, *others], key=lambda f: f.scope == layout.ANY_SCOPE))

    def _fields(self, gpu: int) -> list[layout.Field]:
        state = self.gpu(gpu)
        return [layout.Field.from_buffer_copy(f) for f in state.fields[: state.field_count]]

    def _keep_fields(self, gpu: int, fields: list[layout.Field]) -> None:
        state = self.gpu(gpu)
        if len(fields) > layout.MAX_FIELDS:
            raise ValueError(f"a fake GPU has room for {layout.MAX_FIELDS} fields, not {len(fields)}")
        for slot, field in enumerate(fields):
            state.fields[slot] = field
        state.field_count = len(fields)

    # What goes wrong

    def fail(
        self,
        function: str,
        code: int,
        *,
        gpu: int | None = None,
        from_s: float | None = None,
        until_s: float | None = None,
    ) -> None:
        """Let a function answer `code`.

        Args:
            function: Its name in NVML, with or without `_vN`; `nvmlInit` stands for all ways to initialise.
            code: The return code, as `pynvml.NVML_ERROR_UNKNOWN`.
            gpu: On which GPU; by default on all.
            from_s: From when on; by default always.
            until_s: Until when; by default for good.
        """
        self._check_function(function)
        name = "nvmlInit" if function.startswith("nvmlInit") else function
        begin_ns = layout.ALWAYS_NS if from_s is None else ns(from_s)
        end_ns = layout.NEVER_NS if until_s is None else ns(until_s)
        with self.locked() as scenario:
            if scenario.failure_count == layout.MAX_FAILURES:
                raise ValueError("the scenario has no room for another failure")
            where = layout.ALL_GPUS if gpu is None else gpu
            entry = layout.Failure(name.encode(), where, code, begin_ns, end_ns)
            scenario.failures[scenario.failure_count] = entry
            scenario.failure_count += 1

    def heal(self, function: str | None = None) -> None:
        """Let a function, or every one, work again on all GPUs; what a preset lacks comes back too."""
        with self.locked() as scenario:
            entries = [layout.Failure.from_buffer_copy(f) for f in scenario.failures[: scenario.failure_count]]
            kept = [entry for entry in entries if function is not None and entry.function.decode() != function]
            for slot, entry in enumerate(kept):
                scenario.failures[slot] = entry
            scenario.failure_count = len(kept)

    def lose(self, gpu: int, at_s: float | None = None) -> None:
        """Let a GPU fall off the bus, now or at a time: from then on everything about it is GPU_IS_LOST."""
        self.gpu(gpu).lost_at_ns = self._time_ns(at_s)

    def find(self, gpu: int) -> None:
        """Bring a lost GPU back."""
        self.gpu(gpu).lost_at_ns = layout.NEVER_NS

    def _check_function(self, function: str) -> None:
        versions = ("", "_v2", "_v3")
        if not any(hasattr(self._functions, function + version) for version in versions):
            raise ValueError(f"the fake NVML has no function {function}")

    # What was asked of it

    def calls(self, function: str) -> int:
        """Return how often a function was called by all processes, under whichever version."""
        with self.locked() as scenario:
            counted = {entry.function.decode(): entry.count for entry in scenario.functions if entry.count}
        return sum(count for name, count in counted.items() if name == function or name.startswith(f"{function}_v"))

    def setting_calls(self) -> list[SettingCall]:
        """Return the calls that tried to change something, oldest first, refused ones too."""
        with self.locked() as scenario:
            last = scenario.setting_count
            slots = range(max(0, last - layout.MAX_SETTINGS), last)
            return [_setting(scenario.settings[slot % layout.MAX_SETTINGS]) for slot in slots]


def _scope(scope: int | None) -> int:
    return layout.ANY_SCOPE if scope is None else scope


def _setting(entry: layout.Setting) -> SettingCall:
    arguments = (entry.first, entry.second)
    return SettingCall(entry.function.decode(), entry.gpu, arguments, entry.code, entry.pid, entry.t_ns / NS)
