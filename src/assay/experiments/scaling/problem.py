"""What a shape computes and sends, from its parameters alone: costs, work, and the rules it must keep. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.experiments.scaling.prediction import traffic_of
from assay.experiments.scaling.shapes import Shape, lengths, rings_at
from assay.workloads.dilated_attention.problem import Problem

if TYPE_CHECKING:
    from assay.core.values import Params
    from assay.experiments.scaling.options import ScalingOptions
    from assay.experiments.scaling.prediction import Traffic
    from assay.workloads.dilated_attention.costs import Costs


def params_of(options: ScalingOptions, shape: Shape, **changed: str) -> Params:
    """Return the parameters that every rank of a shape has."""
    if not options.is_attention:
        return share_of(options, shape.world)
    return {**options.subject.params, "sequence": length_of(options, shape), "ring": shape.ring, **changed}


def length_of(options: ScalingOptions, shape: Shape) -> int:
    """Return the length of the sequence that one ring of a shape works on: under weak scaling it grows with it."""
    return shape.sequence * (shape.ring if options.mode == "weak" else 1)


def costs_of(options: ScalingOptions, shape: Shape) -> Costs:
    """Return what one ring of a shape computes and sends in one call."""
    return Problem.of(params_of(options, shape, only="all")).costs


def least_flop(options: ScalingOptions, shape: Shape) -> float:
    """Return the operations that all ranks together must do in one call: forward and backward, nothing twice."""
    costs = costs_of(options, shape)
    return shape.rings * (costs.flop + costs.backward_flop)


def traffic(options: ScalingOptions, shape: Shape) -> Traffic:
    """Return what reaches the busiest rank of a shape in one call."""
    return traffic_of(costs_of(options, shape), shape.ring, backward=True)


def sends(options: ScalingOptions, shape: Shape) -> bool:
    """Return whether anything goes between ranks: not where every segment lies within a shard."""
    return options.is_attention and shape.ring > 1 and traffic(options, shape).received_bytes > 0


def work_of(options: ScalingOptions, shape: Shape) -> float:
    """Return what all ranks together get through in one call: tokens, or calls of a workload that has none."""
    if options.is_attention:
        return float(shape.rings * costs_of(options, shape).batch * length_of(options, shape))
    return 1.0 if shared_out(options) else float(shape.world)


def shared_out(options: ScalingOptions) -> bool:
    """Return whether ranks share out one call among them, rather than each doing one."""
    return options.ranks_param is not None and options.mode == "strong"


def share_of(options: ScalingOptions, world: int) -> Params:
    """Return the parameters of one rank of another workload than attention: its share of what is shared out."""
    params, name = options.subject.params, options.ranks_param
    if name is None:
        return params
    if name not in params:
        raise BadInput(f"{options.subject.label} has no parameter {name!r}; it has {', '.join(params) or 'none'}.")
    whole = params[name]
    if isinstance(whole, bool) or not isinstance(whole, int):
        raise BadInput(f"Ranks share out a whole number; {name} of {options.subject.label} is {whole!r}.")
    if not shared_out(options):
        return params
    if whole % world:
        raise BadInput(f"{name}={whole} of {options.subject.label} is not divisible among {world} ranks.")
    return {**params, name: whole // world}


def check(options: ScalingOptions) -> None:
    """Make sure that every shape can be measured, or say in one sentence which rule is broken."""
    if not options.is_attention:
        for world in (1, *options.worlds):
            share_of(options, world)
        return
    for length in lengths(options):
        for ring in (1, *rings_at(options, length)):
            costs_of(options, Shape(length, ring, ring))
