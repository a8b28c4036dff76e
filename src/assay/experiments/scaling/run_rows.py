"""What a run of ``assay scaling run`` says of each shape, as rows: with intervals, which older files do not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.scaling.older_rows import SETTING
from assay.experiments.scaling.problem import sends
from assay.experiments.scaling.rows import DEVICE, Row, Span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.values import Params
    from assay.experiments.scaling.analysis import Analysis, Scaled
    from assay.experiments.scaling.numbers import Known
    from assay.experiments.scaling.options import ScalingOptions
    from assay.experiments.scaling.rows import Setting

US_OF_MS = 1e3
MIB_OF_GIB = 1024.0


def rows_of(options: ScalingOptions, analysis: Analysis, source: str, version: str, model: str) -> tuple[Row, ...]:
    """Return a row for each shape that has a time; ``model`` is that of the devices."""
    setting = (*_setting(options, options.subject.params), ("isolation", options.isolation), (DEVICE, model))
    rows = (_row(options, result, source, version, setting) for result in analysis.all)
    return tuple(row for row in rows if row is not None)


def _row(options: ScalingOptions, each: Scaled, source: str, version: str, setting: Setting) -> Row | None:
    time_ms = _span(each["time"], 1 / US_OF_MS)
    if time_ms is None:
        return None
    shape, params, weak = each.shape, options.subject.params, options.mode == "weak"
    alone = Span(1.0, 1.0, 1.0) if shape.world == 1 else None
    batch = params.get("batch")
    efficiency = each["efficiency"].estimate
    over_starts = efficiency is not None and efficiency.scope == "run"
    return Row(
        source=source,
        by=version,
        setting=setting,
        tokens=shape.sequence * (shape.ring if weak else 1),
        batch=batch if isinstance(batch, int) and options.is_attention else None,
        world=shape.world,
        ring=shape.ring,
        weak=weak,
        over_starts=over_starts,
        time_ms=time_ms,
        throughput=_span(each["throughput"]),
        speedup=alone or _span(each["speedup"]),
        efficiency=alone or _span(each["efficiency"]),
        communication_ms=_communication_ms(options, each),
        memory_gib=_most([] if each.facts is None else [m.allocated_mib for m in each.facts.memory]),
        note=each["efficiency"].why_unsure if shape.world > 1 else None,
    )


def _communication_ms(options: ScalingOptions, each: Scaled) -> float | None:
    """Return what the transfers take by themselves; 0 where nothing is sent, null where it is not known."""
    if options.is_attention and not sends(options, each.shape):
        return 0.0
    known_us = each["communication"].value
    return None if known_us is None else known_us / US_OF_MS


def _span(number: Known, scale: float = 1.0) -> Span | None:
    if number.value is None:
        return None
    low, high = number.ends or (None, None)
    return Span(number.value * scale, None if low is None else low * scale, None if high is None else high * scale)


def _most(mib: Sequence[float | None]) -> float | None:
    return max((value / MIB_OF_GIB for value in mib if value is not None), default=None)


def _setting(options: ScalingOptions, params: Params) -> Setting:
    """Return the parameters by the names that the older files have for them; of another workload, all of them."""
    if not options.is_attention:
        config = ((f"config {name}", str(value)) for name, value in (options.subject.config or {}).items())
        return (("workload", options.subject.label), *((name, str(value)) for name, value in params.items()), *config)
    heads, dim = params["heads"], params["dim"]
    values = {
        "embed_dim": int(str(heads)) * int(str(dim)),
        "num_heads": heads,
        "num_kv_heads": None if params["key_heads"] == heads else params["key_heads"],
        "segment_lengths": str(params["segments"]).replace(",", "/"),
        "dilation_rates": str(params["rates"]).replace(",", "/"),
        "dtype": params["dtype"],
        "causal": str(params["causal"]).lower(),
        "offset": None if params["offset"] == "modulo" else params["offset"],
        "backend": params["backend"],
    }
    return tuple((name, str(values[name])) for name in SETTING if values.get(name) is not None)
