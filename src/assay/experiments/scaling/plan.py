"""The options of ``assay scaling run``, and its blocks: which shapes are measured, what each computes, in which order.

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

from pydantic import Field

from assay.core.errors import BadInput
from assay.core.format import format_count, format_list
from assay.core.values import Adaptive, Block, Counted, InterferencePolicy, Isolation, Role, Subject, Trial, Value
from assay.experiments.scaling.prediction import LinkModel, ring_traffic
from assay.workloads.dilated_attention.problem import DilatedAttentionProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from assay.core.values import Mode, Params
    from assay.experiments.scaling.prediction import RankTraffic
    from assay.workloads.dilated_attention.problem import AttentionCosts


ScalingMode = Literal["strong", "weak"]
ATTENTION_WORKLOAD = "dilated_attention"


class UnavailableWorld(Value):
    """A number of ranks that was asked for and is not measured here, and why."""

    world: int
    reason: str


class ScalingOptions(Value):
    """What ``assay scaling run`` was asked for.

    Of dilated attention, ``sequences`` are the lengths to scale at and ``rings`` the ring sizes; ``subject`` has all
    else. Of any other workload there are none, and every rank does the same call, or its share of ``ranks_param``.
    """

    subject: Subject
    sequences: tuple[int, ...] = ()
    worlds: tuple[int, ...] = Field(min_length=1, description="How many ranks; one rank alone is measured in any case.")
    rings: tuple[int, ...] = Field(default=(1,), min_length=1)
    unavailable: tuple[UnavailableWorld, ...] = ()
    mode: ScalingMode = "strong"
    ranks_param: str | None = Field(default=None, description="Of strong scaling: the parameter that ranks share out.")
    devices: tuple[str, ...] = Field(min_length=1)
    local_ranks: int | None = Field(default=None, ge=1, description="On this machine; null: all of them.")
    isolation: Isolation = "full"
    repeat: int = Field(default=1, ge=1, description="All shapes again so often; intervals are over the repeats.")
    warmup_runs: int = Field(default=3, ge=0)
    benchmark_runs: int = Field(default=10, ge=1)
    matmul: Subject | None = Field(default=None, description="A large matmul, the reference for FLOP/s.")
    energy: bool = Field(default=False, description="Whether each shape is also run for a while to meter its energy.")
    profile: bool = Field(default=False, description="Whether the first shape is also traced.")
    link: LinkModel | None = Field(default=None, description="Null: nothing is predicted.")
    min_efficiency: float | None = Field(default=None, gt=0, lt=1, description="Null: there is no gate.")
    on_interference: InterferencePolicy = "warn"
    retakes: int = Field(default=0, ge=0)
    timeout_s: float = Field(default=600.0, gt=0)
    cpu_groups: int | None = Field(default=None, ge=1)
    seed: int = 0

    @property
    def is_attention(self) -> bool:
        """Whether it is dilated attention, whose sequence is shared out and whose communication is known."""
        return self.subject.workload == ATTENTION_WORKLOAD

    @property
    def lengths(self) -> tuple[int, ...]:
        """The sequences; one of 0 stands for a workload that has none."""
        return self.sequences or (0,)

    @property
    def is_work_shared(self) -> bool:
        """Whether ranks share out one call among them, rather than each doing one."""
        return self.ranks_param is not None and self.mode == "strong"

    def is_here(self, rank: int) -> bool:
        """Return whether a rank lives on this machine, where sensors are read."""
        return self.local_ranks is None or rank < self.local_ranks

    @property
    def local_rank_count(self) -> int:
        """The most ranks that are on this machine at once."""
        return min(max(self.worlds), self.local_ranks or max(self.worlds))

    @property
    def kind(self) -> str:
        """The kind of device: ``cpu`` or ``cuda``."""
        return self.devices[0].partition(":")[0]


@dataclass(frozen=True, order=True)
class ScalingShape:
    """``sequence`` tokens over ``world`` ranks, in rings of ``ring`` of them; each ring has a batch of its own.

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
        """One rank with the same sequence: the baseline of more ranks."""
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


