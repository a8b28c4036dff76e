"""The tables of a study: times, watts, what company does, how unequal GPUs are, what was left out, what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Table
from assay.core.units import format_time
from assay.experiments.power.characterize.near import how_far
from assay.experiments.power.characterize.numbers import gpu_name
from assay.experiments.power.characterize.words import change, joules, percent, share, span

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.page import Cell, Element, Tone
    from assay.core.results import Estimate, Record, Verdict
    from assay.experiments.power.characterize.effects import Effect
    from assay.experiments.power.characterize.numbers import GpuCase
    from assay.experiments.power.characterize.options import CharacterizeOptions
    from assay.experiments.power.characterize.placing import Placed
    from assay.experiments.power.characterize.study import Study
    from assay.machine.model import Machine

TITLE_OF_A_DEVICE = "device"
COUNTS = "counts"
ANSWERS: dict[Verdict, str] = {"yes": "yes", "no": "no", "unsure": "not decided"}
TONES: dict[Verdict, Tone] = {"yes": "bad", "no": "plain", "unsure": "unsure"}


def times(study: Study, *, idle: set[str]) -> list[Element]:
    """Return how long a kernel takes on each GPU in each case."""
    busy = [gpu for gpu in study.gpus if gpu.case not in idle]
    rows: list[tuple[Cell, ...]] = [
        (
            gpu.case,
            gpu.name,
            format_time(gpu.time.value),
            _interval(gpu.time),
            f"{(gpu.quartiles_us[2] - gpu.quartiles_us[0]) / gpu.time.value:.2%}",
            None if gpu.cv is None else f"{gpu.cv:.2%}",
        )
        for gpu in busy
    ]
    return _table(
        "Time of one kernel",
        ("case", TITLE_OF_A_DEVICE, "median", "95 % interval", "IQR", "CV"),
        rows,
        note=(
            "The interval is over repeats where there are several, else over starts of the worker, else within it. "
            f"IQR (of the median) and CV: of the same kernel again and again, {_counted(busy)}."
        ),
        words=2,
    )


def _counted(gpus: Sequence[GpuCase]) -> str:
    """Count the calls and processes behind each row."""
    calls, processes = [sorted(counts) for counts in ([g.n for g in gpus], [g.processes for g in gpus])]
    if not gpus:
        return "never"
    ranges = [span(str(counts[0]), str(counts[-1])) for counts in (calls, processes)]
    return f"{ranges[0]} calls in {ranges[1]} process{'' if processes[-1] == 1 else 'es'} each"


def _interval(estimate: Estimate) -> str | None:
    if estimate.low is None or estimate.high is None:
        return None
    low, high = format_time(estimate.low), format_time(estimate.high)
    return f"{low.partition(' ')[0]} – {high}" if low == high else span(low, high)


def watts(study: Study) -> list[Element]:
    """Return what each GPU drew and spent, how fast it ran and how hot it was; nothing where no sensor was read."""
    gpus = [gpu for gpu in study.gpus if gpu.mean("power_w") is not None or gpu.mean("sm_mhz") is not None]
    rows: list[tuple[Cell, ...]] = [
        (
            gpu.case,
            gpu.name,
            _digits(gpu.mean("power_w")),
            _energy(gpu.energy),
            _digits(gpu.mean("gflop_per_j"), 1),
            _digits(gpu.mean("sm_mhz")),
            _digits(gpu.mean("temperature_c"), 1),
            "; ".join(f"{reason} {part:.0%}" for reason, part in gpu.held_back().items()) or None,
        )
        for gpu in gpus
    ]
    titles = ("case", TITLE_OF_A_DEVICE, "power, W", "energy a kernel", "GFLOP/J", "SM, MHz", "°C", "held back")
    return _table(
        "Watts, joules, clocks and heat",
        titles,
        rows,
        note=(
            "Means over the time in which kernels followed one another. Energy: of the card, idle power included. "
            "Held back: share of the time."
        ),
        words=2,
    )


def _digits(value: float | None, places: int = 0) -> str | None:
    return None if value is None else f"{value:.{places}f}"


def _energy(energy: Estimate | None) -> str | None:
    if energy is None:
        return None
    half = energy.relative_half_width
    return joules(energy.value) if half is None else f"{joules(energy.value)} ±{half:.1%}"


def called(options: CharacterizeOptions) -> str:
    """Return what the devices are called."""
    return "GPUs" if options.devices[0].startswith("cuda") else "groups of cores"


def company(options: CharacterizeOptions, study: Study) -> list[Element]:
    """Return what company does to what is timed, and whether it matters where the neighbours are."""
    note = (
        f"The same {called(options)} in the same repeats, with intervals over repeats. It counts where the interval "
        f"excludes none and the change is more than {share(options.minimum_effect)}."
    )
    return [
        *_effects("What company changes", "against", study.company, note),
        *_effects("Far instead of near neighbours", "near", study.far, note),
    ]


def _effects(title: str, against: str, effects: tuple[Effect, ...], note: str) -> list[Element]:
    rows: list[tuple[Cell, ...]] = [
        (
            effect.case,
            effect.against,
            change(effect.time),
            ANSWERS[effect.verdict],
            change(effect.energy),
            None if effect.clock is None else percent(effect.clock.value),
            None if effect.hotter_c is None else f"{effect.hotter_c:+.1f}".replace("-", "−"),
        )
        for effect in effects
    ]
    titles: tuple[str, ...] = ("case", against, "time", COUNTS, "energy a kernel", "SM clock", "°C")
    tones = tuple(TONES[effect.verdict] for effect in effects)
    references = list(dict.fromkeys(effect.against for effect in effects))
    if len(references) == 1:
        note = f"Against {references[0]!r}. {note}"
        titles, rows = (titles[0], *titles[2:]), [(row[0], *row[2:]) for row in rows]
    words = 2 if len(references) > 1 else 1
    return _table(title, titles, rows, note=note, words=words, tones=tones)


def unequal(options: CharacterizeOptions, study: Study) -> list[Element]:
    """Return how unequal the GPUs are, a row for each case and model."""
    several = len({spread.model for spread in study.spreads}) > 1
    rows: list[tuple[Cell, ...]] = [
        (
            f"{spread.case}, {spread.model}" if several else spread.case,
            spread.slowest,
            spread.fastest,
            change(spread.ratio),
            ANSWERS[spread.verdict],
            f"{spread.cv:.2%}",
            spread.gpus,
        )
        for spread in study.spreads
    ]
    return _table(
        f"How unequal the {called(options)} are",
        ("case", "slowest", "fastest", "slowest over fastest", COUNTS, "CV between them", "of"),
        rows,
        note=(
            f"Of {called(options)} of one model in the same repeats. The interval is widened, as the two were picked "
            "among all; it counts where it excludes none and the difference is more than "
            f"{share(options.minimum_effect)}. `assay power variability` says more, over many runs."
        ),
        words=3,
        tones=tuple(TONES[spread.verdict] for spread in study.spreads),
    )


def left_out(study: Study) -> list[Element]:
    """Return the cases that do not fit here, and why."""
    rows: list[tuple[Cell, ...]] = [(case, "skipped", reason) for case, reason in study.left_out.items()]
    return _table("Cases that do not fit here", ("case", "status", "reason"), rows, words=3)


def steadiness(study: Study) -> list[Element]:
    """Return how long each trial waited for steady clocks and heat, and how steady they were."""
    rows: list[tuple[Cell, ...]] = []
    tones: list[Tone] = []
    for where, record in study.pairs:
        settled = record.settled
        if settled is not None:
            rows.append(
                (
                    where.repeat,
                    where.case.name,
                    _gpus(where.base),
                    f"{settled.waited_s:.0f}",
                    "yes" if settled.steady else "no",
                    _several(settled.temperature_c.values(), 0),
                    _several(settled.drift_c.values(), 1),
                    settled.note,
                )
            )
            tones.append("plain" if settled.steady else "unsure")
    titles = ("repeat", "case", "timed on", "waited, s", "steady", "°C", "°C a minute", "note")
    return _table("How steady clocks and heat were before timing", titles, rows, words=8, tones=tuple(tones))


def _several(values: Iterable[float], places: int) -> str | None:
    return " ".join(f"{value:.{places}f}" for value in values) or None


def _gpus(devices: tuple[str, ...]) -> str:
    return ", ".join(map(gpu_name, devices))


def placed(machine: Machine, study: Study) -> list[Element]:
    """Return who was timed where, beside what, and how far away that was."""
    rows: dict[tuple[Cell, ...], None] = {}
    for where, _ in sorted(study.pairs, key=lambda pair: (pair[0].repeat, pair[0].base)):
        rows[where.repeat, where.case.name, _gpus(where.base), _beside(machine, where)] = None
    titles = ("repeat", "case", "timed on", "beside")
    return _table("Who ran where", titles, list(rows), words=4)


def _beside(machine: Machine, where: Placed) -> str | None:
    parts = []
    for load in where.noise:
        far = how_far(machine, where.base[0], load.device)
        parts.append(f"{load.part.subject.workload} on {gpu_name(load.device)}{f' ({far})' if far else ''}")
    return ", ".join(parts) or None


def labels(pairs: tuple[tuple[Placed, Record], ...]) -> dict[str, str]:
    """Return what each trial is called, by its id."""
    return {record.trial: f"repeat {where.repeat}, {where.case.name}, {_gpus(where.base)}" for where, record in pairs}


def _table(
    title: str,
    titles: tuple[str, ...],
    rows: list[tuple[Cell, ...]],
    *,
    words: int,
    note: str | None = None,
    tones: tuple[Tone, ...] | None = None,
) -> list[Element]:
    """Return a table whose first columns are words and whose others are numbers; nothing without rows.

    A column in which nothing is known is left out.
    """
    if not rows:
        return []
    shown_columns = [index for index in range(len(titles)) if any(row[index] is not None for row in rows)]
    columns = tuple(
        Column(title=titles[index], numeric=index >= words and titles[index] != COUNTS) for index in shown_columns
    )
    shown = tuple(tuple(row[index] for index in shown_columns) for row in rows)
    return [Table(title=title, columns=columns, rows=shown, tones=tones, note=note)]
