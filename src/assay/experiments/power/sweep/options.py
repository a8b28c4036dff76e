"""Options of ``assay power sweep``: one knob, its steps, and the workload at each step.

Steps are written as ``200:700:50``, ``250,300,350``, ``10%:100%:10%``, or mixed.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple, Self

from pydantic import Field, model_validator

from assay.core.errors import BadInput
from assay.core.format import format_list
from assay.core.values import InterferencePolicy, Isolation, Scalar, Subject, Value
from assay.experiments.power.rows import Knob
from assay.workloads import registry
from assay.workloads.function import is_function_spec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


CAP_KNOBS: frozenset[Knob] = frozenset({"power_limit_w", "sm_mhz"})
"""Knobs that change the GPU and need a privilege; the others change only the work."""


class SweepPoint(Value):
    """One setting of the knob and what is timed there; a setting that the workload refuses has only the reason."""

    setting: Scalar = Field(description="Watts, MHz, elements, a dtype's name, a share; null: as it was found.")
    subject: Subject | None
    refused: str | None = None

    @model_validator(mode="after")
    def _timed_or_refused(self) -> Self:
        if (self.subject is None) == (self.refused is None):
            raise ValueError("a point has something to time, or a reason why it has not")
        return self


class SweepOptions(Value):
    """Every point on every device, once in each repeat, in random order."""

    knob: Knob
    points: tuple[SweepPoint, ...] = Field(min_length=1)
    workload: str = Field(description="What is timed, for people: sgemm@torch.")
    devices: tuple[str, ...] = Field(min_length=1)
    together: bool = Field(default=False, description="All devices at once; otherwise one after another.")
    isolation: Isolation = "full"
    on_interference: InterferencePolicy = "warn"
    duration_s: float = Field(default=10.0, gt=0)
    settle_s: float | None = Field(default=30.0, gt=0, description="At most; null: steadiness is not waited for.")
    cooldown_s: float = Field(default=0.0, ge=0)
    repeat: int = Field(default=3, ge=1)
    restarts: int = Field(default=1, ge=1)
    max_slowdown: float = Field(default=0.05, gt=0, lt=1)
    minimum_effect: float = Field(default=0.01, gt=0, lt=1, description="Smaller differences in time do not count.")
    budget_s: float | None = Field(default=None, gt=0, description="No repeat begins that would not fit any more.")
    timeout_s: float = Field(default=120.0, gt=0)
    cpu_groups: int | None = Field(default=None, ge=1)
    retakes: int = Field(default=0, ge=0)
    seed: int = 0

    @property
    def capped(self) -> bool:
        """Whether the GPU itself is changed."""
        return self.knob in CAP_KNOBS

    @property
    def reference(self) -> int | None:
        """The place of the point at which nothing is changed; null where there is none."""
        return next((n for n, point in enumerate(self.points) if point.setting is None), None)


class KnobNames(NamedTuple):
    """How a knob is called: its flag, its axis with the unit, its unit, its short name, and before a setting."""

    flag: str
    axis: str
    unit: str
    short: str
    phrase: str


KNOBS: dict[Knob, KnobNames] = {
    "power_limit_w": KnobNames("--limits", "power limit (W)", "W", "limit", "a limit of "),
    "sm_mhz": KnobNames("--sm-clocks", "locked SM clock (MHz)", "MHz", "clock", "a clock of "),
    "size": KnobNames("--sizes", "size", "", "size", "size "),
    "dtype": KnobNames("--dtypes", "dtype", "", "dtype", ""),
    "batch": KnobNames("--batches", "batch", "", "batch", "batch "),
    "duty": KnobNames("--duty", "duty (% of the time)", "%", "duty", "a duty of "),
}
CUBE_PARAMETERS = ("m", "n", "k")
SIZE_PARAMETERS = ("n", "size")
"""How workloads name their size: of a product of matrices all three sides, else one of these."""


def load_points(
    knob: Knob, steps: Sequence[Scalar], spec: str, *, device_kind: str, params: Mapping[str, str], names: Sequence[str]
) -> tuple[SweepPoint, ...]:
    """Return the workload at each step of one of its parameters; what it refuses has the reason.

    Raises:
        BadInput: It refuses every step.
    """
    points = []
    for step in steps:
        explicit = {**params, **dict.fromkeys(names, str(step))}
        try:
            subject = registry.resolve_subject(spec, device_kind=device_kind, explicit=explicit)
        except BadInput as error:
            points.append(SweepPoint(setting=step, subject=None, refused=str(error)))
        else:
            points.append(SweepPoint(setting=step, subject=subject))
    if all(point.subject is None for point in points):
        by_size = knob == "size" and is_function_spec(spec)
        more = f"; --sizes sets {' and '.join(names)}, or what --size-param names" if by_size else ""
        raise BadInput(f"{str(points[0].refused).rstrip('.')}{more}.")
    return tuple(points)


def size_parameters(
    knob: Knob, spec: str, requested: Sequence[str], *, device_kind: str, params: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the names of the parameters that a step sets; ``requested`` are those that the user named for its size.

    A function of the user's says itself whether it takes them.
    """
    names = tuple(requested) if knob == "size" else (knob,)
    flag = KNOBS[knob].flag
    if is_function_spec(spec):
        names = names or SIZE_PARAMETERS[:1]
    else:
        names = _workload_parameters(
            registry.resolve_subject(spec, device_kind=device_kind, explicit=params), names, flag
        )
    duplicates = [name for name in names if name in params]
    if duplicates:
        raise BadInput(f"--param {duplicates[0]}={params[duplicates[0]]} and {flag} both set {duplicates[0]}.")
    return names


