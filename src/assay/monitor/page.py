"""A recording as a page: what the samples say in tables, and how it went in figures."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from assay.core.page import Column, Page, Section, Table, Text
from assay.core.units import format_span
from assay.monitor.drawn import Drawn
from assay.monitor.figures import figures_of
from assay.monitor.quantities import POWERS, meaning
from assay.monitor.statistics import Tally

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.core.page import Cell, Element
    from assay.monitor.lines import Line as Recorded
    from assay.monitor.summary import Counted, Level, MonitorStatistics, SourceStatistics

IN_SHORT, WORTH_KNOWING = "In short", "Worth knowing"
BUSIEST = 5
MEGA = 1e6
MOST_STOPPED = 4
LEAST_SILENT_S, SILENT_READINGS = 0.5, 3.0
"""A quantity has stopped when it was silent for longer than this, and than so many of its readings are apart."""


def page_of(lines: Iterable[Recorded], *, name: str) -> tuple[MonitorStatistics, Page]:
    """Return what a recording says, and the page that shows it; ``name`` is the file's."""
    tally, curves = Tally(), Drawn()
    for line in lines:
        tally.add(line)
        curves.add(line)
    statistics = tally.told(None)
    return statistics, build(statistics, curves, name)


def build(found: MonitorStatistics, drawn: Drawn, name: str) -> Page:
    """Return the page of a recording."""
    started = datetime.fromtimestamp(found.wall_ns / 1e9, UTC)
    return Page(
        title=f"assay monitor: {name}",
        lead=lead(found),
        lead_tone="plain" if found.finished and not found.partial else "unsure",
        sections=(
            *_warnings(found),
            *_in_short(found),
            *(_section(source, found, drawn) for source in found.sources),
            *_marks(found),
        ),
        facts=(
            ("began", started.isoformat(timespec="milliseconds")),
            ("interval", f"{found.interval_s * 1e3:g} ms"),
            ("mean, time mean", "of the samples; of the straight lines between them, which missed ticks do not bend"),
            ("counter difference", "last reading less the first; edges are not interpolated"),
        ),
        origin=found.origin,
    )


