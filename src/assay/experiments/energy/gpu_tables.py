"""The tables of GPUs: what each did while whole requests ran, and which part of the model lies on which."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Table, Text
from assay.experiments.energy.tables import names
from assay.experiments.energy.words import number
from assay.experiments.notes import grouped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Cell as Shown
    from assay.core.page import Element
    from assay.experiments.energy.rows import EnergyRow, GpuStats
    from assay.experiments.notes import Noted

PIPELINE = " Layers on several GPUs follow one another (a naive pipeline): one GPU works while the others wait."
MOST_NAMED = 4


def gpus(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return what each GPU did while whole requests ran, and all of them together."""
    lines: list[tuple[Shown, ...]] = []
    for row in rows:
        lines += [(names(rows)[row.cell], *_gpu(gpu)) for gpu in row.gpus]
        lines += [(names(rows)[row.cell], *_together(row))] if len(row.gpus) > 1 else []
    if not lines:
        return []
    titles = (
        "cell",
        "GPU",
        "busy, %",
        "most",
        "memory, MiB",
        "of it, %",
        "°C",
        "most",
        "power, W",
        "most",
        "J/request",
    )
    return [
        Table(
            title="GPUs while whole requests ran",
            columns=tuple(Column(title=t, numeric=index > 1) for index, t in enumerate(titles)),
            rows=tuple(lines),
            note="Means over time and the most beside them; memory is the most. Of all GPUs together the most is the "
            "peak of their sum at one moment. A dash: the GPU does not say.",
        ),
        *(Text(text=f"{noted.said} ({noted.where}).", tone="unsure") for noted in noted_of(rows)),
    ]


def noted_of(rows: Sequence[EnergyRow]) -> list[Noted]:
    """Return what is to be known of GPUs, each sentence once with the cells it is of."""
    notes = [(gpu, names(rows)[row.cell]) for row in rows for gpu in row.gpus if gpu.note is not None]
    return grouped((f"GPU {gpu.gpu}: {gpu.note}", cell) for gpu, cell in notes)


def _gpu(gpu: GpuStats) -> tuple[Shown, ...]:
    return (
        f"GPU {gpu.gpu}",
        _digits(gpu.utilization_percent),
        _digits(gpu.utilization_percent_max),
        _digits(gpu.memory_used_mb),
        _digits(gpu.memory_percent),
        _digits(gpu.temperature_c),
        _digits(gpu.temperature_c_max),
        _digits(gpu.power_draw_w),
        _digits(gpu.power_draw_w_max),
        number(gpu.energy_j_per_request),
    )


def _together(row: EnergyRow) -> tuple[Shown, ...]:
    def total(name: str) -> float | None:
        values = [getattr(gpu, name) for gpu in row.gpus]
        return None if None in values else sum(values)

    return (
        f"all {len(row.gpus)}",
        *(None, None, _digits(total("memory_used_mb")), None, None, None),
        _digits(total("power_draw_w")),
        _digits(row.peak_power_w),
        number(row.figures.get("j_per_request")),
    )


def _digits(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f}"


def placement(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return which part of the model lies on which device; nothing where it is all on one and no part is named."""
    placed_parts = next((row.placement for row in rows if row.placement), None)
    if not placed_parts:
        return []
    devices: dict[str, list[str]] = {}
    for part, device in placed_parts.items():
        devices.setdefault(device, []).append(part or "all of it")
    return [
        Table(
            title="Where the model lies",
            columns=(Column(title="device"), Column(title="parts", numeric=True), Column(title="which")),
            rows=tuple((device, len(parts), _listed(parts)) for device, parts in devices.items()),
            note=f"As the loaded model says.{PIPELINE if sum(map(_is_gpu, devices)) > 1 else ''}",
        )
    ]


def _is_gpu(device: str) -> bool:
    return device.startswith("cuda")


def _listed(parts: Sequence[str]) -> str:
    if len(parts) <= MOST_NAMED:
        return ", ".join(parts)
    return f"{', '.join(parts[: MOST_NAMED - 1])} … {parts[-1]}"
