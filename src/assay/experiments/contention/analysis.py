"""All that the records say, as values: what findings judge and the page shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.experiments.contention.budget import overrun
from assay.experiments.contention.cells import layout
from assay.experiments.contention.choices import mismatches, picked
from assay.experiments.contention.consistency import agreements, models_of, refusal
from assay.experiments.contention.effects import compare_all
from assay.experiments.contention.noise import budgets
from assay.experiments.contention.regret import regret_table, regrets
from assay.experiments.contention.sensed import correlations
from assay.experiments.contention.slowdown import slowdowns, spreads

if TYPE_CHECKING:
    from assay.experiments.contention.cells import Layout
    from assay.experiments.contention.choices import Mismatch, Picked
    from assay.experiments.contention.consistency import Agreement
    from assay.experiments.contention.noise import Budget
    from assay.experiments.contention.options import ContentionOptions, Phase
    from assay.experiments.contention.places import Place
    from assay.experiments.contention.regret import Regrets
    from assay.experiments.contention.sensed import Together
    from assay.experiments.contention.slowdown import Comparisons
    from assay.machine.model import Machine
    from assay.store.records import Records


@dataclass(frozen=True, eq=False)
class Analysis:
    """What is known of times, spreads, picks, devices and noise; times and spreads by quantity."""

    layout: Layout
    times: dict[str, Comparisons]
    spreads: dict[str, Comparisons]
    picked: Picked
    mismatches: dict[Phase, Mismatch]
    regrets: dict[Place, Regrets]
    losses: Comparisons
    agreements: list[Agreement]
    budgets: list[Budget]
    sensed: list[Together]
    incomparable: str | None
    remarks: tuple[str, ...]
    overrun: str | None


def analyse(machine: Machine, options: ContentionOptions, records: Records) -> Analysis:
    """Look at the records from every side."""
    laid = layout(machine, options, records)
    table = picked(laid.choices)
    regrets_by_slot = regrets(machine, options, laid.choices, records)
    incomparable = refusal(machine, options)
    return Analysis(
        layout=laid,
        times={q: slowdowns(laid, options.phases, q, options.minimum_effect) for q in laid.quantities},
        spreads={q: spreads(laid, options.phases, q, options.minimum_effect) for q in laid.quantities},
        picked=table,
        mismatches=mismatches(table, options.phases),
        regrets=regrets_by_slot,
        losses=compare_all(regret_table(laid.choices, regrets_by_slot), options.phases, options.minimum_effect),
        agreements=[] if incomparable is not None else agreements(laid, options, laid.quantity),
        budgets=budgets(laid, laid.quantity),
        sensed=correlations(laid, laid.quantity),
        incomparable=incomparable,
        remarks=remarks(machine, options),
        overrun=overrun(options.budget_s, records) if options.keeps_to_budget else None,
    )


def remarks(machine: Machine, options: ContentionOptions) -> tuple[str, ...]:
    """Return what must be known to read the results: too few cores, GPUs of different models, nothing to tune."""
    cores, models = len(machine.cores), models_of(machine, options)
    texts = []
    if options.processes > cores:
        texts.append(
            f"side by side {options.processes} processes share {cores} core{'' if cores == 1 else 's'}: "
            "isolation cannot give each its own"
        )
    if len(models) > 1:
        texts.append(f"the GPUs are of different models ({', '.join(models)}): times are compared on each by itself")
    plain = [s.label for s, tunable in zip(options.subjects, options.tunable, strict=True) if not tunable]
    if plain and options.tuner is not None:
        texts.append(f"{', '.join(plain)} has no configurations to choose from, and is only timed")
    return tuple(texts)
