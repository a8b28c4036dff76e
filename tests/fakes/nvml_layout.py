"""The bytes of a scenario, as `nvml/scenario.h` lays them out; the build asserts that both agree.

Each class is a live view of the mapped file: setting an attribute changes what every process sees.
What the fields mean is said in the header.
"""

import ctypes
from ctypes import Array, Structure
from typing import Annotated, TypeVar, get_type_hints

MAGIC = 0x4C4D564E59415341
VERSION = 1
MAX_GPUS = 8
MAX_MIG = 7
MAX_LINKS = 18
MAX_PROCESSES = 64
MAX_FIELDS = 64
MAX_FAILURES = 256
MAX_FUNCTIONS = 256
MAX_SETTINGS = 1024
MAX_SEGMENTS = 16384
CPU_WORDS = 16
ANY_SCOPE = 0xFFFFFFFF
ALL_GPUS = -1
UNSUPPORTED = -1
NOT_AVAILABLE = 2**64 - 1
NO_INSTANCE = 0xFFFFFFFF
NEVER_NS = 2**63 - 1
ALWAYS_NS = -(2**63)

Int32 = Annotated[int, ctypes.c_int32]
UInt32 = Annotated[int, ctypes.c_uint32]
Int64 = Annotated[int, ctypes.c_int64]
UInt64 = Annotated[int, ctypes.c_uint64]
Double = Annotated[float, ctypes.c_double]
Name = Annotated[bytes, ctypes.c_char * 64]
Text = Annotated[bytes, ctypes.c_char * 96]

S = TypeVar("S", bound=type[Structure])


def laid_out(cls: S) -> S:
    """Give a structure the fields that its annotations name, in their order."""
    hints = get_type_hints(cls, include_extras=True)
    cls._fields_ = [(name, hint.__metadata__[0]) for name, hint in hints.items()]
    return cls


@laid_out
class Segment(Structure):
    """Power from a time on."""

    t_ns: Int64
    demand_w: Double
    power_w: Double
    energy_j: Double
    capped_ns: Int64
    sm_mhz: UInt32
    capped: UInt32


@laid_out
class Sensor(Structure):
    """How the sensor sees the power."""

    period_ns: Int64
    phase_ns: Int64
    lag_ns: Int64
    usage_window_ns: Int64
    average_window_ns: Int64
    instant_window_ns: Int64
    counter_period_ns: Int64
    counter_phase_ns: Int64
    counter_quantum_mj: Int64
    gain: Double
    counter_base_mj: Double
    counter_since_ns: Int64


@laid_out
class Mig(Structure):
    """One MIG instance."""

    uuid: Text
    name: Text
    memory_total_bytes: UInt64
    memory_used_bytes: UInt64
    gpu_instance_id: UInt32
    compute_instance_id: UInt32
    multiprocessors: UInt32
    slices: UInt32


@laid_out
class Process(Structure):
    """One process on a GPU."""

    pid: UInt32
    graphics: UInt32
    memory_bytes: UInt64
    gpu_instance_id: UInt32
    compute_instance_id: UInt32


@laid_out
class Link(Structure):
    """One NVLink."""

    remote_bus_id: Name
    active: UInt32
    version: UInt32
    remote_type: UInt32
    capabilities: UInt32


@laid_out
class Field(Structure):
    """One field value that a test has set."""

    field: UInt32
    scope: UInt32
    value_type: UInt32
    code: Int32
    base: Double
    rate_per_s: Double
    since_ns: Int64


