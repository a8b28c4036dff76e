"""Parse Nsight Compute's output and assign its hardware counters to traced rows.

The output gives the counters of each kernel, or why there are none.

``ncu --csv`` has two forms. The raw page has a row for each kernel, a column for each metric and a row of units
below the heading; the details page has a row for each metric of each kernel. Around either are lines that begin
with ``==``. Numbers have commas for thousands; what could not be read is ``n/a``.

Counters come from a separate run. The same calls launch the same kernels in the same order, which assigns the
counters of one run to the kernels of the other.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from typing import TYPE_CHECKING

from pydantic import Field

from assay.core.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from assay.monitor.kernel_trace.rows import KernelRow


DURATION = "gpu__time_duration.sum"
SYSMEM_READ = "lts__t_sectors_aperture_sysmem_op_read.sum"
SYSMEM_WRITE = "lts__t_sectors_aperture_sysmem_op_write.sum"
PERCENTAGES = {
    "sm_efficiency_percent": "smsp__cycles_active.avg.pct_of_peak_sustained_elapsed",
    "achieved_occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "dram_utilisation_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_hit_percent": "lts__t_sector_hit_rate.pct",
}
METRICS = (*PERCENTAGES.values(), SYSMEM_READ, SYSMEM_WRITE, DURATION)
"""The metrics requested: nvprof's sm_efficiency, achieved_occupancy, dram_utilization and old sysmem_utilization."""

SECTOR_BYTES = 32
OLDEST_VERSION = (2020, 1)
"""The first version that supports the options used here."""

_TIMES = {
    "s": 1.0,
    "second": 1.0,
    "ms": 1e-3,
    "msecond": 1e-3,
    "us": 1e-6,
    "usecond": 1e-6,
    "ns": 1e-9,
    "nsecond": 1e-9,
}
_SIZES = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "sector": 1.0, "Ksector": 1e3, "Msector": 1e6}
_UNITS = _TIMES | _SIZES
_GIGABYTES_A_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
_HEADING = re.compile(r'"?ID"?,')
_MESSAGE = re.compile(r"^==(ERROR|WARNING)== *(\S.*)$", re.MULTILINE)
_VERSION = re.compile(r"^Version (\d+)\.(\d+)(?:\.\d+)*", re.MULTILINE)


class NcuKernel(Value):
    """The counters of one kernel as read, in seconds, bytes, sectors and percent, by metric name."""

    name: str
    metrics: dict[str, float] = Field(default_factory=dict, description="Those that were read; n/a is left out.")


class NcuFailure(Value):
    """Why there are no counters, and the fix where it is known."""

    reason: str
    fix: str | None = None


def read_counters(text: str) -> list[NcuKernel]:
    """Return the kernels of a table in either form, in launch order; empty where there is no table."""
    lines = iter(text.splitlines())
    heading = next((line for line in lines if _HEADING.match(line)), None)
    if heading is None:
        return []
    names = next(csv.reader([heading]))
    body = csv.reader(line for line in lines if line and not line.startswith("=="))
    cells = [dict(zip(names, row, strict=True)) for row in body if len(row) == len(names)]
    return _parse_details_page(cells) if "Metric Name" in names else _parse_raw_page(cells)


def _parse_raw_page(rows: list[dict[str, str]]) -> list[NcuKernel]:
    units: Mapping[str, str] = {}
    kernels: list[NcuKernel] = []
    for row in rows:
        if not row["ID"].strip():
            units = row
        elif row["ID"].strip().isdecimal():
            read = {name: _number(row[name], units.get(name, "")) for name in METRICS if name in row}
            kernels.append(_ncu_kernel(row, read))
    return kernels


def _parse_details_page(rows: list[dict[str, str]]) -> list[NcuKernel]:
    kernels: dict[str, tuple[dict[str, str], dict[str, float | None]]] = {}
    for row in rows:
        _, read = kernels.setdefault(row["ID"], (row, {}))
        if row["Metric Name"] in METRICS:
            read[row["Metric Name"]] = _number(row["Metric Value"], row.get("Metric Unit", ""))
    return [_ncu_kernel(row, read) for number, (row, read) in kernels.items() if number.strip().isdecimal()]


def _ncu_kernel(row: Mapping[str, str], read: Mapping[str, float | None]) -> NcuKernel:
    metrics = {name: value for name, value in read.items() if value is not None}
    return NcuKernel(name=row.get("Kernel Name", ""), metrics=metrics)


def _number(text: str, unit: str) -> float | None:
    try:
        value = float(text.replace(",", "")) * _UNITS.get(unit.strip(), 1.0)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def counter_columns(kernel: NcuKernel, link_bytes_per_s: float | None) -> dict[str, float | None]:
    """Return the columns of a row that the counters fill.

    System memory utilization is a share of the PCIe bandwidth in the busier direction; null where that is unknown.
    """
    columns = {column: kernel.metrics.get(metric) for column, metric in PERCENTAGES.items()}
    read_bytes, written_bytes = (_bytes(kernel.metrics.get(metric)) for metric in (SYSMEM_READ, SYSMEM_WRITE))
    duration_s = kernel.metrics.get(DURATION)
    columns |= {
        "sysmem_read_bytes": read_bytes,
        "sysmem_write_bytes": written_bytes,
        "sysmem_utilisation_percent": None,
    }
    if read_bytes is not None and written_bytes is not None and duration_s and link_bytes_per_s:
        columns["sysmem_utilisation_percent"] = 100 * max(read_bytes, written_bytes) / duration_s / link_bytes_per_s
    return columns


def _bytes(sectors: float | None) -> float | None:
    return None if sectors is None else sectors * SECTOR_BYTES


