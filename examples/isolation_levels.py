"""The same small benchmark in two processes at once, from naive to fully isolated: what does each level change here?

    python examples/isolation_levels.py                 # about 20 s
    python examples/isolation_levels.py --seconds 0.5

Each level is written as one would by hand; the last lets Assay do all of it. Every process reads back where it may run,
so the table shows what really held. The benchmark computes on the CPU, so that it runs everywhere: with GPUs, level 2
only changes which GPU each process sees.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SIDE = 384
PROCESSES = 2
FEWEST = 10
ME = Path(__file__).resolve()
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
NODE = "ISOLATION_EXAMPLE_NODE"
_A = np.random.default_rng(0).standard_normal((SIDE, SIDE))
_OUT = np.empty((SIDE, SIDE))


def matmul() -> None:
    """One call of the benchmark: a small matrix product, by as many threads as numpy takes."""
    np.matmul(_A, _A, out=_OUT)


@dataclass(frozen=True)
class Seen:
    """What one process measured, and where it may run."""

    median_us: float
    cv: float
    cores: tuple[int, ...]
    nodes: str
    threads: str


def child(seconds: float, node: int | None) -> Seen:
    """Measure in this process, its memory bound to a node if one is given."""
    if node is not None:
        from assay.isolation.binding import bind_memory

        bind_memory((node,))
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end or len(samples) < FEWEST:
        matmul()
        samples.append(1e6 * (time.perf_counter() - start))
    saved = np.array(samples[len(samples) // 5 :])
    cores = tuple(sorted(os.sched_getaffinity(0)))
    threads = os.environ.get(THREADS[0], "default")
    return Seen(float(np.median(saved)), float(saved.std() / saved.mean()), cores, memory_nodes(), threads)


def memory_nodes() -> str:
    """Return the nodes that this process takes memory from, as the kernel tells it."""
    try:
        policy = Path("/proc/self/numa_maps").read_text().split()[1]
    except (OSError, IndexError):
        return "unknown"
    return policy.removeprefix("bind:") if policy.startswith("bind:") else "any"


def at_once(seconds: float, commands: Sequence[tuple[list[str], dict[str, str]]]) -> list[Seen]:
    """Start processes at one moment, each with words before it and variables of its own, and collect what they saw."""
    started = [
        subprocess.Popen(
            [*before, sys.executable, str(ME), "--child", "--seconds", str(seconds)],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            text=True,
        )
        for before, variables in commands
    ]
    observations: list[Seen] = []
    for process in started:
        out, _ = process.communicate()
        if process.returncode:
            sys.exit(f"a process of the example ended with {process.returncode}")
        observations.append(Seen(**json.loads(out)))
    return observations


def shares() -> list[tuple[int, ...]]:
    """Return the cores this process may use in equal parts; one and the same where there are too few."""
    cores = sorted(os.sched_getaffinity(0))
    per_process = len(cores) // PROCESSES
    return [
        tuple(cores[i * per_process : (i + 1) * per_process]) if per_process else tuple(cores) for i in range(PROCESSES)
    ]


def alone(seconds: float) -> list[Seen]:
    """One process, nobody beside it: what the others are held against."""
    return at_once(seconds, [([], {})])


def naive(seconds: float) -> list[Seen]:
    """Level 1: just start them."""
    return at_once(seconds, [([], {})] * PROCESSES)


def gpu_only(seconds: float) -> list[Seen]:
    """Level 2: each sees one GPU. Without GPUs this changes nothing."""
    return at_once(seconds, [([], {"CUDA_VISIBLE_DEVICES": str(i)}) for i in range(PROCESSES)])


def pinned(seconds: float) -> list[Seen]:
    """Level 3: each on cores of its own, as by ``taskset -c``."""
    return at_once(seconds, [(_taskset(cores), {}) for cores in shares()])


def numa(seconds: float) -> list[Seen]:
    """Level 4: and memory from the node of these cores, as by ``numactl --membind``."""
    return at_once(seconds, [_bound(cores, {}) for cores in shares()])


def full(seconds: float) -> list[Seen]:
    """Level 5: and no more threads than cores."""
    return at_once(seconds, [_bound(cores, dict.fromkeys(THREADS, str(len(cores)))) for cores in shares()])


def library(seconds: float) -> list[Seen]:
    """The same as level 5, by Assay: it finds the topology, binds, reads back, and leaves nothing behind."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "assay", "run", f"{ME}:matmul", "--device", "cpu", "--mode", "concurrent"]
        more = ["--isolation", "full", "--duration", str(seconds + 1), "--restarts", "1", "--precision", "0.01%"]
        ran = subprocess.run([*command, *more, "--json", "--output-dir", folder], capture_output=True, check=False)
    if ran.returncode:
        sys.exit(f"assay run ended with {ran.returncode}: {ran.stderr.decode()}")
    (record,) = json.loads(ran.stdout)["records"]
    observations: list[Seen] = []
    for summary in record["estimates"]:
        evidence = next(e for e in record["evidence"] if e["role"] == summary["role"])
        nodes = ",".join(map(str, evidence["memory_nodes"])) if evidence["memory_nodes"] else "any"
        where = (tuple(evidence["allowed_cores"]), nodes, str(evidence["thread_limit"]))
        observations.append(Seen(summary["estimate"]["value"], summary["cv"], *where))
    return observations


