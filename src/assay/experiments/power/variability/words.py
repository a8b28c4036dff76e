"""How differences, shares and the answer are written."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.experiments.power.variability.advice import Gain
    from assay.experiments.power.variability.analysis import Looked
    from assay.experiments.power.variability.measures import Measure

MOST_NAMED = 5


def apart(measure: Measure, value: float, low: float | None = None, high: float | None = None) -> str:
    """Write a difference with its interval: ``+52.1 % (+50.0 – +54.2)``, or in °C."""
    unit = "%" if measure.relative else "°C"
    numbers = [number if number is None else scaled(measure, number) for number in (value, low, high)]
    if numbers[1] is None or numbers[2] is None:
        return f"{_signed(numbers[0])} {unit}"
    return f"{_signed(numbers[0])} {unit} ({_signed(numbers[1])} – {_signed(numbers[2])})"


def scaled(measure: Measure, value: float) -> float:
    """Return a difference in percent, or in °C."""
    return 100 * math.expm1(value) if measure.relative else value


def _signed(number: float | None) -> str:
    return "" if number is None else f"{number:+z.1f}".replace("-", "−")


def percent(share: float, digits: int = 1) -> str:
    """Write a share in percent."""
    return f"{100 * share:z.{digits}f} %".replace("-", "−")


def gained(gain: Gain) -> str:
    """Write how much less time something takes: ``1.2 % (0.9 – 1.5)``."""
    if gain.low is None or gain.high is None:
        return percent(gain.value)
    return f"{percent(gain.value)} ({100 * gain.low:z.1f} – {100 * gain.high:z.1f})".replace("-", "−")


def ordinal(slot: int) -> str:
    """Return which GPU of its host sits in a slot: that in slot 0 is the 1st."""
    return {0: "1st", 1: "2nd", 2: "3rd"}.get(slot, f"{slot + 1}th")


def listed(names: Sequence[str], joint: str = "and") -> str:
    """Write names in a row: a, b and c; of many how many more there are."""
    if len(names) > MOST_NAMED:
        return f"{', '.join(names[:MOST_NAMED])} and {len(names) - MOST_NAMED} more"
    return f" {joint} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def counted(number: int, noun: str) -> str:
    """Write a number of things: 1 GPU, 10,000 GPUs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def answer(looked: Looked) -> str:
    """Say which GPU to ask for, in a sentence or two."""
    fleet, advice = looked.fleet, looked.advice
    clause = _answers(looked)
    single = advice.unit == "repeats" and advice.answer in {"gpu", "slot", "avoid"}
    runs = "each GPU was seen in one run only, so that the day may have a part in it"
    return f"{clause}; {runs}." if single and len(fleet.gpus) > 1 else f"{clause}."


def _answers(looked: Looked) -> str:
    advice = looked.advice
    if advice.answer == "one" or advice.gain is None:
        return "There is one GPU only, and nothing to choose between"
    gain = gained(advice.gain)
    if advice.answer == "slot" and advice.slot is not None:
        slot = int(advice.slot.name)
        return (
            f"Ask for slot {slot}, the {ordinal(slot)} GPU of a host: over {counted(advice.slot.members, 'host')} "
            f"it takes {gain} less time than a random one"
        )
    if advice.answer == "gpu":
        named = listed([looked.fleet.name(gpu) for gpu in advice.best], "or")
        return f"Ask for {named}: {_surely(looked)}, and takes {gain} less time than a random one"
    if advice.answer == "unknown":
        return _unknown(looked, gain)
    which, best = "Ask for any but the slow ones", f"the fastest, {looked.fleet.name(advice.best[0])},"
    if advice.answer == "any":
        surely = advice.gain.low is not None and advice.gain.low > 0 and len(advice.best) == 1
        which = f"It {'matters little' if surely else 'does not matter'} which GPU you ask for"
        best = f"{best[:-1]} with {_chance(advice.confidence)} confidence," if surely else "the likeliest to be fastest"
    return f"{which}: {_rest(looked)}; {best} takes {gain} less time than a random one"


def _unknown(looked: Looked, gain: str) -> str:
    count = counted(len(looked.fleet.gpus), "GPU")
    if looked.advice.unit is not None:
        reason = f"the likeliest takes {gain} less time than a random one"
        return f"Which of {count} to ask for cannot be told from these runs: {reason}"
    reason = f"{looked.fleet.name(looked.advice.best[0])} took {gain} less time than the mean, which may be chance"
    return f"Which of {count} to ask for cannot be told, as {_too_little(looked)}: {reason}"


def _too_little(looked: Looked) -> str:
    """Say why it is not known how far chance goes."""
    fleet = looked.fleet
    if len(fleet.rows) <= len(fleet.gpus):
        return "nothing was measured twice"
    runs, cases = (
        counted(len(set(codes.tolist())), what) for codes, what in ((fleet.run, "run"), (fleet.case, "case"))
    )
    return f"too little was measured to tell GPUs from chance ({runs} of {cases})"


def _surely(looked: Looked) -> str:
    advice, count = looked.advice, counted(len(looked.fleet.gpus), "GPU")
    if len(advice.best) == 1:
        return f"it is the fastest of {count} with {_chance(advice.confidence)} confidence"
    first = looked.fleet.name(advice.best[0])
    return f"one of these is the fastest of {count} with 95 % confidence; {first} is the likeliest"


def _chance(confidence: float | None) -> str:
    return "some" if confidence is None else "over 99 %" if confidence > 0.99 else percent(confidence, 0)


def _rest(looked: Looked) -> str:
    """Say how near to each other most GPUs are."""
    spread = looked.spread
    count = counted(len(looked.fleet.gpus), "GPU")
    if spread is not None and spread.middle is not None:
        return f"nine tenths of {count} are within {percent(spread.middle - 1)} of each other"
    if spread is None:
        return count
    return f"{count} are within {percent((spread.high or spread.ratio) - 1)} of each other"


def money(looked: Looked) -> str | None:
    """Answer whether always asking for the 4th GPU saves money; null where there is no 4th, or it cannot be told."""
    gain = looked.advice.fourth
    if gain is None or gain.low is None or gain.high is None:
        return None
    question = "Can I save money by just asking for the 4th GPU always?"
    where = "on this host" if len(looked.fleet.hosts) == 1 else f"over {counted(len(looked.fleet.hosts), 'host')}"
    least = percent(looked.minimum_effect, 0)
    if gain.low > 0:
        slot = looked.advice.slot
        better = f"; slot {slot.name} saves more" if slot is not None and slot.name != "3" else ""
        small = f", which is less than {least}" if gain.high < looked.minimum_effect else ""
        return f"{question} Yes: {where} it takes {gained(gain)} less time than a random one{small}{better}."
    if gain.high < looked.minimum_effect:
        return f"{question} No: {where} it saves {gained(gain)} of the time of a random one, which is below {least}."
    return f"{question} It cannot be told: {where} it takes {gained(gain)} less time than a random one."