def _workload_parameters(subject: Subject, names: tuple[str, ...], flag: str) -> tuple[str, ...]:
    has = ", ".join(subject.params) or "none at all"
    missing = [name for name in names if name not in subject.params]
    if missing:
        raise BadInput(f"{flag}: {subject.label} has no parameter {missing[0]!r}; it has {has}.")
    usual = [CUBE_PARAMETERS, *((name,) for name in SIZE_PARAMETERS)]
    sizes = names or next((group for group in usual if all(name in subject.params for name in group)), ())
    if not sizes:
        raise BadInput(
            f"{subject.label} has no parameter that is its size (m, n and k; n; or size); it has {has}. "
            "Name one with --size-param."
        )
    return sizes


MAX_STEPS = 200
"""More is a typing error: each step is measured several times."""

_NUMBER = re.compile(r"([0-9]*\.?[0-9]+)([a-z%]*)", re.IGNORECASE)


def parse_numbers(flag: str, words: Sequence[str], *, units: Sequence[str] = ()) -> tuple[float, ...]:
    """Return the numbers that words mean, ascending and each once; a range includes its end where a step falls on it.

    Raises:
        BadInput: A word is neither a number nor a range, a range is empty, or there are too many steps.
    """
    values = sorted({value for word in words for value in _parse_range(flag, word, units)})
    if not values:
        raise BadInput(f"{flag} names no step.")
    if len(values) > MAX_STEPS:
        raise BadInput(f"{flag} means {len(values)} steps, which cannot be meant; {MAX_STEPS} are the most.")
    return tuple(float(value) for value in values)


def parse_whole_numbers(flag: str, words: Sequence[str], *, units: Sequence[str] = ()) -> tuple[int, ...]:
    """Return the whole numbers that words mean, ascending and each once."""
    values = parse_numbers(flag, words, units=units)
    broken = [value for value in values if value != int(value) or value < 1]
    if broken:
        raise BadInput(f"{flag} takes whole numbers of at least 1, not {broken[0]:g}.")
    return tuple(int(value) for value in values)


