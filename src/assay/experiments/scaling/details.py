"""The further tables: memory, arithmetic, energy, whether it is right, and how predictions fared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Table, Text
from assay.experiments.scaling.numbers import Known
from assay.experiments.scaling.shapes import brief
from assay.experiments.scaling.tables import TONES, columns, name_of, shape_head
from assay.experiments.scaling.written import percent_cell, rate_cell, ratio_cell, small_cell, time_cell

if TYPE_CHECKING:
    from assay.core.page import Cell, Element, Tone
    from assay.experiments.scaling.analysis import Analysis
    from assay.experiments.scaling.forecast import Score
    from assay.experiments.scaling.options import ScalingOptions

OUTCOMES = {"within": "within", "faster": "faster", "slower": "slower", "unknown": "not sure"}


def truth_table(options: ScalingOptions, found: Analysis) -> list[Element]:
    """Return the errors of forward and gradients, as they were before anything was timed."""
    names = {"forward": "forward", "total": "forward and gradients"} if options.is_attention else {"total": "result"}
    checked = [result.facts.checks for result in found.all if result.facts is not None and result.facts.checks]
    if not checked:
        return []
    rows: list[tuple[Cell, ...]] = []
    tones: list[Tone] = []
    for result in found.all:
        checks = result.facts.checks if result.facts is not None else {}
        if checks:
            errors = [f"{checks[name].error:.2g}" if name in checks else None for name in names]
            most = max(check.tolerance for check in checks.values())
            rows.append((name_of(options, result), *errors, f"{most:.2g}"))
            tones.append("good" if all(check.passed for check in checks.values()) else "bad")
    measures = dict.fromkeys(check.measure for checks in checked for check in checks.values())
    return [
        Table(
            title="Errors against a float64 reference, before anything was timed",
            columns=columns(shape_head(options), *names.values(), "at most"),
            rows=tuple(rows),
            tones=tuple(tones),
            note=f"The worst of all ranks: {'; '.join(measures)}. A result that is wrong is not timed.",
        )
    ]


def bytes_table(options: ScalingOptions, found: Analysis) -> list[Element]:
    """Return what ranks received against what the formula says they must, where there are rings."""
    rows: list[tuple[Cell, ...]] = []
    tones: list[Tone] = []
    for result in found.scaled:
        facts = result.facts
        if result.shape.ring > 1 and facts is not None and facts.received_bytes is not None:
            rows.append(
                (
                    name_of(options, result),
                    f"{facts.received_bytes:,.0f}",
                    None if facts.expected_bytes is None else f"{facts.expected_bytes:,.0f}",
                    None if facts.byte_inflation is None else f"{facts.byte_inflation:.3g}",
                )
            )
            tones.append("good" if facts.received_bytes == facts.expected_bytes else "bad")
    if not rows:
        return []
    return [
        Table(
            title="Bytes that ranks received in one call",
            columns=columns(shape_head(options), "received", "by the formula", "over least"),
            rows=tuple(rows),
            tones=tuple(tones),
            note="Of all ranks together, counted as transfers were posted; a dash: nothing need be sent.",
        )
    ]


def passes_table(options: ScalingOptions, found: Analysis) -> list[Element]:
    """Return the times of both passes, and what the speedup says of the share that is not shared out."""
    measured = [result for result in found.all if result["forward"].estimate is not None]
    if not measured:
        return []
    rows = tuple(
        (
            name_of(options, result),
            time_cell(result["forward"]),
            time_cell(result["backward"]),
            time_cell(result["time"]),
            percent_cell(result["karp_flatt"]),
        )
        for result in measured
    )
    return [
        Table(
            title="Both passes",
            columns=columns(shape_head(options), "forward", "backward", "both", "Karp–Flatt"),
            rows=rows,
            note=(
                "Medians over iterations of the slowest rank; backward: both less forward. Karp–Flatt: "
                "the serial share of a ring's work that would explain its speedup; a dash where nothing is shared out."
            ),
        )
    ]


def memory_table(options: ScalingOptions, found: Analysis) -> list[Element]:
    """Return the most that each rank held."""
    on_gpu = options.kind == "cuda"
    rows: list[tuple[Cell, ...]] = []
    for result in found.all:
        for memory in result.facts.memory if result.facts is not None else ():
            gpu = (memory.allocated_mib, memory.reserved_mib, memory.device_mib) if on_gpu else ()
            rows.append((name_of(options, result), memory.rank, memory.device, *gpu, memory.process_mib))
    if not rows:
        return []
    titles = ("allocated, MiB", "reserved, MiB", "in use by NVML, MiB") if on_gpu else ()
    head = columns(shape_head(options), "rank", "device", *titles, "process, MiB")
    words_in = {shape_head(options), "device"}
    note = "Process: the most that its host memory held, all subjects of the trial and the check included."
    if on_gpu:
        note += (
            " Allocated and reserved: the allocator's peaks in one call. NVML: of the whole device, whoever uses it."
        )
    return [
        Table(
            title="Peak memory of each rank",
            columns=tuple(c.model_copy(update={"numeric": c.title not in words_in}) for c in head),
            rows=tuple(rows),
            note=note,
        )
    ]


def arithmetic_table(options: ScalingOptions, found: Analysis) -> list[Element]:
    """Return operations a second, how much of what is possible that is, and whether any is done twice."""
    measured = [result for result in found.all if result.facts is not None and result["tflops"].estimate is not None]
    if not measured:
        return []
    rows = tuple(
        (
            name_of(options, result),
            rate_cell(_per_s(result["tflops"])),
            ratio_cell(result["mfu_matmul"]),
            ratio_cell(result["mfu_datasheet"]),
            result.facts.flop_inflation if result.facts is not None else None,
        )
        for result in measured
    )
    reasons = dict.fromkeys(measured[0][name].reason for name in ("mfu_matmul", "mfu_datasheet"))
    why = "; ".join(reason for reason in reasons if reason)
    return [
        Table(
            title="Arithmetic",
            columns=columns(shape_head(options), "FLOP/s", "of a matmul, %", "of the data sheet, %", "FLOP over least"),
            rows=rows,
            note=(
                "FLOP/s: least operations of forward and backward, all ranks. FLOP over least: done by all ranks. "
                + (f"Not known: {why}." if why else "")
            ).strip(),
        )
    ]


def _per_s(tflops: Known) -> Known:
    estimate = tflops.estimate
    if estimate is None:
        return tflops
    ends = {end: None if (v := getattr(estimate, end)) is None else v * 1e12 for end in ("low", "high")}
    return Known(estimate.model_copy(update={"value": estimate.value * 1e12, **ends}))


def energy_table(options: ScalingOptions, found: Analysis) -> list[Element]:
    """Return the energy of one token."""
    measured = [result for result in found.all if result["energy_per_token"].estimate is not None]
    if measured:
        unit = "J a token" if options.is_attention else "J a call"
        rows = tuple((name_of(options, result), small_cell(result["energy_per_token"], "J")) for result in measured)
        method = measured[0]["energy_per_token"].estimate
        note = None if method is None else f"{method.method}."
        return [Table(title=f"Energy, {unit}", columns=columns(shape_head(options), "energy"), rows=rows, note=note)]
    reason = next((result["energy_per_token"].reason for result in found.all), None)
    return [Text(text=f"Energy of a token: {reason}.")] if reason else []


def prediction_table(options: ScalingOptions, found: Analysis) -> list[Element]:
    """Return what was predicted beside what was measured."""
    if not found.scores:
        return []
    tones: dict[str, Tone] = {"within": "good", "unknown": "unsure"}
    assumptions = dict.fromkeys(assumption for score in found.scores for assumption in score.predicted.assumptions)
    return [
        Table(
            title="What was predicted before it was measured",
            columns=(*columns(shape_head(options), "predicted", "measured", "error"), Column(title="it was")),
            rows=tuple(_scored(options, score) for score in found.scores),
            tones=tuple(tones.get(score.outcome, TONES["no"]) for score in found.scores),
            note=" ".join(f"{assumption.rstrip('.')}." for assumption in assumptions),
        )
    ]


def _scored(options: ScalingOptions, score: Score) -> tuple[Cell, ...]:
    predicted = score.predicted.time_s
    ends = {end: None if (v := getattr(predicted, end)) is None else v * 1e6 for end in ("low", "high")}
    in_us = Known(predicted.model_copy(update={"value": predicted.value * 1e6, **ends}))
    return (
        brief(score.shape, is_attention=options.is_attention),
        time_cell(in_us),
        time_cell(score.measured),
        None if score.error is None else f"{100 * score.error:+.0f} %".replace("-", "−"),
        OUTCOMES[score.outcome],
    )
