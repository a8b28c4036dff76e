"""Rows of energy that nobody measured: any number of GPUs, batches and modes, with joules that are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.results import Estimate
from assay.experiments.energy.result import FIGURES, EnergyCell, EnergyResult, EnergyRow, GpuStats

if TYPE_CHECKING:
    from assay.core.results import Origin

DECODED = {
    ("eager", 1): (12.0, 11.7),
    ("eager", 8): (102.0, 1.5),
    ("eager", 32): (402.0, 0.45),
    ("graphs", 1): (180.0, 2.9),
    ("graphs", 8): (1200.0, 0.42),
    ("graphs", 32): (3900.0, 0.17),
}
"""Tokens per second and joules per token, by mode and batch."""


def about(value: float, unit: str, *, width: float | None = 0.02) -> Estimate:
    """Return an estimate with an interval of so much to both sides, or with none."""
    low, high = (None, None) if width is None else (value * (1 - width), value * (1 + width))
    return Estimate(value=value, low=low, high=high, unit=unit, scope="run", method="made", n=3)


def gpu(number: int, **changed: float | None) -> GpuStats:
    """Return what GPU so-and-so did."""
    seen: dict[str, float | None] = {
        "utilization_percent": 80.0 + number,
        "utilization_percent_max": 90.0 + number,
        "memory_used_mb": 15000.0 + number,
        "memory_total_mb": 24576.0,
        "memory_percent": 61.0,
        "temperature_c": 60.0 + number,
        "temperature_c_max": 65.0 + number,
        "power_draw_w": 200.0 + number,
        "power_draw_w_max": 250.0 + number,
    }
    stats = seen | changed
    energy = about(50.0 + number, "J")
    return GpuStats.model_validate({"gpu": number, "uuid": f"GPU-{number}", "energy_j_per_request": energy, **stats})


def row(
    gpus: int = 1,
    *,
    mode: str = "eager",
    batch: int = 1,
    input_tokens: int = 512,
    output_tokens: int = 128,
    factor: float = 1.0,
    width: float | None = 0.02,
    origin: Origin = "real",
    energy: bool = True,
) -> EnergyRow:
    """Return a cell; ``factor`` makes it cheaper and slower alike."""
    rate, joules = DECODED.get((mode, batch), (100.0 * batch, 2.0 / batch))
    figures: dict[str, Estimate | None] = dict.fromkeys(FIGURES)
    figures |= {
        "decode_tokens_per_s": about(rate * factor, "tokens/s", width=width),
        "output_tokens_per_s": about(rate * factor * 0.9, "tokens/s", width=width),
        "requests_per_s": about(rate * factor / output_tokens, "1/s", width=width),
    }
    if energy:
        figures |= {
            "decode_j_per_token": about(joules * factor, "J/token", width=width),
            "j_per_output_token": about(joules * factor * 1.1, "J/token", width=width),
            "j_per_request": about(joules * factor * output_tokens, "J", width=width),
            "wh_per_1000_requests": about(joules * factor * output_tokens / 3.6, "Wh", width=width),
        }
    missing = {name: "no GPU is metered" for name, value in figures.items() if value is None}
    return EnergyRow(
        cell=EnergyCell(mode=mode, batch=batch, input_tokens=input_tokens, output_tokens=output_tokens),
        figures=figures,
        missing_reasons=missing,
        gpus=tuple(gpu(number) for number in range(gpus)),
        peak_power_w=230.0 * gpus if gpus else None,
        tokens={"requests": 300, "input_tokens": 300 * input_tokens, "output_tokens": 300 * output_tokens},
        energy_j=about(300 * joules * output_tokens, "J") if energy else None,
        measured_s=60.0,
        placement={f"layers.{n}": f"cuda:{n % gpus}" for n in range(4)} if gpus else None,
        origin=origin,
    )


def result(
    *rows: EnergyRow, run: str | None = "energy-1", model: str = "random:llama-8b", **config: str
) -> EnergyResult:
    """Return a run's result."""
    count = len(rows[0].gpus) if rows else 0
    asked: dict[str, str | float | int | bool | None] = {
        "device_ids": ",".join(map(str, range(count))) or None,
        "device_map": "auto",
        "dtype": "bfloat16",
        **config,
    }
    return EnergyResult(
        name="made",
        model=model,
        backend="pytorch",
        config=asked,
        run=run,
        gpu=f"{count} × NVIDIA H200" if count else None,
        started_at="2026-11-15T10:00:00+00:00",
        rows=rows,
    )
