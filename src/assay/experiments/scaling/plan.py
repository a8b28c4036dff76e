"""Plan the blocks of the experiment: which shapes are measured, what each computes and sends, in which order.

yardsticks                the speed of a large matmul on this device
repeat-1-n2048-alone      one rank; and one rank with the share that each rank of a ring has
repeat-1-n2048-p2-r1      two ranks, each by itself
repeat-1-n2048-p2-r2      two ranks in one ring: predicted before it is measured
repeat-2-…                the same again, in random order

Pure: from options to trials.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from assay.core.errors import BadInput
from assay.core.values import Adaptive, Block, Counted, Mode, Role, Trial
from assay.experiments.scaling.prediction import ring_traffic
from assay.workloads.dilated_attention.problem import DilatedAttentionProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from assay.core.values import Params, Subject
    from assay.experiments.scaling.options import ScalingOptions
    from assay.experiments.scaling.prediction import RankTraffic
    from assay.workloads.dilated_attention.problem import AttentionCosts


@dataclass(frozen=True, order=True)
class ScalingShape:
    """So many tokens over so many ranks, in rings of ``ring`` of them; each ring has a batch of its own.

    ``sequence`` is what was asked for: under weak scaling a ring has ``ring`` times as much. It is 0 of a workload
    that has no sequence.
    """

    sequence: int
    world: int
    ring: int

    @property
    def rings(self) -> int:
        """How many rings there are."""
        return self.world // self.ring

    @property
    def alone(self) -> ScalingShape:
        """One rank with the same sequence: what more ranks are held against."""
        return ScalingShape(self.sequence, 1, 1)

    @property
    def name(self) -> str:
        """A short name for files: ``n2048-p4-r2``."""
        length = f"n{self.sequence}-" if self.sequence else ""
        return f"{length}p{self.world}-r{self.ring}"


@dataclass(frozen=True)
class SkippedShape:
    """A combination that was asked for and is not measured."""

    world: int
    ring: int | None
    reason: str


def sequence_lengths(options: ScalingOptions) -> tuple[int, ...]:
    """Return the sequences; one of 0 stands for a workload that has none."""
    return options.sequences or (0,)


def list_shapes(options: ScalingOptions) -> tuple[ScalingShape, ...]:
    """Return every shape of more than one rank, in the order asked for."""
    return tuple(
        ScalingShape(length, world, ring)
        for length in sequence_lengths(options)
        for world in options.worlds
        if world > 1
        for ring in (options.rings if options.is_attention else (1,))
        if find_ring_refusal(world, ring) is None
    )


def find_ring_refusal(world: int, ring: int) -> str | None:
    """Return why ranks form no rings of a size; null where they do."""
    if ring > world:
        return f"larger than the world of {world}"
    return f"{world} ranks do not divide into them" if world % ring else None


def list_skipped(options: ScalingOptions) -> tuple[SkippedShape, ...]:
    """Return every combination that was asked for and is not measured."""
    rings = options.rings if options.is_attention else ()
    return (
        *(SkippedShape(unavailable.world, None, unavailable.reason) for unavailable in options.unavailable),
        *(
            SkippedShape(world, ring, reason)
            for world in options.worlds
            for ring in rings
            if (reason := find_ring_refusal(world, ring)) is not None
        ),
    )


def describe_skipped(left: Iterable[SkippedShape]) -> list[str]:
    """Say what is skipped and why, rings of one world and reason together: "Rings of 4 and 8 over 2 ranks: …"."""
    together: dict[tuple[int, str], list[SkippedShape]] = {}
    for shape in left:
        together.setdefault((shape.world, shape.reason), []).append(shape)
    sentences_out = []
    for (world, reason), several in together.items():
        what = f"{world} rank{'' if world == 1 else 's'}"
        rings = [str(shape.ring) for shape in several if shape.ring is not None]
        if rings:
            what = f"Rings of {' and '.join(filter(None, (', '.join(rings[:-1]), rings[-1])))} over {what}"
        sentences_out.append(f"{what}: {reason}.")
    return sentences_out


def list_rings_at(options: ScalingOptions, length: int) -> tuple[int, ...]:
    """Return the ring sizes above 1 that are measured at a sequence: each has its share computed alone as well."""
    return tuple(
        dict.fromkeys(shape.ring for shape in list_shapes(options) if shape.sequence == length and shape.ring > 1)
    )


def format_shape(shape: ScalingShape, *, is_attention: bool) -> str:
    """Name a shape for people: "2048 tokens, 4 ranks in 2 rings"."""
    tokens = f"{shape.sequence} tokens, " if shape.sequence else ""
    ranks = f"{shape.world} rank{'' if shape.world == 1 else 's'}"
    if shape.world == 1 or not is_attention:
        return f"{tokens}{ranks}"
    if shape.ring == 1:
        return f"{tokens}{ranks}, each by itself"
    return f"{tokens}{ranks} in {'one ring' if shape.rings == 1 else f'{shape.rings} rings'}"


def format_shape_short(shape: ScalingShape, *, is_attention: bool) -> str:
    """Name a shape for a table whose heading says "tokens: ranks"; shorter: "2048: 4, 2 rings"."""
    named = f"{shape.sequence}: {shape.world}" if shape.sequence else str(shape.world)
    if shape.world == 1 or not is_attention:
        return named
    return f"{named}, {'apart' if shape.ring == 1 else 'one ring' if shape.rings == 1 else f'{shape.rings} rings'}"


def shape_params(options: ScalingOptions, shape: ScalingShape, **changed: str) -> Params:
    """Return the parameters that every rank of a shape has."""
    if not options.is_attention:
        return rank_params(options, shape.world)
    return {**options.subject.params, "sequence": ring_length(options, shape), "ring": shape.ring, **changed}


def ring_length(options: ScalingOptions, shape: ScalingShape) -> int:
    """Return the length of the sequence that one ring of a shape works on: under weak scaling it grows with it."""
    return shape.sequence * (shape.ring if options.mode == "weak" else 1)


def shape_costs(options: ScalingOptions, shape: ScalingShape) -> AttentionCosts:
    """Return what one ring of a shape computes and sends in one call."""
    return DilatedAttentionProblem.of(shape_params(options, shape, only="all")).costs


def minimum_flop(options: ScalingOptions, shape: ScalingShape) -> float:
    """Return the operations that all ranks together must do in one call: forward and backward, nothing twice."""
    costs = shape_costs(options, shape)
    return shape.rings * (costs.flop + costs.backward_flop)


def shape_traffic(options: ScalingOptions, shape: ScalingShape) -> RankTraffic:
    """Return what reaches the busiest rank of a shape in one call."""
    return ring_traffic(shape_costs(options, shape), shape.ring, backward=True)


def has_transfers(options: ScalingOptions, shape: ScalingShape) -> bool:
    """Return whether anything goes between ranks: not where every segment lies within a shard."""
    return options.is_attention and shape.ring > 1 and shape_traffic(options, shape).received_bytes > 0


def shape_work(options: ScalingOptions, shape: ScalingShape) -> float:
    """Return what all ranks together get through in one call: tokens, or calls of a workload that has none."""
    if options.is_attention:
        return float(shape.rings * shape_costs(options, shape).batch * ring_length(options, shape))
    return 1.0 if is_work_shared(options) else float(shape.world)


def is_work_shared(options: ScalingOptions) -> bool:
    """Return whether ranks share out one call among them, rather than each doing one."""
    return options.ranks_param is not None and options.mode == "strong"


def rank_params(options: ScalingOptions, world: int) -> Params:
    """Return the parameters of one rank of another workload than attention: its share of what is shared out."""
    params, name = options.subject.params, options.ranks_param
    if name is None:
        return params
    if name not in params:
        raise BadInput(f"{options.subject.label} has no parameter {name!r}; it has {', '.join(params) or 'none'}.")
    whole = params[name]
    if isinstance(whole, bool) or not isinstance(whole, int):
        raise BadInput(f"Ranks share out a whole number; {name} of {options.subject.label} is {whole!r}.")
    if not is_work_shared(options):
        return params
    if whole % world:
        raise BadInput(f"{name}={whole} of {options.subject.label} is not divisible among {world} ranks.")
    return {**params, name: whole // world}


def check_shapes(options: ScalingOptions) -> None:
    """Make sure that every shape can be measured, or say in one sentence which rule is broken."""
    if not options.is_attention:
        for world in (1, *options.worlds):
            rank_params(options, world)
        return
    for length in sequence_lengths(options):
        for ring in (1, *list_rings_at(options, length)):
            shape_costs(options, ScalingShape(length, ring, ring))


ItemT = TypeVar("ItemT")
TrialKind = Literal["ring", "share", "energy", "yardstick"]
"""``ring``: a shape, timed. ``share``: one rank alone with a share of a ring. ``energy``: a shape, run for a while."""

ROLE = "ring"
MATMUL_BLOCK = "yardsticks"
MATMUL_S = 10.0
ENERGY_S = 20.0
"""Of a trial that meters energy, starting included: sensors tick slowly."""
FIRST_REPEAT = 1
"""The repeat that has what is needed only once: energy, and the trace."""


@dataclass(frozen=True)
class PlannedTrial:
    """A trial, and what it is there for."""

    kind: TrialKind
    shape: ScalingShape
    repeat: int
    names: tuple[str, ...]
    trial: Trial


def plan_blocks(options: ScalingOptions) -> list[Block]:
    """Return everything that will be measured, in order; predictions are not yet in it."""
    result = []
    if options.matmul is not None:
        trials = tuple(
            planned_trial.trial for planned_trial in plan_trials(options) if planned_trial.kind == "yardstick"
        )
        result.append(Block(name=MATMUL_BLOCK, why="what a large matmul reaches here", trials=trials))
    for repeat in range(1, options.repeat + 1):
        again = f", repeat {repeat} of {options.repeat}" if options.repeat > 1 else ""
        for length in order_items(sequence_lengths(options), options.seed, repeat):
            alone = ScalingShape(length, 1, 1)
            shares = ", and its share of rings" if list_rings_at(options, length) else ""
            result.append(_build_block(options, repeat, alone, f"{_name_shape(options, alone)}{shares}{again}"))
            mine = [shape for shape in list_shapes(options) if shape.sequence == length]
            result += [
                _build_block(options, repeat, shape, f"{_name_shape(options, shape)}{again}")
                for shape in order_items(mine, options.seed, repeat)
            ]
    return result


def order_items(items: Iterable[ItemT], seed: int, repeat: int) -> list[ItemT]:
    """Return items in the order they are measured: first as they were given, then by lot."""
    ordered = list(items)
    if repeat > FIRST_REPEAT:
        random.Random(f"{seed}/{repeat}").shuffle(ordered)  # noqa: S311 - an order is no secret
    return ordered


def plan_trials(options: ScalingOptions) -> Iterator[PlannedTrial]:
    """Give every trial with what it is there for."""
    if options.matmul is not None:
        role = Role(name=ROLE, subjects=(options.matmul,), devices=options.devices[:1], isolation=options.isolation)
        mode = Adaptive(duration_s=MATMUL_S, timeout_s=options.timeout_s)
        trial = _build_trial(options, role, mode, block=MATMUL_BLOCK, phase="matmul")
        yield PlannedTrial("yardstick", ScalingShape(0, 1, 1), 0, ("matmul",), trial)
    for repeat in range(1, options.repeat + 1):
        for length in sequence_lengths(options):
            mine = [shape for shape in list_shapes(options) if shape.sequence == length]
            for shape in (ScalingShape(length, 1, 1), *mine):
                yield from _block_trials(options, repeat, shape)


def _build_block(options: ScalingOptions, repeat: int, shape: ScalingShape, why: str) -> Block:
    trials = tuple(planned_trial.trial for planned_trial in _block_trials(options, repeat, shape))
    return Block(name=name_block(repeat, shape), why=why, trials=trials)


def name_block(repeat: int, shape: ScalingShape) -> str:
    """Return the name of the block that a shape is measured in."""
    length = f"n{shape.sequence}-" if shape.sequence else ""
    return f"repeat-{repeat}-{f'{length}alone' if shape.world == 1 else shape.name}"


def _block_trials(options: ScalingOptions, repeat: int, shape: ScalingShape) -> Iterator[PlannedTrial]:
    yield _shape_trial(options, repeat, shape)
    if shape.world == 1:
        for ring in list_rings_at(options, shape.sequence):
            yield _share_trial(options, repeat, ScalingShape(shape.sequence, ring, ring))
    if options.energy and repeat == FIRST_REPEAT:
        yield _energy_trial(options, shape)


def timed_subjects(options: ScalingOptions, shape: ScalingShape) -> dict[str, Subject]:
    """Return what is timed in a shape, by name, in order.

    Where nothing is sent, computing is all there is, and it is not timed once more.
    """
    if not options.is_attention:
        return {"total": _build_subject(options, shape)}
    subjects = {
        "forward": _build_subject(options, shape, passes="forward", only="all"),
        "total": _build_subject(options, shape, passes="total", only="all"),
    }
    if has_transfers(options, shape):
        subjects["compute"] = _build_subject(options, shape, passes="total", only="compute")
        subjects["communication"] = _build_subject(options, shape, passes="total", only="communication")
    return subjects


def _build_subject(options: ScalingOptions, shape: ScalingShape, **changed: str) -> Subject:
    return options.subject.model_copy(update={"params": shape_params(options, shape, **changed)})


def _shape_trial(options: ScalingOptions, repeat: int, shape: ScalingShape) -> PlannedTrial:
    subjects = timed_subjects(options, shape)
    trial = _build_trial(
        options,
        _build_role(options, tuple(subjects.values()), shape.world),
        _counted_mode(options),
        block=name_block(repeat, shape),
        phase=_name_shape(options, shape),
        repeat=repeat,
        profile=options.profile and repeat == FIRST_REPEAT and shape == find_first_shape(options),
    )
    return PlannedTrial("ring", shape, repeat, tuple(subjects), trial)


def find_first_shape(options: ScalingOptions) -> ScalingShape:
    """Return the first shape that was asked for."""
    return next(iter(list_shapes(options)), ScalingShape(sequence_lengths(options)[0], 1, 1))


def _share_trial(options: ScalingOptions, repeat: int, shape: ScalingShape) -> PlannedTrial:
    """Return one rank that computes, alone, what the last rank of a ring computes."""
    subject = _build_subject(options, shape, passes="total", only="compute")
    name = f"{shape.sequence} tokens, one rank alone with its share of a ring of {shape.ring}"
    block = name_block(repeat, shape.alone)
    role = _build_role(options, (subject,), 1)
    trial = _build_trial(options, role, _counted_mode(options), block=block, phase=name, repeat=repeat)
    return PlannedTrial("share", shape, repeat, ("share",), trial)


def _energy_trial(options: ScalingOptions, shape: ScalingShape) -> PlannedTrial:
    subject = timed_subjects(options, shape)["total"]
    mode = Adaptive(duration_s=ENERGY_S, warmup_runs=options.warmup_runs, timeout_s=options.timeout_s)
    name = f"energy of {_name_shape(options, shape)}"
    role = _build_role(options, (subject,), shape.world)
    trial = _build_trial(options, role, mode, block=name_block(FIRST_REPEAT, shape), phase=name)
    return PlannedTrial("energy", shape, FIRST_REPEAT, ("total",), trial)


def _name_shape(options: ScalingOptions, shape: ScalingShape) -> str:
    return format_shape(shape, is_attention=options.is_attention)


def _counted_mode(options: ScalingOptions) -> Counted:
    """Return a mode that makes exactly as many calls as asked for, however long they take."""
    return Counted(
        duration_s=options.timeout_s,
        warmup_runs=options.warmup_runs,
        runs=options.benchmark_runs,
        timeout_s=options.timeout_s,
    )


def _build_role(options: ScalingOptions, subjects: tuple[Subject, ...], ranks: int) -> Role:
    devices = tuple(options.devices[rank % len(options.devices)] for rank in range(ranks))
    return Role(name=ROLE, subjects=subjects, ranks=ranks, devices=devices, isolation=options.isolation)


def _build_trial(
    options: ScalingOptions,
    role: Role,
    mode: Mode,
    *,
    block: str,
    phase: str,
    repeat: int = FIRST_REPEAT,
    profile: bool = False,
) -> Trial:
    return Trial(
        block=block,
        roles=(role,),
        mode=mode,
        settings={"phase": phase},
        on_interference=options.on_interference,
        placed_with=options.devices,
        cpu_groups=options.cpu_groups,
        retakes=options.retakes,
        seed=options.seed + repeat - 1,
        profile=profile,
    )