def parse_shares(flag: str, words: Sequence[str]) -> tuple[float, ...]:
    """Return the shares above 0 and up to 1 that words mean, as 10% or 0.1, ascending and each once."""
    values = parse_numbers(flag, words, units=("%",))
    wrong = [value for value in values if not 0 < value <= 1]
    if wrong:
        signed = any("%" in word for word in words)
        meant = f"; for {wrong[0]:g} percent write {wrong[0]:g}%" if not signed and 1 < wrong[0] <= 100 else ""
        wrong_value = f"{100 * wrong[0]:g} %" if signed else f"{wrong[0]:g}"
        raise BadInput(f"{flag} takes shares above 0 % and up to 100 %, not {wrong_value}{meant}.")
    return values


def _parse_range(flag: str, word: str, units: Sequence[str]) -> list[Fraction]:
    matches = [_NUMBER.fullmatch(part.strip()) for part in word.split(":")]
    allowed = {"", *(unit.lower() for unit in units)}
    numbers = [(Fraction(match[1]), match[2].lower()) for match in matches if match and match[2].lower() in allowed]
    if len(numbers) < len(matches):
        raise BadInput(f"{flag} {word} is no number, list or range of numbers; write 250,300 or 200:700:50.")
    percent = any(unit == "%" for _, unit in numbers)
    values = [value / 100 if percent else value for value, _ in numbers]
    if len(values) == 1:
        return values
    if len(values) != 3:
        raise BadInput(f"{flag} {word} is no range; write START:STOP:STEP, as 200:700:50.")
    start, stop, step = values
    if step <= 0:
        raise BadInput(f"{flag} {word}: the step of a range is larger than zero.")
    if stop < start:
        raise BadInput(f"{flag} {word} runs backwards; the order in which steps are measured is random.")
    count = int((stop - start) / step) + 1
    if count > MAX_STEPS:
        raise BadInput(f"{flag} {word} means {count} steps, which cannot be meant; {MAX_STEPS} are the most.")
    return [start + index * step for index in range(count)]


AS_FOUND = "as found"


def step_text(options: SweepOptions, setting: Scalar) -> str:
    """Write a step as a phase of the run: "limit 300 W", "clock 1200 MHz", "size 4096", "as found"."""
    return AS_FOUND if setting is None else f"{KNOBS[options.knob].short} {setting_text(options.knob, setting)}"


def setting_text(knob: Knob, setting: Scalar) -> str:
    """Write a setting with its unit: "300 W", "1200 MHz", "50 %", "4096", "bfloat16"."""
    if setting is None or isinstance(setting, str | bool):
        return AS_FOUND if setting is None else str(setting)
    number = 100 * setting if knob == "duty" else setting
    return f"{number:.10g} {KNOBS[knob].unit}".rstrip()


def setting_phrase(knob: Knob, setting: Scalar) -> str:
    """Write a setting as a place: "a limit of 300 W", "size 4096", "bfloat16"."""
    return AS_FOUND if setting is None else f"{KNOBS[knob].phrase}{setting_text(knob, setting)}"


def join_settings(knob: Knob, settings: Sequence[Scalar], among: Sequence[Scalar] = ()) -> str:
    """Write several settings: "250, 300 and 350 W"; runs of neighbours ``among`` all of them as "250 to 400 W"."""
    if not settings:
        return "none"
    indices = {setting: index for index, setting in enumerate(among)}
    runs: list[list[Scalar]] = []
    for setting in settings:
        if runs and setting in indices and indices[setting] == indices.get(runs[-1][-1], -2) + 1:
            runs[-1].append(setting)
        else:
            runs.append([setting])
    unit = KNOBS[knob].unit
    parts: list[str] = []
    for run in runs:
        words = [setting_text(knob, setting).removesuffix(f" {unit}") for setting in run]
        parts += [f"{words[0]} to {words[-1]}"] if len(run) > 2 else words
    return f"{format_list(parts)} {unit}".rstrip()


def axis_value(knob: Knob, setting: Scalar) -> float:
    """Return where a setting stands on its axis; a duty is shown in percent."""
    return (100.0 if knob == "duty" else 1.0) * float(str(setting))
