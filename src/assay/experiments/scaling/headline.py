"""The answer in one sentence: what more ranks really buy here, and what limits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.units import format_time
from assay.experiments.scaling.numbers import SPLIT
from assay.experiments.scaling.shapes import words
from assay.experiments.scaling.written import rate_cell, share, times

if TYPE_CHECKING:
    from assay.experiments.scaling.analysis import Analysis, Scaled
    from assay.experiments.scaling.options import ScalingOptions

LITTLE = 0.98
"""A factor above this loses so little that it limits nothing."""

LIMITS = {
    "split_shard": "a share takes longer than its part of the whole",
    "split_contention": "side by side a rank computes slower than alone",
    "split_balance": "ranks wait for the slowest",
    "split_exposed": "communication is not hidden behind computing",
    "split_rest": "computing and transfers hinder each other",
}


def headline(options: ScalingOptions, found: Analysis) -> str:
    """Return the answer."""
    if not found.measured:
        return _without_one(options, found)
    main = largest(found)
    parts = [f"{_buys(options, main)}; {_limit(main)}", *_elsewhere(found, main), *_doubts(options, found)]
    return f"{'. '.join(parts)}."


def largest(found: Analysis) -> Scaled:
    """Return the shape that the answer is about: most ranks, the largest ring, the longest sequence."""
    return max(found.measured, key=lambda result: (result.shape.world, result.shape.ring, result.shape.sequence))


def who(options: ScalingOptions, scaled: Scaled) -> str:
    """Name a shape's ranks by what they run on."""
    world = scaled.shape.world
    own = options.kind == "cuda" and len(options.devices) >= world
    text = f"{world} GPUs" if own else f"{world} ranks"
    if options.kind == "cuda" and not own:
        text += f" on {len(options.devices)} GPU{'' if len(options.devices) == 1 else 's'}"
    if not options.is_attention:
        return text
    if scaled.shape.ring == 1:
        return f"{text}, each with sequences of its own,"
    return f"{text} in {'one ring' if scaled.shape.rings == 1 else f'{scaled.shape.rings} rings'}"


def _buys(options: ScalingOptions, scaled: Scaled) -> str:
    weak = options.mode == "weak" and options.is_attention
    at = f" at {scaled.shape.sequence} tokens{' a rank' if weak else ''}" if scaled.shape.sequence else ""
    done = f"{who(options, scaled)} get through {times(scaled['speedup'])} as much as one{at}"
    return f"{done}, an efficiency of {share(scaled['efficiency'])}"


def _limit(scaled: Scaled) -> str:
    """Say what is lost most."""
    factors = {name: scaled[name] for name in SPLIT if scaled[name].value is not None}
    efficiency = scaled["efficiency"]
    if (efficiency.value or 0.0) >= 1:
        if efficiency.ends is not None and efficiency.ends[0] < LITTLE:
            return "whether anything is lost cannot be said: the interval reaches below 100 %"
        return "nothing is lost; more than 100 % is what caches, or noise, give"
    if not factors:
        return f"what limits it is not known: {next(scaled[name].reason for name in SPLIT)}"
    worst = min(factors, key=lambda name: factors[name].value or 1.0)
    value, ends = factors[worst].value or 1.0, factors[worst].ends
    if value >= LITTLE:
        return "little is lost anywhere"
    text = f"most is lost to {SPLIT[worst]} (×{value:.2f}): {LIMITS[worst]}"
    return text if ends is not None and ends[1] < 1 else f"perhaps {text}"


def _elsewhere(found: Analysis, main: Scaled) -> list[str]:
    """Say how it is at the other sequences."""
    shape = main.shape
    others = [
        result
        for result in found.measured
        if (result.shape.world, result.shape.ring) == (shape.world, shape.ring) and result.shape != shape
    ]
    clauses = [f"{share(result['efficiency'])} at {result.shape.sequence}" for result in others[:2]]
    return [f"It is {' and '.join(clauses)}"] if clauses else []


def _doubts(options: ScalingOptions, found: Analysis) -> list[str]:
    bare = sum(result["efficiency"].ends is None for result in found.measured)
    missing = [result for result in found.all if result.status not in {"ok", None}]
    sentences = []
    if bare:
        more = "more --benchmark-runs, or --repeat 3, give one"
        sentences.append(f"{'It has' if bare == 1 else f'{bare} shapes have'} no interval; {more}")
    if missing:
        names = [words(result.shape, is_attention=options.is_attention) for result in missing]
        sentences.append(f"Not measured: {'; '.join(names[:3])}{' and more' if len(names) > 3 else ''}")
    return sentences


def _without_one(options: ScalingOptions, found: Analysis) -> str:
    """Say what ranks do where nothing could be held against one of them: it may be too much for one."""
    measured = [result for result in found.all if result["time"].value is not None]
    if not measured:
        return "Nothing could be measured."
    main = max(measured, key=lambda result: (result.shape.world, result.shape.ring, result.shape.sequence))
    unit = "tokens/s" if options.is_attention else "calls/s"
    at = f" at {main.shape.sequence} tokens" if main.shape.sequence else ""
    several = main.shape.world > 1
    done = (
        f"{who(options, main) if several else 'One rank'} get{'' if several else 's'} through "
        f"{rate_cell(main['throughput'])} {unit}{at}, in {format_time(main['time'].value or 0.0)} a call"
    )
    if not found.scaled:
        return f"{done}; what more ranks buy was not asked: `--nproc 2` does."
    why = next((result.reason or result["efficiency"].reason for result in found.scaled), None)
    return f"{done}; what more ranks buy is not known: {why}."
