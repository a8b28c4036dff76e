"""All that the records say, as values: what findings judge and the page shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.experiments.scaling.against import against_one
from assay.experiments.scaling.facts import facts_of_shape
from assay.experiments.scaling.forecast import scores
from assay.experiments.scaling.metrics import Communication, throughput
from assay.experiments.scaling.numbers import QUANTITIES, Known, known
from assay.experiments.scaling.problem import least_flop, work_of
from assay.experiments.scaling.rates import datasheet_flop_per_s, matmul_flop_per_s
from assay.experiments.scaling.shapes import Shape, lengths, shapes
from assay.experiments.scaling.timings import laid_out
from assay.experiments.scaling.vectors import basis_of

if TYPE_CHECKING:
    from assay.experiments.scaling.facts import ShapeFacts
    from assay.experiments.scaling.forecast import Score
    from assay.experiments.scaling.options import ScalingOptions
    from assay.experiments.scaling.timings import Laid
    from assay.experiments.scaling.vectors import Basis
    from assay.machine.model import Machine
    from assay.store.records import Records

Ceilings = dict[str, Known]
"""Operations a second of one device at most, or why that is not known, by what it is held against."""

COMMUNICATION = ("compute", "communication", "exposed", "exposed_share", "overlap")


@dataclass(frozen=True, eq=False)
class Scaled:
    """One shape: its numbers by name, and what its ranks found out beside their times.

    ``status`` is that of its records, null where it was never tried; ``reason`` says why there are no numbers.
    """

    shape: Shape
    numbers: dict[str, Known]
    facts: ShapeFacts | None
    status: str | None
    reason: str | None = None

    def __getitem__(self, name: str) -> Known:
        return self.numbers[name]


@dataclass(frozen=True, eq=False)
class Analysis:
    """Every shape that was asked for, those of one rank apart; and how the predictions fared."""

    laid: Laid
    alone: tuple[Scaled, ...]
    scaled: tuple[Scaled, ...]
    scores: tuple[Score, ...]
    matmul: Known

    @property
    def all(self) -> tuple[Scaled, ...]:
        """Every shape, one rank before several at each sequence."""
        return tuple(
            shape
            for first in self.alone
            for shape in (first, *(s for s in self.scaled if s.shape.sequence == first.shape.sequence))
        )

    @property
    def measured(self) -> tuple[Scaled, ...]:
        """Those of several ranks that have an efficiency."""
        return tuple(shape for shape in self.scaled if shape["efficiency"].estimate is not None)


def analyse(machine: Machine, options: ScalingOptions, records: Records) -> Analysis:
    """Look at the records from every side."""
    timings = laid_out(options, records)
    matmul = matmul_flop_per_s(options, records)
    ceilings = {"mfu_datasheet": datasheet_flop_per_s(machine, options), "mfu_matmul": matmul}
    analysed = tuple(_scaled(options, timings, shape, ceilings) for shape in shapes(options))
    return Analysis(
        laid=timings,
        alone=tuple(_scaled(options, timings, Shape(length, 1, 1), ceilings) for length in lengths(options)),
        scaled=analysed,
        scores=scores(options, timings, {result.shape: result["time"] for result in analysed}),
        matmul=matmul,
    )


def _scaled(options: ScalingOptions, laid: Laid, shape: Shape, most: Ceilings) -> Scaled:
    status, basis = laid.status("ring", shape), basis_of(laid.of("ring", shape))
    if basis is None:
        reason = laid.why_not("ring", shape)
        return Scaled(shape, dict.fromkeys(QUANTITIES, Known(reason=reason)), None, status, reason)
    facts = facts_of_shape(options, laid, shape)
    numbers = {
        **_of_times(options, basis, shape),
        **_of_arithmetic(options, basis, shape, most),
        **against_one(options, laid, shape),
        "energy_per_token": facts.energy_per_token,
    }
    return Scaled(shape, numbers, facts, status)


def _of_times(options: ScalingOptions, basis: Basis, shape: Shape) -> dict[str, Known]:
    slowest = basis.times[0].slowest
    total = slowest["total"]
    numbers = {
        "time": known(basis, "time", total),
        "throughput": known(basis, "throughput", throughput(total, work_of(options, shape))),
    }
    if "forward" not in slowest:
        silent = Known(reason=f"{options.subject.label} has no passes, and what it sends is not known")
        return {**numbers, **dict.fromkeys(("forward", "backward", *COMMUNICATION), silent)}
    numbers["forward"] = known(basis, "forward", slowest["forward"])
    numbers["backward"] = known(basis, "backward", total - slowest["forward"])
    runs = Communication.of(basis.times[0])
    if not runs.sent:
        why = "every segment lies within a shard" if shape.ring > 1 else "each rank has whole sequences"
        return {**numbers, **dict.fromkeys(COMMUNICATION, Known(reason=f"nothing is sent: {why}"))}
    return {
        **numbers,
        "compute": known(basis, "compute", runs.compute_us),
        "communication": known(basis, "communication", runs.communication_us),
        "exposed": known(basis, "exposed", runs.exposed_us),
        "exposed_share": known(basis, "exposed_share", runs.exposed_share),
        "overlap": known(basis, "overlap", runs.overlap),
    }


def _of_arithmetic(options: ScalingOptions, basis: Basis, shape: Shape, most: Ceilings) -> dict[str, Known]:
    if not options.is_attention:
        return dict.fromkeys(("tflops", *most), Known(reason="its operations are not counted here"))
    rate = least_flop(options, shape) / (basis.times[0].slowest["total"] / 1e6)
    shares = {
        name: ceiling if ceiling.value is None else known(basis, name, 100 * rate / (shape.world * ceiling.value))
        for name, ceiling in most.items()
    }
    return {"tflops": known(basis, "tflops", rate / 1e12), **shares}
