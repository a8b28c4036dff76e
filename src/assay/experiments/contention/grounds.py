"""The tables that results rest on: the noise budget, what times go with, where the workers ran."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from assay.core.page import Column, Table
from assay.experiments.contention.findings import SIGNIFICANT
from assay.experiments.contention.noise import PARTS
from assay.experiments.contention.options import WORDS
from assay.experiments.contention.written import percent
from assay.experiments.quality import held_text

if TYPE_CHECKING:
    from assay.core.page import Cell, Element, Tone
    from assay.experiments.contention.analysis import Analysis
    from assay.experiments.contention.options import ContentionOptions


def noise_table(found: Analysis) -> list[Element]:
    """Return where the spread of a single timing comes from."""
    if not found.budgets:
        return []
    conditions = [WORDS.get(budget.condition, budget.condition) for budget in found.budgets]
    rows: list[tuple[Cell, ...]] = [
        (words, *(percent(budget.spread(part)) for budget in found.budgets)) for part, words in PARTS.items()
    ]
    rows.append(("all together", *(percent(math.expm1(math.sqrt(b.total))) for b in found.budgets)))
    return [
        Table(
            title="Noise budget: how far a single timing lies from the quiet level, in % of the time",
            columns=(Column(title="part"), *(Column(title=f"{c}, %", numeric=True) for c in conditions)),
            rows=tuple(rows),
            note=(
                "Standard deviations; neighbours shift the level, and count with the size of the shift. Parts add up "
                "in squares. The rest is what these parts do not explain together."
            ),
        )
    ]


def sensors_table(found: Analysis) -> list[Element]:
    """Return what times go with, among all that was seen."""
    if not found.sensed:
        return []
    rows = tuple(
        (sensor.what, f"{sensor.found.rho:+.2f}", sensor.found.n, f"{sensor.found.p:.2g}") for sensor in found.sensed
    )
    tones: tuple[Tone, ...] = tuple("unsure" if sensor.found.p <= SIGNIFICANT else "plain" for sensor in found.sensed)
    return [
        Table(
            title="What times go with",
            columns=(
                Column(title="seen meanwhile"),
                Column(title="Spearman's rho", numeric=True),
                Column(title="trials", numeric=True),
                Column(title="p", numeric=True),
            ),
            rows=rows,
            tones=tones,
            note="Over trials of all phases; p by shuffling, raised to hold for all rows (Holm). Marked: below 5 %.",
        )
    ]


def where_table(options: ContentionOptions, found: Analysis) -> Table:
    """Return where the workers of each phase ran, over all blocks."""
    rows: list[tuple[Cell, ...]] = []
    for phase in options.phases:
        evidence = [
            e for phase_trial in found.layout.seen if phase_trial.phase == phase for e in phase_trial.record.evidence
        ]
        for role in dict.fromkeys(e.role for e in evidence):
            mine = [e for e in evidence if e.role == role]
            switches = sorted(e.involuntary_switches for e in mine if e.involuntary_switches is not None)
            rows.append(
                (
                    WORDS[phase],
                    role,
                    "; ".join(dict.fromkeys(held_text(e) for e in mine)),
                    "; ".join(dict.fromkeys(" ".join(map(str, e.allowed_cores)) for e in mine)),
                    "; ".join(dict.fromkeys("–" if e.thread_limit is None else str(e.thread_limit) for e in mine)),
                    f"{switches[len(switches) // 2]}" if switches else None,
                    f"{sorted(e.setup_s for e in mine)[len(mine) // 2]:.2f}",
                )
            )
    titles = ("phase", "worker", "isolation held", "cores", "threads", "switches", "set-up, s")
    return Table(
        title="Where the workers ran, as they read it back",
        columns=tuple(Column(title=t, numeric=t in {"switches", "set-up, s"}) for t in titles),
        rows=tuple(rows),
        note="Switches: how often the kernel took the core away, in the middle process. Set-up likewise.",
    )
