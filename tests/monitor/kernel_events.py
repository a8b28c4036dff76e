"""A trace as PyTorch's profiler exports it from a GPU, made to measure: marks of calls, launches, and what they ran."""

from __future__ import annotations

from typing import Any

from assay.monitor.kernel_trace.rows import CallSpan, KernelRow

Event = dict[str, Any]
BASE_US = 3_897_978_062_675.0
"""Such traces count from no moment anybody knows."""


def mark(number: int, at_us: float, dur_us: float) -> Event:
    common = {"ph": "X", "name": f"assay call {number}", "ts": BASE_US + at_us, "dur": dur_us}
    return {**common, "cat": "user_annotation", "pid": 99, "tid": 99, "args": {"External id": 1}}


def launch(correlation: int, at_us: float, name: str = "cudaLaunchKernel") -> Event:
    args = {"External id": 2, "cbid": 211, "correlation": correlation}
    common = {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 99, "tid": 99}
    return {**common, "ts": BASE_US + at_us, "dur": 4.0, "args": args}


def kernel(name: str, correlation: int, at_us: float, dur_us: float, *, stream: int = 7) -> Event:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": BASE_US + at_us,
        "dur": dur_us,
        "args": {
            "External id": 2,
            "queued": 0,
            "device": 0,
            "context": 1,
            "stream": stream,
            "correlation": correlation,
            "registers per thread": 32,
            "shared memory": 16,
            "blocks per SM": 31.03,
            "warps per SM": 992.97,
            "grid": [4096, 1, 1],
            "block": [1024, 1, 1],
            "est. achieved occupancy %": 100,
        },
    }


def copy(correlation: int, at_us: float, dur_us: float, size: int) -> Event:
    args = {"device": 0, "context": 1, "stream": 7, "correlation": correlation, "bytes": size}
    args["memory bandwidth (GB/s)"] = 20
    name = "Memcpy HtoD (Pageable -> Device)"
    common = {"ph": "X", "cat": "gpu_memcpy", "name": name, "pid": 0, "tid": 7}
    return {**common, "ts": BASE_US + at_us, "dur": dur_us, "args": args}


def operator(name: str, at_us: float, dur_us: float, *, thread: int = 99) -> Event:
    common = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 99, "tid": thread}
    return {**common, "ts": BASE_US + at_us, "dur": dur_us, "args": {"External id": 3}}


def span(at_ns: int, *, before_us: float = 2.0, after_us: float = 3.0, took_us: float = 50.0) -> CallSpan:
    """Return a call whose mark was set at a moment of the host's clock, which was read so long before and after."""
    return CallSpan(
        entered_ns=at_ns - round(before_us * 1e3),
        began_ns=at_ns + round(after_us * 1e3),
        ended_ns=at_ns + round((after_us + took_us) * 1e3),
    )


def row(index: int, name: str = "k", start_us: float = 0.0, duration_us: float = 1.0, **more: Any) -> KernelRow:
    return KernelRow(
        **{"index": index, "kind": "kernel", "name": name, "start_s": start_us / 1e6, "duration_us": duration_us} | more
    )
