"""The figures of a GPU or of the host, as values: power over time, use, clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Bar, Line, Lines, Timeline
from assay.monitor.quantities import POWERS, meaning

if TYPE_CHECKING:
    from assay.monitor.drawn import Drawn
    from assay.monitor.summary import MonitorStatistics, SourceStatistics

_PERCENT = {
    "utilisation_percent": "GPU busy",
    "memory_utilisation_percent": "memory busy",
    "cpu_percent": "CPUs busy",
    "steal_percent": "taken by the hypervisor",
    "memory_used_percent": "memory used",
}


def figures_of(source: SourceStatistics, found: MonitorStatistics, drawn: Drawn) -> list[Lines | Timeline]:
    """Return what there is to draw of a source."""
    use = _lines(source, drawn, "use", _PERCENT, unit="%")
    if source.source == "host":
        return [*use]
    clock = source.level("sm_mhz")
    moved = clock is not None and clock.minimum < clock.maximum
    clocks = _lines(source, drawn, "SM clock", {"sm_mhz": "SM clock"}, unit="MHz") if moved else []
    return [_power(source, found, drawn), *use, *clocks]


def _figure_name(source: SourceStatistics, what: str) -> str:
    return f"{source.source.replace(':', '')}_{what.replace(' ', '_').lower()}"


def _drawn_lines(source: SourceStatistics, drawn: Drawn, names: dict[str, str]) -> tuple[Line, ...]:
    """Return the lines of a source that there are, by their quantities, with their labels."""
    labelled = ((label, drawn.lines.get((source.source, name))) for name, label in names.items())
    points = [(label, thinned.points) for label, thinned in labelled if thinned is not None]
    return tuple(Line(label=label, x=tuple(p[0] for p in ps), y=tuple(p[1] for p in ps)) for label, ps in points)


def _power(source: SourceStatistics, found: MonitorStatistics, drawn: Drawn) -> Timeline:
    """Return power over time, above what held the clock back and what was marked."""
    names = {name: meaning(name, gpu=True).title.removeprefix("power, ") for name in POWERS}
    bars = [Bar(lane="recorded", label=source.ended or "", start_s=0.0, end_s=_end_s(source, found, drawn))]
    if source.ended:
        bars[0] = bars[0].model_copy(update={"tone": "bad"})
    for reason, start_s, end_s in drawn.spans(source.source, apart_s=found.lasted_s / 100):
        bars.append(Bar(lane="held back", label=reason, start_s=start_s, end_s=min(end_s, found.lasted_s)))
    for mark in found.marks:
        end_s = mark.start_s if mark.end_s is None else mark.end_s
        bars.append(Bar(lane="marks", label=mark.name, start_s=mark.start_s, end_s=end_s))
    return Timeline(
        title=f"{source.title}: power",
        name=_figure_name(source, "power"),
        bars=tuple(bars),
        lines=_drawn_lines(source, drawn, names),
        lines_axis="W",
    )


def _end_s(source: SourceStatistics, found: MonitorStatistics, drawn: Drawn) -> float:
    """Return when a source was last seen, in s; the end of the recording if it lived to see it."""
    if not source.ended:
        return found.lasted_s
    ends = [thinned.points[-1][0] for (of, _), thinned in drawn.lines.items() if of == source.source]
    return max(ends, default=0.0)


def _lines(source: SourceStatistics, drawn: Drawn, what: str, names: dict[str, str], *, unit: str) -> list[Lines]:
    lines = _drawn_lines(source, drawn, names)
    if not lines:
        return []
    return [
        Lines(
            title=f"{source.title}: {what}",
            name=_figure_name(source, what),
            x_axis="time (s)",
            y_axis=unit,
            lines=lines,
            markers=False,
        )
    ]
