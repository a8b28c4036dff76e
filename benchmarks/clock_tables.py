"""From the kept samples of ``clock.py`` to its tables."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.gpu_kernels import BY_CYCLES

median = statistics.median
REACHED = 0.02
CLEARLY_US = 2.0


def tables(raw: dict[str, Any]) -> list[str]:
    """Return the tables: accuracy of the eight, spins, and cost."""
    return [accuracy_table(raw), spins_table(raw), blocks_table(raw), cost_table(raw)]


def slower_when_traced_us(raw: dict[str, Any], key: str) -> float:
    """Return by how much tracing slows a call, in µs.

    Stamps around it are further apart while the trace is on; by how much for spins, which nothing slows, is their own.
    """
    state = key.split(" | ")[1]
    spins = [k for k in raw["accuracy"] if k.startswith("spin") and k.endswith(state)]
    return float(_apart_us(raw["accuracy"][key]) - median([_apart_us(raw["accuracy"][k]) for k in spins]))


def _apart_us(cell: dict[str, Any]) -> float:
    traced = median([ns for batch in cell["trace"] for ns in batch["stamped_ns"]])
    return float(traced - median([ns for batch in cell["untraced"] for ns in batch])) / 1000


def idle_mhz(raw: dict[str, Any]) -> float:
    """Return the clock while nothing but a spin runs: that of the gaps around a traced kernel."""
    spins = [cell for key, cell in raw["accuracy"].items() if key.startswith("spin")]
    return float(median([repeat["mhz"] for cell in spins for repeat in cell["assay"]]))


def traced_cycles(cell: dict[str, Any], idle: float) -> list[float]:
    """Return the cycles of traced kernels: those between the stamps, less those of the gaps around the kernel."""
    return [
        cycles - (ns / 1000 - us) * idle
        for batch in cell["trace"]
        for us, ns, cycles in zip(batch["busy_us"], batch["stamped_ns"], batch["cycles"] or (), strict=False)
    ]


def accuracy_table(raw: dict[str, Any]) -> str:
    """Return how far Assay is from the trace, and its repeats from each other."""
    lines = [
        "| kernel | cache | trace, µs | Assay, µs | off | allowed | repeats | allowed | tracing adds | off without |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    idle = idle_mhz(raw)
    for key, cell in raw["accuracy"].items():
        name, state = key.split(" | ")
        if not name.startswith("spin"):
            lines.append(_accuracy_line(name, state, cell, idle, slower_when_traced_us(raw, key)))
    return "\n".join(lines)


def _accuracy_line(name: str, state: str, cell: dict[str, Any], idle: float, slower_us: float) -> str:
    by_cycles = name in BY_CYCLES
    truth_us = median([us for batch in cell["trace"] for us in batch["busy_us"]])
    repeats_us = [repeat["busy_us"] for repeat in cell["assay"]]
    repeats, truth, unit = (repeats_us, truth_us, "µs")
    if by_cycles:
        repeats, truth, unit = [r["cycles"] for r in cell["assay"]], median(traced_cycles(cell, idle)), "cycles"
    off = median(repeats) / truth - 1
    summary = f"{100 * off:+.2f} % in cycles" if unit == "cycles" else f"{off * truth_us:+.2f} µs ({100 * off:+.1f} %)"
    clearly = not by_cycles and slower_us > CLEARLY_US
    without = (1 + off) / (1 - slower_us / truth_us) - 1
    short = truth_us <= 10
    spread = (max(repeats) - min(repeats)) / (1 if short else median(repeats))
    within = f"{spread:.3f} µs" if short else f"{100 * spread:.2f} %"
    cells = [
        name,
        state,
        f"{truth_us:.2f}",
        f"{median(repeats_us):.2f}",
        summary + _mark(abs(off) <= max(0.02, 0.3 / truth_us)),
        "0.3 µs" if 0.02 * truth_us <= 0.3 else "2 %",
        within + _mark(spread <= (0.1 if short else 0.01)),
        "0.1 µs" if short else "1 %",
        f"{slower_us:+.1f} µs" if clearly else "–",
        f"{100 * without:+.1f} %" if clearly else "–",
    ]
    return f"| {' | '.join(cells)} |"


def _mark(holds: bool) -> str:  # noqa: FBT001 - a truth value is what is marked
    return "" if holds else " **no**"


def spins_table(raw: dict[str, Any]) -> str:
    """Return how far Assay is from spins of known duration: the spin, and what a kernel takes that does not spin."""
    empty_us = raw["known"]["empty_us"]
    lines = [
        f"| spin, µs (and {empty_us:.2f} µs of an empty kernel) | cache | Assay, µs | difference, µs | allowed, µs |",
        "|---|---|---|---|---|",
    ]
    for key, cell in raw["accuracy"].items():
        name, state = key.split(" | ")
        if name.startswith("spin"):
            true_us = float(name.removeprefix("spin "))
            read = median([repeat["busy_us"] for repeat in cell["assay"]])
            off, allowed = read - true_us - empty_us, max(0.2, 0.01 * true_us)
            lines.append(
                f"| {true_us:g} | {state} | {read:.2f} | {off:+.2f}{_mark(abs(off) <= allowed)} | {allowed:g} |"
            )
    return "\n".join(lines)


def blocks_table(raw: dict[str, Any]) -> str:
    """Return what the trace and the stamps say of a 2 µs spin on more and more thread blocks."""
    lines = [
        "| blocks of 128 threads, each 2 µs of spin | trace, µs | Assay, µs | stamps, untraced | stamps, traced |",
        "|---|---|---|---|---|",
    ]
    for blocks, cell in raw["blocks"].items():
        numbers = (median(cell[name]) for name in ("trace_us", "graph_us", "untraced_us", "traced_us"))
        lines.append(f"| {blocks} | {' | '.join(f'{n:.2f}' for n in numbers)} |")
    return "\n".join(lines)


def cost_table(raw: dict[str, Any]) -> str:
    """Return what each timer takes to come within 2 % of the truth, every time; a dash where it never does."""
    timers = list(dict.fromkeys(key.split(" | ")[0] for cell in raw["cost"].values() for key in cell["timers"]))
    lines = [
        f"| wall-clock to ±2 %, ms | {' | '.join(timers)} | any rival, told to do little |",
        "|---|" + "---|" * (len(timers) + 1),
    ]
    both: dict[str, tuple[float, float]] = {}
    beaten: list[str] = []
    nobody: list[str] = []
    for name, cell in raw["cost"].items():
        slower_us = {state: _correction_us(raw, name, state) for state in ("cold", "warm")}
        usual = {t: _cheapest_ms(cell, t, slower_us, raw["default"] if t != "assay" else None) for t in timers}
        told_little = [_cheapest_ms(cell, t, slower_us, None) for t in timers if t != "assay"]
        least = min((ms for ms in told_little if ms is not None), default=None)
        lines.append(f"| {name} | " + " | ".join(_ms(usual[t]) for t in timers) + f" | {_ms(least)} |")
        best = min((ms for t, ms in usual.items() if t != "assay" and ms is not None), default=None)
        if best is None:
            nobody.append(name)
        elif usual["assay"] is None:
            beaten.append(name)
        else:
            both[name] = (usual["assay"], best)
    return "\n".join([*lines, "", _sum_of(both, beaten, nobody)])


def _sum_of(both: dict[str, tuple[float, float]], beaten: list[str], nobody: list[str]) -> str:
    """Return the sums over what both reach, and what only rivals and what no rival reaches."""
    ours, theirs = (sum(pair[side] for pair in both.values()) for side in (0, 1))
    return (
        f"Over {', '.join(both)}: Assay {ours:.0f} ms, the best rival for each {theirs:.0f} ms: {ours / theirs:.2f}. "
        f"Reached by a rival and not by Assay: {', '.join(beaten) or 'none'}. "
        f"As they come, no rival reaches {', '.join(nobody) or 'none'}."
    )


def _correction_us(raw: dict[str, Any], name: str, state: str) -> float:
    """Return what tracing adds to a kernel, where it can be told from noise and from a moving clock."""
    slower_us = slower_when_traced_us(raw, f"{name} | {state}")
    return slower_us if name not in BY_CYCLES and slower_us > CLEARLY_US else 0.0


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _cheapest_ms(
    cell: dict[str, Any], timer: str, slower_us: dict[str, float], among: list[str] | None
) -> float | None:
    """Return the median wall-clock of the cheapest setting with which a timer was within 2 % every time.

    The truth is the trace beside each try, less what tracing adds.
    """
    results = []
    for key, tries in cell["timers"].items():
        if key.split(" | ")[0] != timer or (among is not None and key not in among):
            continue
        if all(abs(t["us"] / (t["truth_us"] - slower_us[t["cache"]]) - 1) <= REACHED for t in tries):
            results.append(1000 * median([t["took_s"] for t in tries]))
    return min(results, default=None)