def _taskset(cores: tuple[int, ...]) -> list[str]:
    """Return the words that pin a command; without taskset, a line of Python that does the same."""
    if shutil.which("taskset"):
        return ["taskset", "-c", ",".join(map(str, cores))]
    pin = f"import os, sys; os.sched_setaffinity(0, {set(cores)}); os.execv(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-c", pin]


def _bound(cores: tuple[int, ...], variables: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the words and variables that pin a command and bind its memory; without numactl the process does it."""
    node = _node_of(cores)
    numactl = ["numactl", f"--membind={node}"]
    if shutil.which("numactl") and not subprocess.run([*numactl, "true"], capture_output=True, check=False).returncode:
        return [*_taskset(cores), *numactl], variables
    return _taskset(cores), {**variables, NODE: str(node)}


def _node_of(cores: tuple[int, ...]) -> int:
    """Return the memory node of a core, as the kernel says; 0 where it does not."""
    results = list(Path(f"/sys/devices/system/cpu/cpu{cores[0]}").glob("node[0-9]*"))
    return int(results[0].name.removeprefix("node")) if results else 0


LEVELS: dict[str, Callable[[float], list[Seen]]] = {
    "alone": alone,
    "1 naive": naive,
    "2 GPU only": gpu_only,
    "3 pinned": pinned,
    "4 + NUMA": numa,
    "5 full": full,
    "Assay, full": library,
}


def row(name: str, observations: list[Seen], first: float | None) -> tuple[str, ...]:
    """Write one level: the slowest process's time, the worst scatter, and where they may run."""
    slowest = max(entry.median_us for entry in observations)
    return (
        name,
        f"{slowest:.0f} µs",
        "" if first is None else f"{slowest / first:.2f}×",
        f"{max(entry.cv for entry in observations):.3f}",
        " | ".join(",".join(map(str, entry.cores)) for entry in observations),
        " | ".join(entry.nodes for entry in observations),
        " | ".join(entry.threads for entry in observations),
    )


def main() -> None:
    """Measure every level and print what it changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5, help="for each level")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        node = os.environ.get(NODE)
        print(json.dumps(child(options.seconds, None if node is None else int(node)).__dict__))
        return
    rows: list[tuple[str, ...]] = [("level", "time", "× alone", "CV", "cores", "memory nodes", "threads")]
    first: float | None = None
    for name, level in LEVELS.items():
        observations = level(options.seconds)
        rows.append(row(name, observations, first))
        first = first or observations[0].median_us
    widths = [max(len(line[column]) for line in rows) for column in range(len(rows[0]))]
    for line in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print(f"\nA {SIDE}×{SIDE} matrix product in {PROCESSES} processes at once: the slower median, the larger scatter.")
    print(
        "Each was run once. How sure such differences are, `assay contention run` and `assay contention matrix` tell."
    )


if __name__ == "__main__":
    main()
