"""The published tables of what a token costs: cells, two runs side by side, a bare loop, a split model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.experiments.base import conclude, find_experiment
from assay.stats.sensor_intervals import ProcessReading, combine_processes

if TYPE_CHECKING:
    from assay.store.run_folder import RunFolder

Row = dict[str, Any]
NOTHING: Row = {"figures": {}}
JOULES = ("prefill_j_per_token", "decode_j_per_token")


def cells_of(folder: RunFolder) -> list[Row]:
    """Return the rows of a run, computed anew."""
    import json

    conclude(find_experiment(folder.plan.experiment), folder)
    return list(json.loads((folder.path / "energy.json").read_text(encoding="utf-8"))["rows"])


def csv_of(folder: RunFolder) -> str:
    """Return the table that a run leaves for other programs, computed anew; it is not said where it lies now."""
    conclude(find_experiment(folder.plan.experiment), folder)
    return (folder.path / "energy.csv").read_text(encoding="utf-8").replace(folder.path.name, "tokens")


def name_of(row: Row) -> str:
    """Return what a cell is called in a table."""
    return f"{row['cell']['mode']}, batch {row['cell']['batch']}"


def show_figure(row: Row, figure: str, scale: float = 1.0) -> str:
    """Return a figure with half its interval in percent."""
    result = row["figures"].get(figure)
    if result is None:
        return "–"
    if result["low"] is None:
        return f"{scale * result['value']:.4g}"
    half = (result["high"] - result["low"]) / 2 / abs(result["value"])
    return f"{scale * result['value']:.4g} ± {100 * half:.1f} %"


def over(ratios: list[float]) -> str:
    """Return the geometric mean of ratios with its 95 % interval."""
    result = combine_processes([ProcessReading(ratio) for ratio in ratios])
    return (
        f"{result.value:.3f} ({result.low:.3f}–{result.high:.3f})" if result.low is not None else f"{result.value:.3f}"
    )


def reached(rows: list[Row]) -> str:
    """Return the table of a run."""
    lines = [
        "| cell | prefill, mJ/token | decode, J/token | decode, tokens/s | of bandwidth | GPU busy | phases / whole |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            show_figure(row, "prefill_j_per_token", 1e3),
            show_figure(row, "decode_j_per_token"),
            show_figure(row, "decode_tokens_per_s"),
            show_figure(row, "bandwidth_share"),
            show_figure(row, "busy_share"),
            show_figure(row, "phases_share"),
        ]
        lines.append(f"| {name_of(row)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def agreement(first: list[Row], again: list[Row]) -> str:
    """Return the table of two runs: where their intervals meet, they agree."""
    lines = [
        "| cell | energy | first run, J/token | other run, J/token | ratio | intervals meet |",
        "|---|---|---|---|---|---|",
    ]
    others = {name_of(row): row for row in again}
    for row in first:
        other = others.get(name_of(row), NOTHING)
        for figure in JOULES:
            one, two = row["figures"].get(figure), other["figures"].get(figure)
            if one is None or two is None:
                continue
            meet = "yes" if one["low"] <= two["high"] and two["low"] <= one["high"] else "no"
            ratio = two["value"] / one["value"]
            lines.append(
                f"| {name_of(row)} | {figure.partition('_')[0]} | {show_figure(row, figure)} "
                f"| {show_figure(other, figure)} | {ratio:.3f} | {meet} |"
            )
    return "\n".join(lines)


def against_bare(bare: dict[str, Any]) -> str:
    """Return the table of decoding in our plain loop and in a bare ``generate``, in turns in one process."""
    lines = ["| batch | ours, tokens/s | bare generate, tokens/s | ours over bare |", "|---|---|---|---|"]
    for batch, times in bare["batches"].items():
        tokens = int(batch) * (bare["output_tokens"] - 1)
        bare_s = [sum(times["bare_s"][2 * n : 2 * n + 2]) - 2 * one_s for n, one_s in enumerate(times["one_s"])]
        ours_s = [sum(times["ours_s"][2 * n : 2 * n + 2]) for n in range(len(bare_s))]
        ratio = over([b / o for b, o in zip(bare_s, ours_s, strict=True)])
        rates = [2 * tokens * len(entry) / sum(entry) for entry in (ours_s, bare_s)]
        lines.append(f"| {batch} | {rates[0]:.1f} | {rates[1]:.1f} | {ratio} |")
    return "\n".join(lines)


def split_line(split: dict[str, Any]) -> str:
    """Return one line about a model that is split."""
    positions = split["placement"].values()
    counted = ", ".join(
        f"{sum(part == device for part in positions)} parts on {device}" for device in dict.fromkeys(positions)
    )
    share = split["max_error"] / split["largest_logit"]
    return f"`{split['model']}` split by max_memory: {counted}, as planned; logits are off by {share:.1e}."
