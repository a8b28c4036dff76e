"""The published tables of kept runs, from their findings."""

from __future__ import annotations

from typing import Any

from assay.core.format import format_time

Findings = dict[str, Any]
TIMES = {"busy_us": "kernels", "call_us": "call"}
PHASES = {"naive": "side by side", "isolated": "isolated", "again": "alone again (A/A)"}


def table(findings: Findings, experiment: str) -> str:
    """Return the findings of an experiment as Markdown."""
    return {
        "run": run_table,
        "contention": contention_table,
        "matrix": matrix_table,
        "power": power_table,
        "power_sweep": sweep_table,
        "scaling": scaling_table,
        "threshold": threshold_table,
        "scaling_prediction": prediction_table,
    }[experiment](findings)


def run_table(findings: Findings) -> str:
    """Return the findings of ``assay run``."""
    lines = [
        "| workload | backend seen | median | 95 % interval | TFLOP/s | of the matmul | GB/s | of the copy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for finding in findings["findings"]:
        facts, estimate = finding["facts"], finding["estimate"]
        span = "none: two levels" if "two levels" in estimate["method"] else "none"
        if estimate["low"] is not None:
            span = f"{format_time(estimate['low'])} – {format_time(estimate['high'])}"
        lines.append(
            f"| `{facts['workload']}` | {facts['backend']} | {format_time(estimate['value'])} | {span} "
            f"| {facts['gflops'] / 1e3:.1f} | {facts['matmul_percent']:.1f} % "
            f"| {facts['gb_s']:.0f} | {facts['copy_percent']:.1f} % |"
        )
    return "\n".join(lines)


def contention_table(findings: Findings) -> str:
    """Return what ``assay contention run`` found of all devices and workers together."""
    lines = [findings["headline"], "", "| phase | what | over alone | verdict |", "|---|---|---|---|"]
    for finding in findings["findings"]:
        facts = finding["facts"]
        if "device" in facts or facts.get("phase") not in PHASES or finding["kind"] not in ABOUT:
            continue
        what = ABOUT[finding["kind"]].format(time=TIMES.get(facts.get("quantity", ""), ""))
        lines.append(f"| {PHASES[facts['phase']]} | {what} | {_estimate(finding['estimate'])} | {finding['verdict']} |")
    return "\n".join(lines)


ABOUT = {
    "time": "mean time, {time}",
    "spread": "CV of repeats, ratio",
    "variation": "CV of repeats",
    "mismatch": "other picks than alone",
    "regret": "quiet time of what was picked",
}


def matrix_table(findings: Findings) -> str:
    """Return what ``assay contention matrix`` found of the median times, and how hard aggressors pressed."""
    medians = [f for f in findings["findings"] if f["facts"].get("measure") == "median"]
    lines = [
        "| victim | time of | aggressor | naive, × alone | isolated, × alone | outcome |",
        "|---|---|---|---|---|---|",
    ]
    for finding in medians:
        facts = finding["facts"]
        isolated = {
            "value": facts["isolated"],
            "low": facts["isolated_low"],
            "high": facts["isolated_high"],
            "unit": "×",
        }
        lines.append(
            f"| `{facts['victim']}` | {TIMES[facts['quantity']]} | {facts['aggressor']} "
            f"| {_estimate(finding['estimate'])} | {_estimate(isolated)} | {finding['reason']} |"
        )
    lines += ["", "| aggressor | naive | isolated |", "|---|---|---|"]
    pressed = {f["facts"]["aggressor"]: f["facts"] for f in medians}
    lines += [
        f"| {name} | {_pressed(facts, 'naive')} | {_pressed(facts, 'isolated')} |" for name, facts in pressed.items()
    ]
    return "\n".join(lines)


def _estimate(estimate: Findings | None) -> str:
    if estimate is None or estimate["value"] is None:
        return "–"
    value, low, high = estimate["value"], estimate["low"], estimate["high"]
    digits = 3 if estimate["unit"] == "×" and abs(value - 1) < 0.1 else 2 if value < 100 else 0
    unit = f" {estimate['unit']}" if estimate["unit"] == "%" else ""
    if low is None or high is None:
        return f"{value:.{digits}f}{unit}"
    return f"{value:.{digits}f} ({low:.{digits}f} – {high:.{digits}f}){unit}"


def _pressed(facts: Findings, phase: str) -> str:
    shown = {"gb_s": "GB/s", "gflops": "GFLOP/s", "cores": "cores"}
    output = [
        f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
        for name, unit in shown.items()
        if (value := facts.get(f"{phase}_{name}")) is not None
    ]
    return ", ".join(output) or "–"


SCALING = {
    "time": ("time of a call, forward and backward, ms", 1e-3),
    "efficiency": ("efficiency, %", 100.0),
    "compute": ("computing only, ms", 1e-3),
    "communication": ("transfers only, ms", 1e-3),
    "overlap": ("hidden behind computing, %", 100.0),
    "check_total": ("worst error over that of plain attention in the same dtype", 1.0),
    "received_bytes": ("received, MB", 1e-6),
}


def scaling_table(findings: Findings) -> str:
    """Return what ``assay scaling run`` found of each shape."""
    lines = [findings["headline"], "", "| ranks | what | measured (95 %) |", "|---|---|---|"]
    for finding in findings["findings"]:
        facts, estimate = finding["facts"], finding["estimate"]
        if finding["kind"] in SCALING and estimate is not None:
            what, factor = SCALING[finding["kind"]]
            scaled = {name: _times(estimate[name], factor) for name in ("value", "low", "high")}
            lines.append(f"| {facts['world']} | {what} | {_estimate({**scaled, 'unit': ''})} |")
    return "\n".join(lines)


def prediction_table(findings: Findings) -> str:
    """Return what ``assay scaling predict`` said of each count of GPUs."""
    lines = [
        "| GPUs | positions each | computes, ms | transfers, ms | predicted, ms | efficiency | MiB (peak alone) |",
        "|---|---|---|---|---|---|---|",
    ]
    for finding in findings["findings"]:
        facts = finding["facts"]
        times = [_ms(facts[name]) for name in ("compute_s", "communication_s", "time_s", "time_low_s", "time_high_s")]
        within = f"{times[2]} ({times[3]} – {times[4]})" if facts["time_s"] is not None else finding["reason"]
        peak = "–" if facts["peak_allocated_mib"] is None else f"{facts['peak_allocated_mib']:.0f}"
        efficient = _percent(finding["estimate"])
        lines.append(
            f"| {facts['world']} | {facts['shard']} | {times[0]} | {times[1]} | {within} | {efficient} "
            f"| {facts['memory_mib']:.0f} ({facts['memory_low_mib']:.0f} – {facts['memory_high_mib']:.0f}; {peak}) |"
        )
    return "\n".join(lines)


def power_table(findings: Findings) -> str:
    """Return what ``assay power characterize`` found of each GPU in each case, and what company changed."""
    lines = [
        "| case | kernel, ms (95 %) | CV | W | J a kernel (95 %) | GFLOP/J | SM, MHz | °C | held back |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for facts in (f["facts"] for f in findings["findings"] if f["kind"] == "gpu"):
        ms = {"unit": "ms"} | {k: _times(facts[f"{name}_us"], 1e-3) for k, name in _ENDS.items()}
        spent = {"value": facts["energy_per_call_j"], "low": facts["energy_low_j"], "high": facts["energy_high_j"]}
        lines.append(
            f"| {facts['case']} | {_estimate(ms)} | {_digits(_times(facts['cv'], 100), 2)} % | {facts['power_w']:.0f} "
            f"| {_estimate(spent | {'unit': 'J'})} | {_digits(facts['gflop_per_j'], 1)} | {facts['sm_mhz']:.0f} "
            f"| {facts['temperature_c']:.0f} | {facts['held_back'] or '–'} |"
        )
    changes = [f for f in findings["findings"] if f["kind"] == "company"]
    return "\n".join([*lines, *(f"\n- {f['claim']}: {_estimate(f['estimate'])}, {f['verdict']}" for f in changes)])


_ENDS = {"value": "median", "low": "low", "high": "high"}


def sweep_table(findings: Findings) -> str:
    """Return what ``assay power sweep`` found."""
    lines = [findings["headline"], "", "| claim | estimate (95 %) | verdict |", "|---|---|---|"]
    lines += [f"| {f['claim']} | {_estimate(f['estimate'])} | {f['verdict']} |" for f in findings["findings"]]
    return "\n".join(lines)


def threshold_table(findings: Findings) -> str:
    """Return what ``assay threshold run`` decided, and why."""
    lines = ["| threshold | decided on | from | interval | parity | why |", "|---|---|---|---|---|---|"]
    for finding in (f for f in findings["findings"] if f["kind"] in {"threshold", "time"}):
        facts = finding["facts"]
        value = {"disable": "never", "unsure": "not known"}.get(facts["decision"], facts["value"])
        within = "–" if facts["low"] is None else f"{facts['low']} to {facts['high']}"
        why = finding["reason"] or "–"
        lines.append(f"| {facts['name']} | {facts['decided_on']} | {value} | {within} | {facts['parity']} | {why} |")
    return "\n".join(lines)


def _digits(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.2f}"


def _percent(estimate: Findings | None) -> str:
    if estimate is None:
        return "–"
    return f"{estimate['value']:.1%} ({estimate['low']:.1%} – {estimate['high']:.1%})"
