"""The blocks of the experiment, one after another, all of them again in each repeat.

yardsticks                what a large matmul reaches here
repeat-1-n2048-alone      one rank; and one rank with the share that each rank of a ring has
repeat-1-n2048-p2-r1      two ranks, each by itself
repeat-1-n2048-p2-r2      two ranks in one ring: predicted before it is measured
repeat-2-…                the same again, the order by lot
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from assay.core.plan import Block, Method, Role, Trial
from assay.experiments.scaling.problem import params_of, sends
from assay.experiments.scaling.shapes import Shape, lengths, rings_at, shapes, words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from assay.core.plan import Subject
    from assay.experiments.scaling.options import ScalingOptions

ItemT = TypeVar("ItemT")
Kind = Literal["ring", "share", "energy", "yardstick"]
"""``ring``: a shape, timed. ``share``: one rank alone with a share of a ring. ``energy``: a shape, run for a while."""

ROLE = "ring"
YARDSTICKS = "yardsticks"
YARDSTICK_S = 10.0
ENERGY_S = 20.0
"""Of a trial that meters energy, starting included: sensors tick slowly."""
FIRST = 1
"""The repeat that has what is needed only once: energy, and the trace."""


@dataclass(frozen=True)
class Planned:
    """A trial, and what it is there for."""

    kind: Kind
    shape: Shape
    repeat: int
    names: tuple[str, ...]
    trial: Trial


def blocks(options: ScalingOptions) -> list[Block]:
    """Return everything that will be measured, in order; predictions are not yet in it."""
    result = []
    if options.yardstick is not None:
        trials = tuple(planned_trial.trial for planned_trial in planned(options) if planned_trial.kind == "yardstick")
        result.append(Block(name=YARDSTICKS, why="what a large matmul reaches here", trials=trials))
    for repeat in range(1, options.repeat + 1):
        again = f", repeat {repeat} of {options.repeat}" if options.repeat > 1 else ""
        for length in in_order(lengths(options), options.seed, repeat):
            alone = Shape(length, 1, 1)
            shares = ", and its share of rings" if rings_at(options, length) else ""
            result.append(_block(options, repeat, alone, f"{_words(options, alone)}{shares}{again}"))
            mine = [shape for shape in shapes(options) if shape.sequence == length]
            result += [
                _block(options, repeat, shape, f"{_words(options, shape)}{again}")
                for shape in in_order(mine, options.seed, repeat)
            ]
    return result


def in_order(items: Iterable[ItemT], seed: int, repeat: int) -> list[ItemT]:
    """Return items in the order they are measured: first as they were given, then by lot."""
    ordered = list(items)
    if repeat > FIRST:
        random.Random(f"{seed}/{repeat}").shuffle(ordered)  # noqa: S311 - an order is no secret
    return ordered


def planned(options: ScalingOptions) -> Iterator[Planned]:
    """Give every trial with what it is there for."""
    if options.yardstick is not None:
        role = Role(name=ROLE, subjects=(options.yardstick,), devices=options.devices[:1], isolation=options.isolation)
        method = Method(duration_s=YARDSTICK_S, timeout_s=options.timeout_s)
        trial = _trial(options, role, method, block=YARDSTICKS, phase="matmul")
        yield Planned("yardstick", Shape(0, 1, 1), 0, ("matmul",), trial)
    for repeat in range(1, options.repeat + 1):
        for length in lengths(options):
            mine = [shape for shape in shapes(options) if shape.sequence == length]
            for shape in (Shape(length, 1, 1), *mine):
                yield from _of_block(options, repeat, shape)


def _block(options: ScalingOptions, repeat: int, shape: Shape, why: str) -> Block:
    trials = tuple(planned_trial.trial for planned_trial in _of_block(options, repeat, shape))
    return Block(name=block_name(repeat, shape), why=why, trials=trials)


def block_name(repeat: int, shape: Shape) -> str:
    """Return the name of the block that a shape is measured in."""
    length = f"n{shape.sequence}-" if shape.sequence else ""
    return f"repeat-{repeat}-{f'{length}alone' if shape.world == 1 else shape.name}"


def _of_block(options: ScalingOptions, repeat: int, shape: Shape) -> Iterator[Planned]:
    yield _of_shape(options, repeat, shape)
    if shape.world == 1:
        for ring in rings_at(options, shape.sequence):
            yield _of_share(options, repeat, Shape(shape.sequence, ring, ring))
    if options.energy and repeat == FIRST:
        yield _of_energy(options, shape)


def subjects_of(options: ScalingOptions, shape: Shape) -> dict[str, Subject]:
    """Return what is timed in a shape, by name, in order.

    Where nothing is sent, computing is all there is, and it is not timed once more.
    """
    if not options.is_attention:
        return {"total": _subject(options, shape)}
    subjects = {
        "forward": _subject(options, shape, passes="forward", only="all"),
        "total": _subject(options, shape, passes="total", only="all"),
    }
    if sends(options, shape):
        subjects["compute"] = _subject(options, shape, passes="total", only="compute")
        subjects["communication"] = _subject(options, shape, passes="total", only="communication")
    return subjects


def _subject(options: ScalingOptions, shape: Shape, **changed: str) -> Subject:
    return options.subject.model_copy(update={"params": params_of(options, shape, **changed)})


def _of_shape(options: ScalingOptions, repeat: int, shape: Shape) -> Planned:
    subjects = subjects_of(options, shape)
    trial = _trial(
        options,
        _role(options, tuple(subjects.values()), shape.world),
        _counted(options),
        block=block_name(repeat, shape),
        phase=_words(options, shape),
        repeat=repeat,
        profile=options.profile and repeat == FIRST and shape == first_shape(options),
    )
    return Planned("ring", shape, repeat, tuple(subjects), trial)


def first_shape(options: ScalingOptions) -> Shape:
    """Return the first shape that was asked for."""
    return next(iter(shapes(options)), Shape(lengths(options)[0], 1, 1))


def _of_share(options: ScalingOptions, repeat: int, shape: Shape) -> Planned:
    """Return one rank that computes, alone, what the last rank of a ring computes."""
    subject = _subject(options, shape, passes="total", only="compute")
    name = f"{shape.sequence} tokens, one rank alone with its share of a ring of {shape.ring}"
    block = block_name(repeat, shape.alone)
    role = _role(options, (subject,), 1)
    trial = _trial(options, role, _counted(options), block=block, phase=name, repeat=repeat)
    return Planned("share", shape, repeat, ("share",), trial)


def _of_energy(options: ScalingOptions, shape: Shape) -> Planned:
    subject = subjects_of(options, shape)["total"]
    method = Method(duration_s=ENERGY_S, warmup_runs=options.warmup_runs, timeout_s=options.timeout_s)
    name = f"energy of {_words(options, shape)}"
    role = _role(options, (subject,), shape.world)
    trial = _trial(options, role, method, block=block_name(FIRST, shape), phase=name)
    return Planned("energy", shape, FIRST, ("total",), trial)


def _words(options: ScalingOptions, shape: Shape) -> str:
    return words(shape, is_attention=options.is_attention)


def _counted(options: ScalingOptions) -> Method:
    """Return a method that makes exactly as many calls as asked for, however long they take."""
    return Method(
        duration_s=options.timeout_s,
        warmup_runs=options.warmup_runs,
        benchmark_runs=options.benchmark_runs,
        timeout_s=options.timeout_s,
    )


def _role(options: ScalingOptions, subjects: tuple[Subject, ...], ranks: int) -> Role:
    devices = tuple(options.devices[rank % len(options.devices)] for rank in range(ranks))
    return Role(name=ROLE, subjects=subjects, ranks=ranks, devices=devices, isolation=options.isolation)


def _trial(
    options: ScalingOptions,
    role: Role,
    method: Method,
    *,
    block: str,
    phase: str,
    repeat: int = FIRST,
    profile: bool = False,
) -> Trial:
    return Trial(
        block=block,
        roles=(role,),
        method=method,
        settings={"phase": phase},
        strangers=options.strangers,
        placed_with=options.devices,
        cpu_groups=options.cpu_groups,
        retakes=options.retakes,
        seed=options.seed + repeat - 1,
        profile=profile,
    )