def list_shapes(options: ScalingOptions) -> tuple[ScalingShape, ...]:
    """Return every shape of more than one rank, in the order asked for."""
    return tuple(
        ScalingShape(length, world, ring)
        for length in options.lengths
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
    shapes = [(world, ring) for world in options.worlds for ring in (options.rings if options.is_attention else ())]
    return (
        *(SkippedShape(unavailable.world, None, unavailable.reason) for unavailable in options.unavailable),
        *(SkippedShape(*shape, reason) for shape in shapes if (reason := find_ring_refusal(*shape)) is not None),
    )


def describe_skipped(skipped: Iterable[SkippedShape]) -> list[str]:
    """Say what is skipped and why, rings of one world and reason together: "Rings of 4 and 8 over 2 ranks: …"."""
    together: dict[tuple[int, str], list[str]] = {}
    for shape in skipped:
        together.setdefault((shape.world, shape.reason), []).extend([] if shape.ring is None else [str(shape.ring)])
    return [
        f"{f'Rings of {format_list(rings)} over ' if rings else ''}{format_count(world, 'rank')}: {reason}."
        for (world, reason), rings in together.items()
    ]


def list_rings_at(options: ScalingOptions, length: int) -> tuple[int, ...]:
    """Return the ring sizes above 1 that are measured at a sequence: each has its share computed alone as well."""
    return tuple(
        dict.fromkeys(shape.ring for shape in list_shapes(options) if shape.sequence == length and shape.ring > 1)
    )


def format_shape(options: ScalingOptions, shape: ScalingShape) -> str:
    """Name a shape for people: "2048 tokens, 4 ranks in 2 rings"."""
    ranks = f"{f'{shape.sequence} tokens, ' if shape.sequence else ''}{format_count(shape.world, 'rank')}"
    if shape.world == 1 or not options.is_attention:
        return ranks
    if shape.ring == 1:
        return f"{ranks}, each by itself"
    return f"{ranks} in {'one ring' if shape.rings == 1 else f'{shape.rings} rings'}"


def format_shape_short(options: ScalingOptions, shape: ScalingShape) -> str:
    """Name a shape for a table whose heading says "tokens: ranks"; shorter: "2048: 4, 2 rings"."""
    named = f"{shape.sequence}: {shape.world}" if shape.sequence else str(shape.world)
    if shape.world == 1 or not options.is_attention:
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
    return 1.0 if options.is_work_shared else float(shape.world)


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
    if not options.is_work_shared:
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
    for length in options.lengths:
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
    by_block: dict[str, list[PlannedTrial]] = {}
    for planned in plan_trials(options):
        by_block.setdefault(planned.trial.block, []).append(planned)
    return [
        Block(name=name, why=_explain_block(options, planned[0]), trials=tuple(one.trial for one in planned))
        for name, planned in by_block.items()
    ]


def _explain_block(options: ScalingOptions, first: PlannedTrial) -> str:
    if first.kind == "yardstick":
        return "what a large matmul reaches here"
    shares = first.shape.world == 1 and list_rings_at(options, first.shape.sequence)
    again = f", repeat {first.repeat} of {options.repeat}" if options.repeat > 1 else ""
    return f"{format_shape(options, first.shape)}{', and its share of rings' if shares else ''}{again}"


def order_items(items: Iterable[ItemT], seed: int, repeat: int) -> list[ItemT]:
    """Return items in the order they are measured: first as given, in later repeats shuffled."""
    ordered = list(items)
    if repeat > FIRST_REPEAT:
        random.Random(f"{seed}/{repeat}").shuffle(ordered)  # noqa: S311 - an order is no secret
    return ordered


def plan_trials(options: ScalingOptions) -> Iterator[PlannedTrial]:
    """Give every trial with what it is there for, in the order they are measured."""
    if options.matmul is not None:
        mode = Adaptive(duration_s=MATMUL_S, timeout_s=options.timeout_s)
        yield _plan_trial(
            options, "yardstick", ScalingShape(0, 1, 1), 0, {"matmul": options.matmul}, phase="matmul", mode=mode
        )
    shapes = list_shapes(options)
    first = next(iter(shapes), ScalingShape(options.lengths[0], 1, 1))
    for repeat in range(1, options.repeat + 1):
        for length in order_items(options.lengths, options.seed, repeat):
            mine = [shape for shape in shapes if shape.sequence == length]
            for shape in (ScalingShape(length, 1, 1), *order_items(mine, options.seed, repeat)):
                profile = options.profile and repeat == FIRST_REPEAT and shape == first
                yield from _block_trials(options, repeat, shape, profile=profile)


def _block_trials(
    options: ScalingOptions, repeat: int, shape: ScalingShape, *, profile: bool
) -> Iterator[PlannedTrial]:
    subjects, name = timed_subjects(options, shape), format_shape(options, shape)
    yield _plan_trial(options, "ring", shape, repeat, subjects, phase=name, profile=profile)
    for ring in list_rings_at(options, shape.sequence) if shape.world == 1 else ():
        share = ScalingShape(shape.sequence, ring, ring)
        subject = _build_subject(options, share, passes="total", only="compute")
        phase = f"{shape.sequence} tokens, one rank alone with its share of a ring of {ring}"
        yield _plan_trial(options, "share", share, repeat, {"share": subject}, phase=phase)
    if options.energy and repeat == FIRST_REPEAT:
        mode = Adaptive(duration_s=ENERGY_S, warmup_runs=options.warmup_runs, timeout_s=options.timeout_s)
        yield _plan_trial(
            options, "energy", shape, repeat, {"total": subjects["total"]}, phase=f"energy of {name}", mode=mode
        )


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


def _plan_trial(
    options: ScalingOptions,
    kind: TrialKind,
    shape: ScalingShape,
    repeat: int,
    subjects: Mapping[str, Subject],
    *,
    phase: str,
    mode: Mode | None = None,
    profile: bool = False,
) -> PlannedTrial:
    """Return a trial; by default it makes exactly as many calls as asked for, however long they take."""
    ranks = 1 if kind == "share" else shape.world
    alone = f"{f'n{shape.sequence}-' if shape.sequence else ''}alone"
    role = Role(
        name=ROLE,
        subjects=tuple(subjects.values()),
        ranks=ranks,
        devices=tuple(options.devices[rank % len(options.devices)] for rank in range(ranks)),
        isolation=options.isolation,
    )
    counted = Counted(
        duration_s=options.timeout_s,
        warmup_runs=options.warmup_runs,
        runs=options.benchmark_runs,
        timeout_s=options.timeout_s,
    )
    trial = Trial(
        block=MATMUL_BLOCK if kind == "yardstick" else f"repeat-{repeat}-{alone if ranks == 1 else shape.name}",
        roles=(role,),
        mode=mode or counted,
        settings={"phase": phase},
        on_interference=options.on_interference,
        placed_with=options.devices,
        cpu_groups=options.cpu_groups,
        retakes=options.retakes,
        seed=options.seed + max(repeat, FIRST_REPEAT) - 1,
        profile=profile,
    )
    return PlannedTrial(kind, shape, repeat, tuple(subjects), trial)
