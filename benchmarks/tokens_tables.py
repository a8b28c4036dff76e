"""The published tables of what a token costs: cells, two runs side by side, a bare loop, a split model."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from assay.experiments.registry import find
from assay.runner import conclude

if TYPE_CHECKING:
    from assay.store.runs import RunFolder

Row = dict[str, Any]
NOTHING: Row = {"figures": {}}
JOULES = ("prefill_j_per_token", "decode_j_per_token")


def cells_of(folder: RunFolder) -> list[Row]:
    """Return the rows of a run, computed anew."""
    import json

    conclude(find(folder.plan.experiment), folder)
    return list(json.loads((folder.path / "energy.json").read_text(encoding="utf-8"))["rows"])


def name_of(row: Row) -> str:
    """Return what a cell is called in a table."""
    return f"{row['cell']['mode']}, batch {row['cell']['batch']}"


def told(row: Row, figure: str, scale: float = 1.0) -> str:
    """Return a figure with half its interval in percent."""
    found = row["figures"].get(figure)
    if found is None:
        return "–"
    if found["low"] is None:
        return f"{scale * found['value']:.4g}"
    half = (found["high"] - found["low"]) / 2 / abs(found["value"])
    return f"{scale * found['value']:.4g} ± {100 * half:.1f} %"


def reached(rows: list[Row]) -> str:
    """Return the table of a run."""
    lines = [
        "| cell | prefill, mJ/token | decode, J/token | decode, tokens/s | of bandwidth | GPU busy | phases / whole |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            told(row, "prefill_j_per_token", 1e3),
            told(row, "decode_j_per_token"),
            told(row, "decode_tokens_per_s"),
            told(row, "bandwidth_share"),
            told(row, "busy_share"),
            told(row, "phases_share"),
        ]
        lines.append(f"| {name_of(row)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def agreement(first: list[Row], again: list[Row]) -> str:
    """Return the table of two runs, the second with windows twice as long."""
    lines = [
        "| cell | energy | first, J/token | twice as long, J/token | ratio | intervals meet |",
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
                f"| {name_of(row)} | {figure.partition('_')[0]} | {told(row, figure)} | {told(other, figure)} "
                f"| {ratio:.3f} | {meet} |"
            )
    return "\n".join(lines)


def against_bare(rows: list[Row], bare: dict[str, Any]) -> str:
    """Return the table of decoding in a plain loop, beside a bare ``generate`` of the same visit."""
    lines = ["| batch | eager, tokens/s | bare generate, tokens/s | ratio |", "|---|---|---|---|"]
    for row in rows:
        times = bare["batches"].get(str(row["cell"]["batch"]))
        rate = row["figures"].get("decode_tokens_per_s")
        if row["cell"]["mode"] != "eager" or times is None or rate is None:
            continue
        decoding_s = statistics.median(times["all_s"]) - statistics.median(times["one_s"])
        alone = row["cell"]["batch"] * (bare["output_tokens"] - 1) / decoding_s
        lines.append(f"| {row['cell']['batch']} | {rate['value']:.1f} | {alone:.1f} | {rate['value'] / alone:.3f} |")
    return "\n".join(lines)


def split_line(split: dict[str, Any]) -> str:
    """Return one line about a model that is split."""
    places = split["placement"].values()
    counted = ", ".join(f"{sum(place == each for place in places)} parts on {each}" for each in dict.fromkeys(places))
    share = split["max_error"] / split["largest_logit"]
    return f"`{split['model']}` split by max_memory: {counted}, as planned; logits are off by {share:.1e}."
