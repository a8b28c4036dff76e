"""A shape held against one rank alone: speedup, efficiency, and where the efficiency goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.scaling.metrics import karp_flatt, speedup, split
from assay.experiments.scaling.numbers import SPLIT, Known, known
from assay.experiments.scaling.problem import work_of
from assay.experiments.scaling.shapes import Shape
from assay.experiments.scaling.vectors import basis_of

if TYPE_CHECKING:
    from assay.experiments.scaling.options import ScalingOptions
    from assay.experiments.scaling.timings import Laid

AGAINST = ("speedup", "efficiency", "karp_flatt", *SPLIT)


def against_one(options: ScalingOptions, laid: Laid, shape: Shape) -> dict[str, Known]:
    """Return what a shape is worth against one rank alone; of one rank itself there is nothing to say."""
    if shape.world == 1:
        return dict.fromkeys(AGAINST, Known(reason="it is one rank"))
    return {**_faster(options, laid, shape), **_where_it_goes(options, laid, shape)}


def _faster(options: ScalingOptions, laid: Laid, shape: Shape) -> dict[str, Known]:
    basis = basis_of(laid.of("ring", shape), laid.of("ring", shape.alone))
    if basis is None:
        missing = Known(reason=f"one rank alone is not known: {laid.why_not('ring', shape.alone)}")
        return dict.fromkeys(("speedup", "efficiency", "karp_flatt"), missing)
    total, alone = (times.slowest["total"] for times in basis.times)
    faster = speedup(total, work_of(options, shape), alone, work_of(options, shape.alone))
    if options.mode == "weak":
        serial = Known(reason="under weak scaling the work grows with the ranks")
    elif not options.is_attention or shape.ring == 1:
        serial = Known(reason="nothing is shared out")
    else:
        serial = known(basis, "karp_flatt", karp_flatt(faster / shape.rings, shape.ring))
    return {
        "speedup": known(basis, "speedup", faster),
        "efficiency": known(basis, "efficiency", faster / shape.world),
        "karp_flatt": serial,
    }


def _where_it_goes(options: ScalingOptions, laid: Laid, shape: Shape) -> dict[str, Known]:
    if not options.is_attention:
        return dict.fromkeys(SPLIT, Known(reason=f"what {options.subject.label} sends is not known"))
    whole, share = laid.of("ring", shape.alone), Shape(shape.sequence, shape.ring, shape.ring)
    part = laid.of("share", share) if shape.ring > 1 else whole
    basis = basis_of(laid.of("ring", shape), whole, part)
    if basis is None:
        why = laid.why_not("share", share) if whole else laid.why_not("ring", shape.alone)
        return dict.fromkeys(SPLIT, Known(reason=f"what one rank does alone is not known: {why}"))
    times, alone, shared = basis.times
    factors = split(
        times,
        alone.slowest["total"],
        shared.slowest["share" if shape.ring > 1 else "total"],
        1 if options.mode == "weak" else shape.ring,
    )
    return {name: known(basis, name, getattr(factors, name.removeprefix("split_"))) for name in SPLIT}
