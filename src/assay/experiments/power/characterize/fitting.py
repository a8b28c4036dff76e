"""What of a case file is measured on these devices, and for how long under a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput, MachineCannot
from assay.core.units import format_span
from assay.experiments.power.characterize.found import found, with_baseline
from assay.experiments.power.characterize.options import CharacterizeOptions
from assay.experiments.power.characterize.placing import why_not
from assay.experiments.power.characterize.plan import is_idle, placed, trial_of, trial_s
from assay.isolation.devices import kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.experiments.power.cases import Wanted
    from assay.machine.model import Machine

SHORTEST_TRIAL_S = 0.5


def optioned(
    machine: Machine, wanted: Sequence[Wanted], *, devices: tuple[str, ...], **told: Any
) -> CharacterizeOptions:
    """Return the options that cases mean on these devices, idleness among them.

    Raises:
        BadInput: A workload or a parameter that there is not.
        MachineCannot: No case fits, but for idleness.
    """
    kind = kind_of(devices[0])
    cases, left_out = found(wanted, machine, kind)
    if not cases:
        raise MachineCannot(_none_fits({skipped_case.case: skipped_case.reason for skipped_case in left_out}))
    options = CharacterizeOptions(cases=with_baseline(cases, kind), left_out=left_out, devices=devices, **told)
    unfit = reasons(machine, options)
    if unfit and all(is_idle(case) or case.name in unfit for case in options.cases):
        raise MachineCannot(_none_fits(unfit))
    return options


def _none_fits(unfit: dict[str, str]) -> str:
    name, reason = next(iter(unfit.items()))
    return f"No case can be measured here; {name!r}: {reason}."


def reasons(machine: Machine, options: CharacterizeOptions) -> dict[str, str]:
    """Return the cases that are left out, each with the reason."""
    unfit = {case.name: why_not(machine, options, case) for case in options.cases}
    too_large = {name: reason for name, reason in unfit.items() if reason is not None}
    return {**too_large, **{skipped_case.case: skipped_case.reason for skipped_case in options.left_out}}


def within_budget(machine: Machine, options: CharacterizeOptions) -> tuple[CharacterizeOptions, float]:
    """Return the options with timing and settling shortened until one repeat fits the budget, and to which share.

    Raises:
        BadInput: It would have to be shorter than is worth anything.
    """
    if options.budget_s is None:
        return options, 1.0
    placed_cases = placed(machine, options, 1)
    whole_s = sum(trial_s(trial_of(options, placed_case)) for placed_case in placed_cases)
    shrinking_s = sum(
        placed_case.case.duration_s + placed_case.case.restarts * (placed_case.case.settle_s or 0.0)
        for placed_case in placed_cases
    )
    share = min(1.0, 1 - (whole_s - options.budget_s) / shrinking_s)
    shortest_s = min(placed_case.case.duration_s for placed_case in placed_cases)
    if share * shortest_s < min(SHORTEST_TRIAL_S, shortest_s):
        least_s = whole_s - shrinking_s * (1 - SHORTEST_TRIAL_S / shortest_s)
        raise BadInput(
            f"--budget {format_span(options.budget_s)} is too little for a repeat of {len(placed_cases)} trials, which "
            f"with starting take {format_span(least_s)} at least; fewer --case or --gpus, or --no-rotate, need less."
        )
    cases = tuple(
        case.model_copy(
            update={
                "duration_s": case.duration_s * share,
                "settle_s": None if case.settle_s is None else case.settle_s * share,
            }
        )
        for case in options.cases
    )
    return options.model_copy(update={"cases": cases}), share
