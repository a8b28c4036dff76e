"""A study of power in one or two sentences: what a kernel takes and costs, how unequal GPUs are, what company does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.units import format_time
from assay.experiments.power.characterize.study import plainest
from assay.experiments.power.characterize.words import change, joules, listed, percent, share, span

if TYPE_CHECKING:
    from assay.experiments.power.characterize.effects import Effect
    from assay.experiments.power.characterize.numbers import GpuCase
    from assay.experiments.power.characterize.options import CharacterizeOptions
    from assay.experiments.power.characterize.study import Study

NOTHING = "Nothing could be measured."


def headline(options: CharacterizeOptions, study: Study) -> str:
    """Return the answer."""
    plain = plainest(options, study)
    if plain is None:
        return _only_idle(study) or NOTHING
    gpus = [gpu for gpu in study.gpus if gpu.case == plain.name]
    parts = [_unequal(study, plain.name), _company(options, study), _distance(study), _not_measured(options, study)]
    return " ".join([_costs(gpus), *(part for part in parts if part)])


def _costs(gpus: list[GpuCase]) -> str:
    """Say what one kernel takes and costs, from the fastest to the slowest GPU."""
    times = sorted(gpu.time.value for gpu in gpus)
    one = gpus[0].one
    size = f" (n = {one.params['n']})" if isinstance(one.params.get("n"), int) else ""
    models = list(dict.fromkeys(gpu.one.model for gpu in gpus))
    many = f"{len(gpus)} × " if len(gpus) > 1 else ""
    parts = [span(format_time(times[0]), format_time(times[-1]))]
    energies = sorted(gpu.energy.value for gpu in gpus if gpu.energy is not None)
    watts = sorted(power for gpu in gpus if (power := gpu.mean("power_w")) is not None)
    if energies:
        parts.append(span(joules(energies[0]), joules(energies[-1])))
    if watts:
        parts.append(f"at {span(f'{watts[0]:.0f} W', f'{watts[-1]:.0f} W')}")
    spread = [gpu.cv for gpu in gpus if gpu.cv is not None]
    steady = f", CV {max(spread):.2%}" if spread else ""
    return f"{one.workload}{size} takes {', '.join(parts)} on {many}{' and '.join(models)}{steady}."


def _unequal(study: Study, case: str) -> str:
    """Say which GPU is slowest, and by how much; or that none is."""
    case_spreads = [spread for spread in study.spreads if spread.case == case]
    if not case_spreads:
        return ""
    worst = max(case_spreads, key=lambda spread: spread.ratio.value)
    if worst.verdict == "yes":
        change_phrase = change(worst.ratio) or ""
        return f"{worst.slowest} is the slowest: {change_phrase.replace('+', '')} beyond {worst.fastest}."
    if worst.verdict == "no":
        return f"None is slower than another by what counts ({percent(worst.ratio.value)} at most)."
    return (
        f"How unequal they are is not decided yet ({change(worst.ratio)} between {worst.slowest} and {worst.fastest})."
    )


def _company(options: CharacterizeOptions, study: Study) -> str:
    """Say which company changes the kernels most; or that none does."""
    if not study.company:
        return ""
    changed = sorted((e for e in study.company if e.verdict == "yes"), key=_size, reverse=True)
    if changed:
        more = f", and {len(changed) - 1} more cases change it" if len(changed) > 1 else ""
        return f"Company counts: {changed[0].case}: {change(changed[0].time)}{more}."
    open_ones = [e for e in study.company if e.verdict == "unsure"]
    if not open_ones:
        return f"No company changes it by {share(options.minimum_effect)} or more."
    return f"What company does is not decided in {len(open_ones)} of {len(study.company)} cases; more --repeat decides."


def _size(effect: Effect) -> float:
    return abs(effect.time.value - 1)


def _distance(study: Study) -> str:
    """Say whether far neighbours do something else than near ones."""
    effects = [e for e in study.far if e.verdict == "yes"]
    return f"Far instead of near neighbours: {change(effects[0].time)}." if effects else ""


def _not_measured(options: CharacterizeOptions, study: Study) -> str:
    """Count the cases that do not fit, or went wrong."""
    measured = {gpu.case for gpu in study.gpus}
    failed = {where.case.name for where, record in study.pairs if record.status != "ok"} - measured
    every = len(options.cases) + len(options.left_out)
    unfit = len(study.left_out)
    parts = [f"{unfit} of {every} cases do{'es' if unfit == 1 else ''} not fit here"] if unfit else []
    parts += [f"{len(failed)} of {every} went wrong"] if failed else []
    return f"{listed(parts)}." if parts else ""


def _only_idle(study: Study) -> str:
    """Say what was drawn when nothing was done, where that is all that was measured."""
    powers = [f"{gpu.name} {power:.0f} W" for gpu in study.gpus if (power := gpu.mean("power_w")) is not None]
    return f"Only idle power was measured: {listed(powers)}." if powers else ""
