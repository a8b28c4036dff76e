"""What the ranks of a shape found out beside their times: whether it is right, what came and went, memory, energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.experiments.scaling.numbers import QUANTITIES, Known
from assay.experiments.scaling.problem import least_flop, work_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.core.results import Check, Record, SubjectFacts
    from assay.experiments.scaling.options import ScalingOptions
    from assay.experiments.scaling.shapes import Shape
    from assay.experiments.scaling.timings import Laid, Timing


@dataclass(frozen=True)
class Memory:
    """The most that one rank held, in MiB. Null: not measured, or there is no such thing."""

    rank: int
    device: str
    allocated_mib: float | None
    reserved_mib: float | None
    process_mib: float | None
    device_mib: float | None


@dataclass(frozen=True)
class ShapeFacts:
    """What is known of a shape beside its times. Null: not known.

    Attributes:
        checks: The worst check of each subject over its ranks and repeats, by name.
        received_bytes: What all ranks together received in one call.
        expected_bytes: What the formula says they must.
        flop: What all ranks together computed in one call.
        flop_inflation: The same over the least there is.
        memory: Of each rank.
        energy_per_token: In joules.
        backends: Which libraries did the work.
        traces: Files of the profiler.
    """

    checks: dict[str, Check]
    received_bytes: float | None
    expected_bytes: float | None
    flop: float | None
    flop_inflation: float | None
    memory: tuple[Memory, ...]
    energy_per_token: Known
    backends: tuple[str, ...]
    traces: tuple[str, ...]

    @property
    def byte_inflation(self) -> float | None:
        """Received over least bytes; null where they are not known or nothing need be sent."""
        if self.received_bytes is None or not self.expected_bytes:
            return None
        return self.received_bytes / self.expected_bytes


def facts_of_shape(options: ScalingOptions, laid: Laid, shape: Shape) -> ShapeFacts:
    """Return what is known of a shape that came off at least once."""
    shape_timings = list(laid.of("ring", shape).values())
    last = shape_timings[-1]
    total = last.facts("total")
    flop = _summed(facts.flop for facts in total.values())
    least = least_flop(options, shape) if options.is_attention else None
    return ShapeFacts(
        checks=_checks(shape_timings),
        received_bytes=_summed(_measured(facts, "received_bytes") for facts in total.values()),
        expected_bytes=_summed(_measured(facts, "expected_received_bytes") for facts in total.values()),
        flop=flop,
        flop_inflation=None if flop is None or not least else flop / least,
        memory=tuple(_memory(options, last, rank, facts) for rank, facts in total.items()),
        energy_per_token=_energy(options, laid, shape),
        backends=tuple(dict.fromkeys(facts.backend for facts in total.values() if facts.backend)),
        traces=tuple(e.trace for timing in shape_timings for e in timing.record.evidence if e.trace),
    )


def _checks(timings: Iterable[Timing]) -> dict[str, Check]:
    checks: dict[str, Check] = {}
    for timing in timings:
        for name in timing.plan.names:
            for facts in timing.facts(name).values():
                worst = checks.get(name)
                if facts.check is not None and (worst is None or facts.check.error > worst.error):
                    checks[name] = facts.check
    return checks


def _measured(facts: SubjectFacts, name: str) -> float | None:
    return None if facts.measured is None else facts.measured.get(name)


def _summed(values: Iterable[float | None]) -> float | None:
    """Return the sum; null where any is not known, or there is none."""
    all_values = list(values)
    present = [value for value in all_values if value is not None]
    return sum(present) if present and len(present) == len(all_values) else None


def _memory(options: ScalingOptions, timing: Timing, rank: int, facts: SubjectFacts) -> Memory:
    evidence = next(e for e in timing.record.evidence if e.rank == rank)
    return Memory(
        rank=rank,
        device=evidence.device,
        allocated_mib=_measured(facts, "peak_allocated_mib"),
        reserved_mib=_measured(facts, "peak_reserved_mib"),
        process_mib=evidence.peak_memory_mib,
        device_mib=_on_device(timing.record, evidence.device) if options.is_here(rank) else None,
    )


def _on_device(record: Record, device: str) -> float | None:
    """Return the most that NVML saw in use on a GPU while the trial was timed."""
    kind, _, number = device.partition(":")
    if kind != "cuda" or record.meanwhile is None:
        return None
    index = int(number.partition("/")[0])
    return next((gpu_stats.memory_used_mib for gpu_stats in record.meanwhile.gpus if gpu_stats.gpu == index), None)


def _energy(options: ScalingOptions, laid: Laid, shape: Shape) -> Known:
    """Return the joules of one token, from the trial that ran for a while."""
    if not options.energy:
        return Known(reason="energy was not metered (--energy does)")
    if not options.is_here(shape.world - 1):
        return Known(reason="ranks on other machines are not metered")
    timing = next(iter(laid.of("energy", shape).values()), None)
    if timing is None:
        return Known(reason=laid.why_not("energy", shape))
    energy, note = timing.record.energy, timing.record.energy_note or "no monitor watched"
    if energy is None:
        return Known(reason=f"energy {note}")
    if "start-up included" in note:
        return Known(reason="energy is known only of the whole trial, start-up included")
    calls = timing.by_rank["total"].shape[1]
    work = calls * work_of(options, shape)
    scaled = {
        "value": energy.value / work,
        "low": None if energy.low is None else energy.low / work,
        "high": None if energy.high is None else energy.high / work,
        "unit": "J",
        "method": f"{QUANTITIES['energy_per_token'].words}: {note}; {energy.method}",
    }
    return Known(energy.model_copy(update=scaled))
