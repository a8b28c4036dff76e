"""The answer in one sentence: whether it is noisy here, why, and what would mend it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from assay.experiments.contention.noise import PARTS
from assay.experiments.contention.options import QUIET
from assay.experiments.contention.written import percent
from assay.experiments.wide import tells_nothing

if TYPE_CHECKING:
    from assay.experiments.contention.analysis import Analysis
    from assay.experiments.contention.effects import Effect
    from assay.experiments.contention.options import ContentionOptions, Phase
    from assay.machine.model import Machine

CURES = {
    "within": "longer timings and a quieter host average it out",
    "starts": "more restarts average it out (`assay run --restarts`)",
    "drift": "locked clocks and a `--cooldown` hold it",
    "neighbours": "isolation or measuring one after another removes it",
}
CALL = "call_us"
ASK = "`--workers-per-device 2` or `--aggressor cpu` asks what company does"


def headline(machine: Machine, options: ContentionOptions, found: Analysis) -> str:
    """Return the answer."""
    if not found.layout.cells:
        return "Nothing could be measured."
    subjects = _listed([s.label for s in options.subjects])
    takes = f"{subjects} take{'s' if len(options.subjects) == 1 else ''}"
    if not options.has_company:
        alone = f"Nothing runs side by side here, with one device and one worker; {_twice(found, takes)}"
        return f"{alone}{_untuned(found)}; {ASK}."
    naive, again = _overall(found, "naive"), _overall(found, "again")
    if naive is None or naive.ratio is None:
        unknown = "What side by side does is not known, as it could not be measured"
        return f"{unknown}; {_twice(found, takes)}{_untuned(found)}."
    sentence = _of_callers(machine, options, found, subjects)
    return f"{sentence or _of_kernels(machine, options, found, takes)}{_untuned(found)}{_doubt(again)}."


def _untuned(found: Analysis) -> str:
    """Say so where the tuner never found a configuration."""
    choices = found.layout.choices
    if not choices or any(choice.config is not None for choice in choices):
        return ""
    reason = (choices[0].reason or "it does not say why").rstrip(".")
    return f"; the tuner found no configuration in any of {len(choices)} tries ({reason})"


def _of_kernels(machine: Machine, options: ContentionOptions, found: Analysis, takes: str) -> str:
    """Say what company does to the time that counts."""
    naive, isolated = _overall(found, "naive"), _overall(found, "isolated")
    if naive is None or naive.ratio is None:
        return ""
    long = f"{takes} {_times(naive)} as long as alone on average{_also(found)}"
    if naive.verdict == "yes":
        return f"Noisy side by side: {long}{_because(machine, options)}; {_cure(options, naive, isolated)}"
    if naive.verdict == "no":
        return f"Not noisy side by side: {long}{_largest(found)}"
    blocks = f"after {naive.ratio.blocks} block{'' if naive.ratio.blocks == 1 else 's'}"
    return f"Not decided {blocks}: side by side {long}{_largest(found)}"


def _of_callers(machine: Machine, options: ContentionOptions, found: Analysis, subjects: str) -> str | None:
    """Say what company does to who waits for a call, where kernels are spared it; null where that is not so."""
    if not only_callers_wait(found):
        return None
    kernels, waits = _overall(found, "naive"), _overall(found, "naive", CALL)
    if kernels is None or waits is None:
        return None
    first = f"Noisy side by side for who waits: a call of {subjects} takes {_times(waits)} as long as alone"
    cause = f"{_because(machine, options)}, while its kernels take {_times(kernels)}{_also(found)}"
    return f"{first}{cause}; {_cure(options, waits, _overall(found, 'isolated', CALL))}"


def only_callers_wait(found: Analysis) -> bool:
    """Return whether calls take surely longer in company, and kernels do not."""
    if found.layout.quantity == CALL:
        return False
    kernels, waits = _overall(found, "naive"), _overall(found, "naive", CALL)
    return waits is not None and waits.verdict == "yes" and (kernels is None or kernels.verdict != "yes")


def _overall(found: Analysis, phase: Phase, quantity: str | None = None) -> Effect | None:
    comparisons = found.times.get(quantity or found.layout.quantity, {})
    return comparisons[phase].overall if phase in comparisons else None


def _times(effect: Effect) -> str:
    """Write "1.93× (1.71 – 2.18×)"; where too few blocks leave anything open, "1.93× (or any)"."""
    ratio = effect.ratio
    if ratio is None:
        return "–"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}×"
    if tells_nothing(ratio.low, ratio.high):
        return f"{ratio.value:.2f}× (or any)"
    digits = 3 if max(abs(ratio.low - 1), abs(ratio.high - 1)) < 0.1 else 2
    return f"{ratio.value:.{digits}f}× ({ratio.low:.{digits}f} – {ratio.high:.{digits}f}×)"


def _twice(found: Analysis, takes: str) -> str:
    """Say what A/A shows."""
    again = _overall(found, "again")
    if again is None or again.ratio is None:
        alone = [cell for cell in found.layout.cells if cell.phase in QUIET]
        return "nothing was measured twice alone" if alone else "alone nothing could be measured"
    blocks = f"in {again.ratio.blocks} block{'' if again.ratio.blocks == 1 else 's'}"
    return f"measured twice alone {blocks}, {takes} {_times(again)} as long"


def _also(found: Analysis) -> str:
    """Say what else company does: to the spread, and to what is picked."""
    parts = []
    spread = found.spreads.get(found.layout.quantity, {}).get("naive")
    if spread is not None and spread.overall.verdict == "yes" and spread.overall.ratio is not None:
        parts.append(f"repeats spread {spread.overall.ratio.value:.1f}× as much")
    mismatch, loss = found.mismatches.get("naive"), found.losses.get("naive")
    if loss is not None and loss.overall.verdict == "yes" and loss.overall.ratio is not None:
        parts.append(f"the picks lose {loss.overall.ratio.value - 1:.0%}")
    elif mismatch is not None and mismatch.verdict == "yes":
        parts.append(f"{mismatch.share.count} of {mismatch.share.n} picks are others")
    return "".join(f", {part}" for part in parts)


def _because(machine: Machine, options: ContentionOptions) -> str:
    cores = len(machine.cores)
    loads = _listed(list(dict.fromkeys(load.subject.workload for load in options.aggressors)))
    if options.processes > cores:
        among = f", {loads} among them," if loads else ""
        return f", as {options.processes} processes{among} share {cores} core{'' if cores == 1 else 's'}"
    return f", beside {loads}" if loads else f", as {options.processes} processes run at once"


def _cure(options: ContentionOptions, naive: Effect, isolated: Effect | None) -> str:
    if isolated is None or isolated.ratio is None or naive.ratio is None:
        return "what isolation would do could not be measured"
    if isolated.verdict == "yes" and isolated.ratio.value > 1:
        one = "one worker a device, or " if options.workers > 1 else ""
        return f"isolated it still takes {_times(isolated)}: {one}measuring one after another, removes it"
    if isolated.verdict == "no" or (isolated.ratio.high or math.inf) < (naive.ratio.low or 0.0):
        return f"isolated it takes {_times(isolated)}, so `--isolation full` mends it"
    return f"whether isolation mends it is not decided: isolated it takes {_times(isolated)}"


def _largest(found: Analysis) -> str:
    budget = next((candidate for candidate in found.budgets if candidate.condition == "alone"), None)
    if budget is None or not budget.total:
        return ""
    part = budget.largest
    return f"; most noise arises {PARTS[part]}, a spread of {percent(budget.spread(part))} %, and {CURES[part]}"


def _doubt(again: Effect | None) -> str:
    """Say when the machine itself is not quiet: A/A differs."""
    if again is not None and again.verdict == "yes":
        return f"; but measured twice alone it takes {_times(again)} too: this machine changes by itself"
    return ""


def _listed(words: list[str]) -> str:
    """Write "a, b and c"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