def lead(found: MonitorStatistics) -> str:
    """Return what happened in one sentence."""
    gpus = [source for source in found.sources if source.source != "host"]
    host = ["the host"] if found.of("host") is not None else []
    watched = " and ".join([*([f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''}"] if gpus else []), *host])
    together = found.together
    peak = "" if together.peak_power_w is None else f"; at most {together.peak_power_w:.0f} W at one moment"
    energy = "" if together.energy_j is None else f", {together.energy_j:.0f} J by the counters"
    cut = "" if found.finished else "; the recording was cut off"
    lost = [f"GPU {source.source.removeprefix('gpu:')}" for source in found.sources if source.ended]
    partial = f" Partial: {', '.join(lost)} {'was' if len(lost) == 1 else 'were'} lost." if lost else ""
    return f"Watched {watched or 'nothing'} for {format_span(found.lasted_s)}{peak}{energy}{cut}.{partial}"


def _warnings(found: MonitorStatistics) -> list[Section]:
    warnings = [
        f"{s.title}: lost before the end, {s.ended}. Its figures are of {s.n} samples until then."
        for s in found.sources
        if s.ended
    ]
    warnings += [f"{s.title}: {message}." for s in found.sources for message in missing_values(s)]
    warnings += [f"{s.title}: {s.missed} of {s.n + s.missed} samples missed." for s in found.sources if s.missed]
    warnings += [f"{s.title}: {c.note}." for s in found.sources for c in s.counted if c.note]
    warnings += [f"{note[:1].upper()}{note[1:]}." for note in found.notes]
    return (
        [Section(title=WORTH_KNOWING, elements=tuple(Text(text=t, tone="unsure") for t in warnings))]
        if warnings
        else []
    )


def missing_values(source: SourceStatistics) -> list[str]:
    """Say which quantities only some samples had, and which stopped being read before the last sample."""
    gpu = source.source != "host"
    few: dict[int, list[str]] = {}
    for level in source.levels:
        if gpu and level.n < source.n:
            few.setdefault(level.n, []).append(meaning(level.quantity, gpu=gpu).title)
    remarks = [f"{n} of {source.n} samples had {'; '.join(titles)}" for n, titles in few.items()]
    read: list[Level | Counted] = [*source.counted, *(() if gpu else source.levels)]
    stopped = [
        f"{meaning(one.quantity, gpu=gpu).title}: last read {one.silent_s:.1f} s before the last sample"
        for one in read
        if _has_stopped(one, source)
    ]
    more = len(stopped) - MOST_STOPPED
    return [*remarks, *stopped[:MOST_STOPPED], *([f"{more} more were no longer read"] if more > 0 else [])]


def _has_stopped(one: Level | Counted, source: SourceStatistics) -> bool:
    """Whether a quantity was silent for far longer than it took from one reading to the next."""
    read_s = source.lasted_s - one.silent_s
    every_s = read_s / (one.n - 1) if one.n > 1 else source.lasted_s / max(1, source.n)
    return one.silent_s > max(LEAST_SILENT_S, SILENT_READINGS * every_s)


def _in_short(found: MonitorStatistics) -> list[Section]:
    """Return the figures that are asked for first, a row for each GPU, and a sentence about the host."""
    gpus = [source for source in found.sources if source.source != "host" and source.n]
    titles = ("busy, mean %", "memory, highest MiB", "power, mean W", "highest W", "energy, J", "hottest °C")
    columns = (Column(title="GPU"), *(Column(title=t, numeric=True) for t in titles), Column(title="SM clock, MHz"))
    table = Table(
        title="GPUs",
        columns=columns,
        rows=tuple(map(_gpu_row, gpus)),
        note="Means are weighted by time. Energy is the difference of the card's own counter.",
    )
    host = found.of("host")
    host_text = None if host is None else _host_in_short(host)
    elements: list[Element] = [*([table] if gpus else []), *([Text(text=host_text)] if host_text else [])]
    return [Section(title=IN_SHORT, elements=tuple(elements))] if elements else []


def _gpu_row(source: SourceStatistics) -> tuple[Cell, ...]:
    busy, memory = source.level("utilisation_percent"), source.level("memory_used_mib")
    power = next((level for name in POWERS if (level := source.level(name)) is not None), None)
    heat, clock = source.level("temperature_c"), source.level("sm_mhz")
    return (
        source.title.removeprefix("GPU "),
        _mean(busy),
        None if memory is None else memory.maximum,
        _mean(power),
        None if power is None else power.maximum,
        source.difference("energy_j"),
        None if heat is None else heat.maximum,
        None if clock is None else f"{clock.minimum:.0f} – {clock.maximum:.0f}",
    )


def _mean(level: Level | None) -> float | None:
    return None if level is None else level.mean if level.time_mean is None else level.time_mean


def _host_in_short(host: SourceStatistics) -> str | None:
    words = {
        "cpu_percent": "CPUs {mean:.1f} % busy (at most {most:.0f} %)",
        "steal_percent": "the hypervisor took {mean:.1f} % (at most {most:.0f} %)",
        "memory_used_mib": "{most:.0f} MiB of memory used at most",
    }
    levels = [(level, text) for name, text in words.items() if (level := host.level(name)) is not None]
    summary = ", ".join(text.format(mean=_mean(level), most=level.maximum) for level, text in levels)
    return f"Host: {summary}." if summary else None


def _section(source: SourceStatistics, found: MonitorStatistics, drawn: Drawn) -> Section:
    if not source.n:
        return Section(title=source.title, elements=(Text(text="No sample was taken.", tone="unsure"),))
    elements: list[Element] = [_levels(source), *_counted(source), *_throttle(source), *_busiest(source)]
    if source.source == "host":
        elements += _top(found)
    elements += figures_of(source, found, drawn)
    return Section(title=source.title, elements=tuple(elements))


def _levels(source: SourceStatistics) -> Table:
    titles = ("samples", "mean", "time mean", "lowest", "highest")
    gpu = source.source != "host"
    rows: list[tuple[Cell, ...]] = [
        (
            meaning(level.quantity, gpu=gpu).title,
            level.unit,
            level.n,
            level.mean,
            level.time_mean,
            level.minimum,
            level.maximum,
        )
        for level in source.levels
        if "[" not in level.quantity
    ]
    columns = (Column(title="what"), Column(title="unit"), *(Column(title=title, numeric=True) for title in titles))
    missed = f", {source.missed} missed" if source.missed else ""
    return Table(title=f"Levels, of {source.n} samples{missed}", columns=columns, rows=tuple(rows))


def _counted(source: SourceStatistics) -> list[Table]:
    gpu = source.source != "host"
    rows: list[tuple[Cell, ...]] = []
    for counted in source.counted:
        info = meaning(counted.quantity, gpu=gpu)
        scale, unit = (MEGA, "MB") if info.unit == "B" else (1.0, info.unit)
        cells = [None if value is None else value / scale for value in (counted.difference, counted.per_s)]
        rows.append((info.title, unit, *cells))
    columns = (
        Column(title="what"),
        Column(title="unit"),
        Column(title="difference", numeric=True),
        Column(title="per second", numeric=True),
    )
    return [Table(title="What counts up", columns=columns, rows=tuple(rows))] if rows else []


def _throttle(source: SourceStatistics) -> list[Table]:
    rows = tuple((reason, 100 * share) for reason, share in sorted(source.throttle_share.items()))
    columns = (Column(title="reason"), Column(title="% of the time", numeric=True))
    return [Table(title="Why the clock was not higher", columns=columns, rows=rows)] if rows else []


def _busiest(source: SourceStatistics) -> list[Table]:
    cores = [level for level in source.levels if level.quantity.startswith("core_percent[")]
    ranked = sorted(cores, key=lambda level: -(level.time_mean or level.mean))[:BUSIEST]
    rows = tuple((level.quantity[len("core_percent[") : -1], level.mean, level.maximum) for level in ranked)
    columns = (Column(title="CPU"), Column(title="busy, mean %", numeric=True), Column(title="highest %", numeric=True))
    return [Table(title=f"The busiest of {len(cores)} CPUs", columns=columns, rows=rows)] if rows else []


def _top(found: MonitorStatistics) -> list[Table]:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (one.name, one.pid, one.cores, None if one.cpus is None else ", ".join(map(str, one.cpus)))
        for one in found.busiest
    )
    columns = (
        Column(title="process"),
        Column(title="number"),
        Column(title="CPUs' worth of time", numeric=True),
        Column(title="may run on"),
    )
    return [Table(title="The busiest processes", columns=columns, rows=rows)] if rows else []


def _marks(found: MonitorStatistics) -> list[Section]:
    rows = tuple((m.name, m.start_s, m.end_s, None if m.end_s is None else m.end_s - m.start_s) for m in found.marks)
    titles = ("from, s", "until, s", "lasted, s")
    columns = (Column(title="mark"), *(Column(title=title, numeric=True) for title in titles))
    table = Table(title="Marks and windows", columns=columns, rows=rows)
    return [Section(title="Marks", elements=(table,))] if rows else []