def link_bytes_per_s(generation: int | None, width: int | None) -> float | None:
    """Return the bandwidth of a PCIe link in one direction; null where it is unknown."""
    lane = None if generation is None else _GIGABYTES_A_LANE.get(generation)
    return None if lane is None or not width else lane * width * 1e9


def parse_version(text: str) -> str | None:
    """Return the version that ``ncu --version`` prints, as 2025.3; null where it prints none."""
    match = _VERSION.search(text)
    return None if match is None else f"{match[1]}.{match[2]}"


def is_too_old(version: str) -> bool:
    """Return whether a version does not support the options used here."""
    year, number = map(int, version.split("."))
    return (year, number) < OLDEST_VERSION


def unknown_metrics(text: str, requested: Iterable[str]) -> set[str]:
    """Return those of the requested metrics that this chip or this ncu reports as missing."""
    complaints = [message.replace("\\", "") for _, message in _MESSAGE.findall(text) if "metric" in message]
    return {metric for metric in requested if any(metric.partition(".")[0] in message for message in complaints)}


_ALLOW_COUNTERS = (
    "run it as root (in a container with CAP_SYS_ADMIN), or let all users read counters: "
    "options nvidia NVreg_RestrictProfilingToAdminUsers=0 in /etc/modprobe.d/nvidia-profiling.conf, "
    "update-initramfs -u, restart"
)
_KNOWN_FAILURES = (
    (
        r"ERR_NVGPUCTRPERM",
        "the driver lets only administrators read the GPU's counters (ERR_NVGPUCTRPERM)",
        _ALLOW_COUNTERS,
    ),
    (
        r"driver resource was unavailable",
        "another tool, such as DCGM, holds the GPU's counters",
        "stop that tool meanwhile: dcgmi profile --pause, and --resume afterwards",
    ),
    (
        r"not supported on device",
        "this ncu does not know this GPU",
        "install the Nsight Compute of this driver's CUDA; ncu --list-chips names the GPUs that one knows",
    ),
    (r"unrecogni[sz]ed option", "this ncu does not know an option that is needed", "install a newer Nsight Compute"),
    (
        r"lock file|InterprocessLockFailed",
        "ncu cannot use its lock file, which a run of another user may have left",
        "remove /tmp/nsight-compute-lock, or set TMPDIR to a folder of your own",
    ),
    (r"LibraryNotLoaded", "ncu cannot load the driver's profiling library here, as in some sandboxes", None),
)
_MAX_MESSAGE = 200


def diagnose_failure(text: str, code: int) -> NcuFailure:
    """Return why a run of ncu gave no counters, from its output and its exit code."""
    own = "\n".join(line for line in text.splitlines() if line.startswith("==")) or text
    for pattern, reason, fix in _KNOWN_FAILURES:
        if re.search(pattern, own):
            return NcuFailure(reason=reason, fix=fix)
    errors = [message for kind, message in _MESSAGE.findall(text) if kind == "ERROR"]
    if errors:
        return NcuFailure(reason=f"ncu says: {errors[0].strip().rstrip('.')[:_MAX_MESSAGE]}")
    if "No kernels were profiled" in text:
        return NcuFailure(reason="ncu saw no kernel in the calls")
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return NcuFailure(reason=f"ncu {how} and printed no table")


_UNNAMED = re.compile(r"\(anonymous namespace\)::|<?unnamed>::")
"""How tools write an anonymous namespace; ncu loses the first bracket of its own."""


def with_counters(
    kernels: Sequence[KernelRow], counted: Sequence[NcuKernel], link_bytes_per_s: float | None
) -> tuple[list[KernelRow], int]:
    """Return the rows with their counters, and how many rows have some.

    Where the names of one run are a prefix of the other's, kernels are matched in order, as far as they go. Otherwise a
    name that occurs equally often in both is matched in order, and any other gets no counters.
    """
    launched = sorted((k for k in kernels if k.kind == "kernel"), key=lambda k: (k.correlation or 0, k.index))
    pairs = dict(_matching_indices([plain_name(k.name) for k in launched], [plain_name(c.name) for c in counted]))
    updates = {
        launched[position].index: counter_columns(counted[other], link_bytes_per_s) for position, other in pairs.items()
    }
    rows = [k.model_copy(update=updates[k.index]) if k.index in updates else k for k in kernels]
    return rows, len(updates)


def _matching_indices(traced: Sequence[str], counted: Sequence[str]) -> Iterable[tuple[int, int]]:
    """Yield the pairs of matching indices."""
    if counted and traced[: len(counted)] == counted[: len(traced)]:
        return zip(range(len(traced)), range(len(counted)), strict=False)
    traced_count, counted_count = Counter(traced), Counter(counted)
    matching = {name for name, count in traced_count.items() if counted_count[name] == count}
    return zip(
        (index for name in matching for index in _indices(traced, name)),
        (index for name in matching for index in _indices(counted, name)),
        strict=True,
    )


def _indices(names: Sequence[str], name: str) -> list[int]:
    return [index for index, other in enumerate(names) if other == name]


def plain_name(name: str) -> str:
    """Return a kernel's bare name, without namespaces, template arguments and parameters: tools differ in those."""
    text = _without_templates(_UNNAMED.sub("", name))
    head = text.partition("(")[0].strip()
    return head.split()[-1].rpartition("::")[2] if head else name


def _without_templates(name: str) -> str:
    outside: list[str] = []
    depth = 0
    for letter in name:
        depth += letter == "<"
        if depth == 0:
            outside.append(letter)
        depth -= letter == ">" and depth > 0
    return "".join(outside)
