"""A measurement or a comparison in a terminal: nothing wider than it, nothing lost, the same without colour."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from assay.core.results import Estimate
from assay.reports.terminal import print_comparison, print_measurement
from assay.timing.results import ClockSummary, ComparedFunction, Comparison, Measurement, ProcessTimes


def us(value: float, half: float | None = 0.004) -> Estimate:
    low, high = (None, None) if half is None else (value * (1 - half), value * (1 + half))
    return Estimate(value=value, low=low, high=high, unit="us", scope="process", method="median", n=20)


MEASURED = Measurement(
    name="softmax@torch", device="cuda:0", cache="cold", method="graph", why="it can be captured",
    busy_us=us(13.6), span_us=us(14.2), call_us=us(995.0, 0.02), cycles=us(26_900.0), decisive="busy_us",
    instrument_error_us=0.3, operations=2, precision_wanted=0.01, precision_reached=0.004, stopped="precise enough",
    shape="steady", warmed_up=True, clock=ClockSummary(mhz_low=1500, mhz=1800, mhz_high=1980), samples=1234, calls=40,
    took_s=0.31, notes=("the clock was throttled (power cap): read times together with cycles",),
)  # fmt: skip

COMPARED = Comparison(
    first="old", first_us=us(10.0),
    others=(
        ComparedFunction(name="new", verdict="faster", ratio=0.5, low=0.49, high=0.51, time_us=us(5.0)),
        ComparedFunction(name="worse", verdict="slower", ratio=2.0, low=1.9, high=2.1, time_us=us(20.0)),
        ComparedFunction(name="alike", verdict="same", ratio=1.0, low=0.999, high=1.001, time_us=us(10.0)),
        ComparedFunction(name="who knows", verdict="unsure", ratio=1.1, low=None, high=None, time_us=us(11.0, None),
                 reason="the ratio switches between two levels"),
    ),
    quantity="busy_us", minimum_effect=0.01, device="cuda:0", cache="warm", methods={"old": "graph", "new": "queue"},
    pairs=44, stopped="budget spent", clock=ClockSummary(mhz_low=1980, mhz=1980, mhz_high=1980), took_s=12.0,
    notes=("new: its calls differ",),
)  # fmt: skip


def printed(what: Measurement | Comparison, *, width: int = 100, colour: bool = False, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    console = Console(file=file, width=width, force_terminal=colour, color_system="truecolor" if colour else None)
    if isinstance(what, Measurement):
        print_measurement(what, console)
    else:
        print_comparison(what, console)
    return raw.getvalue().decode(encoding)


def squeezed(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("width", [40, 80, 132])
@pytest.mark.parametrize("what", [MEASURED, COMPARED], ids=["measurement", "comparison"])
def test_no_line_is_wider_than_the_console(what: Measurement | Comparison, width: int) -> None:
    assert max(cell_len(line) for line in printed(what, width=width).split("\n")) <= width


@pytest.mark.parametrize("what", [MEASURED, COMPARED], ids=["measurement", "comparison"])
def test_with_colour_the_words_are_the_same(what: Measurement | Comparison) -> None:
    coloured = printed(what, colour=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == printed(what)


@pytest.mark.parametrize("what", [MEASURED, COMPARED], ids=["measurement", "comparison"])
def test_an_output_without_all_letters_gets_the_nearest_ones(what: Measurement | Comparison) -> None:
    assert "us" in printed(what, encoding="ascii")
    assert "?" not in printed(MEASURED, encoding="ascii")


def test_the_three_times_stand_under_each_other_with_their_intervals() -> None:
    lines = printed(MEASURED).splitlines()
    assert lines[0] == "softmax@torch on cuda:0, cold cache"
    assert [line.split()[0] for line in lines[4:7]] == ["busy", "span", "call"]
    assert "13.55 – 13.65 µs" in lines[4]
    assert "975.1 µs – 1.015 ms" in lines[6]


def test_how_it_was_measured_stands_below() -> None:
    text = squeezed(printed(MEASURED, width=80))
    for words in (
        "±1 % reached, with 95 % confidence", "1,234 in 0.31 s", "graph: it can be captured",
        "2 kernels, copies and fills", "good to ±300.0 ns", "1800 MHz (1500–1980), 26,900 cycles", "power cap",
    ):  # fmt: skip
        assert squeezed(words) in text


def test_an_interval_of_one_process_says_so_on_its_face() -> None:
    for what in (MEASURED, COMPARED):
        assert squeezed("interval of this one process and this window") in squeezed(printed(what))


def test_an_interval_over_processes_says_over_how_many_and_how_far_they_lie_apart() -> None:
    each = tuple(ProcessTimes(process=n, times={"busy_us": us(v), "old": us(v)}) for n, v in enumerate((10.0, 14.0), 1))
    died = ProcessTimes(process=3, status="failed", reason="it died")
    several = {"scope": "run", "processes": 2, "by_process": (*each, died)}
    measured = squeezed(printed(MEASURED.model_copy(update={**several, "stopped": "all processes"})))
    assert squeezed("over 2 fresh processes, whose medians are 10.00 µs to 14.00 µs") in measured
    assert squeezed("±1 % not reached, ±0.4 % over the processes") in measured
    compared = squeezed(printed(COMPARED.model_copy(update=several)))
    assert squeezed("over 2 fresh processes, whose medians of old are 10.00 µs to 14.00 µs") in compared


def test_every_verdict_has_its_mark() -> None:
    lines = printed(COMPARED).splitlines()
    marks = {line[2:].split("  ")[0]: line[0] for line in lines if line[:2] in {"✓ ", "✗ ", "? "}}
    assert marks == {"new": "✓", "worse": "✗", "who knows": "?"}
    text = squeezed(printed(COMPARED))
    assert squeezed("who knows: the ratio switches between two levels") in text
    assert squeezed("44 in 12 s, budget spent") in text
    assert squeezed("method graph and queue") in text


def test_names_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in printed(MEASURED.model_copy(update={"name": "evil\x1b[2J", "notes": ("\x1b[2J",)}))
