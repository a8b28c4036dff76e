"""The published tables of kept runs, from their findings."""

from __future__ import annotations

from typing import Any

from assay.core.units import format_time

Findings = dict[str, Any]
TIMES = {"busy_us": "kernels", "call_us": "call"}
PHASES = {"naive": "side by side", "isolated": "isolated", "again": "alone again (A/A)"}


def table(findings: Findings, experiment: str) -> str:
    """Return the findings of an experiment as Markdown."""
    return {"run": run_table, "contention": contention_table, "matrix": matrix_table}[experiment](findings)


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
        if "device" in facts or facts.get("phase") not in PHASES or facts["about"] not in ABOUT:
            continue
        what = ABOUT[facts["about"]].format(time=TIMES.get(facts.get("quantity", ""), ""))
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
    said = [
        f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
        for name, unit in shown.items()
        if (value := facts.get(f"{phase}_{name}")) is not None
    ]
    return ", ".join(said) or "–"
