"""A world of ranks on this machine, and what each finds for a list of cases.

As a program this is the world: it imports PyTorch once, forks the ranks, and waits for them. A rank draws whole
sequences, takes its shard, goes forward and backward, and leaves what it found in the folder. A case may be one of
the first few ranks only: those form a group of their own, so that one world serves cases of any size.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Case:
    """A problem.

    ``size`` ranks take part, 0 are all of the world; ``ring_size`` of them are a ring, 0 all; ``absent`` never comes;
    ``staged`` sends through host memory, as a GPU's tensors are over gloo; all ranks compute on one ``device``.
    """

    segments: tuple[int, ...]
    rates: tuple[int, ...]
    sequence: int = 24
    batch: int = 2
    heads: int = 4
    kv_heads: int = 4
    dim: int = 4
    causal: bool = False
    offset: str = "modulo"
    padded: bool = False
    detached_weights: bool = False
    ring_size: int = 0
    backend: str = "math"
    dtype: str = "float64"
    absent: int = -1
    seed: int = 0
    size: int = 0
    staged: bool = False
    device: str = "cpu"


def drawn(case: Case, ring: int = 0) -> tuple[list[Any], Any]:
    """Return queries, keys, values and the gradient of the output of whole sequences, and the mask of keys."""
    import torch

    source = torch.Generator().manual_seed(100 * case.seed + ring)
    draws = [
        torch.randn(case.batch, case.sequence, heads, case.dim, generator=source, dtype=torch.float64)
        for heads in (case.heads, case.kv_heads, case.kv_heads, case.heads)
    ]
    mask = torch.rand(case.batch, case.sequence, generator=source) < 0.3 if case.padded else None
    return [x.to(getattr(torch, case.dtype)) for x in draws], mask


def options_of(case: Case) -> dict[str, Any]:
    """Return what both functions are given beside tensors."""
    return {
        "segment_lengths": case.segments,
        "dilation_rates": case.rates,
        "causal": case.causal,
        "offset": case.offset,
        "detached_weights": case.detached_weights,
        "backend": case.backend,
    }


def in_world(size: int, cases: list[Case], folder: Path, *, within_s: float = 100, timeout_s: float = 30) -> list[Any]:
    """Return for each case what each of its ranks found: output, gradients and bytes, or the error it met.

    ``timeout_s`` is how long the others wait for a rank that is absent.
    """
    folder.mkdir(parents=True, exist_ok=True)
    request = {"size": size, "cases": [asdict(case) for case in cases], "timeout_s": timeout_s}
    (folder / "request.json").write_text(json.dumps(request))
    paths = os.pathsep.join(filter(None, (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH"))))
    world = subprocess.Popen(
        [sys.executable, "-m", "tests.workloads.dilated_attention.world", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _, said = world.communicate(timeout=within_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(world.pid, signal.SIGKILL)
        world.wait()
    assert world.returncode == 0, said
    return read(size, cases, folder)


def read(size: int, cases: list[Case], folder: Path) -> list[Any]:
    """Return what a world that has ended found."""
    import torch

    told = [torch.load(folder / f"{rank}.pt") for rank in range(size)]
    return [
        [told[rank][number] for rank in range(case.size or size) if rank != case.absent]
        for number, case in enumerate(cases)
    ]


def _rank(rank: int, folder: Path) -> None:
    import torch
    from torch import distributed as dist

    torch.set_num_threads(1)
    request = json.loads((folder / "request.json").read_text())
    size = request["size"]
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    groups: dict[tuple[int, bool], Any] = {}
    found: dict[int, Any] = {}
    for number, told in enumerate(request["cases"]):
        case = replace(Case(**told), segments=tuple(told["segments"]), rates=tuple(told["rates"]))
        ranks, patient = case.size or size, case.absent < 0
        if (ranks, patient) not in groups:
            timeout = timedelta(seconds=60 if patient else request["timeout_s"])
            groups[ranks, patient] = dist.new_group(list(range(ranks)), timeout=timeout)
        if rank < ranks and case.absent != rank:
            found[number] = _found(case, rank, ranks, groups[ranks, patient])
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def _found(case: Case, rank: int, size: int, group: Any) -> Any:
    import torch

    from assay.workloads.dilated_attention import Traffic, exchange, ring_dilated_attention

    ring_size = case.ring_size or size
    place = rank % ring_size
    whole, mask = drawn(case, rank // ring_size)
    shard = case.sequence // ring_size
    mine = (x[:, place * shard : (place + 1) * shard] for x in whole)
    q, k, v, gradient = (x.to(case.device, copy=True).requires_grad_() for x in mine)
    traffic = Traffic()
    rings = {"ring_size": case.ring_size or None, "key_padding_mask": mask, "traffic": traffic, "group": group}
    needs_it = exchange.needs_host_copy
    exchange.needs_host_copy = (lambda *_: True) if case.staged else needs_it
    try:
        out = ring_dilated_attention(q, k, v, **options_of(case), **rings)
        forward = traffic.keys_received
        gradients = torch.autograd.grad(out, (q, k, v), gradient)
    except Exception as error:  # noqa: BLE001
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        exchange.needs_host_copy = needs_it
    return {
        "found": [x.detach().cpu() for x in (out, *gradients)],
        "bytes": (forward, traffic.received - forward, traffic.sent),
        "messages": traffic.messages,
    }


def _main(folder: Path) -> int:
    import assay.workloads.dilated_attention.modules  # noqa: F401  # imported once for all ranks

    warnings.simplefilter("error")
    size = json.loads((folder / "request.json").read_text())["size"]
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=_rank, args=(rank, folder)) for rank in range(size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return max(abs(process.exitcode or 0) for process in ranks)


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1])))
