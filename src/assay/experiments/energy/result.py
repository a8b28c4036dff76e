"""The result of a run, cell by cell: the rows that reports, files and comparisons are made of."""

from __future__ import annotations

from pydantic import Field

from assay.core.results import Estimate, Note, Origin
from assay.core.values import Value

HEADLINE_FIGURE = "decode_j_per_token"

FIGURES: dict[str, tuple[str, str]] = {
    "decode_j_per_token": ("J/token", "GPU energy of an output token, while decoding"),
    "prefill_j_per_token": ("J/token", "GPU energy of an input token, while the prompt is read"),
    "j_per_output_token": ("J/token", "GPU energy of whole requests, per output token"),
    "j_per_total_token": ("J/token", "GPU energy of whole requests, per input and output token"),
    "j_per_request": ("J", "GPU energy of a whole request"),
    "wh_per_1000_requests": ("Wh", "GPU energy of 1000 requests"),
    "carbon_g_per_1000_requests": ("g", "Carbon of that energy, at the intensity given"),
    "decode_tokens_per_s": ("tokens/s", "Output tokens while decoding, all sequences together"),
    "prefill_tokens_per_s": ("tokens/s", "Input tokens while the prompt is read, all sequences together"),
    "output_tokens_per_s": ("tokens/s", "Output tokens of whole requests"),
    "requests_per_s": ("1/s", "Whole requests"),
    "ttft_ms": ("ms", "Time until the first token is there (median)"),
    "tpot_ms": ("ms", "Time per output token after the first (mean over a request, median of requests)"),
    "gap_p50_ms": ("ms", "Between one token and the next"),
    "gap_p95_ms": ("ms", "Between one token and the next, 95 of 100 are shorter"),
    "gap_p99_ms": ("ms", "Between one token and the next, 99 of 100 are shorter"),
    "tokens_per_s_per_w": ("tokens/s/W", "Output tokens of whole requests, per watt"),
    "power_w": ("W", "GPU power while whole requests run"),
    "idle_w": ("W", "GPU power with the model in place and nothing to do"),
    "idle_share": ("", "Of the energy of whole requests: what idling as long would have taken"),
    "busy_share": ("", "Of a decoding call: some kernel ran; the rest the GPU waited for the host"),
    "bandwidth_share": ("", "Of the bytes that the device's memory could deliver while decoding"),
    "compute_share": ("", "Of the operations that the device could do while the prompt is read"),
    "phases_share": ("", "Energy of prefill and decode, over that of whole requests"),
    "host_j_per_output_token": ("J/token", "Energy of processors and memory, whoever used them, per output token"),
}
"""Every figure's name: its unit, and what it is. A share has no unit and lies between 0 and 1 (about)."""


class EnergyCell(Value):
    """One way to ask for tokens."""

    mode: str = Field(description="eager, graphs, or server.")
    batch: int
    concurrency: int = 1
    input_tokens: int
    output_tokens: int

    @property
    def name(self) -> str:
        """What people call it: ``eager, batch 8, 512 in, 128 out``."""
        load = f"{self.concurrency} at once" if self.mode == "server" else f"batch {self.batch}"
        return f"{self.mode}, {load}, {self.input_tokens} in, {self.output_tokens} out"


class GpuStats(Value):
    """What one GPU did while the cell's requests ran: means over time, and the most beside them. Null: not offered."""

    gpu: int
    uuid: str
    utilization_percent: float | None = None
    utilization_percent_max: float | None = None
    memory_used_mb: float | None = Field(default=None, description="The most.")
    memory_total_mb: float | None = None
    memory_percent: float | None = None
    temperature_c: float | None = None
    temperature_c_max: float | None = None
    power_draw_w: float | None = None
    power_draw_w_max: float | None = None
    energy_j_per_request: Estimate | None = None
    note: str | None = None


class EnergyRow(Value):
    """All that is known of a cell."""

    cell: EnergyCell
    figures: dict[str, Estimate | None] = Field(description="By the names of FIGURES; null: not measured.")
    missing_reasons: dict[str, str] = Field(default_factory=dict, description="Of figures that are null: why.")
    gpus: tuple[GpuStats, ...] = ()
    peak_power_w: float | None = Field(default=None, description="The most that all GPUs drew at one moment.")
    tokens: dict[str, int] = Field(default_factory=dict, description="Counted: input_tokens, output_tokens, requests.")
    energy_j: Estimate | None = Field(
        default=None, description="Of all GPUs while these were measured, all processes together; null: not told."
    )
    measured_s: float | None = Field(default=None, description="How long that was, all processes together.")
    placement: dict[str, str] | None = None
    notes: tuple[Note, ...] = Field(default=(), description="host_bound, unbalanced, phase_cut_short …")
    partial: bool = Field(default=False, description="Some of its processes, phases or tokens are missing.")
    records: tuple[str, ...] = ()
    origin: Origin = "real"


class EnergyResult(Value):
    """What a run leaves in ``energy.json``: its configuration, its cells."""

    name: str
    model: str
    backend: str
    config: dict[str, str | float | int | bool | None] = Field(description="Flattened: backend_type, device_ids, …")
    run: str | None = Field(default=None, description="The run folder's name.")
    gpu: str | None = Field(default=None, description="The GPUs' name, and how many.")
    started_at: str
    rows: tuple[EnergyRow, ...]
    skipped: dict[str, str] = Field(default_factory=dict, description="Cells that gave nothing: why.")
    notes: tuple[str, ...] = Field(default=(), description="Of the whole run: GPUs that were missing, older names.")
