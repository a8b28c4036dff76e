"""A page with every kind of element, of fixed pseudo-random numbers, and one that tries to break out of its report."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from assay.core.page import (
    Column,
    HeatMap,
    LinePlot,
    Page,
    PlotLine,
    ScatterPlot,
    ScatterPoint,
    Section,
    StripPlot,
    StripRow,
    Table,
    Text,
    Timeline,
    TimelineBar,
)
from assay.reports.documents import to_html

if TYPE_CHECKING:
    from assay.core.page import Figure

NASTY = '<script>alert(1)</script> [red]x[/red] | *b* $\\frac{a}{b}$ & "q" \x1b[31m日本'
LONG = "a_workload/with/many/segments.py:and_a_function_name_that_never_ends_" + "x" * 60


def _samples(seed: int, middle: float, spread: float, n: int, strays: int = 0) -> tuple[float, ...]:
    chance = random.Random(seed)
    body = [middle * chance.lognormvariate(0.0, spread) for _ in range(n)]
    return tuple(body + [middle * chance.uniform(2, 9) for _ in range(strays)])


def strips() -> StripPlot:
    return StripPlot(
        title="Time of one call, every sample",
        name="call_times",
        axis="time of one call",
        unit="ms",
        strips=(
            StripRow(label="softmax@torch", samples=_samples(1, 1.23, 0.03, 240), value=1.231, low=1.224, high=1.239),
            StripRow(
                label="softmax@triton, with online normalisation and a long name",
                samples=_samples(2, 1.02, 0.05, 12000, 9),
                value=1.019,
                low=1.012,
                high=1.027,
            ),
            StripRow(label="examples/kernels/my_softmax.py:fused_softmax_v2", samples=(1.1, 1.14, 1.09), value=1.11),
            StripRow(label="softmax@numpy", samples=()),
        ),
        note="Both were measured in one process, call by call in turns, so that they share every disturbance.",
    )


def lines() -> LinePlot:
    x = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
    mid = tuple(60 * v / (1 + v / 14) for v in x)
    other: tuple[float | None, ...] = tuple(48 * v / (1 + v / 40) if v != 16 else None for v in x)
    return LinePlot(
        title="Throughput grows with the batch until the memory is busy",
        name="throughput",
        x_axis="batch size",
        y_axis="throughput (requests/s)",
        log_x=True,
        lines=(
            PlotLine(label="alone", x=x, y=mid, low=tuple(0.94 * v for v in mid), high=tuple(1.07 * v for v in mid)),
            PlotLine(label="beside a memory-bound neighbour", x=x, y=other),
        ),
        note="The band is the 95 % interval.",
    )


def long_lines() -> LinePlot:
    chance = random.Random(7)
    x = tuple(i * 0.01 for i in range(5000))
    drift = [1700.0]
    for _ in x[1:]:
        drift.append(drift[-1] * 0.995 + 1700 * 0.005 + chance.gauss(0, 6))
    return LinePlot(
        title="Clock of the multiprocessors",
        name="clocks",
        x_axis="time (s)",
        y_axis="clock (MHz)",
        markers=False,
        lines=(PlotLine(label="GPU 0", x=x, y=tuple(drift)),),
    )


def scatter() -> ScatterPlot:
    dots = tuple(
        ScatterPoint(
            label=f"batch {2**n}",
            group=group,
            x=speed * 2 ** (n * 0.9),
            x_low=speed * 2 ** (n * 0.9) * 0.97,
            x_high=speed * 2 ** (n * 0.9) * 1.04,
            y=cost / 2 ** (n * 0.8),
            y_low=cost / 2 ** (n * 0.8) * 0.95,
            y_high=cost / 2 ** (n * 0.8) * 1.05,
            tone="good" if n == 4 else "unsure" if n == 3 else "plain",
        )
        for group, speed, cost in (("eager", 12.0, 11.7), ("graphs", 13.0, 10.9))
        for n in range(5)
    )
    return ScatterPlot(
        title="Joules by speed",
        name="pareto",
        x_axis="tokens/s",
        y_axis="energy (J/token)",
        dots=dots,
        path=(3, 9),
        path_label="the front",
        tones={"good": "on the front", "unsure": "cannot be told", "plain": "dominated"},
        log_x=True,
        log_y=True,
        note="Better is down and to the right.",
    )


def heat_map() -> HeatMap:
    names = ("matmul", "softmax", "layernorm", "copy", "attention")
    cells = (
        (1.02, 1.31, 1.18, 1.92, 1.41),
        (1.12, 1.05, 1.09, 1.66, 1.2),
        (1.08, 1.1, None, 1.71, 1.22),
        (0.97, 1.01, 0.98, 1.98, 1.04),
        (1.22, None, 1.19, 1.83, 1.37),
    )
    return HeatMap(
        title="How much slower the row runs beside the column",
        name="pairs",
        rows=names,
        columns=names,
        cells=cells,
        unit="slowdown (×)",
        centre=1.0,
    )


def plain_heat_map() -> HeatMap:
    return HeatMap(
        title="Bandwidth between devices",
        name="bandwidth",
        rows=("GPU 0", "GPU 1", "GPU 2", "GPU 3"),
        columns=("GPU 0", "GPU 1", "GPU 2", "GPU 3"),
        cells=(
            (None, 240.1, 238.8, 12.4),
            (241.0, None, 239.4, 12.3),
            (239.9, 240.6, None, 12.5),
            (12.1, 12.2, 12.6, None),
        ),
        unit="GB/s",
    )


def timeline() -> Timeline:
    t = tuple(i * 0.25 for i in range(121))
    power = tuple(70 + (230 if 3 < v < 12 or 15 < v < 27 else 0) + 9 * ((i * 37) % 11) / 11 for i, v in enumerate(t))
    return Timeline(
        title="What ran when",
        name="what_ran",
        bars=(
            TimelineBar(lane="GPU 0", label="warm-up", start_s=0.4, end_s=3),
            TimelineBar(lane="GPU 0", label="softmax@torch", start_s=3, end_s=12, tone="good"),
            TimelineBar(lane="GPU 0", label="softmax@triton", start_s=15, end_s=21, tone="good"),
            TimelineBar(lane="GPU 0", label="failed: out of memory", start_s=21.1, end_s=22, tone="bad"),
            TimelineBar(lane="GPU 1", label="load (copy)", start_s=2, end_s=27.4),
            TimelineBar(lane="GPU 1", label="overlaps", start_s=20, end_s=29, tone="unsure"),
            TimelineBar(lane="host, the process that watches", label="monitor", start_s=0, end_s=30),
        ),
        lines=(PlotLine(label="GPU 0, power", x=t, y=power),),
        lines_axis="power (W)",
        note="Power is read every 250 ms.",
    )


def tables() -> tuple[Table, ...]:
    return (
        Table(
            title="Each implementation",
            columns=(
                Column(title="implementation"),
                Column(title="time (ms)", numeric=True),
                Column(title="95 % interval"),
                Column(title="samples", numeric=True),
                Column(title="vs torch", numeric=True),
                Column(title="energy (J)", numeric=True),
            ),
            rows=(
                ("softmax@torch", 1.2312, "1.224 – 1.239", 240, 1.0, 0.3121),
                ("softmax@triton", 1.0189, "1.012 – 1.027", 12009, 0.8276, 0.2711),
                ("my_softmax.py:fused", 1.11, None, 3, 0.9016, None),
                ("softmax@numpy", None, None, 0, None, None),
            ),
            tones=("plain", "good", "unsure", "bad"),
            note="An energy is given where the sensor could resolve it.",
        ),
    )


def full_page() -> Page:
    return Page(
        title="Is the Triton softmax faster?",
        lead="Yes: softmax@triton takes 17.2 % less time than softmax@torch (95 % interval 16.3 % to 18.1 %).",
        lead_tone="good",
        sections=(
            Section(
                title="The answer",
                elements=(
                    Text(
                        text="Both implementations compute the same result to within the tolerance of float32. They "
                        "were timed in turns in one process, restarted five times; the interval is over restarts, so "
                        "that it covers what differs from one process to the next."
                    ),
                    *tables(),
                    Text(text="The Triton kernel was tuned on this machine; elsewhere it may not be.", tone="unsure"),
                    strips(),
                ),
            ),
            Section(title="How it scales", elements=(lines(), scatter(), long_lines())),
            Section(
                title="Beside neighbours",
                elements=(
                    Text(text="Three of the pairs slow each other down by more than half.", tone="bad"),
                    Text(text="Isolation held in every trial.", tone="good"),
                    heat_map(),
                    plain_heat_map(),
                ),
            ),
            Section(title="The run itself", elements=(timeline(),)),
        ),
        facts=(
            ("machine", "node-17, 2 × NVIDIA H100 80GB HBM3"),
            ("driver", "570.86.15, CUDA 12.8"),
            ("command", "assay compare softmax@torch softmax@triton --duration 30s --precision 1%"),
            ("run", "runs/2026-03-01T10-22-05-softmax"),
        ),
    )


def nasty_figures() -> tuple[Figure, ...]:
    """Return figures that are hard to draw: odd names, nothing measured, one value only, strays, many decades."""
    return (
        StripPlot(
            title=NASTY,
            name="odd_strips",
            axis=NASTY,
            unit="%",
            strips=(
                StripRow(label=NASTY, samples=(5.0,) * 9, value=5.0, low=5.0, high=5.0),
                StripRow(label=LONG, samples=(-1.0, float("nan"), float("inf")), value=-1.0),
                StripRow(label="", samples=()),
            ),
        ),
        StripPlot(
            title="Decades",
            name="decades",
            axis="time",
            unit="s",
            strips=(
                StripRow(label="fast", samples=_samples(3, 2e-6, 0.1, 50), value=2e-6, low=1.9e-6, high=2.1e-6),
                StripRow(label="slow", samples=_samples(4, 3e-2, 0.1, 50)),
            ),
        ),
        LinePlot(
            title=NASTY,
            name="odd_lines",
            x_axis=LONG,
            y_axis=NASTY,
            log_x=True,
            log_y=True,
            lines=(
                PlotLine(label=NASTY, x=(0.0, 1.0), y=(None, None)),
                PlotLine(
                    label=LONG, x=(1.0, 2.0, 3.0), y=(None, 5.0, None), low=(None, 4.0, None), high=(None, 6.0, None)
                ),
            ),
        ),
        ScatterPlot(
            title=NASTY,
            name="odd_scatter",
            x_axis=LONG,
            y_axis=NASTY,
            log_x=True,
            log_y=True,
            path=(0, 1),
            path_label=NASTY,
            tones={"plain": LONG},
            dots=(
                ScatterPoint(label=NASTY, group=NASTY, x=0.0, y=-5.0, x_low=-1.0, x_high=1.0),
                *(ScatterPoint(label=LONG, group=LONG, x=1e9, y=1e-9) for _ in range(9)),
                ScatterPoint(label="", x=1e9, y=3.0, y_low=3.0, y_high=3.0),
            ),
        ),
        ScatterPlot(
            title="One",
            name="one_dot",
            x_axis="",
            y_axis="y",
            dots=(ScatterPoint(label="a", x=5.0, y=5.0),),
            log_x=True,
        ),
        ScatterPlot(
            title="Many",
            name="many_dots",
            x_axis="x",
            y_axis="y",
            dots=tuple(ScatterPoint(label=f"dot {i}", x=i % 11, y=i * 7 % 23) for i in range(70)),
            path=(3, 9),
        ),
        LinePlot(title="Nothing", name="no_lines", x_axis="x", y_axis="y", lines=(PlotLine(label="", x=(), y=()),)),
        HeatMap(
            title=NASTY, name="no_cells", rows=(LONG, NASTY), columns=("", LONG), cells=((None,) * 2,) * 2, unit=""
        ),
        HeatMap(
            title="Large",
            name="large",
            rows=tuple(f"core {i}" for i in range(3)),
            columns=tuple(f"core {i}" for i in range(64)),
            cells=tuple(tuple(float(i * j) if i * j else None for j in range(64)) for i in range(3)),
            unit="ns",
            centre=20.0,
        ),
        Timeline(
            title=NASTY,
            name="instant",
            bars=(
                TimelineBar(lane=LONG, label=NASTY, start_s=1, end_s=1),
                TimelineBar(lane=LONG, label="", start_s=1, end_s=1),
            ),
            lines=(PlotLine(label=NASTY, x=(), y=()),),
            lines_axis=NASTY,
        ),
    )


def nasty_page() -> Page:
    """Return a page whose every text tries to be markup."""
    columns = tuple(Column(title=f"{NASTY} {i}", numeric=i > 0) for i in range(12))
    rows = ((LONG, *(10.0**i * (-1) ** i for i in range(11))), (NASTY, *(None,) * 11))
    return Page(
        title=NASTY,
        lead=f"{NASTY}\n{LONG}",
        lead_tone="unsure",
        sections=(
            Section(
                title=NASTY, elements=(Text(text=NASTY, tone="bad"), Table(title=NASTY, columns=columns, rows=rows))
            ),
            Section(title="Nothing", elements=(Table(title="No rows", columns=columns[:1], rows=(), note=NASTY),)),
            Section(title=LONG, elements=nasty_figures()),
        ),
        facts=((NASTY, LONG), (LONG, NASTY)),
        origin="simulated",
    )


@pytest.fixture(scope="session")
def page() -> Page:
    return full_page()


@pytest.fixture(scope="session")
def nasty() -> Page:
    return nasty_page()


@pytest.fixture(scope="session")
def page_html(page: Page) -> str:
    return to_html(page)


@pytest.fixture(scope="session")
def nasty_html(nasty: Page) -> str:
    return to_html(nasty)


@pytest.fixture(scope="session", params=[figure.name for figure in (*full_page().figures, *nasty_figures())])
def figure(request: pytest.FixtureRequest) -> Figure:
    """Each figure of both pages in turn."""
    return {figure.name: figure for figure in (*full_page().figures, *nasty_figures())}[request.param]