@laid_out
class Gpu(Structure):
    """One GPU."""

    name: Text
    uuid: Text
    pci_bus_id: Name
    vbios: Name
    pci_device_id: UInt32
    architecture: UInt32
    compute_major: UInt32
    compute_minor: UInt32
    memory_total_bytes: UInt64
    memory_reserved_bytes: UInt64
    memory_used_bytes: UInt64
    ecc: Int32
    persistence: Int32
    mig_mode: Int32
    numa_node: Int32
    host_numa_node: Int32
    compute_mode: UInt32
    performance_state: UInt32
    temperature_c: UInt32
    utilisation_percent: UInt32
    memory_utilisation_percent: UInt32
    clocks_event_reasons: Int64
    supported_event_reasons: UInt64
    pcie_generation: UInt32
    pcie_width: UInt32
    pcie_max_generation: UInt32
    pcie_max_width: UInt32
    pcie_tx_kb_per_s: UInt32
    pcie_rx_kb_per_s: UInt32
    pcie_block_ns: Int64
    cpu_affinity: Annotated[Array[ctypes.c_uint64], ctypes.c_uint64 * CPU_WORDS]

    power_limit_mw: UInt32
    power_limit_min_mw: UInt32
    power_limit_max_mw: UInt32
    power_limit_default_mw: UInt32
    sm_max_mhz: UInt32
    sm_idle_mhz: UInt32
    sm_step_mhz: UInt32
    memory_max_mhz: UInt32
    sm_forced_mhz: UInt32
    memory_forced_mhz: UInt32
    sm_lock_min_mhz: UInt32
    sm_lock_max_mhz: UInt32
    memory_lock_min_mhz: UInt32
    memory_lock_max_mhz: UInt32
    sm_application_mhz: UInt32
    memory_application_mhz: UInt32
    idle_w: Double
    clock_exponent: Double
    lost_at_ns: Int64

    sensor: Annotated[Sensor, Sensor]
    mig_count: UInt32
    process_count: UInt32
    link_count: UInt32
    field_count: UInt32
    mig: Annotated[Array[Mig], Mig * MAX_MIG]
    processes: Annotated[Array[Process], Process * MAX_PROCESSES]
    links: Annotated[Array[Link], Link * MAX_LINKS]
    fields: Annotated[Array[Field], Field * MAX_FIELDS]

    segment_count: UInt32
    segments_dropped: UInt32
    segments: Annotated[Array[Segment], Segment * MAX_SEGMENTS]


@laid_out
class Failure(Structure):
    """A function that answers with an error."""

    function: Name
    gpu: Int32
    code: Int32
    from_ns: Int64
    until_ns: Int64


@laid_out
class Function(Structure):
    """How often a function was called."""

    function: Name
    count: UInt64


@laid_out
class Setting(Structure):
    """One call that tried to change something."""

    function: Name
    t_ns: Int64
    pid: Int32
    gpu: Int32
    code: Int32
    first: UInt32
    second: UInt32
    unused: UInt32


class Lock(ctypes.Union):
    """A mutex that processes share."""

    _fields_ = [("aligned", ctypes.c_uint64), ("bytes", ctypes.c_uint8 * 64)]


@laid_out
class Scenario(Structure):
    """The whole file."""

    magic: UInt64
    version: UInt32
    size: UInt32
    lock: Annotated[Lock, Lock]
    virtual_ns: Int64
    is_virtual: Int32
    privileged: Int32
    gpu_count: UInt32
    cuda_version: UInt32
    driver_version: Name
    nvml_version: Name
    topology: Annotated[Array[ctypes.c_int32], ctypes.c_int32 * (MAX_GPUS * MAX_GPUS)]
    p2p: Annotated[Array[ctypes.c_int32], ctypes.c_int32 * (MAX_GPUS * MAX_GPUS)]
    failure_count: UInt32
    setting_count: UInt32
    failures: Annotated[Array[Failure], Failure * MAX_FAILURES]
    functions: Annotated[Array[Function], Function * MAX_FUNCTIONS]
    settings: Annotated[Array[Setting], Setting * MAX_SETTINGS]
    gpus: Annotated[Array[Gpu], Gpu * MAX_GPUS]


def assertions() -> str:
    """Return C that compiles only if `scenario.h` says the same as this module."""
    lines = ["#include <stddef.h>", '#include "scenario.h"']
    for cls in (Segment, Sensor, Mig, Process, Link, Field, Gpu, Failure, Function, Setting, Scenario):
        c_name = f"{cls.__name__.lower()}_t"
        lines.append(f'_Static_assert(sizeof({c_name}) == {ctypes.sizeof(cls)}, "{c_name}");')
        for name in (field[0] for field in cls._fields_):
            offset = getattr(cls, name).offset
            lines.append(f'_Static_assert(offsetof({c_name}, {name}) == {offset}, "{c_name}.{name}");')
    return "\n".join(lines) + "\n"
