"""Which combinations of sequence, ranks and rings are measured, and which are not, and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.experiments.scaling.options import ScalingOptions


@dataclass(frozen=True, order=True)
class Shape:
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
    def alone(self) -> Shape:
        """One rank with the same sequence: what more ranks are held against."""
        return Shape(self.sequence, 1, 1)

    @property
    def name(self) -> str:
        """A short name for files: ``n2048-p4-r2``."""
        length = f"n{self.sequence}-" if self.sequence else ""
        return f"{length}p{self.world}-r{self.ring}"


@dataclass(frozen=True)
class Skipped:
    """A combination that was asked for and is not measured."""

    world: int
    ring: int | None
    reason: str


def lengths(options: ScalingOptions) -> tuple[int, ...]:
    """Return the sequences; one of 0 stands for a workload that has none."""
    return options.sequences or (0,)


def shapes(options: ScalingOptions) -> tuple[Shape, ...]:
    """Return every shape of more than one rank, in the order asked for."""
    return tuple(
        Shape(length, world, ring)
        for length in lengths(options)
        for world in options.worlds
        if world > 1
        for ring in (options.rings if options.is_attention else (1,))
        if refusal(world, ring) is None
    )


def refusal(world: int, ring: int) -> str | None:
    """Return why ranks form no rings of a size; null where they do."""
    if ring > world:
        return f"larger than the world of {world}"
    return f"{world} ranks do not divide into them" if world % ring else None


def skipped(options: ScalingOptions) -> tuple[Skipped, ...]:
    """Return every combination that was asked for and is not measured."""
    rings = options.rings if options.is_attention else ()
    return (
        *(Skipped(unavailable.world, None, unavailable.reason) for unavailable in options.beyond),
        *(
            Skipped(world, ring, reason)
            for world in options.worlds
            for ring in rings
            if (reason := refusal(world, ring)) is not None
        ),
    )


def sentences(left: Iterable[Skipped]) -> list[str]:
    """Say what is skipped and why, rings of one world and reason together: "Rings of 4 and 8 over 2 ranks: …"."""
    together: dict[tuple[int, str], list[Skipped]] = {}
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


def rings_at(options: ScalingOptions, length: int) -> tuple[int, ...]:
    """Return the ring sizes above 1 that are measured at a sequence: each has its share computed alone as well."""
    return tuple(dict.fromkeys(shape.ring for shape in shapes(options) if shape.sequence == length and shape.ring > 1))


def words(shape: Shape, *, is_attention: bool) -> str:
    """Name a shape for people: "2048 tokens, 4 ranks in 2 rings"."""
    tokens = f"{shape.sequence} tokens, " if shape.sequence else ""
    ranks = f"{shape.world} rank{'' if shape.world == 1 else 's'}"
    if shape.world == 1 or not is_attention:
        return f"{tokens}{ranks}"
    if shape.ring == 1:
        return f"{tokens}{ranks}, each by itself"
    return f"{tokens}{ranks} in {'one ring' if shape.rings == 1 else f'{shape.rings} rings'}"


def brief(shape: Shape, *, is_attention: bool) -> str:
    """Name a shape for a table whose heading says "tokens: ranks"; shorter: "2048: 4, 2 rings"."""
    named = f"{shape.sequence}: {shape.world}" if shape.sequence else str(shape.world)
    if shape.world == 1 or not is_attention:
        return named
    return f"{named}, {'apart' if shape.ring == 1 else 'one ring' if shape.rings == 1 else f'{shape.rings} rings'}"
